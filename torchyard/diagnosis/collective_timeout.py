"""Collectives that timed out: what torch's watchdog reports about each, and which ranks did not take part.

Formats: ProcessGroupNCCL.cpp and ProcessGroupXCCL.cpp of torch 1.9 to 2.13.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_WATCHDOG_MARKER = "Watchdog caught collective operation timeout"
# torch 1.9 to 2.13: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000). Versions
# before 1.12 have no SeqNum, those before 2.1 a TensorShape or nothing in place of the numbers of elements.
_WATCHDOG_TIMEOUT = re.compile(
    rf"(?:[Rr]ank (?P<rank>\d{{1,6}})\] )?{_WATCHDOG_MARKER}: Work[A-Z]{{4}}\((?P<fields>.{{0,300}}?)\)"
    r" ran for (?P<milliseconds>\d{1,12}) milli"
)
_WORK_FIELD = re.compile(r"(SeqNum|OpType|NumelIn)=(\w+)")
# A process group. The name is the same on all ranks; the number, of torch 2.2 and 2.3 or without a name, may not be.
_PROCESS_GROUP = re.compile(
    r"\[PG (?:ID \d{1,6} PG GUID (?P<name>[^\s(\]]{1,80})|(?P<number>\d{1,6}))(?: ?\((?P<description>[^)\]]{0,80})\))?"
    r" Rank (?P<group_rank>\d{1,6})\]"
)
# How far a rank has come in a process group, once it or another rank has timed out. -1: it has enqueued no collective.
_LAST_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:[NX]CCL )?work: (?P<number>-?\d{1,18})\b")
_FAILED_WORK = re.compile(r"(?:at work(?: sequence id)?|Timeout at [NX]CCL work): (\d{1,18})\b")
# Where the program called it: after this header one frame per line, the innermost first, if torch recorded them.
_STACK_HEADER = "Stack trace of the failed collective:"
_FRAME = re.compile(r"#\d{1,3} (?P<function>\S{1,200}) from (?P<file>[^\s<][^:]{0,400}):(?P<line>\d{1,7})$")
_TORCH_FOLDER = "/torch/"
_LIBRARY_FOLDER = re.compile(r"/(?:site|dist)-packages/(?P<package>[^/]{1,200})")
# What starts a program: an interpreter's module, or the script of an installed command.
_STARTER = re.compile(r"^<|/(?:runpy|threading|spawn|process|popen_\w{1,20})\.py$|/bin/[^/]{1,200}$")
# torchrun's line about the ranks of its node, after each rendezvous.
_GLOBAL_RANKS = re.compile(r"\bglobal_ranks=\[([\d, ]{1,2000})\]")
# The desync report of torch, with TORCH_NCCL_DESYNC_DEBUG, and the monitored barrier of gloo.
_MISSING_RANKS = re.compile(
    r"\[(?P<late>[\d, ]{1,2000})\] finished collective #\d{1,12}, but didn't join"
    r"|ranks \[(?P<never>[\d, ]{1,2000})\] are the lagging ranks"
    r"|\bRanks? (?P<barrier>[\d, ]{1,2000}) failed to pass monitoredBarrier"
)
_UNNAMED_GROUP = ""  # a process group of torch before 2.2
_DEFAULT_GROUP = "0"  # the process group of all ranks
# Each rank counts these for itself, so their numbers cannot be compared. A batch of them is a COALESCED.
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
_MAX_NAMED_RANKS = 8
_SETUP_HINT = "not even the first collective works, so look at "
_NODES_HINT = "NCCL_SOCKET_IFNAME, the firewall and the fabric between the nodes"
_GPUS_HINT = "the links between its GPUs: NCCL_P2P_DISABLE=1 shows whether they are at fault"


class RankLine(NamedTuple):
    """A line, the node that it comes from, and the global rank that printed it; None if that is unknown."""

    node: str
    rank: int | None
    text: str


class TimeoutExplanation(NamedTuple):
    """What a rank waited for and which rank to look at, as a clause after its name; and whether a retry may work."""

    description: str
    retry: bool


class _ProcessGroup(NamedTuple):
    """A process group; two that are equal are the same one.

    `owner_rank`: the global rank whose numbering `name` belongs to, if other ranks may give that name to another group.
    """

    name: str
    description: str = ""
    owner_rank: int | None = None

    @property
    def has_all_ranks(self) -> bool:
        """Whether its ranks are the global ones."""
        return self.name in (_UNNAMED_GROUP, _DEFAULT_GROUP) and self.owner_rank is None


class _Membership(NamedTuple):
    """The process group that a line is about, and the rank within it of the process that printed the line."""

    group: _ProcessGroup
    group_rank: int


class _Timeout(NamedTuple):
    """One rank's report about a collective that it waited for."""

    group_rank: int | None
    group: _ProcessGroup
    sequence_number: int | None
    operation: str
    element_count: str
    waited_s: float

    def is_ordered(self) -> bool:
        """Whether all ranks of the group count it alike."""
        return self.sequence_number is not None and self.operation not in _POINT_TO_POINT


class _Position(NamedTuple):
    """The last collective of a group that a rank has enqueued, and whether the rank waits in it."""

    sequence_number: int
    is_waiting: bool


class _TimeoutReports:
    """What all ranks have logged about their collectives.

    First `process` every line, in the order of each rank's log; the other methods read what was collected.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}  # by global rank
        self.missing_ranks: dict[int, None] = {}  # that torch itself names
        self.timeouts: dict[int | None, list[_Timeout]] = {}
        self._last_enqueued: dict[tuple[int, _ProcessGroup], int] = {}
        self._group_by_work: dict[tuple[int | None, int], _ProcessGroup] = {}  # of failed work, by rank and number
        self._frames: dict[int | None, list[re.Match[str]]] = {}
        self._stack_header: RankLine | None = None  # of the frames that are being read

    def process(self, line: RankLine) -> None:
        """Read one line."""
        timeout = _parse_timeout(line)
        membership = _parse_membership(line)
        rank = _determine_rank(line, timeout, membership)
        if rank is not None:
            self.nodes.setdefault(rank, line.node)
        if timeout:
            self.timeouts.setdefault(rank, []).append(timeout)
        if membership:
            self._process_progress(line.text, rank, membership.group)
        if match := _GLOBAL_RANKS.search(line.text):
            for started_rank in re.findall(r"\d{1,6}", match[1]):
                self.nodes.setdefault(int(started_rank), line.node)
        self.missing_ranks |= dict.fromkeys(_parse_missing_ranks(line.text))
        self._process_frame(line)

    def _process_progress(self, text: str, rank: int | None, group: _ProcessGroup) -> None:
        enqueued = _LAST_ENQUEUED.search(text)
        if not enqueued:
            return
        if rank is not None:
            previous = self._last_enqueued.get((rank, group), -1)
            # Two threads of torch print it, in any order.
            self._last_enqueued[rank, group] = max(previous, int(enqueued["number"]))
        failed_work = _FAILED_WORK.search(text)
        if failed_work:
            self._group_by_work.setdefault((rank, int(failed_work[1])), group)

    def _process_frame(self, line: RankLine) -> None:
        header = self._stack_header
        if _STACK_HEADER in line.text:
            # Only the first stack of a rank counts: it is that of the first timeout.
            self._stack_header = None if line.rank in self._frames else line
        elif header:
            is_same_process = line.node == header.node and line.rank in (None, header.rank)
            frame = _FRAME.match(line.text) if is_same_process else None
            if frame:
                self._frames.setdefault(header.rank, []).append(frame)
            else:
                self._stack_header = None

    def find_call_site(self, rank: int | None) -> str | None:
        """Where a rank called the first of its collectives that timed out, as `train.py:210 in step`.

        It is the innermost frame of the program, which may lie in site-packages, or of a library if there is none. None
        if torch did not record the stack, or only its own frames. `rank` is None for lines that do not name a rank.
        """
        frames = [frame for frame in self._frames.get(rank, []) if _TORCH_FOLDER not in frame["file"]]
        own_frames = [frame for frame in frames if not _STARTER.search(frame["file"])]
        if not frames:
            return None
        packages = [_get_package(frame) for frame in own_frames]
        innermost = frames[0]
        if packages:
            # If all frames are those of installed packages, the outermost one is the program's.
            program = "" if "" in packages else packages[-1]
            innermost = own_frames[packages.index(program)]
        file_name = innermost["file"].rsplit("/", 1)[-1]
        return f"{file_name}:{innermost['line']} in {innermost['function']}"

    def list_timeouts(self, rank: int | None) -> list[_Timeout]:
        """A rank's timeouts, each with its process group as far as any line names it."""
        return [self.resolve_group(rank, timeout) for timeout in self.timeouts.get(rank, [])]

    def resolve_group(self, rank: int | None, timeout: _Timeout) -> _Timeout:
        """The timeout with the process group that the watchdog's next line names."""
        sequence_number = -1 if timeout.sequence_number is None else timeout.sequence_number
        group = self._group_by_work.get((rank, sequence_number), timeout.group)
        return timeout._replace(group=group)

    def get_positions(self, group: _ProcessGroup) -> dict[int, _Position]:
        """How far each rank has come in a group; without the ranks that have reported nothing about it."""
        timeouts_by_rank: dict[int, list[_Timeout]] = {}
        for rank in self.nodes:
            timeouts_by_rank[rank] = [timeout for timeout in self.list_timeouts(rank) if timeout.group == group]

        positions: dict[int, _Position] = {}
        is_mixed = any(not timeout.is_ordered() for timeouts in timeouts_by_rank.values() for timeout in timeouts)
        if not is_mixed:  # else what was enqueued last may be a SEND
            for (rank, rank_group), last_enqueued in self._last_enqueued.items():
                if rank_group == group:
                    positions[rank] = _Position(last_enqueued, is_waiting=False)
        for rank, timeouts in timeouts_by_rank.items():
            # The first one: later ones may be of another start of the processes by torchrun.
            for timeout in timeouts:
                if timeout.is_ordered():
                    positions[rank] = _Position(timeout.sequence_number or 0, is_waiting=True)
                    break
        return positions


def explain_timeout(first_line: RankLine, lines: Iterable[RankLine]) -> TimeoutExplanation | None:
    """What the rank of `first_line` waited for, and which rank to look at.

    `lines` are those of all ranks. None if they show no more than that a collective timed out.
    """
    reports = _TimeoutReports()
    for line in lines:
        reports.process(line)
    timeout = _parse_timeout(first_line)
    rank = _determine_rank(first_line, timeout, _parse_membership(first_line))
    awaited = reports.resolve_group(rank, timeout) if timeout else _find_any_timeout(rank, reports)
    summary = f"waited {_describe_collective(awaited, reports.find_call_site(rank))} until it timed out"
    if reports.missing_ranks:
        names = _format_ranks(reports.missing_ranks, reports.nodes)
        return TimeoutExplanation(f"{summary}: {names} did not join it, so look there", retry=True)
    return _compare_ranks(summary, awaited, reports) if awaited else None


def _get_package(frame: re.Match[str]) -> str:
    """The installed package of a frame; empty for code that is not installed."""
    match = _LIBRARY_FOLDER.search(frame["file"])
    return match["package"] if match else ""


def _find_any_timeout(rank: int | None, reports: _TimeoutReports) -> _Timeout | None:
    """The first timeout of a rank, else that of any other one; None if no rank has reported one."""
    for candidate in (rank, *reports.timeouts):
        for timeout in reports.list_timeouts(candidate):
            return timeout
    return None


def _compare_ranks(summary: str, awaited: _Timeout, reports: _TimeoutReports) -> TimeoutExplanation:
    """Which rank to look at, judged by how far the others have come in the same process group."""
    positions = reports.get_positions(awaited.group)
    earlier: dict[int, _Position] = {}  # of the ranks that have not come as far as the awaited collective
    if awaited.is_ordered():
        awaited_number = awaited.sequence_number or 0
        earlier = {rank: position for rank, position in positions.items() if position.sequence_number < awaited_number}
    no_rank_waits = not any(position.is_waiting for position in earlier.values())
    if 1 < len(earlier) == len(reports.nodes) - 1 and no_rank_waits:
        return TimeoutExplanation(f"{summary}: no other rank had begun it, so look at why this one did", retry=True)
    if earlier:
        last_rank = _describe_last_rank(earlier, reports.nodes)
        return TimeoutExplanation(f"{summary}: {last_rank}, so look there", retry=True)

    silent_ranks = [rank for rank in reports.nodes if rank not in positions and rank not in reports.timeouts]
    has_all_ranks = awaited.group.has_all_ranks
    # If the abort of one rank ends the others, most of them report nothing, and their silence proves nothing.
    if has_all_ranks and 0 < len(silent_ranks) < len(reports.nodes) / 2:
        names = _format_ranks(silent_ranks, reports.nodes)
        return TimeoutExplanation(f"{summary}: {names} did not wait for it, so look there", retry=True)
    first_numbers = {timeouts[0].sequence_number for timeouts in reports.timeouts.values()}
    has_every_log = len(reports.nodes) == max(reports.nodes, default=0) + 1
    if has_all_ranks and len(reports.nodes) > 1 and has_every_log and not silent_ranks and first_numbers == {1}:
        place = _NODES_HINT if len(set(reports.nodes.values())) > 1 else _GPUS_HINT
        return TimeoutExplanation(f"{summary}, and so did all others: {_SETUP_HINT}{place}", retry=False)
    return TimeoutExplanation(f"{summary}: look for the rank that is missing or slow", retry=True)


def _describe_last_rank(positions: Mapping[int, _Position], nodes: Mapping[int, str]) -> str:
    """Which ranks are furthest behind and what they did: `rank 2 on node-1 had begun none after number 8`."""
    last = min(positions.values(), key=lambda position: (position.sequence_number, not position.is_waiting))
    ranks = [rank for rank, position in positions.items() if position.sequence_number == last.sequence_number]
    if last.is_waiting:
        activity = "still waits in an earlier collective"
    elif last.sequence_number > 0:
        activity = f"had begun none after number {last.sequence_number:,}"
    else:
        activity = "had begun none of that group at all"
    return f"{_format_ranks(ranks, nodes)} {activity}"


def _parse_timeout(line: RankLine) -> _Timeout | None:
    """The timeout that a watchdog's line reports; None for any other line."""
    match = _WATCHDOG_TIMEOUT.search(line.text) if _WATCHDOG_MARKER in line.text else None
    if not match:
        return None
    fields = dict(_WORK_FIELD.findall(match["fields"]))
    membership = _parse_membership(line)
    group_rank = int(match["rank"]) if match["rank"] else None
    if membership:
        group = membership.group
    else:
        # A rank that differs from the global one is that within a smaller group, whose name is not known here.
        is_smaller_group = line.rank is not None and group_rank not in (None, line.rank)
        group = _ProcessGroup(_UNNAMED_GROUP, owner_rank=line.rank if is_smaller_group else None)
    return _Timeout(
        group_rank=group_rank,
        group=group,
        sequence_number=int(fields["SeqNum"]) if fields.get("SeqNum", "").isdigit() else None,
        operation=fields.get("OpType", "a collective"),
        element_count=fields.get("NumelIn", ""),
        waited_s=int(match["milliseconds"]) / 1000,
    )


def _parse_membership(line: RankLine) -> _Membership | None:
    """The process group that a line is about; None if the line names none."""
    match = _PROCESS_GROUP.search(line.text)
    if not match:
        return None
    description = match["description"] or ""
    group_rank = int(match["group_rank"])
    if description == "default_pg":
        return _Membership(_ProcessGroup(match["name"] or _DEFAULT_GROUP), group_rank)
    if match["name"]:
        return _Membership(_ProcessGroup(match["name"], description), group_rank)
    is_same_on_all_ranks = match["number"] == _DEFAULT_GROUP or line.rank in (None, group_rank)
    owner_rank = None if is_same_on_all_ranks else line.rank
    return _Membership(_ProcessGroup(match["number"], description, owner_rank), group_rank)


def _determine_rank(line: RankLine, timeout: _Timeout | None, membership: _Membership | None) -> int | None:
    """The global rank that printed a line; None if neither its prefix nor its text shows it."""
    if line.rank is not None:
        return line.rank
    if membership:
        return membership.group_rank if membership.group.has_all_ranks else None
    if timeout:
        return timeout.group_rank if timeout.group.has_all_ranks else None
    return None


def _parse_missing_ranks(text: str) -> list[int]:
    """The ranks that torch itself reports as missing from a collective."""
    match = _MISSING_RANKS.search(text)
    if not match:
        return []
    rank_list = match["late"] or match["never"] or match["barrier"]
    return [int(rank) for rank in re.findall(r"\d{1,6}", rank_list)]


def _describe_collective(timeout: _Timeout | None, call_site: str | None) -> str:
    """`600 s for ALLREDUCE number 9 of 1,024 elements (train.py:210 in step)`, as far as it is known."""
    if timeout is None:
        return "for a collective"
    text = f"{timeout.waited_s:,.0f} s for {timeout.operation}"
    if timeout.sequence_number is not None:
        text += f" number {timeout.sequence_number:,}"
    if timeout.element_count.isdigit():
        text += f" of {int(timeout.element_count):,} elements"
    if timeout.group.description:
        text += f" in the group {timeout.group.description}"
    if call_site:
        text += f" ({call_site})"
    return text


def _format_ranks(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    """`rank 3 on node-1, rank 4`, and how many more."""
    names = [f"rank {rank} on {nodes[rank]}" if rank in nodes else f"rank {rank}" for rank in sorted(ranks)]
    text = ", ".join(names[:_MAX_NAMED_RANKS])
    if len(names) > _MAX_NAMED_RANKS:
        text += f" and {len(names) - _MAX_NAMED_RANKS} more"
    return text
