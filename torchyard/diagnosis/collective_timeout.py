"""Collectives that timed out: what torch's watchdog reports about each, and which ranks did not take part.

Formats: ProcessGroupNCCL.cpp and ProcessGroupXCCL.cpp of torch 1.9 to 2.13.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MARK = "Watchdog caught collective operation timeout"
# torch 1.9 to 2.13: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000). Versions
# before 1.12 have no SeqNum, those before 2.1 a TensorShape or nothing in place of the numbers of elements.
_WORK = re.compile(
    rf"(?:[Rr]ank (?P<rank>\d{{1,6}})\] )?{_MARK}: Work[A-Z]{{4}}\((?P<fields>.{{0,300}}?)\)"
    r" ran for (?P<ran>\d{1,12}) milli"
)
_FIELD = re.compile(r"(SeqNum|OpType|NumelIn)=(\w+)")
# A process group. The name is the same on all ranks; the number, of torch 2.2 and 2.3 or without a name, may not be.
_GROUP = re.compile(
    r"\[PG (?:ID \d{1,6} PG GUID (?P<name>[^\s(\]]{1,80})|(?P<number>\d{1,6}))(?: ?\((?P<about>[^)\]]{0,80})\))?"
    r" Rank (?P<member>\d{1,6})\]"
)
# How far a rank has come in a process group, once it or another rank has timed out. -1: it has begun no collective.
_PROGRESS = re.compile(r"[Ll]ast enqueued (?:[NX]CCL )?work: (?P<begun>-?\d{1,18})\b")
_FAILED_WORK = re.compile(r"(?:at work(?: sequence id)?|Timeout at [NX]CCL work): (\d{1,18})\b")
# Where the program called it: after this head a frame a line, the innermost first, if torch recorded them.
_STACK_HEAD = "Stack trace of the failed collective:"
_FRAME = re.compile(r"#\d{1,3} (?P<function>\S{1,200}) from (?P<file>[^\s<][^:]{0,400}):(?P<line>\d{1,7})$")
_TORCH, _LIBRARIES = "/torch/", ("/site-packages/", "/dist-packages/")
# The desync report of torch, with TORCH_NCCL_DESYNC_DEBUG, and the monitored barrier of gloo.
_ABSENT = re.compile(
    r"\[(?P<late>[\d, ]{1,2000})\] finished collective #\d{1,12}, but didn't join"
    r"|ranks \[(?P<never>[\d, ]{1,2000})\] are the lagging ranks"
    r"|\bRanks? (?P<barrier>[\d, ]{1,2000}) failed to pass monitoredBarrier"
)
_UNNAMED, _DEFAULT_NAME = "", "0"  # process groups: of torch before 2.2, and the one of all ranks
# Their numbers are counted by each rank for itself. A batch of them is a COALESCED.
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
_MAX_NAMED_RANKS = 8
_NEVER_WORKED = (
    "not even the first collective works, so look at NCCL_SOCKET_IFNAME, the firewall and the fabric between the nodes"
)


class RankLine(NamedTuple):
    """A line, the node that it comes from, and the global rank that printed it, None if that is unknown."""

    node: str
    rank: int | None
    text: str


class _Group(NamedTuple):
    """A process group; two that are equal are the same one. `only`: the rank, if others may name another one so."""

    name: str
    about: str = ""
    only: int | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether its ranks are the global ones."""
        return self.name in (_UNNAMED, _DEFAULT_NAME) and self.only is None


class _Timeout(NamedTuple):
    """One rank's report about a collective that it waited for; `rank` is its place in the process group."""

    rank: int | None
    group: _Group
    sequence: int | None
    operation: str
    elements: str
    waited_s: float

    def is_ordered(self) -> bool:
        """Whether all ranks of the group count it alike."""
        return self.sequence is not None and self.operation not in _POINT_TO_POINT


class _Told:
    """What all ranks have logged about their collectives."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.absent: dict[int, None] = {}
        self.timeouts: dict[int | None, list[_Timeout]] = {}
        self._begun: dict[tuple[int, _Group], int] = {}
        self._groups: dict[tuple[int | None, int], _Group] = {}  # of the work that failed, by rank and number
        self._frames: dict[int | None, list[re.Match[str]]] = {}
        self._stack: RankLine | None = None  # the head of the frames that are being read

    def feed(self, line: RankLine) -> None:
        """Read one line."""
        its, about = _read_timeout(line), _read_group(line)
        rank = _find_rank(line, its, about)
        if rank is not None:
            self.nodes.setdefault(rank, line.node)
        if its:
            self.timeouts.setdefault(rank, []).append(its)
        if about and (progress := _PROGRESS.search(line.text)):
            group, _ = about
            if rank is not None:
                known = self._begun.get((rank, group), -1)
                self._begun[rank, group] = max(known, int(progress["begun"]))  # two threads print it
            if failed := _FAILED_WORK.search(line.text):
                self._groups.setdefault((rank, int(failed[1])), group)
        self.absent |= dict.fromkeys(_read_absent_ranks(line.text))
        self._read_frame(line)

    def _read_frame(self, line: RankLine) -> None:
        if _STACK_HEAD in line.text:
            self._stack = None if line.rank in self._frames else line
        elif head := self._stack:
            frame = _FRAME.match(line.text) if line.node == head.node and line.rank in (None, head.rank) else None
            if frame:
                self._frames.setdefault(head.rank, []).append(frame)
            else:
                self._stack = None

    def find_call(self, rank: int | None) -> str:
        """Where a rank's program called the collective that timed out first, as `train.py:210 in step`."""
        frames = [frame for frame in self._frames.get(rank, []) if _TORCH not in frame["file"]]
        own = [frame for frame in frames if not any(folder in frame["file"] for folder in _LIBRARIES)]
        called = next(iter(own or frames), None)
        return f"{called['file'].rsplit('/', 1)[-1]}:{called['line']} in {called['function']}" if called else ""

    def list_timeouts(self, rank: int | None) -> list[_Timeout]:
        """A rank's timeouts, each with its process group as far as any line names it."""
        return [self.complete(rank, its) for its in self.timeouts.get(rank, [])]

    def complete(self, rank: int | None, its: _Timeout) -> _Timeout:
        """The timeout with the process group that the watchdog's next line names."""
        group = self._groups.get((rank, -1 if its.sequence is None else its.sequence))
        return its._replace(group=group or its.group)

    def find_positions(self, group: _Group) -> dict[int, tuple[int, bool]]:
        """The last collective of the group that each rank has begun, and whether that is one that it waits for."""
        every = {rank: [it for it in self.list_timeouts(rank) if it.group == group] for rank in self.nodes}
        waits = {rank: [it.sequence or 0 for it in its if it.is_ordered()] for rank, its in every.items()}
        is_mixed = any(not it.is_ordered() for its in every.values() for it in its)  # what was begun may be a SEND
        begun = {} if is_mixed else {rank: (last, False) for (rank, its), last in self._begun.items() if its == group}
        # The first one: later ones may be of another start of the processes by torchrun.
        return begun | {rank: (numbers[0], True) for rank, numbers in waits.items() if numbers}


def explain_timeout(first: RankLine, lines: Iterable[RankLine]) -> tuple[str, bool] | None:
    """What the rank of `first` waited for, and which rank to look at; and whether another attempt may work.

    `lines` are those of all ranks. None if nothing is known beyond the fact that a collective timed out.
    """
    told = _Told()
    for line in lines:
        told.feed(line)
    its = _read_timeout(first)
    rank = _find_rank(first, its, _read_group(first))
    mine = told.complete(rank, its) if its else _find_any(rank, told)
    said = f"waited {_describe_collective(mine, told.find_call(rank))} until it timed out"
    if told.absent:
        return f"{said}: {_name_ranks(told.absent, told.nodes)} did not join it, so look there", True
    return _compare_ranks(said, mine, told) if mine else None


def _find_any(rank: int | None, told: _Told) -> _Timeout | None:
    """The first timeout of a rank, else that of any other one."""
    found = [told.list_timeouts(each) for each in (rank, *told.timeouts)]
    return next((its for each in found for its in each), None)


def _compare_ranks(said: str, mine: _Timeout, told: _Told) -> tuple[str, bool]:
    """Which rank to look at, judged by how far the others have come in the same process group."""
    positions = told.find_positions(mine.group)
    behind = {rank: it for rank, it in positions.items() if mine.is_ordered() and it[0] < (mine.sequence or 0)}
    if 1 < len(behind) == len(told.nodes) - 1 and not any(waits for _, waits in behind.values()):
        return f"{said}: no other rank had begun it, so look at why this one did", True
    if behind:
        last, waits = min(behind.values(), key=lambda it: (it[0], not it[1]))
        named = _name_ranks([rank for rank, it in behind.items() if it[0] == last], told.nodes)
        began = f"after number {last:,}" if last > 0 else "of that group at all"
        what = "still waits in an earlier collective" if waits else f"had begun none {began}"
        return f"{said}: {named} {what}, so look there", True
    silent = [rank for rank in told.nodes if rank not in positions and rank not in told.timeouts]
    # Where one rank's abort ends the others, most of them report nothing.
    if mine.group.is_of_all and 0 < len(silent) < len(told.nodes) / 2:
        return f"{said}: {_name_ranks(silent, told.nodes)} did not wait for it, so look there", True
    first = {its[0].sequence for its in told.timeouts.values()}
    if mine.group.is_of_all and len(told.nodes) > 1 and not silent and first == {1}:
        return f"{said}, and so did all others: {_NEVER_WORKED}", False
    return f"{said}: look for the rank that is missing or slow", True


def _read_timeout(line: RankLine) -> _Timeout | None:
    """What a watchdog's line reports."""
    found = _WORK.search(line.text) if _MARK in line.text else None
    if not found:
        return None
    fields = dict(_FIELD.findall(found["fields"]))
    about, member = _read_group(line), int(found["rank"]) if found["rank"] else None
    is_member = line.rank is not None and member not in (None, line.rank)  # of a group that has not all ranks
    return _Timeout(
        rank=member,
        group=about[0] if about else _Group(_UNNAMED, only=line.rank if is_member else None),
        sequence=int(fields["SeqNum"]) if fields.get("SeqNum", "").isdigit() else None,
        operation=fields.get("OpType", "a collective"),
        elements=fields.get("NumelIn", ""),
        waited_s=int(found["ran"]) / 1000,
    )


def _read_group(line: RankLine) -> tuple[_Group, int] | None:
    """The process group that a line is about, and the place in it of the rank that printed the line."""
    found = _GROUP.search(line.text)
    if not found:
        return None
    about, member = found["about"] or "", int(found["member"])
    if found["name"] or about == "default_pg":
        return _Group(found["name"] or _DEFAULT_NAME, "" if about == "default_pg" else about), member
    is_shared = found["number"] == _DEFAULT_NAME or line.rank in (None, member)
    return _Group(found["number"], about, None if is_shared else line.rank), member


def _find_rank(line: RankLine, its: _Timeout | None, about: tuple[_Group, int] | None) -> int | None:
    """The global rank that printed a line, by what it says about itself if nothing else does."""
    group, member = about or ((its.group, its.rank) if its else (None, None))
    return member if line.rank is None and group and group.is_of_all else line.rank


def _read_absent_ranks(text: str) -> list[int]:
    """The ranks that torch itself reports as absent from a collective."""
    found = _ABSENT.search(text)
    named = found and (found["late"] or found["never"] or found["barrier"])
    return [int(rank) for rank in re.findall(r"\d{1,6}", named or "")]


def _describe_collective(its: _Timeout | None, call: str) -> str:
    """`600 s for ALLREDUCE number 9 of 1,024 elements (train.py:210 in step)`, as far as it is known."""
    if its is None:
        return "for a collective"
    number = "" if its.sequence is None else f" number {its.sequence:,}"
    size = f" of {int(its.elements):,} elements" if its.elements.isdigit() else ""
    group = its.group.about
    return (
        f"{its.waited_s:,.0f} s for {its.operation}{number}{size}"
        f"{f' in the group {group}' if group else ''}{f' ({call})' if call else ''}"
    )


def _name_ranks(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    """`rank 3 on node-1, rank 4`, and how many more."""
    every = [f"rank {rank} on {nodes[rank]}" if rank in nodes else f"rank {rank}" for rank in sorted(ranks)]
    more = f" and {len(every) - _MAX_NAMED_RANKS} more" if len(every) > _MAX_NAMED_RANKS else ""
    return f"{', '.join(every[:_MAX_NAMED_RANKS])}{more}"
