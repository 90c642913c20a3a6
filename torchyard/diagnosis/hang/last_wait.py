"""What a rank that has died was waiting for, by the last records of all ranks."""

from collections.abc import Mapping

from torchyard.diagnosis.hang.pending_collectives import DEFAULT_GROUP, count_called
from torchyard.diagnosis.hang.stack_locations import name_ranks
from torchyard.model.hang import RankRecord

_SETTLED_S = 2.0  # a rank's counts are up to 0.25 s old, and its end is seen up to 0.5 s late


def describe_last_wait(rank: int, latest: Mapping[int, RankRecord]) -> str:
    """`it had waited 31 s for rank 3 in collective number 61 of the default group`; empty if nothing shows that."""
    record = latest.get(rank)
    if record is None or record.stalled_s < _SETTLED_S:
        return ""
    for name, its in record.groups.items():
        members = its.ranks or tuple(latest)
        absent = [each for each in members if each in latest and count_called(latest[each], name) < its.called]
        if its.called > its.completed and absent:
            group = "the default group" if name == DEFAULT_GROUP else f"group {name}"
            where = f"collective number {its.called:,} of {group}"
            return f"it had waited {record.stalled_s:.0f} s for {name_ranks(absent)} in {where}"
    return ""
