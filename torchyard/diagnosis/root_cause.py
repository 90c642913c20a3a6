"""Why a job failed: the process that failed first, and the line of its log that proves why."""

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.collective_timeout import RankLine, explain_timeout
from torchyard.diagnosis.evidence import extract_details, quote_match
from torchyard.diagnosis.log_line_parts import LogLinePart, drop_noise, find_exceptions, parse_line, parse_lost_worker
from torchyard.diagnosis.log_patterns import (
    CAUSES,
    CLOCK_SKEW_S,
    COLLECTIVE_TIMEOUT,
    DECISIVE_EXIT_CODES,
    DISTANCE_OWN,
    DISTANCE_PEER,
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    STORE_ENDED,
    UNKNOWN_CAUSE,
    Cause,
)
from torchyard.model.run import Failure, LogLine

_STORE_NAME = "etcd"  # a process of this name is the rendezvous store, not an agent
TAIL_LINES = 50
_CAUSES_BY_DISTANCE = tuple(sorted(CAUSES, key=lambda cause: cause.distance))  # the first that matches explains most
_KILL_CAUSES = tuple(cause for cause in _CAUSES_BY_DISTANCE if cause.explains_kill)
_OWN_CAUSES = tuple(cause for cause in _CAUSES_BY_DISTANCE if cause.distance == DISTANCE_OWN)
_SIGNAL_NAMES: dict[int | None, str] = {-number: number.name for number in signal.Signals}

_RANK_IN_LINE = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr]ank:? ?(\d{1,6})\]")

# torchrun's own report on its workers, unchanged since 1.9
_GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]{1,2000})\]")
_REPORT_FIELD = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file|traceback|msg)\s{0,8}: ?(.{0,400})")
_REPORT_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_REPORT_EXIT_CODE = re.compile(r"-?\d{1,5}")


class _WorkerReport(NamedTuple):
    """What torchrun says of one failed worker; `time` is its own clock, in whole seconds."""

    rank: int | None
    local_rank: int
    exit_code: int
    failed_at: str
    exit_line: LogLinePart
    traceback: list[LogLinePart]


class _Suspect(NamedTuple):
    """One process that may have failed first: a rank, or else an agent. `single`: the lines are its own alone."""

    node: str
    rank: int | None
    exit_code: int | None
    last_line_at: (
        float  # its last line: torchrun reports a lost worker up to 30 s later, when it has stopped the others
    )
    lines: Sequence[LogLinePart]
    report: _WorkerReport | None = None
    has_own_lines: bool = False


class _Finding(NamedTuple):
    """A cause, the process that shows it, and the line that proves it."""

    cause: Cause
    suspect: _Suspect
    timestamp: float
    evidence: LogLinePart | None


def diagnose_failure(
    logs: Mapping[str, Sequence[LogLine]],
    exit_codes: Mapping[str, int | None],
    longer_logs: Mapping[str, Sequence[LogLine]] | None = None,
) -> Failure | None:
    """The first failure of a job; None if every agent exited with 0.

    `exits` are the agents' exit codes (negative: a signal; None: running, or unknown). Worker lines have the prefix
    of torchrun's `--tee`; without it a node's lines are read as one stream, and the rank may stay unknown.
    `longer`: the same logs with earlier lines, read only if what `logs` show is at most an echo of the failure.
    """
    agents = {node: exit_codes.get(node) for node in (*exit_codes, *logs) if node != _STORE_NAME}
    store_names = (
        [] if exit_codes.get(_STORE_NAME) is None else [_STORE_NAME]
    )  # however it ended, it did so before the agents
    if all(code == 0 for code in agents.values()) and (agents or not store_names):
        return None
    parts_by_node = {
        node: [part for line in logs.get(node, ()) for part in parse_line(line)] for node in (*agents, *store_names)
    }
    failed, is_single_node = {node: code for node, code in agents.items() if code != 0}, len(agents) == 1
    suspects = [
        suspect
        for node, code in failed.items()
        for suspect in _list_suspects(node, code, parts_by_node[node], is_single_node)
    ]
    finding = _find_root_cause(
        suspects, [_diagnose_store(parts_by_node[node], exit_codes[node]) for node in store_names]
    )
    if longer_logs is not None and finding.cause.distance >= DISTANCE_PEER:
        return diagnose_failure(longer_logs, exit_codes)
    return _build_failure(finding, parts_by_node)


def _normalize_exit_code(exit_code: int | None) -> int | None:
    """The exit code, -n for signal n: shells and containers report 128 + n."""
    return 128 - exit_code if exit_code is not None and 128 < exit_code <= 128 + 64 else exit_code


def _list_suspects(
    node: str, exit_code: int | None, lines: Sequence[LogLinePart], is_single_node: bool
) -> Iterator[_Suspect]:
    """The ranks of a node that logged something or were lost, and last its agent."""
    global_ranks = _parse_global_ranks(lines) or ({index: index for index in range(64)} if is_single_node else {})
    reports = _parse_worker_reports(lines, global_ranks)
    streams: dict[tuple[int | None, int | None], list[LogLinePart]] = defaultdict(list)
    for line in lines:
        streams[line.local_rank, None if line.local_rank is not None else line.rank].append(line)
    agent_lines = streams.pop((None, None), [])
    for (local_rank, rank), stream in streams.items():
        matching = [
            candidate
            for candidate in reports
            if candidate.local_rank == local_rank or (local_rank is None and candidate.rank == rank)
        ]
        report = next(iter(matching or (reports if len(streams) == len(reports) == 1 else ())), None)
        reports = [candidate for candidate in reports if candidate is not report]
        global_rank = next(
            (line.rank for line in stream if line.rank is not None),
            report.rank if report else global_ranks.get(local_rank),
        )
        yield _Suspect(
            node, global_rank, report and report.exit_code, stream[-1].timestamp, stream, report, has_own_lines=True
        )
    for report in reports:
        yield _Suspect(node, report.rank, report.exit_code, 0.0, [] if streams else lines, report)
    yield _Suspect(node, None, exit_code, agent_lines[-1].timestamp if agent_lines else 0.0, agent_lines)


def _parse_global_ranks(lines: Iterable[LogLinePart]) -> dict[int | None, int]:
    """Global rank by local rank, as the last rendezvous assigned them."""
    assignments = [match[1] for line in lines if (match := _GLOBAL_RANKS.search(line.text))]
    return dict(enumerate(int(rank) for rank in re.findall(r"\d{1,6}", assignments[-1]))) if assignments else {}


def _parse_worker_reports(lines: Sequence[LogLinePart], global_ranks: Mapping[int | None, int]) -> list[_WorkerReport]:
    """Every worker in torchrun's final report, the root cause first; if it is cut off, those it logged as lost."""
    agent_lines = [line for line in lines if line.local_rank is None]
    lost_workers = ((line, *lost_worker) for line in agent_lines if (lost_worker := parse_lost_worker(line.text)))
    return list(_parse_report_items(agent_lines))[::-1] or [
        _WorkerReport(global_ranks.get(local_rank), local_rank, exit_code, "", line, [])
        for line, local_rank, exit_code in lost_workers
    ]


def _parse_report_items(lines: Iterable[LogLinePart]) -> Iterator[_WorkerReport]:
    """The items of `Failures:` and `Root Cause`; a traceback that @record wrote is indented by two."""
    fields: dict[str, str] = {}
    traceback: list[LogLinePart] = []
    for line in lines:
        field = _REPORT_FIELD.match(line.text)
        if field is None:
            fields = fields if line.text.startswith("  ") else {}
            traceback += [line._replace(text=line.text[2:])] if "traceback" in fields else []
            continue
        fields = {**({} if field[1] == "time" else fields), field[1]: field[2]}
        rank_match, exit_code_match = (
            _REPORT_RANK.match(fields.get("rank", "")),
            _REPORT_EXIT_CODE.match(fields.get("exitcode", "")),
        )
        if field[1] == "exitcode" and rank_match and exit_code_match:
            traceback = []
            yield _WorkerReport(
                int(rank_match[1]), int(rank_match[2]), int(exit_code_match[0]), fields.get("time", ""), line, traceback
            )
        elif field[1] in ("traceback", "msg"):
            traceback.append(line)


def _diagnose_suspect(suspect: _Suspect) -> _Finding | None:
    """What this process itself shows: a signal, its last exception, a telling line, its exit code, in this order."""
    lines = [*(suspect.report.traceback if suspect.report else ()), *suspect.lines]
    exit_code = _normalize_exit_code(suspect.exit_code)
    signalled_cause = next(
        (cause for cause in CAUSES if exit_code in (cause.worker_codes if suspect.report else cause.agent_codes)), None
    )
    exit_finding = (
        _Finding(signalled_cause, suspect, suspect.last_line_at, _find_evidence(signalled_cause, suspect, lines))
        if signalled_cause
        else None
    )
    if exit_finding and exit_code in DECISIVE_EXIT_CODES:
        return _find_cause_in_lines(suspect, lines, _KILL_CAUSES) or exit_finding
    exceptions = find_exceptions(lines)[-1 if suspect.has_own_lines else 0 :]
    findings = [
        _find_cause_in_lines(suspect, exception, _CAUSES_BY_DISTANCE)
        or _Finding(PROGRAM_ERROR, suspect, exception[-1].timestamp, exception[-1])
        for exception in exceptions
    ]
    finding = min(findings, key=lambda candidate: candidate.cause.distance, default=None)
    if finding is None or finding.cause.distance > DISTANCE_OWN:
        causes = (
            _CAUSES_BY_DISTANCE
            if finding is None
            else [cause for cause in _CAUSES_BY_DISTANCE if cause.distance <= finding.cause.distance]
        )
        finding = _find_cause_in_lines(suspect, lines, causes) or finding
    return (
        finding
        or exit_finding
        or (
            _Finding(PROGRAM_EXIT, suspect, suspect.report.exit_line.timestamp, suspect.report.exit_line)
            if suspect.report
            else None
        )
    )


def _find_evidence(cause: Cause, suspect: _Suspect, lines: Sequence[LogLinePart]) -> LogLinePart | None:
    """The line that says what the exit code means, else torchrun's line about it, else a shell's last line."""
    explanation = next((line for line in lines if cause.pattern and cause.pattern.search(line.text)), None)
    last_lines = (line for line in reversed(lines) if line.text.strip() and (suspect.exit_code or 0) > 0)
    return explanation or (suspect.report.exit_line if suspect.report else next(last_lines, None))


def _find_cause_in_lines(suspect: _Suspect, lines: Iterable[LogLinePart], causes: Sequence[Cause]) -> _Finding | None:
    """The first of these causes that a line shows, and the first line that does."""
    finding: _Finding | None = None
    for line in drop_noise(lines):
        index = next(
            (index for index, cause in enumerate(causes) if cause.pattern and cause.pattern.search(line.text)), None
        )
        if index is not None:
            finding, causes = _Finding(causes[index], suspect, line.timestamp, line), causes[:index]
    return finding


def _diagnose_store(lines: Sequence[LogLinePart], exit_code: int | None) -> _Finding:
    """Why the rendezvous store ended before the job: its own reason, or only that it did."""
    suspect = _Suspect(_STORE_NAME, None, exit_code, lines[-1].timestamp if lines else 0.0, lines)
    return _find_cause_in_lines(suspect, lines, _OWN_CAUSES) or _Finding(
        STORE_ENDED, suspect, suspect.last_line_at, None
    )


def _find_root_cause(suspects: Sequence[_Suspect], store_findings: Sequence[_Finding]) -> _Finding:
    """What the first process shows or, if that echoes a failure elsewhere, that failure."""
    if not suspects:
        return store_findings[0]
    first_suspects = _select_first_lost(suspects) or _select_first_silent(suspects)
    unknown = _Finding(
        UNKNOWN_CAUSE, first_suspects[-1], max(suspect.last_line_at for suspect in first_suspects) or float("inf"), None
    )
    finding = min(
        (_diagnose_suspect(suspect) or unknown for suspect in first_suspects),
        key=lambda candidate: (candidate.cause.distance, candidate.timestamp),
    )
    if finding.cause.distance == DISTANCE_OWN:
        return finding
    other_findings = [
        *store_findings,
        *(_diagnose_suspect(suspect) for suspect in suspects if suspect not in first_suspects),
    ]
    tolerance_s = 0.0 if finding.cause is PROGRAM_EXIT else CLOCK_SKEW_S  # a peer lost after an exit was not its reason
    closer_findings = [
        candidate for candidate in other_findings if candidate and candidate.cause.distance < finding.cause.distance
    ]
    candidates = [
        candidate
        for candidate in closer_findings
        if candidate.timestamp
        <= finding.timestamp + (tolerance_s if candidate.cause.distance >= DISTANCE_PEER else CLOCK_SKEW_S)
    ]
    return min(candidates, key=lambda candidate: (candidate.cause.distance, candidate.timestamp), default=finding)


def _select_first_lost(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The worker that torchrun saw fail before all others; one that was told to stop does not count."""
    lost_workers = [
        (suspect.report.failed_at or "9", suspect.last_line_at, suspect)
        for suspect in suspects
        if suspect.report and _normalize_exit_code(suspect.exit_code) != -15
    ]
    return [min(lost_workers, key=lambda entry: entry[:2])[2]] if lost_workers else []


def _select_first_silent(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The processes of the node that fell silent first; a node that was told to stop comes last."""
    suspects_by_node: dict[str, list[_Suspect]] = defaultdict(list)
    for suspect in suspects:
        suspects_by_node[suspect.node].append(suspect)
    priority = {-15: 2, None: 1}
    return min(
        suspects_by_node.values(),
        key=lambda suspects: (
            priority.get(_normalize_exit_code(suspects[-1].exit_code), 0),
            max(suspect.last_line_at for suspect in suspects),
        ),
    )


def _build_failure(finding: _Finding, parts_by_node: Mapping[str, Sequence[LogLinePart]]) -> Failure:
    cause, suspect, evidence = finding.cause, finding.suspect, finding.evidence
    rank_match = _RANK_IN_LINE.search(evidence.line) if evidence and not suspect.has_own_lines else None
    rank = int(rank_match[1]) if rank_match and suspect.rank is None else suspect.rank
    description, retry = _describe_cause(finding), cause.retry
    if cause.slug == COLLECTIVE_TIMEOUT and evidence:
        rank_lines = (RankLine(node, part.rank, part.text) for node, parts in parts_by_node.items() for part in parts)
        description, retry = explain_timeout(RankLine(suspect.node, rank, evidence.text), rank_lines) or (
            description,
            retry,
        )
    subject = suspect.node if rank is None else f"Rank {rank} on {suspect.node}"
    return Failure(
        cause=cause.slug,
        sentence=f"{subject} {description}.",
        node=suspect.node,
        rank=rank,
        exit_code=suspect.exit_code,
        retry=retry,
        line=evidence.line if evidence else None,
        tail=tuple(
            tail_line.line
            for tail_line in (suspect.lines if suspect.has_own_lines else parts_by_node[suspect.node])[-TAIL_LINES:]
        ),
    )


def _describe_cause(finding: _Finding) -> str:
    """The cause's words, with its proof and with the peer, adapter and sizes that the proof names."""
    cause, evidence = finding.cause, finding.evidence
    match = cause.pattern.search(evidence.text) if cause.pattern and evidence else None
    quote = quote_match(evidence.text, match.span() if match else (0, 0)) if evidence else ""
    signal_name = _SIGNAL_NAMES.get(_normalize_exit_code(finding.suspect.exit_code), "a signal")
    fields = defaultdict(
        str, match.groupdict() if match else {}, code=finding.suspect.exit_code, said=quote, signal=signal_name
    )
    details = extract_details(evidence.text) if evidence and cause.pattern else ""
    return cause.description.format_map(fields) + (f" ({details})" if details else "")
