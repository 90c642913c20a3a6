"""A rank that is slower than all others: it waits least in collectives, because the others wait for it."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from torchyard.common.escaping import single_line
from torchyard.diagnosis.hang.records import KEPT_WINDOWS, Window
from torchyard.model.hang import Straggler

# The means of all windows: in one of 15 s, a share is known to about 5 % only.
MIN_LEAD = 0.15  # of the others' time
MIN_LEAD_OF_TWO = 0.30  # with one other rank, there is no crowd to compare with
MIN_GAP = 0.10  # to the next rank: else it is not one rank that is slow
_MAX_NAME_CHARS = 240
MAX_SPREAD_S = 90.0  # between the nodes' reports of one window


class _Last(NamedTuple):
    """The rank that waits least in a window: how much less than the others' median, and than the next one."""

    rank: int
    lead: float
    gap: float


def find_straggler(windows: Mapping[int, Sequence[Window]], nodes: Mapping[int, str]) -> Straggler | None:
    """The rank that the others have waited for in all of the last windows; None if there is no such rank."""
    if len(windows) < 2 or any(len(its) < KEPT_WINDOWS for its in windows.values()):
        return None
    recent = {rank: list(its)[-KEPT_WINDOWS:] for rank, its in windows.items()}
    last = []
    for turn in range(KEPT_WINDOWS):
        now = {rank: its[turn] for rank, its in recent.items()}
        if max(its.arrived for its in now.values()) - min(its.arrived for its in now.values()) > MAX_SPREAD_S:
            return None
        last.append(_find_last({rank: its.waited for rank, its in now.items()}))
    least = MIN_LEAD if len(windows) > 2 else MIN_LEAD_OF_TWO
    lead, gap = fmean(each.lead for each in last), fmean(each.gap for each in last)
    is_same = len({each.rank for each in last}) == 1 and min(each.lead for each in last) >= least / 2
    if not is_same or lead < least or gap < MIN_GAP:
        return None
    rank = last[0].rank
    its = recent[rank]
    window_s = (its[-1].arrived - its[0].arrived) * KEPT_WINDOWS / (KEPT_WINDOWS - 1)
    return Straggler(
        rank=rank,
        node=nodes.get(rank, ""),
        lost_percent=round(100 * lead, 1),
        lost_s=round(lead * window_s, 1),
        window_s=round(window_s, 1),
    )


def describe_straggler(late: Straggler) -> str:
    """`rank 3 on node-1 arrives last: the others wait 22 % of their time for it (13 s a minute)`."""
    lost = 60 * late.lost_s / late.window_s if late.window_s > 0 else 0.0
    who = single_line(f"rank {late.rank} on {late.node}", _MAX_NAME_CHARS)
    return f"{who} arrives last: the others wait {late.lost_percent:.0f} % of their time for it ({lost:.0f} s a minute)"


def _find_last(waited: Mapping[int, float]) -> _Last:
    last, second = sorted(waited, key=lambda rank: waited[rank])[:2]
    others = median(share for rank, share in waited.items() if rank != last)
    return _Last(last, others - waited[last], waited[second] - waited[last])
