"""Collectives that timed out: what torch's watchdog reports about each, and which ranks did not take part."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MARK = "Watchdog caught collective operation timeout"
# torch 1.9 to 2.10: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000). Versions
# before 1.12 have no SeqNum, those before 2.1 a TensorShape or nothing in place of the numbers of elements.
_WORK = re.compile(
    r"(?:PG (?:ID )?(?P<group>\d{1,6})\b[^\]]{0,200}?)?(?:[Rr]ank (?P<rank>\d{1,6})\] )?"
    rf"{_MARK}: WorkNCCL\((?P<fields>.{{0,300}}?)\) ran for (?P<ran>\d{{1,12}}) milli"
)
_FIELD = re.compile(r"(SeqNum|OpType|NumelIn)=(\w+)")
# The desync report of torch, with TORCH_NCCL_DESYNC_DEBUG, and the monitored barrier of gloo.
_ABSENT = re.compile(
    r"\[(?P<late>[\d, ]{1,2000})\] finished collective #\d{1,12}, but didn't join"
    r"|ranks \[(?P<never>[\d, ]{1,2000})\] are the lagging ranks"
    r"|\bRanks? (?P<barrier>[\d, ]{1,2000}) failed to pass monitoredBarrier"
)
_DEFAULT_GROUP = (None, "0")  # its ranks are the global ones
_MAX_NAMED_RANKS = 8
_NEVER_WORKED = (
    "not even the first collective works, so look at NCCL_SOCKET_IFNAME, the firewall and the fabric between the nodes"
)


class CollectiveTimeout(NamedTuple):
    """One rank's report about a collective that it waited for. `group`: its process group; None if torch is older."""

    rank: int | None
    group: str | None
    sequence: int | None
    operation: str
    elements: str
    waited_s: float


class RankLine(NamedTuple):
    """A line, the node that it comes from, and the global rank that printed it, None if that is unknown."""

    node: str
    rank: int | None
    text: str


def explain_timeout(first: RankLine, lines: Iterable[RankLine]) -> tuple[str, bool] | None:
    """What the rank of `first` waited for, and which rank to look at; and whether another attempt may work.

    `lines` are those of all ranks. None if nothing is known beyond the fact that a collective timed out.
    """
    nodes, timeouts, absent = dict[int, str](), dict[int | None, CollectiveTimeout](), dict[int, None]()
    for line in lines:
        its = _read_timeout(line.text)
        rank = its.rank if its and line.rank is None and its.group in _DEFAULT_GROUP else line.rank
        if rank is not None:
            nodes.setdefault(rank, line.node)
        if its:
            timeouts.setdefault(rank, its)
        absent |= dict.fromkeys(_read_absent_ranks(line.text))
    mine = _read_timeout(first.text) or timeouts.get(first.rank) or next(iter(timeouts.values()), None)
    said = f"waited {_describe_collective(mine)} until it timed out"
    if absent:
        return f"{said}: {_name_ranks(absent, nodes)} did not join it, so look there", True
    return _compare_ranks(said, mine, nodes, timeouts) if mine else None


def _compare_ranks(
    said: str, mine: CollectiveTimeout, nodes: Mapping[int, str], timeouts: Mapping[int | None, CollectiveTimeout]
) -> tuple[str, bool]:
    """Which rank to look at, judged by what the others wait for."""
    behind = [rank for rank in nodes if rank in timeouts and _is_behind(timeouts[rank], mine)]
    silent = [rank for rank in nodes if rank not in timeouts]
    if behind:
        return f"{said}: {_name_ranks(behind, nodes)} still waits in an earlier collective, so look there", True
    if 0 < len(silent) < len(nodes) / 2:  # where one rank's abort ends the others, most of them report nothing
        return f"{said}: {_name_ranks(silent, nodes)} did not wait for it, so look there", True
    never_worked = mine.group in _DEFAULT_GROUP and all(its.sequence == 1 for its in timeouts.values())
    if len(nodes) > 1 and not silent and never_worked:
        return f"{said}, and so did all others: {_NEVER_WORKED}", False
    return f"{said}: look for the rank that is missing or slow", True


def _read_timeout(text: str) -> CollectiveTimeout | None:
    """What a watchdog's line reports; `rank` is the rank within the process group."""
    found = _WORK.search(text) if _MARK in text else None
    if not found:
        return None
    fields = dict(_FIELD.findall(found["fields"]))
    return CollectiveTimeout(
        rank=int(found["rank"]) if found["rank"] else None,
        group=found["group"],
        sequence=int(fields["SeqNum"]) if fields.get("SeqNum", "").isdigit() else None,
        operation=fields.get("OpType", "a collective"),
        elements=fields.get("NumelIn", ""),
        waited_s=int(found["ran"]) / 1000,
    )


def _read_absent_ranks(text: str) -> list[int]:
    """The ranks that torch itself reports as absent from a collective."""
    found = _ABSENT.search(text)
    named = found and (found["late"] or found["never"] or found["barrier"])
    return [int(rank) for rank in re.findall(r"\d{1,6}", named or "")]


def _is_behind(other: CollectiveTimeout, mine: CollectiveTimeout) -> bool:
    """Whether another rank waits in an earlier collective of the same process group."""
    if other.sequence is None or mine.sequence is None or other.group != mine.group:
        return False
    return other.sequence < mine.sequence


def _describe_collective(its: CollectiveTimeout | None) -> str:
    """`600 s for ALLREDUCE number 9 of 1,024 elements`, as far as it is known."""
    if its is None:
        return "for a collective"
    number = "" if its.sequence is None else f" number {its.sequence:,}"
    size = f" of {int(its.elements):,} elements" if its.elements.isdigit() else ""
    return f"{its.waited_s:,.0f} s for {its.operation}{number}{size}"


def _name_ranks(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    """`rank 3 on node-1, rank 4`, and how many more."""
    every = [f"rank {rank} on {nodes[rank]}" if rank in nodes else f"rank {rank}" for rank in sorted(ranks)]
    more = f" and {len(every) - _MAX_NAMED_RANKS} more" if len(every) > _MAX_NAMED_RANKS else ""
    return f"{', '.join(every[:_MAX_NAMED_RANKS])}{more}"
