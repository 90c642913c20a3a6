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
    r" ran for (?P<ran>\d{1,12}) milli"
)
_WORK_FIELD = re.compile(r"(SeqNum|OpType|NumelIn)=(\w+)")
# A process group. The name is the same on all ranks; the number, of torch 2.2 and 2.3 or without a name, may not be.
_PROCESS_GROUP = re.compile(
    r"\[PG (?:ID \d{1,6} PG GUID (?P<name>[^\s(\]]{1,80})|(?P<number>\d{1,6}))(?: ?\((?P<about>[^)\]]{0,80})\))?"
    r" Rank (?P<member>\d{1,6})\]"
)
# How far a rank has come in a process group, once it or another rank has timed out. -1: it has begun no collective.
_LAST_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:[NX]CCL )?work: (?P<begun>-?\d{1,18})\b")
_FAILED_WORK = re.compile(r"(?:at work(?: sequence id)?|Timeout at [NX]CCL work): (\d{1,18})\b")
# Where the program called it: after this head a frame a line, the innermost first, if torch recorded them.
_STACK_HEADER = "Stack trace of the failed collective:"
_FRAME = re.compile(r"#\d{1,3} (?P<function>\S{1,200}) from (?P<file>[^\s<][^:]{0,400}):(?P<line>\d{1,7})$")
_TORCH_FOLDER, _LIBRARY_FOLDERS = "/torch/", ("/site-packages/", "/dist-packages/")
# The desync report of torch, with TORCH_NCCL_DESYNC_DEBUG, and the monitored barrier of gloo.
_MISSING_RANKS = re.compile(
    r"\[(?P<late>[\d, ]{1,2000})\] finished collective #\d{1,12}, but didn't join"
    r"|ranks \[(?P<never>[\d, ]{1,2000})\] are the lagging ranks"
    r"|\bRanks? (?P<barrier>[\d, ]{1,2000}) failed to pass monitoredBarrier"
)
_UNNAMED_GROUP, _DEFAULT_GROUP = "", "0"  # process groups: of torch before 2.2, and the one of all ranks
# Their numbers are counted by each rank for itself. A batch of them is a COALESCED.
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
_MAX_NAMED_RANKS = 8
_SETUP_HINT = (
    "not even the first collective works, so look at NCCL_SOCKET_IFNAME, the firewall and the fabric between the nodes"
)


class RankLine(NamedTuple):
    """A line, the node that it comes from, and the global rank that printed it, None if that is unknown."""

    node: str
    rank: int | None
    text: str


class _ProcessGroup(NamedTuple):
    """A process group; two that are equal are the same one. `only`: the rank, if others may name another one so."""

    name: str
    description: str = ""
    owner_rank: int | None = None

    @property
    def has_all_ranks(self) -> bool:
        """Whether its ranks are the global ones."""
        return self.name in (_UNNAMED_GROUP, _DEFAULT_GROUP) and self.owner_rank is None


class _Timeout(NamedTuple):
    """One rank's report about a collective that it waited for; `rank` is its place in the process group."""

    group_rank: int | None
    group: _ProcessGroup
    sequence_number: int | None
    operation: str
    element_count: str
    waited_s: float

    def is_ordered(self) -> bool:
        """Whether all ranks of the group count it alike."""
        return self.sequence_number is not None and self.operation not in _POINT_TO_POINT


class _TimeoutReports:
    """What all ranks have logged about their collectives."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.missing_ranks: dict[int, None] = {}
        self.timeouts: dict[int | None, list[_Timeout]] = {}
        self._last_enqueued: dict[tuple[int, _ProcessGroup], int] = {}
        self._group_by_work: dict[
            tuple[int | None, int], _ProcessGroup
        ] = {}  # of the work that failed, by rank and number
        self._frames: dict[int | None, list[re.Match[str]]] = {}
        self._stack_header: RankLine | None = None  # the head of the frames that are being read

    def process(self, line: RankLine) -> None:
        """Read one line."""
        timeout, member = _parse_timeout(line), _parse_group(line)
        rank = _determine_rank(line, timeout, member)
        if rank is not None:
            self.nodes.setdefault(rank, line.node)
        if timeout:
            self.timeouts.setdefault(rank, []).append(timeout)
        if member and (enqueued := _LAST_ENQUEUED.search(line.text)):
            group, _ = member
            if rank is not None:
                previous = self._last_enqueued.get((rank, group), -1)
                self._last_enqueued[rank, group] = max(previous, int(enqueued["begun"]))  # two threads print it
            if failed_work := _FAILED_WORK.search(line.text):
                self._group_by_work.setdefault((rank, int(failed_work[1])), group)
        self.missing_ranks |= dict.fromkeys(_parse_missing_ranks(line.text))
        self._process_frame(line)

    def _process_frame(self, line: RankLine) -> None:
        if _STACK_HEADER in line.text:
            self._stack_header = None if line.rank in self._frames else line
        elif header := self._stack_header:
            frame = _FRAME.match(line.text) if line.node == header.node and line.rank in (None, header.rank) else None
            if frame:
                self._frames.setdefault(header.rank, []).append(frame)
            else:
                self._stack_header = None

    def describe_call_site(self, rank: int | None) -> str:
        """Where a rank's program called the collective that timed out first, as `train.py:210 in step`."""
        frames = [frame for frame in self._frames.get(rank, []) if _TORCH_FOLDER not in frame["file"]]
        program_frames = [frame for frame in frames if not any(folder in frame["file"] for folder in _LIBRARY_FOLDERS)]
        call_frame = next(iter(program_frames or frames), None)
        return (
            f"{call_frame['file'].rsplit('/', 1)[-1]}:{call_frame['line']} in {call_frame['function']}"
            if call_frame
            else ""
        )

    def list_timeouts(self, rank: int | None) -> list[_Timeout]:
        """A rank's timeouts, each with its process group as far as any line names it."""
        return [self.resolve_group(rank, timeout) for timeout in self.timeouts.get(rank, [])]

    def resolve_group(self, rank: int | None, timeout: _Timeout) -> _Timeout:
        """The timeout with the process group that the watchdog's next line names."""
        group = self._group_by_work.get((rank, -1 if timeout.sequence_number is None else timeout.sequence_number))
        return timeout._replace(group=group or timeout.group)

    def get_positions(self, group: _ProcessGroup) -> dict[int, tuple[int, bool]]:
        """The last collective of the group that each rank has begun, and whether that is one that it waits for."""
        timeouts_by_rank = {
            rank: [timeout for timeout in self.list_timeouts(rank) if timeout.group == group] for rank in self.nodes
        }
        awaited = {
            rank: [timeout.sequence_number or 0 for timeout in timeouts if timeout.is_ordered()]
            for rank, timeouts in timeouts_by_rank.items()
        }
        is_mixed = any(
            not timeout.is_ordered() for timeouts in timeouts_by_rank.values() for timeout in timeouts
        )  # what was begun may be a SEND
        enqueued = (
            {}
            if is_mixed
            else {
                rank: (last_enqueued, False)
                for (rank, rank_group), last_enqueued in self._last_enqueued.items()
                if rank_group == group
            }
        )
        # The first one: later ones may be of another start of the processes by torchrun.
        return enqueued | {rank: (numbers[0], True) for rank, numbers in awaited.items() if numbers}


def explain_timeout(first_line: RankLine, lines: Iterable[RankLine]) -> tuple[str, bool] | None:
    """What the rank of `first` waited for, and which rank to look at; and whether another attempt may work.

    `lines` are those of all ranks. None if nothing is known beyond the fact that a collective timed out.
    """
    reports = _TimeoutReports()
    for line in lines:
        reports.process(line)
    timeout = _parse_timeout(first_line)
    rank = _determine_rank(first_line, timeout, _parse_group(first_line))
    awaited = reports.resolve_group(rank, timeout) if timeout else _find_any_timeout(rank, reports)
    summary = f"waited {_describe_collective(awaited, reports.describe_call_site(rank))} until it timed out"
    if reports.missing_ranks:
        return f"{summary}: {_format_ranks(reports.missing_ranks, reports.nodes)} did not join it, so look there", True
    return _compare_ranks(summary, awaited, reports) if awaited else None


def _find_any_timeout(rank: int | None, reports: _TimeoutReports) -> _Timeout | None:
    """The first timeout of a rank, else that of any other one."""
    timeouts_by_rank = [reports.list_timeouts(candidate) for candidate in (rank, *reports.timeouts)]
    return next((timeout for timeouts in timeouts_by_rank for timeout in timeouts), None)


def _compare_ranks(summary: str, awaited: _Timeout, reports: _TimeoutReports) -> tuple[str, bool]:
    """Which rank to look at, judged by how far the others have come in the same process group."""
    positions = reports.get_positions(awaited.group)
    behind = {
        rank: position
        for rank, position in positions.items()
        if awaited.is_ordered() and position[0] < (awaited.sequence_number or 0)
    }
    if 1 < len(behind) == len(reports.nodes) - 1 and not any(is_waiting for _, is_waiting in behind.values()):
        return f"{summary}: no other rank had begun it, so look at why this one did", True
    if behind:
        last_position, is_waiting = min(behind.values(), key=lambda position: (position[0], not position[1]))
        ranks = _format_ranks(
            [rank for rank, position in behind.items() if position[0] == last_position], reports.nodes
        )
        progress = f"after number {last_position:,}" if last_position > 0 else "of that group at all"
        activity = "still waits in an earlier collective" if is_waiting else f"had begun none {progress}"
        return f"{summary}: {ranks} {activity}, so look there", True
    silent_ranks = [rank for rank in reports.nodes if rank not in positions and rank not in reports.timeouts]
    # Where one rank's abort ends the others, most of them report nothing.
    if awaited.group.has_all_ranks and 0 < len(silent_ranks) < len(reports.nodes) / 2:
        return f"{summary}: {_format_ranks(silent_ranks, reports.nodes)} did not wait for it, so look there", True
    first_numbers = {timeouts[0].sequence_number for timeouts in reports.timeouts.values()}
    if awaited.group.has_all_ranks and len(reports.nodes) > 1 and not silent_ranks and first_numbers == {1}:
        return f"{summary}, and so did all others: {_SETUP_HINT}", False
    return f"{summary}: look for the rank that is missing or slow", True


def _parse_timeout(line: RankLine) -> _Timeout | None:
    """What a watchdog's line reports."""
    match = _WATCHDOG_TIMEOUT.search(line.text) if _WATCHDOG_MARKER in line.text else None
    if not match:
        return None
    fields = dict(_WORK_FIELD.findall(match["fields"]))
    group, rank_in_line = _parse_group(line), int(match["rank"]) if match["rank"] else None
    is_group_rank = line.rank is not None and rank_in_line not in (None, line.rank)  # of a group that has not all ranks
    return _Timeout(
        group_rank=rank_in_line,
        group=group[0] if group else _ProcessGroup(_UNNAMED_GROUP, owner_rank=line.rank if is_group_rank else None),
        sequence_number=int(fields["SeqNum"]) if fields.get("SeqNum", "").isdigit() else None,
        operation=fields.get("OpType", "a collective"),
        element_count=fields.get("NumelIn", ""),
        waited_s=int(match["ran"]) / 1000,
    )


def _parse_group(line: RankLine) -> tuple[_ProcessGroup, int] | None:
    """The process group that a line is about, and the place in it of the rank that printed the line."""
    match = _PROCESS_GROUP.search(line.text)
    if not match:
        return None
    description, group_rank = match["about"] or "", int(match["member"])
    if match["name"] or description == "default_pg":
        return _ProcessGroup(
            match["name"] or _DEFAULT_GROUP, "" if description == "default_pg" else description
        ), group_rank
    is_same_on_all_ranks = match["number"] == _DEFAULT_GROUP or line.rank in (None, group_rank)
    return _ProcessGroup(match["number"], description, None if is_same_on_all_ranks else line.rank), group_rank


def _determine_rank(
    line: RankLine, timeout: _Timeout | None, membership: tuple[_ProcessGroup, int] | None
) -> int | None:
    """The global rank that printed a line, by what it says about itself if nothing else does."""
    group, group_rank = membership or ((timeout.group, timeout.group_rank) if timeout else (None, None))
    return group_rank if line.rank is None and group and group.has_all_ranks else line.rank


def _parse_missing_ranks(text: str) -> list[int]:
    """The ranks that torch itself reports as absent from a collective."""
    match = _MISSING_RANKS.search(text)
    rank_list = match and (match["late"] or match["never"] or match["barrier"])
    return [int(rank) for rank in re.findall(r"\d{1,6}", rank_list or "")]


def _describe_collective(timeout: _Timeout | None, call_site: str) -> str:
    """`600 s for ALLREDUCE number 9 of 1,024 elements (train.py:210 in step)`, as far as it is known."""
    if timeout is None:
        return "for a collective"
    number = "" if timeout.sequence_number is None else f" number {timeout.sequence_number:,}"
    size = f" of {int(timeout.element_count):,} elements" if timeout.element_count.isdigit() else ""
    group = timeout.group.description
    return (
        f"{timeout.waited_s:,.0f} s for {timeout.operation}{number}{size}"
        f"{f' in the group {group}' if group else ''}{f' ({call_site})' if call_site else ''}"
    )


def _format_ranks(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    """`rank 3 on node-1, rank 4`, and how many more."""
    names = [f"rank {rank} on {nodes[rank]}" if rank in nodes else f"rank {rank}" for rank in sorted(ranks)]
    suffix = f" and {len(names) - _MAX_NAMED_RANKS} more" if len(names) > _MAX_NAMED_RANKS else ""
    return f"{', '.join(names[:_MAX_NAMED_RANKS])}{suffix}"
