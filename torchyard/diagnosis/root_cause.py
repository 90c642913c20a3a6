"""Why a job failed: the process that failed first, and the line of its log that proves why."""

import math
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

from torchyard.common.text import format_ranks
from torchyard.diagnosis.collective_timeout import RankLine, explain_timeout
from torchyard.diagnosis.evidence import extract_details, quote_match
from torchyard.diagnosis.log_line_parts import LogLinePart, is_harmless, parse_lines
from torchyard.diagnosis.pod_facts import normalize_exit_code
from torchyard.diagnosis.symptoms import (
    RULES_BY_DISTANCE,
    ProcessSymptoms,
    ProcessTimes,
    Symptom,
    find_last_progress,
)
from torchyard.diagnosis.tracebacks import find_raising_frame
from torchyard.diagnosis.worker_reports import AgentReport, WorkerReport, read_agent_report
from torchyard.model.causes.cause import Distance, LogRule
from torchyard.model.causes.fabric import VAGUE_TIMEOUT, FabricCause
from torchyard.model.causes.gpu import GpuCause
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.program import (
    CHILD_EXITED,
    DATA_WORKER_LOST,
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    PROGRAM_SILENT_EXIT,
    RANKS_ENDED_EARLY,
    UNKNOWN_CAUSE,
    ProgramCause,
)
from torchyard.model.causes.registry import LOG_RULES
from torchyard.model.causes.rendezvous import STORE_ENDED, RendezvousCause
from torchyard.model.causes.start import StartCause
from torchyard.model.run import Failure, LogLine

_STORE_NAME = "etcd"  # a process of this name is the rendezvous store, not an agent
TAIL_LINES = 50  # of the failing process, for the report
_CLOCK_SKEW_S = 5.0  # clocks differ between nodes, and torchrun's tee delays lines
_TIMEOUTS = (FabricCause.NCCL_TIMEOUT, RendezvousCause.PEER_TIMEOUT)  # of a collective
# These decide the cause alone: a process that was killed could not log why.
_DECISIVE_EXIT_CODES = frozenset({-9, -11, -7, -4, -8, 126, 127})
_UNCAUGHT_EXCEPTION_CODE = 1  # with which Python ends
_SIGTERM_CODE = -15
_SIGABRT_CODE = -6
_STOP_CODES = frozenset({_SIGTERM_CODE, -2, -1, -3})  # the process was stopped: what it logged before was not its end
_SIGNAL_NAMES: dict[int | None, str] = {-number: number.name for number in signal.Signals}
_MAX_NAMED_RANKS = 8
_GPU_FAULTS = frozenset({GpuCause.GPU_FAULT, GpuCause.NVLINK_FAULT, GpuCause.GPU_XID})  # they cause errors of CUDA
_GENERAL_NCCL_CAUSES = frozenset({FabricCause.NCCL_ERROR, FabricCause.NCCL_SYSTEM_ERROR, FabricCause.NCCL_CUDA_ERROR})
_FAILED_STARTS = frozenset(  # of a process, by its last words
    {
        StartCause.SHELL_SYNTAX,
        StartCause.PROGRAM_MISSING,
        StartCause.NOT_EXECUTABLE,
        StartCause.COMMAND_NOT_FOUND,
        StartCause.MODULE_MISSING,
        StartCause.LIBRARY_MISSING,
        StartCause.PERMISSION_DENIED,
        StartCause.USAGE,
    }
)
_LAST_WORDS_LINES = 20  # of a rank that ended with 0
_NCCL_WARNING_LINES = 100  # before an exception that reports NCCL's error
_LATE_WARNING_LINES = 20  # after it, where several processes print into one log
_LAST_NCCL_ERROR = "Last error:"
_NCCL_MESSAGE_LINES = 6  # after its first line

# By a process, about itself, or by a launcher: composer, Open MPI and Intel MPI.
_RANK_IN_LINE = re.compile(
    r"\[(?:PG [^\]]{0,80} )?[Rr]ank:? ?(?P<bracketed>\d{1,6})\]|\bon rank:? ?(?P<bare>\d{1,6})\b"
    r"|\b(?:[Rr]ank|RANK) (?P<reported>\d{1,6}) (?:crashed with|died from|with PID|PID|\(PID) "
    r"|\[(?P<setup>\d{1,6})\] is setting up NCCL communicator|\bRank (?P<running>\d{1,6}) is running .{0,20}collective"
    r"|\(rank (?P<aborted>\d{1,6}) in comm \d"
    r"|\bRankID:(?P<npu>\d{1,6})\b|Error: Rank (?P<raised>\d{1,6}): "
)
# torch.multiprocessing, about a process of its node.
_SPAWNED_PROCESS = re.compile(r"\bprocess (?P<local>\d{1,3}) terminated with (?:signal|exit code) ")
_SIGNAL_RECEIVED = re.compile(r"traceback : Signal \d{1,2} \(\w{1,20}\) received by PID (?P<pid>\d{1,9})")
_ENDPOINT = re.compile(r"\([\w.:-]{1,200}, \d{1,5}\)")  # as torch prints it: (host-0, 29500)
_NCCL_LINE = re.compile("NCCL WARN")
_NCCL_WARNING = re.compile(r"NCCL WARN (.{3,1000})")
_NCCL_EXCEPTION = re.compile(r"NCCL [Ee]rror|nccl\w{2,30}Error|DistBackendError")
# An exception that only reports the failure of something else, which has logged its own before.
_REPORTING_EXCEPTION = re.compile(
    r"(?i)\b(?:see|check)\b.{0,60}\b(?:above|root cause|logs?)\b|\b(?:workers?|engine(?: ?core)?|child(?:ren)?|actors?"
    r"|threads?|subprocess|training|launch|job)\b[^:]{0,60}\b(?:failed|died|exited|crashed|dead|aborted)|\bCalledProcessError\b"
    r"|\bworkers returned results while\b|\bRayTaskError\(\w{1,80}\): .{0,40}\bray::"
)


class _Suspect(NamedTuple):
    """A process that may have failed first: a rank, or else an agent.

    last_line_at: when it logged its last line, in seconds since the epoch; 0 if it logged none.
    report: torchrun's; None for an agent, and for a worker that torchrun does not report as failed.
    is_stopped: its agent stopped it, because something else had failed.
    has_own_lines: `lines` are of this process alone, not of all of its node.
    has_workers: an agent whose workers failed.
    is_shared: several processes have printed `lines`.
    global_ranks: those of its node by local rank, as far as they are known.
    common_lines: of a worker that ended by itself: those of its node that name no process, of which some may be its.
    """

    node: str
    rank: int | None
    exit_code: int | None
    last_line_at: float
    lines: Sequence[LogLinePart]
    report: WorkerReport | None = None
    is_stopped: bool = False
    has_own_lines: bool = False
    has_workers: bool = False
    is_shared: bool = False
    times: ProcessTimes = ProcessTimes()
    global_ranks: Mapping[int | None, int] = MappingProxyType({})
    common_lines: Sequence[LogLinePart] = ()


class _Finding(NamedTuple):
    """A rule that shows a cause, the process, and the line that proves it; None if only an exit code does.

    distance: that of the rule, unless the process is known to be nearer to the origin.
    is_aside: it is an exception after which the program could go on.
    earlier: a line that the process logged before and that is not the cause.
    ranks: all ranks with this finding, if there are several on one node.
    """

    rule: LogRule
    suspect: _Suspect
    timestamp: float
    evidence: LogLinePart | None
    distance: Distance
    has_traceback: bool = False
    is_aside: bool = False
    earlier: LogLinePart | None = None
    ranks: tuple[int, ...] = ()


def diagnose_failure(
    logs: Mapping[str, Sequence[LogLine]],
    exit_codes: Mapping[str, int | None],
    longer_logs: Mapping[str, Sequence[LogLine]] | None = None,
    last_collectives: Mapping[int, float] | None = None,
) -> Failure | None:
    """Return the first failure of a job; None if every agent exited with 0.

    `exit_codes` are the agents' (negative: a signal; None: running, or unknown). Worker lines have the prefix of
    torchrun's `--tee`; without it a node's lines are read as one stream, and the rank may stay unknown.
    `longer_logs`: the same logs with earlier lines, read only if `logs` show no more than that a process lost a peer,
    waited or was stopped.
    `last_collectives`: when a rank last called or completed a collective, in seconds since the epoch by its node's
    clock; without the ranks of which that is not known.
    """
    agents = {node: exit_codes.get(node) for node in (*exit_codes, *logs) if node != _STORE_NAME}
    # A store that has ended is suspected whatever its exit code is: it did so before the agents.
    has_store_ended = exit_codes.get(_STORE_NAME) is not None
    if all(code == 0 for code in agents.values()) and (agents or not has_store_ended):
        return None
    nodes = [*agents, _STORE_NAME] if has_store_ended else list(agents)
    parts_by_node = {node: parse_lines(logs.get(node, ())) for node in nodes}
    reports = {node: read_agent_report(parts_by_node[node]) for node in agents}

    suspects: list[_Suspect] = []
    for node, exit_code in agents.items():
        if exit_code != 0:
            for task_parts in _group_by_task(parts_by_node[node]):
                is_whole_node = len(task_parts) == len(parts_by_node[node])
                suspects += _list_suspects(
                    node,
                    exit_code,
                    task_parts,
                    reports[node] if is_whole_node else read_agent_report(task_parts),
                    is_whole_job=is_whole_node and len(agents) == 1,
                )
    if last_collectives:
        suspects = [_add_last_collective(suspect, last_collectives) for suspect in suspects]
    store_finding = None
    if has_store_ended:
        store_finding = _diagnose_store(parts_by_node[_STORE_NAME], exit_codes[_STORE_NAME])
    finding = _find_root_cause(suspects, store_finding)
    finding = _find_early_end(finding, agents, parts_by_node, reports) or finding
    if longer_logs is not None and finding.distance >= Distance.PEER:
        return diagnose_failure(longer_logs, exit_codes, last_collectives=last_collectives)
    return _build_failure(finding, parts_by_node)


class ProcessCause(NamedTuple):
    """What one process shows about its failure.

    distance: how far that usually is from the origin of the job's failure.
    evidence: the line that proves it; None if only an exit code does.
    """

    distance: Distance
    evidence: LogLinePart | None


def diagnose_process(
    node: str,
    lines: Sequence[LogLinePart],
    exit_code: int | None,
    exit_line: LogLinePart | None = None,
    *,
    started_at: float = 0.0,
    is_shared: bool = False,
) -> ProcessCause | None:
    """What one process shows about its failure, before its job has ended; None if it shows nothing.

    exit_code: negative: a signal; None: it is not known to have ended.
    exit_line: torchrun's line with the exit code of a worker; None for a process that is not a worker.
    started_at, is_shared: as for ProcessSymptoms.
    """
    report = None
    if exit_line and exit_code is not None:
        report = WorkerReport(
            rank=None,
            local_rank=0,
            exit_code=exit_code,
            pid=0,
            failed_at="",
            exit_line=exit_line,
            traceback=[],
            is_first=True,
        )
    suspect = _Suspect(
        node=node,
        rank=None,
        exit_code=exit_code,
        last_line_at=lines[-1].timestamp if lines else 0.0,
        lines=lines,
        report=report,
        has_own_lines=not is_shared,
        is_shared=is_shared,
        times=ProcessTimes(started=started_at),
    )
    finding = _diagnose_suspect(suspect)
    return ProcessCause(finding.distance, finding.evidence) if finding else None


# --- the processes of a node


def _group_by_task(lines: Sequence[LogLinePart]) -> list[list[LogLinePart]]:
    """The lines of each agent, if srun or mpirun has started several whose lines are in one log; else all lines."""
    lines_by_task: dict[int | None, list[LogLinePart]] = defaultdict(list)
    for line in lines:
        lines_by_task[line.task].append(line)
    return list(lines_by_task.values()) or [[]]


def _list_suspects(
    node: str, exit_code: int | None, lines: Sequence[LogLinePart], report: AgentReport, *, is_whole_job: bool
) -> Iterator[_Suspect]:
    """The ranks of an agent that logged something or were lost, and last the agent, whose exit code is `exit_code`.

    is_whole_job: there is no other agent.
    """
    global_ranks = report.global_ranks
    # Without any report of torchrun: one that is cut off may be that of several nodes.
    if not global_ranks and is_whole_job and (report.is_complete or not report.workers):
        global_ranks = {rank: rank for rank in range(64)}
    workers = report.workers
    worker_pids = {worker.pid for worker in workers}
    has_tee = any(line.local_rank is not None for line in lines)  # then each line of a worker has its local rank
    streams: dict[tuple[int | None, int | None], list[LogLinePart]] = defaultdict(list)
    for line in lines:
        streams[line.local_rank, None if has_tee else line.rank].append(line)
    agent_lines = streams.pop((None, None), [])
    is_shared = not streams and (len(global_ranks) > 1 or len(workers) > 1)
    progress_times = {key: find_last_progress(stream) for key, stream in streams.items()}

    for (local_rank, rank), stream in streams.items():
        worker = _find_worker(workers, local_rank, rank, is_single_stream=len(streams) == 1)
        workers = [other for other in workers if other is not worker]
        peers_progress = [time for key, time in progress_times.items() if key != (local_rank, rank)]
        global_rank = _find_global_rank(stream, local_rank, worker, report.global_ranks)
        is_stopped = worker is not None and report.is_stopped(worker)
        yield _Suspect(
            node=node,
            rank=global_ranks.get(local_rank) if global_rank is None else global_rank,
            exit_code=worker.exit_code if worker else None,
            last_line_at=stream[-1].timestamp,
            lines=stream,
            report=worker,
            is_stopped=is_stopped,
            has_own_lines=True,
            times=_build_worker_times(report, worker, peers_progress),
            common_lines=() if has_tee or worker is None or is_stopped else agent_lines,
        )
    for worker in workers:  # without a line of their own
        yield _Suspect(
            node=node,
            rank=None if report.is_cut_off else worker.rank,
            exit_code=worker.exit_code,
            last_line_at=0.0,
            lines=[] if streams else _drop_signals(lines, worker_pids - {worker.pid}),
            report=worker,
            is_stopped=report.is_stopped(worker),
            has_own_lines=bool(streams),
            is_shared=is_shared,
            times=_build_worker_times(report, worker, progress_times.values()),
            global_ranks=global_ranks,
            common_lines=() if has_tee or not streams or report.is_stopped(worker) else agent_lines,
        )
    yield _Suspect(
        node=node,
        rank=None,
        exit_code=exit_code,
        last_line_at=agent_lines[-1].timestamp if agent_lines else 0.0,
        lines=_drop_signals(agent_lines, worker_pids),
        has_workers=bool(report.workers),
        is_shared=is_shared,
        times=ProcessTimes(started=report.started_at, others_progress=max(progress_times.values(), default=0.0)),
        global_ranks=global_ranks,
    )


def _drop_signals(lines: Sequence[LogLinePart], pids: Set[int]) -> list[LogLinePart]:
    """The lines without those in which torchrun reports the signal that ended one of these processes."""
    return [line for line in lines if _parse_signalled_pid(line) not in pids]


def _parse_signalled_pid(line: LogLinePart) -> int | None:
    """The process of which torchrun reports, in the item of a worker, that a signal ended it; None for other lines."""
    match = _SIGNAL_RECEIVED.search(line.text)
    return int(match["pid"]) if match else None


def _build_worker_times(
    report: AgentReport, worker: WorkerReport | None, peers_progress: Iterable[float]
) -> ProcessTimes:
    """What is known of a worker's times. `worker`: torchrun's report on it; `peers_progress`: of the others."""
    return ProcessTimes(
        started=report.started_at,
        ended=worker.get_failure_time() if worker else 0.0,
        peers_progress=max(peers_progress, default=0.0),
    )


def _add_last_collective(suspect: _Suspect, last_collectives: Mapping[int, float]) -> _Suspect:
    """The suspect with the time of its last collective, if it is a rank of which that is known."""
    if suspect.rank is None:
        return suspect
    times = suspect.times._replace(last_collective=last_collectives.get(suspect.rank, 0.0))
    return suspect._replace(times=times)


def _find_worker(
    workers: Sequence[WorkerReport], local_rank: int | None, rank: int | None, *, is_single_stream: bool
) -> WorkerReport | None:
    """torchrun's report on the worker of a stream, found by its local rank or else its rank; None if it has none.

    The only report belongs to the only stream if it does not name another rank.
    """
    for worker in workers:
        if worker.local_rank == local_rank or (local_rank is None and worker.rank == rank):
            return worker
    if is_single_stream and len(workers) == 1 and workers[0].rank in (None, rank):
        return workers[0]
    return None


def _find_global_rank(
    stream: Iterable[LogLinePart], local_rank: int | None, worker: WorkerReport | None, ranks: Mapping[int | None, int]
) -> int | None:
    """The rank of a stream, as torchrun reports it or else its own first prefix that names one; None if none does.

    A program's prefix may be wrong: Lightning prints `[rank: 0]` in every rank until its strategy is set up.
    """
    if worker and worker.rank is not None:
        return worker.rank
    if local_rank in ranks:
        return ranks[local_rank]
    for line in stream:
        if line.rank is not None:
            return line.rank
    return None


# --- the cause of one process


def _diagnose_suspect(suspect: _Suspect) -> _Finding | None:
    """What this process itself shows; None if it shows nothing.

    In this order: a signal, its last exception, a line that shows a cause, the same in lines that may be another
    process's, its exit code.
    """
    lines = _list_printed_lines(suspect)
    symptoms = ProcessSymptoms(lines, suspect.times, is_shared=suspect.is_shared)
    finding = _diagnose_symptoms(suspect, symptoms)
    if finding is None and suspect.common_lines:
        common = suspect._replace(lines=suspect.common_lines, has_own_lines=False, is_shared=True)
        symptoms = ProcessSymptoms(common.lines, common.times, is_shared=True)
        finding = _diagnose_symptoms(common, symptoms)
    finding = finding or _diagnose_exit(suspect, lines)
    if finding is None:
        return None
    is_own_abort = finding.rule.cause is ProgramCause.ABORT and suspect.report is not None
    if is_own_abort and normalize_exit_code(suspect.exit_code) == _SIGABRT_CODE:
        # If it had aborted because it lost a peer, its message would be nearer. Its agent never ends it by SIGABRT.
        finding = finding._replace(distance=Distance.EXIT)
    return finding._replace(earlier=_find_earlier_line(finding, symptoms))


def _diagnose_symptoms(suspect: _Suspect, symptoms: ProcessSymptoms) -> _Finding | None:
    """What the lines of a process show, with regard to its exit code; None if they show nothing."""
    exit_code = normalize_exit_code(suspect.exit_code)
    exceptions = symptoms.exceptions
    bare_lines = symptoms.lines
    was_stopped = exit_code in _STOP_CODES or symptoms.was_stopped()
    has_ended_itself = any(symptom.rule is CHILD_EXITED for symptom in bare_lines)
    if exit_code in _DECISIVE_EXIT_CODES and not has_ended_itself:
        exceptions = []
        bare_lines = [symptom for symptom in bare_lines if symptom.rule.explains_signal]
    elif was_stopped or suspect.has_workers:
        # It did not end by itself: only what made it wait, or a traceback after which it did nothing, is a cause.
        bare_lines = [
            symptom for symptom in bare_lines if symptom.rule.explains_signal or symptom.rule.distance > Distance.OWN
        ]
        exceptions = [symptom for symptom in exceptions if symptom.has_traceback]
    if was_stopped:
        exceptions = [symptom for symptom in exceptions if symptoms.is_last_word(symptom)]
    return _choose_symptom(suspect, exceptions, bare_lines, symptoms.warnings)


def _diagnose_exit(suspect: _Suspect, lines: Sequence[LogLinePart]) -> _Finding | None:
    """What the exit code of a process shows; None if it shows nothing. `lines`: its own, with torchrun's traceback."""
    report = suspect.report
    exit_code = normalize_exit_code(suspect.exit_code)
    exit_rule = _find_exit_rule(exit_code, is_worker=report is not None)
    if exit_rule:
        exit_line = _find_exit_evidence(exit_rule, suspect, lines)
        is_own_end = exit_code in _STOP_CODES and report is not None and not suspect.is_stopped
        distance = Distance.EXIT if is_own_end else exit_rule.distance
        return _Finding(exit_rule, suspect, suspect.last_line_at, exit_line, distance)
    if report is None:
        return None
    is_own_end = (exit_code or 0) > 0 and not suspect.is_stopped
    is_silent = suspect.has_own_lines and not any(line.text.strip() for line in suspect.lines)
    rule = PROGRAM_SILENT_EXIT if is_silent else PROGRAM_EXIT
    distance = Distance.EXIT if is_own_end else Distance.STOPPED
    return _Finding(rule, suspect, suspect.last_line_at, report.exit_line, distance)


def _choose_symptom(
    suspect: _Suspect, exceptions: Sequence[Symptom], bare_lines: Sequence[Symptom], warnings: Sequence[Symptom]
) -> _Finding | None:
    """The finding of the last exception of a process, or the nearest one of a whole node's; None if there is neither.

    An exception after which the program could go on counts if there is no other one, or if it is nearer to the origin.
    A line that is nearer to the origin precedes it. So does NCCL's own line an exception that reports NCCL's error, a
    warning about the endpoint to which a connection failed, a line about a fault of the GPU an error of CUDA, what a
    data worker printed before it ended the exception about that, and a line about a kill, a lost worker or a program
    that could not start an exception that only reports the end of another process.
    """
    exception: Symptom | None = None
    candidates: list[Symptom] = []
    if exceptions:
        main_exceptions = [symptom for symptom in exceptions if not symptom.is_aside] or exceptions
        exception = main_exceptions[-1] if suspect.has_own_lines else _choose_first(main_exceptions)
        if _REPORTING_EXCEPTION.search(exception.evidence.text):
            exception = min(_drop_reports(exceptions) or exceptions, key=_symptom_priority)
            candidates += [line for line in bare_lines if _explains_end(line.rule)]
    if exception is None:
        best_line = min(bare_lines, key=_symptom_priority, default=None)
        if best_line is None:
            return None
        about_endpoint = _list_warnings_about_endpoint(best_line, warnings)
        return _build_finding(suspect, min([best_line, *about_endpoint], key=_symptom_priority))
    if exception.rule is DATA_WORKER_LOST:
        candidates += [line for line in bare_lines if line.rule.distance == Distance.OWN and line.end < exception.end]
    if exception.rule.cause is GpuCause.CUDA_ERROR:
        candidates += [line for line in bare_lines if line.rule.cause in _GPU_FAULTS]
    if exception.rule.distance > Distance.OWN:
        candidates += [line for line in bare_lines if line.rule.distance <= exception.rule.distance]
        candidates += [aside for aside in exceptions if aside.is_aside and aside.rule.distance == Distance.OWN]
        candidates += _list_warnings_about_endpoint(exception, warnings)
    if _NCCL_EXCEPTION.search(exception.evidence.text):
        candidates += [line for line in bare_lines if _NCCL_LINE.search(line.evidence.text)]
    return _build_finding(suspect, min([exception, *candidates], key=_symptom_priority))


def _choose_first(exceptions: Sequence[Symptom]) -> Symptom:
    """The nearest and then the first exception of a log that several processes share.

    Of one that is printed twice, it is the line that names its rank: a process may log its exception before the one
    that started it reports it.
    """
    first = min(exceptions, key=_symptom_distance)
    for symptom in exceptions:
        evidence = symptom.evidence
        is_named = evidence.local_rank is not None or evidence.rank is not None
        if is_named and evidence.text == first.evidence.text:
            return symptom
    return first


def _drop_reports(exceptions: Iterable[Symptom]) -> list[Symptom]:
    """The exceptions that show a cause, or that do not only report the failure of something else."""
    return [
        symptom
        for symptom in exceptions
        if symptom.rule is not PROGRAM_ERROR or not _REPORTING_EXCEPTION.search(symptom.evidence.text)
    ]


def _explains_end(rule: LogRule) -> bool:
    """Whether a rule is about a signal that ends a process, a lost worker, or a program that could not start."""
    return _is_about_signal(rule) or rule.cause is PlatformCause.WORKER_LOST or rule.cause in _FAILED_STARTS


def _is_about_signal(rule: LogRule) -> bool:
    return rule.explains_signal or any(code < 0 for code in rule.worker_codes)


def _list_warnings_about_endpoint(symptom: Symptom, warnings: Iterable[Symptom]) -> list[Symptom]:
    """The warnings that explain why a connection to the endpoint that a symptom names has failed."""
    endpoint = _ENDPOINT.search(symptom.evidence.text)
    if endpoint is None or symptom.rule.distance == Distance.OWN:
        return []
    return [
        warning
        for warning in warnings
        if endpoint[0] in warning.evidence.text and warning.rule.distance == symptom.rule.distance
    ]


def _build_finding(suspect: _Suspect, symptom: Symptom) -> _Finding:
    return _Finding(
        symptom.rule,
        suspect,
        symptom.evidence.timestamp,
        symptom.evidence,
        symptom.rule.distance,
        has_traceback=symptom.has_traceback,
        is_aside=symptom.is_aside,
    )


def _symptom_distance(symptom: Symptom) -> Distance:
    return symptom.rule.distance


def _symptom_priority(symptom: Symptom) -> int:
    """The order of the rules: the nearest first, and the more specific one of two; any rule before an exception's."""
    for index, rule in enumerate(RULES_BY_DISTANCE):
        if rule is symptom.rule:
            return index
    return sum(rule.distance <= symptom.rule.distance for rule in RULES_BY_DISTANCE)


def _find_earlier_line(finding: _Finding, symptoms: ProcessSymptoms) -> LogLinePart | None:
    """The last line of a process that shows another cause, if the finding is a signal, a timeout or an exit code.

    None if there is none.
    """
    is_by_exit = finding.distance > Distance.OWN or bool(finding.rule.worker_codes)
    if not is_by_exit:
        return None
    candidates = [*symptoms.exceptions, *symptoms.lines, *symptoms.survived]
    own = [symptom for symptom in candidates if symptom.rule.distance == Distance.OWN]
    shown = next((symptom for symptom in candidates if symptom.evidence is finding.evidence), None)
    if shown:
        own = [symptom for symptom in own if symptom.end <= shown.end]
    last = max(own, key=lambda symptom: symptom.end, default=None)
    if last is None or last.evidence is finding.evidence:
        return None
    # An exception of the program, after which it went on, is worth a word although both causes are the program's.
    is_repeated = last.rule.cause is finding.rule.cause and finding.rule is not PROGRAM_EXIT
    return None if is_repeated else last.evidence


def _find_exit_rule(exit_code: int | None, *, is_worker: bool) -> LogRule | None:
    """The rule of an exit code of a worker, or of an agent; None if there is none."""
    for rule in LOG_RULES:
        if exit_code in (rule.worker_codes if is_worker else rule.agent_codes):
            return rule
    return None


def _find_exit_evidence(rule: LogRule, suspect: _Suspect, lines: Sequence[LogLinePart]) -> LogLinePart | None:
    """The line that shows what the exit code means, else torchrun's line about it, else a shell's last line.

    None if there is none of them, as after a signal without a report.
    """
    if rule.pattern:
        for line in reversed(lines):
            if rule.pattern.search(line.text) and not is_harmless(line.text):
                return line
    if suspect.report:
        return suspect.report.exit_line
    if (suspect.exit_code or 0) > 0:
        for line in reversed(lines):
            if line.text.strip():
                return line
    return None


def _diagnose_store(lines: Sequence[LogLinePart], exit_code: int | None) -> _Finding:
    """Why the rendezvous store ended before the job: its own reason, or only that it did."""
    suspect = _Suspect(_STORE_NAME, None, exit_code, lines[-1].timestamp if lines else 0.0, lines)
    symptoms = ProcessSymptoms(lines, ProcessTimes(), is_shared=False)
    own = [symptom for symptom in symptoms.lines if symptom.rule.distance == Distance.OWN]
    if own:
        return _build_finding(suspect, min(own, key=_symptom_priority))
    return _Finding(STORE_ENDED, suspect, suspect.last_line_at, None, STORE_ENDED.distance)


# --- the first failure of the job


def _find_root_cause(suspects: Sequence[_Suspect], store_finding: _Finding | None) -> _Finding:
    """What the first process shows or, if that only follows from a failure elsewhere, that failure.

    At least one of `suspects` and `store_finding` is given.
    """
    if not suspects:
        assert store_finding
        return store_finding
    first_suspects = _select_first_lost(suspects) or _select_first_silent(suspects)
    last_line_at = max(suspect.last_line_at for suspect in first_suspects) or math.inf
    unknown = _Finding(UNKNOWN_CAUSE, first_suspects[-1], last_line_at, None, UNKNOWN_CAUSE.distance)
    finding = min((_diagnose_suspect(suspect) or unknown for suspect in first_suspects), key=_finding_priority)
    if finding.distance == Distance.OWN:
        return finding

    candidates: list[_Finding] = []
    other_findings = [_diagnose_suspect(suspect) for suspect in suspects if suspect not in first_suspects]
    for candidate in (store_finding, *other_findings):
        if candidate and _can_explain(candidate, finding):
            candidates.append(candidate)
    return min(candidates, key=_finding_priority, default=finding)


def _finding_priority(finding: _Finding) -> tuple[Distance, bool, float, bool]:
    """The nearest cause first, then that of a process that is known, then the earliest.

    In a log without times, one that says more than that NCCL failed comes first. A line of an unknown process proves
    less than the error of a rank, unless it is about a kill or fits the exit code: any program may print it and go on.
    """
    is_general = finding.rule.cause in _GENERAL_NCCL_CAUSES or finding.rule is VAGUE_TIMEOUT
    suspect = finding.suspect
    is_known = suspect.rank is not None or suspect.report is not None or suspect.node == _STORE_NAME
    is_shown_by_exit = normalize_exit_code(suspect.exit_code) in finding.rule.agent_codes
    has_ended = finding.has_traceback and not finding.is_aside
    is_proof = is_known or is_shown_by_exit or has_ended or _is_about_signal(finding.rule)
    is_weak = finding.distance == Distance.OWN and not is_proof
    return finding.distance, is_weak, finding.timestamp, is_general


def _can_explain(other: _Finding, finding: _Finding) -> bool:
    """Whether another finding is nearer to the origin, and early enough to be the reason for this one."""
    if not _has_failed(other):
        return False
    if finding.distance == Distance.EXIT:
        # It exited by itself, before torchrun saw that: an own error elsewhere is the reason only if it came first.
        report = finding.suspect.report
        if report and other.suspect.report and _was_killed_later(other.suspect.report, report):
            return False
        exited_at = report.get_failure_time() if report else finding.timestamp
        return other.distance == Distance.OWN and other.timestamp <= exited_at
    if other.rule.cause is PlatformCause.TERMINATED and finding.distance in (Distance.PEER, Distance.WAIT):
        # A node that is drained takes its ranks away. After a failure torchyard ends the other nodes, and an agent its
        # other workers.
        return not other.suspect.is_stopped and other.timestamp <= finding.timestamp
    has_times = finding.timestamp > 0
    if has_times and _is_timeout_behind(other, finding):
        return other.timestamp <= finding.timestamp + _CLOCK_SKEW_S
    skew_s = -_CLOCK_SKEW_S if has_times and _is_timeout_behind(finding, other) else _CLOCK_SKEW_S
    return other.distance < finding.distance and other.timestamp <= finding.timestamp + skew_s


def _was_killed_later(other: WorkerReport, first: WorkerReport) -> bool:
    """Whether a signal ended a worker after another one had failed, by torchrun's times: torchrun may have sent it."""
    return other.exit_code < 0 and bool(first.failed_at) and other.failed_at > first.failed_at


def _is_timeout_behind(timeout: _Finding, finding: _Finding) -> bool:
    """Whether a finding may follow from a timeout: a rank that has waited in vain ends, and its peers lose it.

    Of two timeouts, that of a watchdog or a monitored barrier is reported with the ranks that have not come.
    """
    if finding.rule.cause is RendezvousCause.PEER_TIMEOUT:
        return timeout.rule.cause is FabricCause.NCCL_TIMEOUT
    return timeout.rule.cause in _TIMEOUTS and finding.distance == Distance.PEER


def _has_failed(finding: _Finding) -> bool:
    """Whether something failed at a finding's place: a line alone does not show it where the process went on."""
    suspect = finding.suspect
    if finding.distance > Distance.OWN or finding.has_traceback or finding.rule.explains_signal:
        return True
    if suspect.node == _STORE_NAME:
        return True  # it is suspected only if it has ended
    return suspect.exit_code not in (None, 0) and not suspect.is_stopped


def _find_early_end(
    finding: _Finding,
    exit_codes: Mapping[str, int | None],
    parts_by_node: Mapping[str, Sequence[LogLinePart]],
    reports: Mapping[str, AgentReport],
) -> _Finding | None:
    """The ranks of a node that ended with 0 before the others lost them, or waited for them; None if there are none."""
    if finding.distance not in (Distance.PEER, Distance.WAIT):
        return None
    early_ends = []
    for node, report in reports.items():
        lines = parts_by_node[node]
        if exit_codes[node] == 0 or report.success:
            ranks = set(report.global_ranks.values())
            evidence = report.success
        elif report.is_complete:
            ranks = set(report.global_ranks.values()) - {worker.rank for worker in report.workers}
            evidence = None
        else:
            continue
        own_lines = [line for line in lines if _get_rank(line, report) in ranks]
        ended_at = evidence.timestamp if evidence else max((line.timestamp for line in own_lines), default=0.0)
        if not (ranks or exit_codes[node] == 0) or ended_at > finding.timestamp + _CLOCK_SKEW_S:
            continue
        suspect = _Suspect(node, min(ranks, default=None), 0, ended_at, own_lines, has_own_lines=bool(own_lines))
        rule, reason = _explain_early_end(own_lines)
        early_ends.append(
            _Finding(
                rule,
                suspect,
                ended_at,
                reason or evidence or finding.evidence,
                Distance.EXIT,
                ranks=tuple(sorted(ranks)),
            )
        )
    return min(early_ends, key=_finding_priority, default=None)


def _explain_early_end(lines: Sequence[LogLinePart]) -> tuple[LogRule, LogLinePart | None]:
    """Why ranks ended with 0 before the others, by their last lines: a program may handle SIGTERM, and end well.

    The line is None if the rule has none.
    """
    stopped = _find_exit_rule(_SIGTERM_CODE, is_worker=True)
    if stopped and stopped.pattern:
        for line in reversed(lines[-_LAST_WORDS_LINES:]):
            if stopped.pattern.search(line.text) and not is_harmless(line.text):
                return stopped, line
    return RANKS_ENDED_EARLY, None


def _get_rank(line: LogLinePart, report: AgentReport) -> int | None:
    """The global rank that printed a line; None if it is not known."""
    return line.rank if line.local_rank is None else report.global_ranks.get(line.local_rank)


def _select_first_lost(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The worker that torchrun saw fail before all others, as a list; empty if it reports none.

    Those that their agent stopped do not count.
    """
    lost = [suspect for suspect in suspects if suspect.report and not suspect.is_stopped]
    return sorted(lost, key=_loss_priority)[:1]


def _loss_priority(suspect: _Suspect) -> tuple[str, bool, float]:
    """The order of workers that were lost: by torchrun's time, then those it names as a first failure."""
    assert suspect.report
    failed_at = suspect.report.failed_at or "9"  # after every time
    return failed_at, not suspect.report.is_first, suspect.last_line_at


def _select_first_silent(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The suspects of the node that logged its last line first.

    A node whose agent received SIGTERM is chosen only if all did, and one whose agent still runs only before those.
    """
    suspects_by_node: dict[str, list[_Suspect]] = defaultdict(list)
    for suspect in suspects:
        suspects_by_node[suspect.node].append(suspect)
    return min(suspects_by_node.values(), key=_silence_priority)


def _silence_priority(node_suspects: Sequence[_Suspect]) -> tuple[int, float]:
    """The order of `_select_first_silent`; the last suspect of a node is its agent."""
    agent_exit_code = normalize_exit_code(node_suspects[-1].exit_code)
    last_line_at = max(suspect.last_line_at for suspect in node_suspects)
    if agent_exit_code == _SIGTERM_CODE:
        return 2, last_line_at
    if agent_exit_code is None:
        return 1, last_line_at
    return 0, last_line_at


# --- the failure for the report


def _build_failure(finding: _Finding, parts_by_node: Mapping[str, Sequence[LogLinePart]]) -> Failure:
    rule = finding.rule
    suspect = finding.suspect
    evidence = finding.evidence
    rank = suspect.rank
    # A last line before an exit code may be about another rank.
    is_shown_by_line = evidence is not None and (rule.pattern is None or rule.pattern.search(evidence.text))
    if rank is None and evidence and is_shown_by_line and not suspect.has_own_lines:
        rank = _parse_rank(evidence.line)
        if rank is None:
            rank = suspect.global_ranks.get(_parse_local_rank(evidence))

    description = _describe_cause(finding)
    retry = rule.retry
    if rule.cause is FabricCause.NCCL_TIMEOUT and evidence:
        rank_lines = (RankLine(node, part.rank, part.text) for node, parts in parts_by_node.items() for part in parts)
        explanation = explain_timeout(RankLine(suspect.node, rank, evidence.text), rank_lines)
        if explanation:
            description = explanation.description
            retry = explanation.retry

    if finding.has_traceback and suspect.report and suspect.report.exit_code > _UNCAUGHT_EXCEPTION_CODE:
        description = f"{description}; it exited with code {suspect.exit_code}"
    if finding.earlier:
        description = f"{description}; seen before it: {quote_match(finding.earlier.text, (0, 0))}"
    subject = suspect.node
    if rank is not None:
        subject = f"Rank {rank} on {suspect.node}"
    elif suspect.report and suspect.report.is_first:
        subject = f"Local rank {suspect.report.local_rank} on {suspect.node}"
    if len(finding.ranks) > 1:
        subject = f"Ranks {format_ranks(finding.ranks, _MAX_NAMED_RANKS)} on {suspect.node}"
    tail = suspect.lines if suspect.has_own_lines else parts_by_node[suspect.node]
    return Failure(
        cause=rule.cause,
        sentence=f"{subject} {description}.",
        node=suspect.node,
        rank=rank,
        exit_code=suspect.exit_code,
        retry=retry,
        line=evidence.line if evidence else None,
        tail=tuple(part.line for part in tail[-TAIL_LINES:]),
    )


def _parse_rank(line: str) -> int | None:
    """The rank that a line names as its own; None if it names none."""
    match = _RANK_IN_LINE.search(line)
    return int(next(filter(None, match.groups()))) if match else None


def _parse_local_rank(line: LogLinePart) -> int | None:
    """The local rank of the process that a line is from, or whose end it reports; None if it names none."""
    match = _SPAWNED_PROCESS.search(line.text)
    return int(match["local"]) if match else line.local_rank


def _find_nccl_warning(lines: Sequence[LogLinePart], exception_index: int) -> str | None:
    """NCCL's own message about the error that the exception at this index reports; None if there is none.

    The first warning of NCCL in the lines before the exception counts, because the next ones follow from it. Without a
    warning it is NCCL's last error, which torch quotes behind the exception, or a warning that is printed late.
    """
    warning = _find_first_warning(lines[max(exception_index - _NCCL_WARNING_LINES, 0) : exception_index])
    if warning:
        return warning
    prefix = _get_prefix(lines[exception_index])
    next_lines = lines[exception_index + 1 : exception_index + 1 + _NCCL_MESSAGE_LINES]
    quoted_lines = [line for line in next_lines if _get_prefix(line) == prefix]  # others may print at the same time
    for line, next_line in pairwise(quoted_lines):
        logger_prefix, marker, rest = line.text.partition(_LAST_NCCL_ERROR)
        if marker and not rest.strip():
            return next_line.text.removeprefix(logger_prefix).strip() or None
    return _find_first_warning(lines[exception_index + 1 : exception_index + 1 + _LATE_WARNING_LINES])


def _get_prefix(line: LogLinePart) -> str:
    """What precedes the text of a line, such as the name of the process that printed it."""
    return line.line.removesuffix(line.text)


def _find_first_warning(lines: Iterable[LogLinePart]) -> str | None:
    """The message of NCCL's first warning in these lines; None if there is none."""
    for line in lines:
        match = _NCCL_WARNING.search(line.text)
        if match and not is_harmless(line.text):
            return match[1]
    return None


def _list_printed_lines(suspect: _Suspect) -> Sequence[LogLinePart]:
    """The lines of a process, after the traceback that torchrun reports for it."""
    return [*suspect.report.traceback, *suspect.lines] if suspect.report else suspect.lines


def _find_line(lines: Sequence[LogLinePart], evidence: LogLinePart) -> int | None:
    """The last index of the line that is the evidence, whose text may be without a logger's prefix; None without it."""
    for index in reversed(range(len(lines))):
        if lines[index].line == evidence.line and lines[index].timestamp == evidence.timestamp:
            return index
    return None


def _describe_cause(finding: _Finding) -> str:
    """The cause's description, with its evidence and with the peer, adapter and sizes that the evidence names."""
    rule = finding.rule
    fields: dict[str, object] = defaultdict(str)
    details = ""
    quote = ""
    if finding.evidence:
        text = finding.evidence.text
        match = rule.pattern.search(text) if rule.pattern else None
        quote = quote_match(text, match.span() if match else (0, 0))
        lines = _list_printed_lines(finding.suspect)
        index = _find_line(lines, finding.evidence)
        nccl_warning = None
        if rule.cause in _GENERAL_NCCL_CAUSES and index is not None:
            nccl_warning = _find_nccl_warning(lines, index)
        if nccl_warning:
            quote = quote_match(nccl_warning, (0, 0))
        elif quote.endswith(":") and index is not None and index + 1 < len(lines):
            # Such as torch's list of all keys that a checkpoint lacks.
            quote = f"{quote} {quote_match(lines[index + 1].text, (0, 0)).rstrip('.')}".strip()
        fields |= match.groupdict() if match else {}
        details = extract_details(text) if rule.pattern else ""
        # The place of an exception that reports the end of another process is that of the report.
        has_place = finding.has_traceback and not _SPAWNED_PROCESS.search(text)
        frame = find_raising_frame(lines, index) if has_place and index is not None else None
        if frame:
            location = f"at {PurePath(frame.file).name}:{frame.line}"
            details = f"{location}, {details}" if details else location
    fields["code"] = finding.suspect.exit_code
    fields["evidence"] = quote if quote.endswith("..") else quote.removesuffix(".")
    fields["signal"] = _SIGNAL_NAMES.get(normalize_exit_code(finding.suspect.exit_code), "a signal")
    description = rule.description.format_map(fields)
    return f"{description} ({details})" if details else description
