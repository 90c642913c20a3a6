"""What the logs of an ended job hold: whether they are whole, the metrics, and why it failed."""

from collections.abc import Set

from torchyard.common.own_trouble import retry_own_trouble
from torchyard.diagnosis.log_patterns import CAUSES, ECHO_OWN, UNKNOWN_CAUSE
from torchyard.diagnosis.root_cause import TAIL_LINES, read_failure
from torchyard.machines.job_watch import TORN_LOG
from torchyard.metrics.registry import MARKS, READERS
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Collected, Failure, LogFile, Metrics, Outcome
from torchyard.steps.log_reader import read_rank_zero
from torchyard.steps.log_tail import LogTails, count_lines


@retry_own_trouble
def collect(plan: Plan, outcome: Outcome, metrics: MetricsFormat) -> Collected:
    """The logs, the metrics and the failure of one attempt."""
    logs = tuple(_describe_log(name, path, outcome.lost.get(name, "")) for name, path in plan.logs.items())
    failure = None if outcome.status.state == "succeeded" else _find_failure(plan, outcome)
    if failure and isinstance(plan, CommandPlan):  # a pod's program has a disk of its own
        failure = _blame_disk(failure, logs, {block.name for block in plan.on if block.site})
    return Collected(logs=logs, metrics=_read_metrics(plan, metrics), failure=failure)


def _read_metrics(plan: Plan, format: MetricsFormat) -> Metrics:
    return READERS[format](read_rank_zero(plan, MARKS.get(format, b"")) if format != "none" else ())


def _describe_log(node: str, path: str, lost: str) -> LogFile:
    """One node's log, counted, and what it lacks."""
    return LogFile(node=node, path=path, lines=count_lines(path), lost=lost)


def _find_failure(plan: Plan, outcome: Outcome) -> Failure:
    """The root cause; where the launcher itself ended the job, what the cluster says of it, or else the deadline."""
    logs = LogTails(plan.logs)
    known = outcome.status.failure
    if known:
        return known.model_copy(update={"tail": _read_last_words(logs, known.node or "")})
    if outcome.cause:
        node = max(logs, key=lambda name: max((line.at for line in logs.last(name, 1)), default=0.0))
        return Failure(
            cause=outcome.cause, sentence=outcome.status.reason, node=node, tail=_read_last_words(logs, node)
        )
    if outcome.status.state == "gone":
        return Failure(cause="gone", sentence=outcome.status.reason)
    found = read_failure(logs, outcome.exits)
    if found is None or found.cause == UNKNOWN_CAUSE.slug:
        unknown = found or Failure(cause=UNKNOWN_CAUSE.slug, sentence="")
        return unknown.model_copy(update={"sentence": f"{outcome.status.reason}, and no log says why"})
    return found


def _read_last_words(logs: LogTails, node: str) -> tuple[str, ...]:
    return tuple(line.text for line in logs.last(node, TAIL_LINES)) if node in logs else ()


def _blame_disk(failure: Failure, logs: tuple[LogFile, ...], behind_ssh: Set[str] = frozenset()) -> Failure:
    """A program whose last words found no room on the disk cannot say why it failed, and its peers only lose it.

    What a process clearly says of itself still counts.
    """
    cut = next((each for each in logs if each.lost and not each.lost.startswith(TORN_LOG)), None)
    if cut is None or any(cause.slug == failure.cause and cause.echo == ECHO_OWN for cause in CAUSES):
        return failure
    folder = "options.folder" if cut.node in behind_ssh else "TORCHYARD_RUNS"
    sentence = f"{cut.node} could not write its output ({cut.lost}): free some room, or move {folder}"
    return failure.model_copy(update={"cause": "disk-full", "sentence": sentence, "retry": False})
