"""What the logs of an ended job hold: whether they are whole, the metrics, and why it failed."""

from collections import deque
from collections.abc import Set
from pathlib import Path

from tasks import shell
from tasks.causes import CAUSES, OWN, UNKNOWN
from tasks.failure import read_failure
from tasks.logs import rank_zero, read_log
from tasks.metrics import READERS
from tasks.model import Collected, Failure, LogFile, LogLine, Metrics, Outcome
from tasks.plan import CommandPlan, Plan
from tasks.spec import MetricsFormat
from tasks.step import step
from tasks.streams import TORN

KEPT = 5000  # lines a node, the last ones: what a failure's cause is looked for in


@step
def collect(plan: Plan, outcome: Outcome, metrics: MetricsFormat) -> Collected:
    """The logs, the metrics and the failure of one attempt."""
    logs = tuple(log_file(name, path, outcome.lost.get(name, "")) for name, path in plan.logs.items())
    failure = None if outcome.status.state == "succeeded" else find_failure(plan, outcome)
    if failure and isinstance(plan, CommandPlan):  # a pod's program has a disk of its own
        failure = blame_disk(failure, logs, {block.name for block in plan.on if block.site})
    return Collected(logs=logs, metrics=read_metrics(plan, metrics), failure=failure)


def read_metrics(plan: Plan, format: MetricsFormat) -> Metrics:
    return READERS[format](line.text for line in rank_zero(plan))


def log_file(node: str, path: str, lost: str) -> LogFile:
    """One node's log, counted, and what it lacks."""
    return LogFile(node=node, path=path, lines=sum(1 for _ in shell.follow(Path(path), 0)), lost=lost)


def find_failure(plan: Plan, outcome: Outcome) -> Failure:
    """The root cause; where the launcher itself ended the job, what the cluster says of it, or else the deadline."""
    logs: dict[str, deque[LogLine]] = {name: deque(read_log(name, path), KEPT) for name, path in plan.logs.items()}
    known = outcome.status.failure
    if known:
        return known.model_copy(update={"tail": tuple(line.text for line in logs.get(known.node or "", ()))[-50:]})
    if outcome.cause:
        node = max(logs, key=lambda name: logs[name][-1].at if logs[name] else 0.0)
        tail = tuple(line.text for line in logs[node])[-50:]
        return Failure(cause=outcome.cause, sentence=outcome.status.reason, node=node, tail=tail)
    if outcome.status.state == "gone":
        return Failure(cause="gone", sentence=outcome.status.reason)
    found = read_failure({name: list(lines) for name, lines in logs.items()}, outcome.exits)
    if found is None or found.cause == UNKNOWN.slug:
        unknown = found or Failure(cause=UNKNOWN.slug, sentence="")
        return unknown.model_copy(update={"sentence": f"{outcome.status.reason}, and no log says why"})
    return found


def blame_disk(failure: Failure, logs: tuple[LogFile, ...], behind_ssh: Set[str] = frozenset()) -> Failure:
    """A program whose last words found no room on the disk cannot say why it failed, and its peers only lose it.

    What a process clearly says of itself still counts.
    """
    cut = next((each for each in logs if each.lost and not each.lost.startswith(TORN)), None)
    if cut is None or any(cause.slug == failure.cause and cause.echo == OWN for cause in CAUSES):
        return failure
    folder = "options.folder" if cut.node in behind_ssh else "TORCHYARD_RUNS"
    sentence = f"{cut.node} could not write its output ({cut.lost}): free some room, or move {folder}"
    return failure.model_copy(update={"cause": "disk-full", "sentence": sentence, "retry": False})
