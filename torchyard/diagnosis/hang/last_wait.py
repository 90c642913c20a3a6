"""What a rank did last before its process ended, by the last records of all ranks."""

from collections.abc import Mapping

from torchyard.diagnosis.hang.pending_collectives import DEFAULT_GROUP, count_enqueued
from torchyard.diagnosis.hang.stack_locations import describe_ranks
from torchyard.model.hang import RankRecord

_SETTLED_S = 2.0  # a rank's counters are up to 0.25 s old, and its end is detected up to 0.5 s late


def describe_last_wait(rank: int, records: Mapping[int, RankRecord]) -> str | None:
    """Describe what a rank waited for when it ended; None if its record does not show that it waited.

    `it had waited 31 s for rank 3 in collective number 61 of the default group`. `records`: the latest of each rank.
    """
    record = records.get(rank)
    if record is None:
        return None
    waited_s = record.stalled_s
    if record.raised_after is not None:
        waited_s -= record.timestamp - record.raised_after  # since then its exception has ended it
    if waited_s < _SETTLED_S:
        return None
    for name, progress in record.groups.items():
        if progress.enqueued <= progress.completed:
            continue
        members = progress.ranks or tuple(records)
        missing = [
            member
            for member in members
            if member in records and count_enqueued(records[member], name) < progress.enqueued
        ]
        if missing:
            group = "the default group" if name == DEFAULT_GROUP else f"group {name}"
            collective = f"collective number {progress.enqueued:,} of {group}"
            return f"it had waited {waited_s:.0f} s for {describe_ranks(missing)} in {collective}"
    return None


def describe_last_collective(rank: int, records: Mapping[int, RankRecord]) -> str | None:
    """Describe in which collective a rank took part last, if others began more; None if its record does not show it.

    `rank 3 took part last in collective number 22 of the default group, of which others began 23`. `records`: the
    latest of each rank; one whose program has destroyed its process groups before it ended does not show it.
    """
    if rank not in records or not records[rank].groups:
        return None
    last = count_enqueued(records[rank], DEFAULT_GROUP)
    most = max(count_enqueued(record, DEFAULT_GROUP) for record in records.values())
    if last >= most:
        return None
    return (
        f"rank {rank} took part last in collective number {last:,} of the default group, of which others began {most:,}"
    )
