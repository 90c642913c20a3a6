"""Why a job failed: the process that did so first, and the line of its log that proves why."""

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.log_patterns import (
    CAUSES,
    DECISIVE,
    OWN,
    PEER,
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    SKEW,
    STORE_ENDED,
    UNKNOWN,
    Cause,
)
from torchyard.model.run import Failure, LogLine

STORE = "etcd"  # a block of this name is the rendezvous store, not an agent
TAIL, WIDTH, SAID = 50, 1000, 160  # lines of a tail; characters kept at either end of a line, and in a sentence
PARTS = 20  # kept of a line with carriage returns: a progress bar may write thousands
NEAREST = tuple(sorted(CAUSES, key=lambda cause: cause.echo))  # the first that matches explains most
KILLERS = tuple(cause for cause in NEAREST if cause.kills)
OWNED = tuple(cause for cause in NEAREST if cause.echo == OWN)
SIGNALS: dict[int | None, str] = {-number: number.name for number in signal.Signals}

# A colour is also seen without its first character.
COLOUR = r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]|\[(?:[01]|22|[39]\d)(?:;\d{1,3}){0,8}m"
ESCAPE = re.compile(COLOUR + r"|\x1b\][^\x07]{0,200}\x07|[\x00-\x08\x0b-\x1f\x7f]")
# What may stand before the words of a process: kubectl, srun -l, mpirun, Ray, torch's hook, torchrun's tee.
MARK = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d):? ?|\[pod/\S{1,200}\] ?| {0,4}(?P<task>\d{1,5}): (?=\S)"
    r"|\[\d{1,5},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?|\((?:raylet|\w{1,60} pid=\d{1,9})[^)]{0,100}\) ?"
    r"|\[[Rr]ank:? ?(?P<rank>\d{1,6})\]:? ?"
    r"|\[(?![^\s\]]{0,80}\.(?:py|cc|cpp|cu|h):)(?:(?:[\w.-]{1,80}:|[A-Za-z_][\w.-]{0,80}?)(?P<local>\d{1,3})\]:"
    r"|[A-Za-z][\w.-]{0,80}:(?P<bare>\d{1,3})\])"
)
PLAIN = re.compile(r"^I\d{4} |Warning: | NCCL INFO ")
RANK_SAID = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr]ank:? ?(\d{1,6})\]")

# torchrun's own account of its workers, alike since 1.9
GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]{1,2000})\]")
LOST = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) ")
FIELD = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file|traceback|msg)\s{0,8}: ?(.{0,400})")
WORKER = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
CODE = re.compile(r"-?\d{1,5}")

HEAD = "Traceback (most recent call last)"
FRAME = re.compile(r'[\s|]{1,200}File "')
LINKS = ("The above exception was the direct cause", "During handling of the above exception")
NAME = r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Za-z_][\w.]{0,200}"
RAISED = re.compile(NAME + r"(?:\(\w{1,80}\))?(?::(?!\d)|\s*$)")
BARE = re.compile(NAME + r"(?:Error|Exception|Interrupt)(?:\(\w{1,80}\))?(?::|\s*$)")
WRAPPER = re.compile(r"\S{0,200}(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SystemExit)\b")


class Seen(NamedTuple):
    """A line without escapes; `text` is also without the marks before it."""

    at: float
    text: str
    line: str
    local: int | None = None
    rank: int | None = None


class Entry(NamedTuple):
    """What torchrun says of one failed worker; `time` is its own clock, in whole seconds."""

    rank: int | None
    local: int
    code: int
    time: str
    proof: Seen
    said: list[Seen]


class Suspect(NamedTuple):
    """One process that may have failed first: a rank, or else an agent. `single`: the lines are its own alone."""

    node: str
    rank: int | None
    code: int | None
    at: float  # its last words: torchrun tells of a lost worker up to 30 s later, when it has stopped the others
    lines: Sequence[Seen]
    entry: Entry | None = None
    single: bool = False


class Finding(NamedTuple):
    """A cause, whose it is, and the line that proves it."""

    cause: Cause
    suspect: Suspect
    at: float
    seen: Seen | None


def read_failure(logs: Mapping[str, Sequence[LogLine]], exits: Mapping[str, int | None]) -> Failure | None:
    """The first failure of a job, or None where every agent left with 0.

    `exits` are the agents' exit codes (negative: a signal; None: running, or unknown). Worker lines carry the prefix
    of torchrun's `--tee`; without it a node's lines are read as one stream, and the rank may stay unknown.
    """
    agents = {node: exits.get(node) for node in (*exits, *logs) if node != STORE}
    store = [] if exits.get(STORE) is None else [STORE]  # however it ended, it did so before the agents
    if all(code == 0 for code in agents.values()) and (agents or not store):
        return None
    seen = {node: [part for line in logs.get(node, ()) for part in clean(line)] for node in (*agents, *store)}
    failed, alone = {node: code for node, code in agents.items() if code != 0}, len(agents) == 1
    suspects = [who for node, code in failed.items() for who in name_suspects(node, code, seen[node], alone)]
    found = find(suspects, [diagnose_store(seen[node], exits[node]) for node in store])
    return tell(found, seen[found.suspect.node])


def clean(line: LogLine) -> Iterator[Seen]:
    """The parts of a line that a terminal shows one over the other, the last ones; a long one loses its middle."""
    local: str | None = None
    rank: str | None = None
    parts = re.split(r"[\r\n]+", line.text)
    for part in [*parts[:1], *parts[1:][-PARTS:]]:
        short = part if len(part) <= 2 * WIDTH else f"{part[:WIDTH]} ... {part[-WIDTH:]}"
        text = whole = ESCAPE.sub("", short)
        while mark := MARK.match(text):
            text = text[mark.end() :]
            local = mark["local"] or mark["bare"] or local
            rank = mark["rank"] or mark["mpi"] or mark["task"] or rank
        yield Seen(line.at, text, whole, int(local) if local else None, int(rank) if rank else None)


def signed(code: int | None) -> int | None:
    """A shell and a container say 128 + n where a process was ended by signal n."""
    return 128 - code if code is not None and 128 < code <= 128 + 64 else code


def spoken(lines: Iterable[Seen]) -> Iterator[Seen]:
    """Without the frames of tracebacks, whose source may hold any words, without warnings and plain information."""
    framed = False
    for seen in lines:
        framed = bool(FRAME.match(seen.text)) or (framed and seen.text[:1].isspace())
        if not framed and not PLAIN.search(seen.text):
            yield seen


def name_suspects(node: str, code: int | None, lines: Sequence[Seen], alone: bool) -> Iterator[Suspect]:
    """The ranks of a node that said something or were lost, and at last its agent."""
    ranks = global_ranks(lines) or ({at: at for at in range(64)} if alone else {})
    entries = read_entries(lines, ranks)
    streams: dict[tuple[int | None, int | None], list[Seen]] = defaultdict(list)
    for seen in lines:
        streams[seen.local, None if seen.local is not None else seen.rank].append(seen)
    own = streams.pop((None, None), [])
    for (local, rank), part in streams.items():
        same = [e for e in entries if e.local == local or (local is None and e.rank == rank)]
        entry = next(iter(same or (entries if len(streams) == len(entries) == 1 else ())), None)
        entries = [e for e in entries if e is not entry]
        told = next((seen.rank for seen in part if seen.rank is not None), entry.rank if entry else ranks.get(local))
        yield Suspect(node, told, entry and entry.code, part[-1].at, part, entry, single=True)
    for entry in entries:
        yield Suspect(node, entry.rank, entry.code, 0.0, [] if streams else lines, entry)
    yield Suspect(node, None, code, own[-1].at if own else 0.0, own)


def global_ranks(lines: Iterable[Seen]) -> dict[int | None, int]:
    """Global rank by local rank, as the last rendezvous gave them out."""
    found = [match[1] for seen in lines if (match := GLOBAL_RANKS.search(seen.text))]
    return dict(enumerate(int(rank) for rank in re.findall(r"\d{1,6}", found[-1]))) if found else {}


def read_entries(lines: Sequence[Seen], ranks: Mapping[int | None, int]) -> list[Entry]:
    """Every worker in torchrun's last words, the root cause first; where they are cut off, those it logged as lost."""
    agent = [seen for seen in lines if seen.local is None]
    lost = ((seen, int(m[1]), int(m[2])) for seen in agent if (m := LOST.search(seen.text)))
    return list(read_blocks(agent))[::-1] or [Entry(ranks.get(at), at, code, "", seen, []) for seen, code, at in lost]


def read_blocks(lines: Iterable[Seen]) -> Iterator[Entry]:
    """The items of `Failures:` and `Root Cause`; a traceback that @record wrote is indented by two."""
    fields: dict[str, str] = {}
    said: list[Seen] = []
    for seen in lines:
        field = FIELD.match(seen.text)
        if field is None:
            fields = fields if seen.text.startswith("  ") else {}
            said += [seen._replace(text=seen.text[2:])] if "traceback" in fields else []
            continue
        fields = {**({} if field[1] == "time" else fields), field[1]: field[2]}
        worker, code = WORKER.match(fields.get("rank", "")), CODE.match(fields.get("exitcode", ""))
        if field[1] == "exitcode" and worker and code:
            said = []
            yield Entry(int(worker[1]), int(worker[2]), int(code[0]), fields.get("time", ""), seen, said)
        elif field[1] in ("traceback", "msg"):
            said.append(seen)


def diagnose(who: Suspect) -> Finding | None:
    """What this process itself shows: a signal, its last exception, a telling line, its exit code, in this order."""
    lines = [*(who.entry.said if who.entry else ()), *who.lines]
    code = signed(who.code)
    meant = next((cause for cause in CAUSES if code in (cause.worker if who.entry else cause.agent)), None)
    decided = Finding(meant, who, who.at, proof(meant, who, lines)) if meant else None
    if decided and code in DECISIVE:
        return scan(who, lines, KILLERS) or decided
    errors = raised(lines)[-1 if who.single else 0 :]
    shown = [scan(who, it, NEAREST) or Finding(PROGRAM_ERROR, who, it[-1].at, it[-1]) for it in errors]
    found = min(shown, key=lambda it: it.cause.echo, default=None)
    if found is None or found.cause.echo > OWN:
        causes = NEAREST if found is None else [cause for cause in NEAREST if cause.echo <= found.cause.echo]
        found = scan(who, lines, causes) or found
    return found or decided or (Finding(PROGRAM_EXIT, who, who.entry.proof.at, who.entry.proof) if who.entry else None)


def proof(cause: Cause, who: Suspect, lines: Sequence[Seen]) -> Seen | None:
    """The line that says what the exit code means, else torchrun's line about it, else a shell's last words."""
    said = next((seen for seen in lines if cause.pattern and cause.pattern.search(seen.text)), None)
    words = (seen for seen in reversed(lines) if seen.text.strip() and (who.code or 0) > 0)
    return said or (who.entry.proof if who.entry else next(words, None))


def raised(lines: Iterable[Seen]) -> list[list[Seen]]:
    """The exceptions that were raised, each with those it came from; without a traceback, what looks like one."""
    chains: list[list[Seen]] = []
    bare, chain = list[list[Seen]](), list[Seen]()
    inside = linked = ignored = False
    for seen in lines:
        if HEAD in seen.text or FRAME.match(seen.text):
            if not inside and not linked:
                chain = []
                chains += [] if ignored else [chain]
            inside, linked, ignored = True, False, False
        elif inside and RAISED.match(seen.text):
            chain.append(seen)
            inside = False
        elif not inside and BARE.match(seen.text):
            bare.append([seen])
        linked = linked or seen.text.startswith(LINKS)
        ignored = ignored or seen.text.startswith("Exception ignored")
    told = [[seen for seen in chain if not WRAPPER.match(seen.text)] for chain in (chains if any(chains) else bare)]
    return [chain for chain in told if chain]


def scan(who: Suspect, lines: Iterable[Seen], causes: Sequence[Cause]) -> Finding | None:
    """The first of these causes that a line shows, and the first line that does."""
    found: Finding | None = None
    for seen in spoken(lines):
        at = next((at for at, cause in enumerate(causes) if cause.pattern and cause.pattern.search(seen.text)), None)
        if at is not None:
            found, causes = Finding(causes[at], who, seen.at, seen), causes[:at]
    return found


def diagnose_store(lines: Sequence[Seen], code: int | None) -> Finding:
    """The rendezvous store ended before the job: its own reason, or the bare fact."""
    who = Suspect(STORE, None, code, lines[-1].at if lines else 0.0, lines)
    return scan(who, lines, OWNED) or Finding(STORE_ENDED, who, who.at, None)


def find(suspects: Sequence[Suspect], ended: Sequence[Finding]) -> Finding:
    """What the first one shows; where that is an echo of somebody else's trouble, the trouble."""
    if not suspects:
        return ended[0]
    first = first_lost(suspects) or first_silent(suspects)
    blank = Finding(UNKNOWN, first[-1], max(who.at for who in first) or float("inf"), None)
    found = min((diagnose(who) or blank for who in first), key=lambda it: (it.cause.echo, it.at))
    if found.cause.echo == OWN:
        return found
    others = [*ended, *(diagnose(who) for who in suspects if who not in first)]
    late = 0.0 if found.cause is PROGRAM_EXIT else SKEW  # to lose a peer after an exit was not its reason
    closer = [it for it in others if it and it.cause.echo < found.cause.echo]
    nearer = [it for it in closer if it.at <= found.at + (late if it.cause.echo >= PEER else SKEW)]
    return min(nearer, key=lambda it: (it.cause.echo, it.at), default=found)


def first_lost(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The worker that torchrun saw fail before all others; one that was told to stop is none."""
    lost = [(who.entry.time or "9", who.at, who) for who in suspects if who.entry and signed(who.code) != -15]
    return [min(lost, key=lambda it: it[:2])[2]] if lost else []


def first_silent(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The processes of the node that spoke its last words first; a node that was told to stop comes last."""
    nodes: dict[str, list[Suspect]] = defaultdict(list)
    for who in suspects:
        nodes[who.node].append(who)
    later = {-15: 2, None: 1}
    return min(nodes.values(), key=lambda part: (later.get(signed(part[-1].code), 0), max(who.at for who in part)))


def tell(found: Finding, lines: Sequence[Seen]) -> Failure:
    cause, who, seen = found.cause, found.suspect, found.seen
    said = RANK_SAID.search(seen.line) if seen and not who.single else None
    rank = int(said[1]) if said and who.rank is None else who.rank
    match = cause.pattern.search(seen.text) if cause.pattern and seen else None
    proven = seen.text.strip()[:SAID] if seen else ""
    name = SIGNALS.get(signed(who.code), "a signal")
    words = defaultdict(str, match.groupdict() if match else {}, code=who.code, said=proven, signal=name)
    where = who.node if rank is None else f"Rank {rank} on {who.node}"
    return Failure(
        cause=cause.slug,
        sentence=f"{where} {cause.says.format_map(words)}.",
        node=who.node,
        rank=rank,
        exit_code=who.code,
        retry=cause.retry,
        line=seen.line if seen else None,
        tail=tuple(part.line for part in (who.lines if who.single else lines)[-TAIL:]),
    )
