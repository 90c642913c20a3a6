"""Why a job failed: the process that failed first, and the line of its log that proves why."""

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.collective_timeout import RankLine, explain_timeout
from torchyard.diagnosis.evidence import quote_around, read_details
from torchyard.diagnosis.log_line_parts import LogLinePart, drop_noise, find_exceptions, parse_line, read_lost_worker
from torchyard.diagnosis.log_patterns import (
    CAUSES,
    CLOCK_SKEW_S,
    COLLECTIVE_TIMEOUT,
    DECISIVE_EXIT_CODES,
    ECHO_OWN,
    ECHO_PEER,
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    STORE_ENDED,
    UNKNOWN_CAUSE,
    Cause,
)
from torchyard.model.run import Failure, LogLine

_STORE_NAME = "etcd"  # a process of this name is the rendezvous store, not an agent
TAIL_LINES = 50
_NEAREST = tuple(sorted(CAUSES, key=lambda cause: cause.echo))  # the first that matches explains most
_KILL_CAUSES = tuple(cause for cause in _NEAREST if cause.kills)
_OWN_CAUSES = tuple(cause for cause in _NEAREST if cause.echo == ECHO_OWN)
_SIGNAL_NAMES: dict[int | None, str] = {-number: number.name for number in signal.Signals}

_RANK = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr]ank:? ?(\d{1,6})\]")

# torchrun's own report on its workers, unchanged since 1.9
_GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]{1,2000})\]")
_FIELD = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file|traceback|msg)\s{0,8}: ?(.{0,400})")
_WORKER = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_EXIT_CODE = re.compile(r"-?\d{1,5}")


class _LostWorker(NamedTuple):
    """What torchrun says of one failed worker; `time` is its own clock, in whole seconds."""

    rank: int | None
    local: int
    code: int
    time: str
    proof: LogLinePart
    said: list[LogLinePart]


class _Suspect(NamedTuple):
    """One process that may have failed first: a rank, or else an agent. `single`: the lines are its own alone."""

    node: str
    rank: int | None
    code: int | None
    at: float  # its last line: torchrun reports a lost worker up to 30 s later, when it has stopped the others
    lines: Sequence[LogLinePart]
    entry: _LostWorker | None = None
    single: bool = False


class _Finding(NamedTuple):
    """A cause, the process that shows it, and the line that proves it."""

    cause: Cause
    suspect: _Suspect
    at: float
    seen: LogLinePart | None


def read_failure(
    logs: Mapping[str, Sequence[LogLine]],
    exits: Mapping[str, int | None],
    longer: Mapping[str, Sequence[LogLine]] | None = None,
) -> Failure | None:
    """The first failure of a job; None if every agent exited with 0.

    `exits` are the agents' exit codes (negative: a signal; None: running, or unknown). Worker lines have the prefix
    of torchrun's `--tee`; without it a node's lines are read as one stream, and the rank may stay unknown.
    `longer`: the same logs with earlier lines, read only if what `logs` show is at most an echo of the failure.
    """
    agents = {node: exits.get(node) for node in (*exits, *logs) if node != _STORE_NAME}
    store = [] if exits.get(_STORE_NAME) is None else [_STORE_NAME]  # however it ended, it did so before the agents
    if all(code == 0 for code in agents.values()) and (agents or not store):
        return None
    seen = {node: [part for line in logs.get(node, ()) for part in parse_line(line)] for node in (*agents, *store)}
    failed, alone = {node: code for node, code in agents.items() if code != 0}, len(agents) == 1
    suspects = [who for node, code in failed.items() for who in _name_suspects(node, code, seen[node], alone)]
    found = _find_root_cause(suspects, [_diagnose_store(seen[node], exits[node]) for node in store])
    if longer is not None and found.cause.echo >= ECHO_PEER:
        return read_failure(longer, exits)
    return _build_failure(found, seen)


def _signed_code(code: int | None) -> int | None:
    """The exit code, -n for signal n: shells and containers report 128 + n."""
    return 128 - code if code is not None and 128 < code <= 128 + 64 else code


def _name_suspects(node: str, code: int | None, lines: Sequence[LogLinePart], alone: bool) -> Iterator[_Suspect]:
    """The ranks of a node that logged something or were lost, and last its agent."""
    ranks = _read_global_ranks(lines) or ({at: at for at in range(64)} if alone else {})
    entries = _read_lost_workers(lines, ranks)
    streams: dict[tuple[int | None, int | None], list[LogLinePart]] = defaultdict(list)
    for seen in lines:
        streams[seen.local, None if seen.local is not None else seen.rank].append(seen)
    own = streams.pop((None, None), [])
    for (local, rank), part in streams.items():
        same = [e for e in entries if e.local == local or (local is None and e.rank == rank)]
        entry = next(iter(same or (entries if len(streams) == len(entries) == 1 else ())), None)
        entries = [e for e in entries if e is not entry]
        shown = next((seen.rank for seen in part if seen.rank is not None), entry.rank if entry else ranks.get(local))
        yield _Suspect(node, shown, entry and entry.code, part[-1].at, part, entry, single=True)
    for entry in entries:
        yield _Suspect(node, entry.rank, entry.code, 0.0, [] if streams else lines, entry)
    yield _Suspect(node, None, code, own[-1].at if own else 0.0, own)


def _read_global_ranks(lines: Iterable[LogLinePart]) -> dict[int | None, int]:
    """Global rank by local rank, as the last rendezvous assigned them."""
    found = [match[1] for seen in lines if (match := _GLOBAL_RANKS.search(seen.text))]
    return dict(enumerate(int(rank) for rank in re.findall(r"\d{1,6}", found[-1]))) if found else {}


def _read_lost_workers(lines: Sequence[LogLinePart], ranks: Mapping[int | None, int]) -> list[_LostWorker]:
    """Every worker in torchrun's final report, the root cause first; if it is cut off, those it logged as lost."""
    agent = [seen for seen in lines if seen.local is None]
    lost = ((seen, *said) for seen in agent if (said := read_lost_worker(seen.text)))
    return list(_read_items(agent))[::-1] or [
        _LostWorker(ranks.get(at), at, code, "", seen, []) for seen, at, code in lost
    ]


def _read_items(lines: Iterable[LogLinePart]) -> Iterator[_LostWorker]:
    """The items of `Failures:` and `Root Cause`; a traceback that @record wrote is indented by two."""
    fields: dict[str, str] = {}
    said: list[LogLinePart] = []
    for seen in lines:
        field = _FIELD.match(seen.text)
        if field is None:
            fields = fields if seen.text.startswith("  ") else {}
            said += [seen._replace(text=seen.text[2:])] if "traceback" in fields else []
            continue
        fields = {**({} if field[1] == "time" else fields), field[1]: field[2]}
        worker, code = _WORKER.match(fields.get("rank", "")), _EXIT_CODE.match(fields.get("exitcode", ""))
        if field[1] == "exitcode" and worker and code:
            said = []
            yield _LostWorker(int(worker[1]), int(worker[2]), int(code[0]), fields.get("time", ""), seen, said)
        elif field[1] in ("traceback", "msg"):
            said.append(seen)


def _diagnose_suspect(who: _Suspect) -> _Finding | None:
    """What this process itself shows: a signal, its last exception, a telling line, its exit code, in this order."""
    lines = [*(who.entry.said if who.entry else ()), *who.lines]
    code = _signed_code(who.code)
    meant = next((cause for cause in CAUSES if code in (cause.worker if who.entry else cause.agent)), None)
    decided = _Finding(meant, who, who.at, _find_proof(meant, who, lines)) if meant else None
    if decided and code in DECISIVE_EXIT_CODES:
        return _scan_lines(who, lines, _KILL_CAUSES) or decided
    errors = find_exceptions(lines)[-1 if who.single else 0 :]
    shown = [_scan_lines(who, it, _NEAREST) or _Finding(PROGRAM_ERROR, who, it[-1].at, it[-1]) for it in errors]
    found = min(shown, key=lambda it: it.cause.echo, default=None)
    if found is None or found.cause.echo > ECHO_OWN:
        causes = _NEAREST if found is None else [cause for cause in _NEAREST if cause.echo <= found.cause.echo]
        found = _scan_lines(who, lines, causes) or found
    return found or decided or (_Finding(PROGRAM_EXIT, who, who.entry.proof.at, who.entry.proof) if who.entry else None)


def _find_proof(cause: Cause, who: _Suspect, lines: Sequence[LogLinePart]) -> LogLinePart | None:
    """The line that says what the exit code means, else torchrun's line about it, else a shell's last line."""
    said = next((seen for seen in lines if cause.pattern and cause.pattern.search(seen.text)), None)
    words = (seen for seen in reversed(lines) if seen.text.strip() and (who.code or 0) > 0)
    return said or (who.entry.proof if who.entry else next(words, None))


def _scan_lines(who: _Suspect, lines: Iterable[LogLinePart], causes: Sequence[Cause]) -> _Finding | None:
    """The first of these causes that a line shows, and the first line that does."""
    found: _Finding | None = None
    for seen in drop_noise(lines):
        at = next((at for at, cause in enumerate(causes) if cause.pattern and cause.pattern.search(seen.text)), None)
        if at is not None:
            found, causes = _Finding(causes[at], who, seen.at, seen), causes[:at]
    return found


def _diagnose_store(lines: Sequence[LogLinePart], code: int | None) -> _Finding:
    """Why the rendezvous store ended before the job: its own reason, or only that it did."""
    who = _Suspect(_STORE_NAME, None, code, lines[-1].at if lines else 0.0, lines)
    return _scan_lines(who, lines, _OWN_CAUSES) or _Finding(STORE_ENDED, who, who.at, None)


def _find_root_cause(suspects: Sequence[_Suspect], ended: Sequence[_Finding]) -> _Finding:
    """What the first process shows or, if that echoes a failure elsewhere, that failure."""
    if not suspects:
        return ended[0]
    first = _find_first_lost(suspects) or _find_first_silent(suspects)
    blank = _Finding(UNKNOWN_CAUSE, first[-1], max(who.at for who in first) or float("inf"), None)
    found = min((_diagnose_suspect(who) or blank for who in first), key=lambda it: (it.cause.echo, it.at))
    if found.cause.echo == ECHO_OWN:
        return found
    others = [*ended, *(_diagnose_suspect(who) for who in suspects if who not in first)]
    late = 0.0 if found.cause is PROGRAM_EXIT else CLOCK_SKEW_S  # a peer lost after an exit was not its reason
    closer = [it for it in others if it and it.cause.echo < found.cause.echo]
    nearer = [it for it in closer if it.at <= found.at + (late if it.cause.echo >= ECHO_PEER else CLOCK_SKEW_S)]
    return min(nearer, key=lambda it: (it.cause.echo, it.at), default=found)


def _find_first_lost(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The worker that torchrun saw fail before all others; one that was told to stop does not count."""
    lost = [(who.entry.time or "9", who.at, who) for who in suspects if who.entry and _signed_code(who.code) != -15]
    return [min(lost, key=lambda it: it[:2])[2]] if lost else []


def _find_first_silent(suspects: Iterable[_Suspect]) -> list[_Suspect]:
    """The processes of the node that fell silent first; a node that was told to stop comes last."""
    nodes: dict[str, list[_Suspect]] = defaultdict(list)
    for who in suspects:
        nodes[who.node].append(who)
    later = {-15: 2, None: 1}
    return min(
        nodes.values(), key=lambda part: (later.get(_signed_code(part[-1].code), 0), max(who.at for who in part))
    )


def _build_failure(found: _Finding, lines: Mapping[str, Sequence[LogLinePart]]) -> Failure:
    cause, who, seen = found.cause, found.suspect, found.seen
    said = _RANK.search(seen.line) if seen and not who.single else None
    rank = int(said[1]) if said and who.rank is None else who.rank
    what, retry = _describe_cause(found), cause.retry
    if cause.slug == COLLECTIVE_TIMEOUT and seen:
        every = (RankLine(node, each.rank, each.text) for node, part in lines.items() for each in part)
        what, retry = explain_timeout(RankLine(who.node, rank, seen.text), every) or (what, retry)
    where = who.node if rank is None else f"Rank {rank} on {who.node}"
    return Failure(
        cause=cause.slug,
        sentence=f"{where} {what}.",
        node=who.node,
        rank=rank,
        exit_code=who.code,
        retry=retry,
        line=seen.line if seen else None,
        tail=tuple(part.line for part in (who.lines if who.single else lines[who.node])[-TAIL_LINES:]),
    )


def _describe_cause(found: _Finding) -> str:
    """The cause's words, with its proof and with the peer, adapter and sizes that the proof names."""
    cause, seen = found.cause, found.seen
    match = cause.pattern.search(seen.text) if cause.pattern and seen else None
    proof = quote_around(seen.text, match.span() if match else (0, 0)) if seen else ""
    name = _SIGNAL_NAMES.get(_signed_code(found.suspect.code), "a signal")
    words = defaultdict(str, match.groupdict() if match else {}, code=found.suspect.code, said=proof, signal=name)
    details = read_details(seen.text) if seen and cause.pattern else ""
    return cause.says.format_map(words) + (f" ({details})" if details else "")
