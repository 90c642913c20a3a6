"""Reads the logs of an ended job: whether they are complete, the metrics, and the cause of a failure."""

import re
from collections.abc import Set

from torchyard.common.local_errors import COLLECT_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis.hang.classes import has_exclusive_calls, list_waiting_ranks
from torchyard.diagnosis.hang.last_wait import describe_last_collective, describe_last_wait
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.job_status import describe_retries
from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.diagnosis.root_cause import TAIL_LINES, diagnose_failure
from torchyard.diagnosis.saved_work import describe_saved_work
from torchyard.diagnosis.separate_ranks import describe_separate_ranks
from torchyard.machines.job_watch import INCOMPLETE_COPY, SUPERVISOR_KILLED
from torchyard.metrics.registry import LINE_MARKERS, get_reader
from torchyard.model.causes.cause import Distance
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.memory import MemoryCause
from torchyard.model.causes.program import ProgramCause
from torchyard.model.causes.registry import LOG_RULES
from torchyard.model.checkpoint import Checkpoint
from torchyard.model.fabric import FabricReading, FabricVerdict
from torchyard.model.hang import Hang
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.run import MAX_CHECKPOINTS, Collected, Failure, LogFile, Metrics, Outcome, Row
from torchyard.steps.log_scan import LogScan
from torchyard.steps.log_tail import LogTails

_STOP_LINE = re.compile(r"Received \S{1,20} death signal, shutting down workers")  # of torchrun
_STOP_LINES = 100  # at most, that it prints from then on


@retry_step(COLLECT_TIMEOUT_S)
def collect(plan: Plan, outcome: Outcome) -> Collected:
    """The logs, the metrics, the network, the warnings and the failure of one attempt.

    Each log is read forward once (LogScan); a failure's last lines and those with a failure word are read again.
    """
    scan = _create_scan(plan, outcome)
    metrics = _read_metrics(plan, scan)
    warnings = _list_warnings(plan, outcome, metrics, scan)
    for warning in warnings:
        get_log().warning("%s", warning)
    logs = tuple(
        LogFile(node=name, path=path, lines=scan.line_counts[name], lost=outcome.lost.get(name, ""))
        for name, path in plan.logs.items()
    )
    checkpoints = _locate_checkpoints(plan, scan)
    is_success = outcome.status.state == "succeeded"
    failure = None if is_success else find_failure(plan, outcome, scan)
    if failure and isinstance(plan, CommandPlan):  # a pod's program has a disk of its own
        failure = blame_disk(failure, logs, {process.name for process in plan.processes if process.site})
    if failure:
        failure = _add_hang(failure, outcome.hang) if outcome.hang else _add_last_record(failure, scan.records)
    retries = outcome.status.retries
    if failure and retries and describe_retries(retries) not in failure.sentence:
        failure = failure.model_copy(update={"sentence": f"after {describe_retries(retries)} {failure.sentence}"})
    return Collected(
        logs=logs,
        metrics=metrics,
        warnings=warnings,
        failure=failure,
        checkpoints=checkpoints[-MAX_CHECKPOINTS:],
        saved_work=None if is_success else describe_saved_work(checkpoints, outcome.stop, outcome.ended_at),
        fabric=_evaluate_fabric(plan, outcome, scan.nccl.build_reading()),
    )


def _locate_checkpoints(plan: Plan, scan: LogScan) -> tuple[Checkpoint, ...]:
    """The checkpoints that the logs show, each with its path in the folder of checkpoints if that is copied."""
    checkpoints = scan.checkpoints.checkpoints
    if not isinstance(plan, CommandPlan) or not plan.sites:
        return checkpoints
    located: list[Checkpoint] = []
    for checkpoint in checkpoints:
        relative_paths = [checkpoint.path.partition(f"{site.checkpoints}/")[2] for site in plan.sites]
        relative_path = next(filter(None, relative_paths), None)
        located.append(checkpoint.model_copy(update={"relative_path": relative_path}))
    return tuple(located)


def _create_scan(plan: Plan, outcome: Outcome) -> LogScan:
    """The pass over the logs that this outcome needs."""
    is_diagnosed = _is_diagnosed_by_logs(outcome)
    with_records = is_diagnosed and not outcome.hang and plan.on_hang != "off"
    with_ends = outcome.status.state == "succeeded" and plan.on_hang != "off"
    return LogScan(plan, with_failures=is_diagnosed, with_records=with_records, with_ends=with_ends)


def _read_metrics(plan: Plan, scan: LogScan) -> Metrics:
    """Read the logs; return the metrics of rank 0."""
    if plan.metrics == "none":
        scan.read()
        return Metrics()
    marker = LINE_MARKERS.get(plan.metrics, b"") if isinstance(plan.metrics, str) else b""
    return get_reader(plan.metrics)(scan.read_rank_zero(marker))


def _list_warnings(plan: Plan, outcome: Outcome, metrics: Metrics, scan: LogScan) -> tuple[str, ...]:
    """The signs that the job did not do what was intended, one sentence each. `scan`: it has read the logs."""
    warnings = [
        _find_missing_metrics(plan, outcome, metrics),
        _find_single_rank(plan, metrics) or describe_separate_ranks(scan.ends),
    ]
    if outcome.bad_loss:
        warnings.append(outcome.bad_loss.sentence)
    return tuple(warning for warning in warnings if warning)


def _find_missing_metrics(plan: Plan, outcome: Outcome, metrics: Metrics) -> str | None:
    """The warning that no line of rank 0 had the format of the metrics; None if one had.

    None also for a job that failed: it may have ended before its first row, and its cause is reported.
    """
    if plan.metrics == "none" or metrics.rows or metrics.summary or outcome.status.state != "succeeded":
        return None
    return (
        f"metrics: {plan.metrics} has read nothing, because no line of rank 0 has this format: does the program print "
        "it, and on rank 0?"
    )


def _find_single_rank(plan: Plan, metrics: Metrics) -> str | None:
    """The warning that the program on several nodes reports a single rank; None if it does not."""
    values: Row = metrics.rows[-1] | metrics.summary if metrics.rows else metrics.summary
    if values.get("world_size", values.get("ranks")) != 1 or len(plan.nodes) == 1:
        return None
    return (
        f"the program reports 1 rank on {len(plan.nodes)} nodes, so each may have run alone: does it call "
        "init_process_group, and read RANK and WORLD_SIZE?"
    )


def _evaluate_fabric(plan: Plan, outcome: Outcome, reading: FabricReading) -> FabricVerdict | None:
    """The network that NCCL used; None if the plan expects none and no log has a line of NCCL about it.

    Agents on one machine count as one node.
    """
    machines = [outcome.machines.get(node) for node in plan.nodes]
    node_count = len(set(machines)) if all(machines) else len(machines)
    if not plan.expect and not reading.nodes:
        return None
    return evaluate_fabric(reading, plan.expect, node_count)


def _is_diagnosed_by_logs(outcome: Outcome) -> bool:
    """Whether the logs may show why the job failed: not if the cluster reports it, or torchyard itself ended the job.

    A job that was restarted until its deadline: the logs may show why its attempts failed.
    """
    if outcome.status.state in ("succeeded", "gone") or outcome.status.failure:
        return False
    return outcome.cause is None or _was_retried(outcome)


def _was_retried(outcome: Outcome) -> bool:
    """Whether the job was restarted until its deadline."""
    return outcome.cause in (LauncherCause.RUN_DEADLINE, LauncherCause.SILENCE) and outcome.status.retries > 0


def find_failure(plan: Plan, outcome: Outcome, scan: LogScan) -> Failure:
    """The root cause; if the launcher itself ended the job, the cluster's failure, or else the expired deadline.

    `scan`: it has read the logs.
    """
    logs = LogTails(plan.logs)
    failure = outcome.status.failure
    if failure:
        tail = failure.tail or _read_tail(logs, failure.node or "")  # a hang has its stack: the log shows only the stop
        return failure.model_copy(update={"tail": tail})
    if outcome.status.state == "gone":
        return Failure(cause=LauncherCause.GONE, sentence=outcome.status.reason)
    if not _is_diagnosed_by_logs(outcome):
        return _build_deadline_failure(logs, outcome)
    was_retried = _was_retried(outcome)
    longer_logs = LogTails(plan.logs, scan.failure_lines)
    diagnosed = diagnose_failure(logs, outcome.exit_codes, longer_logs, scan.records.get_last_collectives())
    is_known = diagnosed is not None and diagnosed.cause is not ProgramCause.UNKNOWN
    if was_retried and not is_known:
        return _build_deadline_failure(logs, outcome)
    if diagnosed and is_known:
        sentence = f"{outcome.status.reason}: {diagnosed.sentence}" if was_retried else diagnosed.sentence
        return diagnosed.model_copy(update={"sentence": sentence})
    unknown = diagnosed or Failure(cause=ProgramCause.UNKNOWN, sentence="")
    return unknown.model_copy(update={"sentence": f"{outcome.status.reason}, and no log shows the cause"})


def _build_deadline_failure(logs: LogTails, outcome: Outcome) -> Failure:
    """The expired deadline as the failure, with the last lines of the node that logged last, before the stop."""
    assert outcome.cause
    sentence = f"{outcome.status.reason}: {outcome.hang.sentence}" if outcome.hang else outcome.status.reason

    def read_last_time(node: str) -> float:
        last_lines = logs.last(node, 1)
        return last_lines[0].timestamp if last_lines else 0.0

    node = max(logs, key=read_last_time)
    return Failure(cause=outcome.cause, sentence=sentence, node=node, tail=_read_tail_before_stop(logs, node))


def _add_hang(failure: Failure, hang: Hang) -> Failure:
    """Add the hang to the failure of a rank that waited in it, such as one that timed out."""
    if failure.rank not in list_waiting_ranks(hang):
        return failure
    sentence = f"{failure.sentence.removesuffix('.')}; {hang.sentence}."
    retry = failure.retry and not has_exclusive_calls(hang.kind)
    return failure.model_copy(update={"sentence": sentence, "retry": retry})


def _add_last_record(failure: Failure, records: BlackBox) -> Failure:
    """Add to the sentence what the rank that failed first waited for, or after which collective it ended with 0."""
    if failure.rank is None:
        return failure
    if failure.cause is ProgramCause.ENDED_EARLY:
        clause = describe_last_collective(failure.rank, records.latest)
    else:
        clause = describe_last_wait(failure.rank, records.latest)
    if not clause:
        return failure
    return failure.model_copy(update={"sentence": f"{failure.sentence.removesuffix('.')}; {clause}."})


def _read_tail(logs: LogTails, node: str) -> tuple[str, ...]:
    return tuple(line.text for line in logs.last(node, TAIL_LINES)) if node in logs else ()


def _read_tail_before_stop(logs: LogTails, node: str) -> tuple[str, ...]:
    """A node's last lines, without what torchrun prints when it is stopped; all of them if it printed nothing else."""
    if node not in logs:
        return ()
    texts = [line.text for line in logs.last(node, TAIL_LINES + _STOP_LINES)]
    for index, text in enumerate(texts):
        if index and _STOP_LINE.search(text):
            texts = texts[:index]
            break
    return tuple(texts[-TAIL_LINES:])


def blame_disk(failure: Failure, logs: tuple[LogFile, ...], behind_ssh: Set[str] = frozenset()) -> Failure:
    """Replace the failure by a full disk if a program's last output was not written.

    No log then shows the cause, and the other ranks only lose a peer. A failure that a process reports about itself
    stays.
    """
    incomplete_log = _find_unwritten_log(logs)
    if incomplete_log is None:
        return failure
    if any(rule.cause is failure.cause and rule.distance is Distance.OWN for rule in LOG_RULES):
        return failure
    folder = "options.folder" if incomplete_log.node in behind_ssh else "TORCHYARD_RUNS"
    sentence = (
        f"{incomplete_log.node} could not write its output ({incomplete_log.lost}): free some space, or move {folder}"
    )
    return failure.model_copy(update={"cause": MemoryCause.DISK_FULL, "sentence": sentence, "retry": False})


def _find_unwritten_log(logs: tuple[LogFile, ...]) -> LogFile | None:
    """The first log whose lines could not be written on its host; None if there is none.

    Lines that are missing because the copy or the supervisor ended early show nothing about a disk.
    """
    for log in logs:
        if log.lost and not log.lost.startswith((INCOMPLETE_COPY, SUPERVISOR_KILLED)):
            return log
    return None
