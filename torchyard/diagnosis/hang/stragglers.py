"""A rank that is slower than all others: it waits least in collectives, because the others wait for it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from torchyard.common.escaping import single_line
from torchyard.diagnosis.hang.records import MAX_WINDOWS, Window
from torchyard.model.hang import Straggler

MIN_LEAD = 0.15  # of the others' time, as the mean of the windows
MIN_LEAD_OF_TWO = 0.30  # with one other rank, there is no crowd to compare with
MIN_GAP = 0.10  # to the next rank: else it is not one rank that is slow
# By how many standard errors the lead must differ from nothing, by the number of windows: Student's t, one in a
# thousand. Steps of uneven length make each rank the last one at times.
_CERTAINTY = {4: 10.2, 5: 7.2, 6: 5.9, 7: 5.2, 8: 4.8, 9: 4.5, 10: 4.3, 11: 4.1, MAX_WINDOWS: 4.0}
_MAX_NAME_CHARS = 240
MAX_SPREAD_S = 90.0  # between the nodes' reports of one window


def find_straggler(windows: Mapping[int, Sequence[Window]], nodes: Mapping[int, str]) -> Straggler | None:
    """The rank that the others have waited for in the last windows, by more than chance; None if there is none."""
    count = min((len(rank_windows) for rank_windows in windows.values()), default=0)
    if len(windows) < 2 or count not in _CERTAINTY:
        return None
    recent = {rank: list(rank_windows)[-count:] for rank, rank_windows in windows.items()}
    intervals = list(zip(*recent.values(), strict=True))
    if any(
        max(window.arrived_at for window in interval) - min(window.arrived_at for window in interval) > MAX_SPREAD_S
        for interval in intervals
    ):
        return None
    waited = {rank: fmean(window.waited_share for window in rank_windows) for rank, rank_windows in recent.items()}
    rank, second = sorted(waited, key=lambda candidate: waited[candidate])[:2]
    leads = [
        _find_lead(rank, {member: member_windows[index].waited_share for member, member_windows in recent.items()})
        for index in range(count)
    ]
    lead, standard_error = fmean(leads), stdev(leads) / math.sqrt(count)
    min_lead = max(MIN_LEAD if len(windows) > 2 else MIN_LEAD_OF_TWO, _CERTAINTY[count] * standard_error)
    if lead < min_lead or waited[second] - waited[rank] < MIN_GAP:
        return None
    straggler_windows = recent[rank]
    window_s = (straggler_windows[-1].arrived_at - straggler_windows[0].arrived_at) * count / (count - 1)
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
    lost_text = f"{lost_s_per_minute:.0f} s a minute"
    return f"{subject} arrives last: the others wait {straggler.lost_percent:.0f} % of their time for it ({lost_text})"


def _find_lead(rank: int, waited: Mapping[int, float]) -> float:
    """How much less than the others' median a rank has waited in a window."""
    return median(share for other, share in waited.items() if other != rank) - waited[rank]
