"""Find the rank that is slower than all others: it waits least in collectives, because the others wait for it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from torchyard.common.escaping import single_line
from torchyard.diagnosis.hang.records import MAX_WINDOWS, Window
from torchyard.model.hang import Straggler

MIN_LEAD = 0.15  # of the others' time, as the mean of the windows
MIN_LEAD_OF_TWO = 0.30  # with only one other rank, chance is larger
MIN_GAP = 0.10  # to the next rank: if that is as slow, it is not a single straggler
# By how many standard errors the lead must exceed 0, by the number of windows: Student's t for a chance of one in a
# thousand. If steps are of uneven length, each rank is the last one at times.
_CERTAINTY = {4: 10.2, 5: 7.2, 6: 5.9, 7: 5.2, 8: 4.8, 9: 4.5, 10: 4.3, 11: 4.1, MAX_WINDOWS: 4.0}
_MAX_NAME_CHARS = 240
MAX_SPREAD_S = 90.0  # between the nodes' reports of one window


def find_straggler(windows: Mapping[int, Sequence[Window]], nodes: Mapping[int, str]) -> Straggler | None:
    """Return the rank that the others have waited for in the last windows; None if none is slower by more than chance.

    `windows`: of each rank, in order. `nodes`: the node of each rank. None also if a rank has fewer than four windows,
    or if the ranks' windows do not belong to the same time.
    """
    count = min((len(rank_windows) for rank_windows in windows.values()), default=0)
    if len(windows) < 2 or count not in _CERTAINTY:
        return None
    recent = {rank: list(rank_windows)[-count:] for rank, rank_windows in windows.items()}
    if _is_spread_out(recent, count):
        return None

    waited = {rank: fmean(window.waited_share for window in rank_windows) for rank, rank_windows in recent.items()}
    rank, second = sorted(waited, key=lambda rank: waited[rank])[:2]
    leads = []
    for index in range(count):
        shares = {other: rank_windows[index].waited_share for other, rank_windows in recent.items()}
        leads.append(_compute_lead(rank, shares))
    lead = fmean(leads)
    standard_error = stdev(leads) / math.sqrt(count)
    min_lead = max(MIN_LEAD if len(windows) > 2 else MIN_LEAD_OF_TWO, _CERTAINTY[count] * standard_error)
    if lead < min_lead or waited[second] - waited[rank] < MIN_GAP:
        return None
    first_window = recent[rank][0]
    last_window = recent[rank][-1]
    window_s = (last_window.arrived_at - first_window.arrived_at) * count / (count - 1)
    return Straggler(
        rank=rank,
        node=nodes.get(rank, ""),
        lost_percent=round(100 * lead, 1),
        lost_s=round(lead * window_s, 1),
        window_s=round(window_s, 1),
    )


def describe_straggler(straggler: Straggler) -> str:
    """`rank 3 on node-1 arrives last: the others wait 22 % of their time for it (13 s a minute)`."""
    lost_s_per_minute = 60 * straggler.lost_s / straggler.window_s if straggler.window_s > 0 else 0.0
    subject = single_line(f"rank {straggler.rank} on {straggler.node}", _MAX_NAME_CHARS)
    share = f"{straggler.lost_percent:.0f} % of their time"
    return f"{subject} arrives last: the others wait {share} for it ({lost_s_per_minute:.0f} s a minute)"


def _is_spread_out(windows: Mapping[int, Sequence[Window]], count: int) -> bool:
    """Whether the ranks' reports of one of the last `count` windows arrived too far apart to be compared."""
    for index in range(count):
        arrivals = [rank_windows[index].arrived_at for rank_windows in windows.values()]
        if max(arrivals) - min(arrivals) > MAX_SPREAD_S:
            return True
    return False


def _compute_lead(rank: int, shares: Mapping[int, float]) -> float:
    """How much less than the others' median a rank has waited in a window. `shares`: of waiting, by rank."""
    return median(share for other, share in shares.items() if other != rank) - shares[rank]
