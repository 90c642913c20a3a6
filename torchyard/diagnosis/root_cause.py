"""Why a job failed: the process that failed first, and the line of its log that proves why."""

import math
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.collective_timeout import RankLine, explain_timeout
from torchyard.diagnosis.evidence import extract_details, quote_match
from torchyard.diagnosis.log_line_parts import LogLinePart, drop_noise, find_exceptions, parse_line, parse_lost_worker
from torchyard.model.causes.cause import Distance, LogRule
from torchyard.model.causes.fabric import FabricCause
from torchyard.model.causes.program import PROGRAM_ERROR, PROGRAM_EXIT, UNKNOWN_CAUSE
from torchyard.model.causes.registry import LOG_RULES
from torchyard.model.causes.rendezvous import STORE_ENDED
from torchyard.model.run import Failure, LogLine

_STORE_NAME = "etcd"  # a process of this name is the rendezvous store, not an agent
TAIL_LINES = 50  # of the failing process, for the report
_SIGTERM_CODE = -15
_CLOCK_SKEW_S = 5.0  # clocks differ between nodes, and torchrun's tee delays lines
# These decide the cause alone: a process that was killed could not log why.
_DECISIVE_EXIT_CODES = frozenset({-9, -11, -7, -4, -8, 126, 127})
_RULES_BY_DISTANCE = tuple(sorted(LOG_RULES, key=lambda rule: rule.distance))  # the first that matches explains most
_SIGNAL_RULES = tuple(rule for rule in _RULES_BY_DISTANCE if rule.explains_signal)
_OWN_RULES = tuple(rule for rule in _RULES_BY_DISTANCE if rule.distance == Distance.OWN)
_SIGNAL_NAMES: dict[int | None, str] = {-number: number.name for number in signal.Signals}

_RANK_IN_LINE = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr]ank:? ?(\d{1,6})\]")

# torchrun's own report on its workers, unchanged since torch 1.9
_GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]{1,2000})\]")
_REPORT_FIELD = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file|traceback|msg)\s{0,8}: ?(.{0,400})")
_REPORT_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_REPORT_EXIT_CODE = re.compile(r"-?\d{1,5}")


class _WorkerReport(NamedTuple):
    """What torchrun reports of one failed worker.

    failed_at: as torchrun prints it, in whole seconds of its own clock; it sorts as text. Empty if it is not known.
    exit_line: the line with the exit code.
    traceback: the lines that @record has added; empty if it is not used.
    """

    rank: int | None
    local_rank: int
    exit_code: int
    failed_at: str
    exit_line: LogLinePart
    traceback: list[LogLinePart]


class _Suspect(NamedTuple):
    """A process that may have failed first: a rank, or else an agent.

    last_line_at: when it logged its last line, in seconds since the epoch; 0 if it logged none. This is used, and not
        torchrun's report, which comes up to 30 s after the failure, when torchrun has stopped the other workers.
    report: torchrun's; None for an agent, and for a worker that torchrun does not report as failed.
    has_own_lines: `lines` are of this process alone, not of all of its node.
    """

    node: str
    rank: int | None
    exit_code: int | None
    last_line_at: float
    lines: Sequence[LogLinePart]
    report: _WorkerReport | None = None
    has_own_lines: bool = False


class _Finding(NamedTuple):
    """A rule that shows a cause, the process, and the line that proves it; None if only an exit code does."""

    rule: LogRule
    suspect: _Suspect
    timestamp: float
    evidence: LogLinePart | None


def diagnose_failure(
    logs: Mapping[str, Sequence[LogLine]],
    exit_codes: Mapping[str, int | None],
    longer_logs: Mapping[str, Sequence[LogLine]] | None = None,
) -> Failure | None:
    """Return the first failure of a job; None if every agent exited with 0.

    `exit_codes` are the agents' (negative: a signal; None: running, or unknown). Worker lines have the prefix of
    torchrun's `--tee`; without it a node's lines are read as one stream, and the rank may stay unknown.
    `longer_logs`: the same logs with earlier lines, read only if `logs` show no more than that a process lost a peer,
    waited or was stopped.
    """
    agents = {node: exit_codes.get(node) for node in (*exit_codes, *logs) if node != _STORE_NAME}
    # A store that has ended is suspected whatever its exit code is: it did so before the agents.
    has_store_ended = exit_codes.get(_STORE_NAME) is not None
    if all(code == 0 for code in agents.values()) and (agents or not has_store_ended):
        return None
    nodes = [*agents, _STORE_NAME] if has_store_ended else list(agents)
    parts_by_node = {node: _parse_lines(logs.get(node, ())) for node in nodes}

    suspects: list[_Suspect] = []
    for node, exit_code in agents.items():
        if exit_code != 0:
            suspects += _list_suspects(node, exit_code, parts_by_node[node], is_single_node=len(agents) == 1)
    store_finding = None
    if has_store_ended:
        store_finding = _diagnose_store(parts_by_node[_STORE_NAME], exit_codes[_STORE_NAME])
    finding = _find_root_cause(suspects, store_finding)
    if longer_logs is not None and finding.rule.distance >= Distance.PEER:
        return diagnose_failure(longer_logs, exit_codes)
    return _build_failure(finding, parts_by_node)


def _parse_lines(lines: Iterable[LogLine]) -> list[LogLinePart]:
    parts: list[LogLinePart] = []
    for line in lines:
        parts += parse_line(line)
    return parts


def _normalize_exit_code(exit_code: int | None) -> int | None:
    """The exit code, -n for signal n: shells and containers report 128 + n. None if it is unknown."""
    if exit_code is not None and 128 < exit_code <= 128 + 64:
        return 128 - exit_code
    return exit_code


# --- the processes of a node


def _list_suspects(
    node: str, exit_code: int | None, lines: Sequence[LogLinePart], *, is_single_node: bool
) -> Iterator[_Suspect]:
    """The ranks of a node that logged something or were lost, and last its agent, whose exit code is `exit_code`."""
    global_ranks = _parse_global_ranks(lines)
    if not global_ranks and is_single_node:
        global_ranks = {rank: rank for rank in range(64)}
    reports = _parse_worker_reports(lines, global_ranks)
    streams: dict[tuple[int | None, int | None], list[LogLinePart]] = defaultdict(list)
    for line in lines:
        streams[line.local_rank, None if line.local_rank is not None else line.rank].append(line)
    agent_lines = streams.pop((None, None), [])

    for (local_rank, rank), stream in streams.items():
        report = _find_report(reports, local_rank, rank, is_single_stream=len(streams) == 1)
        reports = [other for other in reports if other is not report]
        global_rank = _find_global_rank(stream)
        if global_rank is None:
            global_rank = report.rank if report else global_ranks.get(local_rank)
        worker_exit_code = report.exit_code if report else None
        yield _Suspect(node, global_rank, worker_exit_code, stream[-1].timestamp, stream, report, has_own_lines=True)
    for report in reports:  # of workers without a line of their own
        yield _Suspect(node, report.rank, report.exit_code, 0.0, [] if streams else lines, report)
    yield _Suspect(node, None, exit_code, agent_lines[-1].timestamp if agent_lines else 0.0, agent_lines)


def _find_report(
    reports: Sequence[_WorkerReport], local_rank: int | None, rank: int | None, *, is_single_stream: bool
) -> _WorkerReport | None:
    """torchrun's report on the worker of a stream, found by its local rank or else its rank; None if it has none.

    The only report belongs to the only stream, whatever its ranks are.
    """
    for report in reports:
        if report.local_rank == local_rank or (local_rank is None and report.rank == rank):
            return report
    return reports[0] if is_single_stream and len(reports) == 1 else None


def _find_global_rank(stream: Iterable[LogLinePart]) -> int | None:
    """The rank in the first prefix of a stream that names one; None if no prefix does."""
    for line in stream:
        if line.rank is not None:
            return line.rank
    return None


def _parse_global_ranks(lines: Iterable[LogLinePart]) -> dict[int | None, int]:
    """Global rank by local rank, as the last rendezvous assigned them; empty if no line shows it."""
    last_assignment = None
    for line in lines:
        if match := _GLOBAL_RANKS.search(line.text):
            last_assignment = match[1]
    if last_assignment is None:
        return {}
    return dict(enumerate(int(rank) for rank in re.findall(r"\d{1,6}", last_assignment)))


def _parse_worker_reports(lines: Sequence[LogLinePart], global_ranks: Mapping[int | None, int]) -> list[_WorkerReport]:
    """Every worker in torchrun's final report, the root cause first; if it is cut off, those it logged as lost."""
    agent_lines = [line for line in lines if line.local_rank is None]
    reports = list(_parse_report_items(agent_lines))
    if reports:
        return reports[::-1]  # torchrun prints its root cause last
    for line in agent_lines:
        worker = parse_lost_worker(line.text)
        if worker:
            rank = global_ranks.get(worker.local_rank)
            reports.append(_WorkerReport(rank, worker.local_rank, worker.exit_code, "", line, []))
    return reports


def _parse_report_items(lines: Iterable[LogLinePart]) -> Iterator[_WorkerReport]:
    """The items of `Failures:` and `Root Cause`; a traceback that @record wrote is indented by two.

    The traceback follows the exit code: its lines are added to the list of the report that was yielded last.
    """
    fields: dict[str, str] = {}
    traceback: list[LogLinePart] = []
    for line in lines:
        field = _REPORT_FIELD.match(line.text)
        if field is None:
            if not line.text.startswith("  "):
                fields = {}
            elif "traceback" in fields:
                traceback.append(line._replace(text=line.text[2:]))
            continue
        key = field[1]
        if key == "time":  # the first field of an item
            fields = {}
        fields[key] = field[2]
        if key == "exitcode":
            rank = _REPORT_RANK.match(fields.get("rank", ""))
            exit_code = _REPORT_EXIT_CODE.match(fields["exitcode"])
            if rank and exit_code:
                traceback = []
                failed_at = fields.get("time", "")
                yield _WorkerReport(int(rank[1]), int(rank[2]), int(exit_code[0]), failed_at, line, traceback)
        elif key in ("traceback", "msg"):
            traceback.append(line)


# --- the cause of one process


def _diagnose_suspect(suspect: _Suspect) -> _Finding | None:
    """What this process itself shows; None if it shows nothing.

    In this order: a signal, its last exception, a line that shows a cause, its exit code.
    """
    report = suspect.report
    lines = [*report.traceback, *suspect.lines] if report else list(suspect.lines)
    exit_code = _normalize_exit_code(suspect.exit_code)
    exit_finding = None
    exit_rule = _find_exit_rule(exit_code, is_worker=report is not None)
    if exit_rule:
        exit_line = _find_exit_evidence(exit_rule, suspect, lines)
        exit_finding = _Finding(exit_rule, suspect, suspect.last_line_at, exit_line)
        if exit_code in _DECISIVE_EXIT_CODES:
            return _find_cause_in_lines(suspect, lines, _SIGNAL_RULES) or exit_finding

    finding = _find_nearest_exception(suspect, lines)
    if finding is None:
        finding = _find_cause_in_lines(suspect, lines, _RULES_BY_DISTANCE)
    elif finding.rule.distance > Distance.OWN:
        rules = [rule for rule in _RULES_BY_DISTANCE if rule.distance <= finding.rule.distance]
        finding = _find_cause_in_lines(suspect, lines, rules) or finding
    if finding or exit_finding:
        return finding or exit_finding
    return _Finding(PROGRAM_EXIT, suspect, report.exit_line.timestamp, report.exit_line) if report else None


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
        for line in lines:
            if rule.pattern.search(line.text):
                return line
    if suspect.report:
        return suspect.report.exit_line
    if (suspect.exit_code or 0) > 0:
        for line in reversed(lines):
            if line.text.strip():
                return line
    return None


def _find_nearest_exception(suspect: _Suspect, lines: Sequence[LogLinePart]) -> _Finding | None:
    """The cause of the last exception of a process, or the nearest one of a whole node's; None if there is none."""
    exceptions = find_exceptions(lines)
    if suspect.has_own_lines:
        exceptions = exceptions[-1:]
    nearest: _Finding | None = None
    for exception in exceptions:
        finding = _find_cause_in_lines(suspect, exception, _RULES_BY_DISTANCE)
        if finding is None:
            finding = _Finding(PROGRAM_ERROR, suspect, exception[-1].timestamp, exception[-1])
        if nearest is None or finding.rule.distance < nearest.rule.distance:
            nearest = finding
    return nearest


def _find_cause_in_lines(suspect: _Suspect, lines: Iterable[LogLinePart], rules: Sequence[LogRule]) -> _Finding | None:
    """The first of these rules that a line matches, with the first line that does; None if no line matches any."""
    finding: _Finding | None = None
    for line in drop_noise(lines):
        for index, rule in enumerate(rules):
            if rule.pattern and rule.pattern.search(line.text):
                finding = _Finding(rule, suspect, line.timestamp, line)
                rules = rules[:index]  # later lines only count for rules before this one
                break
    return finding


def _diagnose_store(lines: Sequence[LogLinePart], exit_code: int | None) -> _Finding:
    """Why the rendezvous store ended before the job: its own reason, or only that it did."""
    suspect = _Suspect(_STORE_NAME, None, exit_code, lines[-1].timestamp if lines else 0.0, lines)
    finding = _find_cause_in_lines(suspect, lines, _OWN_RULES)
    return finding or _Finding(STORE_ENDED, suspect, suspect.last_line_at, None)


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
    unknown = _Finding(UNKNOWN_CAUSE, first_suspects[-1], last_line_at, None)
    finding = min((_diagnose_suspect(suspect) or unknown for suspect in first_suspects), key=_finding_priority)
    if finding.rule.distance == Distance.OWN:
        return finding

    candidates: list[_Finding] = []
    other_findings = [_diagnose_suspect(suspect) for suspect in suspects if suspect not in first_suspects]
    for candidate in (store_finding, *other_findings):
        if candidate and _can_explain(candidate, finding):
            candidates.append(candidate)
    return min(candidates, key=_finding_priority, default=finding)


def _finding_priority(finding: _Finding) -> tuple[Distance, float]:
    """The nearest cause first, then the earliest."""
    return finding.rule.distance, finding.timestamp


def _can_explain(other: _Finding, finding: _Finding) -> bool:
    """Whether another finding is nearer to the origin, and early enough to be the reason for this one."""
    if other.rule.distance >= finding.rule.distance:
        return False
    tolerance_s = _CLOCK_SKEW_S
    if finding.rule is PROGRAM_EXIT and other.rule.distance >= Distance.PEER:
        tolerance_s = 0.0  # a connection that was lost after an exit was lost because of it
    return other.timestamp <= finding.timestamp + tolerance_s


def _select_first_lost(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The worker that torchrun saw fail before all others, as a list; empty if it reports none.

    A worker that received SIGTERM does not count.
    """
    first: _Suspect | None = None
    first_key = ("", 0.0)
    for suspect in suspects:
        if suspect.report is None or _normalize_exit_code(suspect.exit_code) == _SIGTERM_CODE:
            continue
        key = (suspect.report.failed_at or "9", suspect.last_line_at)  # "9": after every time
        if first is None or key < first_key:
            first = suspect
            first_key = key
    return [first] if first else []


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
    agent_exit_code = _normalize_exit_code(node_suspects[-1].exit_code)
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
    if rank is None and evidence and not suspect.has_own_lines:
        rank_match = _RANK_IN_LINE.search(evidence.line)
        rank = int(rank_match[1]) if rank_match else None

    description = _describe_cause(finding)
    retry = rule.retry
    if rule.cause is FabricCause.NCCL_TIMEOUT and evidence:
        rank_lines = (RankLine(node, part.rank, part.text) for node, parts in parts_by_node.items() for part in parts)
        explanation = explain_timeout(RankLine(suspect.node, rank, evidence.text), rank_lines)
        if explanation:
            description = explanation.description
            retry = explanation.retry

    subject = suspect.node if rank is None else f"Rank {rank} on {suspect.node}"
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
        fields |= match.groupdict() if match else {}
        details = extract_details(text) if rule.pattern else ""
    fields["code"] = finding.suspect.exit_code
    fields["evidence"] = quote
    fields["signal"] = _SIGNAL_NAMES.get(_normalize_exit_code(finding.suspect.exit_code), "a signal")
    description = rule.description.format_map(fields)
    return f"{description} ({details})" if details else description
