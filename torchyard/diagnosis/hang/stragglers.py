"""A rank that is slower than all others: it waits least in collectives, because the others wait for it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from torchyard.common.escaping import single_line
from torchyard.diagnosis.hang.records import KEPT_WINDOWS, Window
from torchyard.model.hang import Straggler

MIN_LEAD = 0.15  # of the others' time, as the mean of the windows
MIN_LEAD_OF_TWO = 0.30  # with one other rank, there is no crowd to compare with
MIN_GAP = 0.10  # to the next rank: else it is not one rank that is slow
# By how many standard errors the lead must differ from nothing, by the number of windows: Student's t, one in a
# thousand. Steps of uneven length make each rank the last one at times.
_CERTAINTY = {4: 10.2, 5: 7.2, 6: 5.9, 7: 5.2, 8: 4.8, 9: 4.5, 10: 4.3, 11: 4.1, KEPT_WINDOWS: 4.0}
_MAX_NAME_CHARS = 240
MAX_SPREAD_S = 90.0  # between the nodes' reports of one window


def find_straggler(windows: Mapping[int, Sequence[Window]], nodes: Mapping[int, str]) -> Straggler | None:
    """The rank that the others have waited for in the last windows, by more than chance; None if there is none."""
    count = min((len(its) for its in windows.values()), default=0)
    if len(windows) < 2 or count not in _CERTAINTY:
        return None
    recent = {rank: list(its)[-count:] for rank, its in windows.items()}
    turns = list(zip(*recent.values(), strict=True))
    if any(max(each.arrived for each in turn) - min(each.arrived for each in turn) > MAX_SPREAD_S for turn in turns):
        return None
    waited = {rank: fmean(each.waited for each in its) for rank, its in recent.items()}
    rank, second = sorted(waited, key=lambda each: waited[each])[:2]
    leads = [_find_lead(rank, {each: its[turn].waited for each, its in recent.items()}) for turn in range(count)]
    lead, error = fmean(leads), stdev(leads) / math.sqrt(count)
    least = max(MIN_LEAD if len(windows) > 2 else MIN_LEAD_OF_TWO, _CERTAINTY[count] * error)
    if lead < least or waited[second] - waited[rank] < MIN_GAP:
        return None
    its = recent[rank]
    window_s = (its[-1].arrived - its[0].arrived) * count / (count - 1)
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


def _find_lead(rank: int, waited: Mapping[int, float]) -> float:
    """How much less than the others' median a rank has waited in a window."""
    return median(share for each, share in waited.items() if each != rank) - waited[rank]
