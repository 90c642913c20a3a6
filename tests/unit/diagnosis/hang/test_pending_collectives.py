"""Tests of who waits for whom."""

import time

from tests.builders.rank_records import (
    STEP,
    build_collective,
    build_missing_rank_records,
    build_record,
    build_waiting_record,
    index_by_rank,
)
from torchyard.diagnosis.hang.pending_collectives import (
    clean_operation,
    find_cycle,
    find_dependents,
    find_pending_collectives,
)
from torchyard.model.hang import GroupProgress


def test_missing_are_those_that_have_called_less() -> None:
    """A collective misses the ranks of its group whose counter is below its number."""
    (collective,) = find_pending_collectives(build_missing_rank_records(), {0, 1, 2, 3}, 4)
    assert (collective.sequence, set(collective.waiting), set(collective.missing)) == (6, {0, 1, 2}, {3})


def test_ranks_outside_the_group_do_not_miss() -> None:
    """Only members of a group are expected in its collectives."""
    progress = GroupProgress(ranks=(0, 1), enqueued=3, completed=2)
    waiting = build_record(0, groups={"7": progress}, pending=build_collective(sequence=3, group="7"))
    (collective,) = find_pending_collectives(index_by_rank(waiting, build_record(1), build_record(2)), {0}, 4)
    assert collective.missing == {1}


def test_group_without_ranks_has_those_that_know_it() -> None:
    """Gloo does not say who is in a group: its members are the ranks that have it."""
    waiting = build_record(
        0, groups={"7": GroupProgress(enqueued=3, completed=2)}, pending=build_collective(sequence=3, group="7")
    )
    other = build_record(1, groups={"7": GroupProgress(enqueued=2, completed=2)})
    (collective,) = find_pending_collectives(index_by_rank(waiting, other, build_record(2)), {0}, 4)
    assert collective.missing == {1}


def test_group_that_no_record_shows_has_no_missing_ranks() -> None:
    """Ranks that wait in a group whose members are not known wait for nobody that is known: they are not all of it."""
    waiting = [build_record(rank, pending=build_collective(sequence=3, group="7")) for rank in (0, 1)]
    records = index_by_rank(*waiting, build_record(2, idle_s=0.0))
    assert find_pending_collectives(records, {0, 1}, 4) == ()


def test_stopped_rank_has_not_come() -> None:
    """The counters of a stopped rank are old, and what it has called it does not do: it waits in nothing."""
    stopped = build_waiting_record(3, state="T")
    (collective,) = find_pending_collectives(
        index_by_rank(*map(build_waiting_record, range(3)), stopped), {0, 1, 2, 3}, 4
    )
    assert (set(collective.waiting), set(collective.missing)) == ({0, 1, 2}, {3})


def test_receiver_waits_for_its_sender() -> None:
    """Of a receive, the name says which rank is missing."""
    receiver = build_waiting_record(2, pending=build_collective("gloo:recv 2<-0"))
    (collective,) = find_pending_collectives(index_by_rank(build_record(0), build_record(1), receiver), {0, 1, 2}, 4)
    assert collective.missing == {0}


def test_stack_shows_a_wait_that_no_counter_shows() -> None:
    """Without counters, a rank in a call of torch.distributed waits for those that are in none."""
    records = index_by_rank(
        *(build_record(rank, groups={}, stack=STEP) for rank in range(3)), build_record(3, groups={})
    )
    (collective,) = find_pending_collectives(records, set(range(4)), 4)
    assert collective.missing == {3}


def test_dependents_of_dependents() -> None:
    """Ranks that wait for a rank that waits for the culprit wait for it, too."""
    default = GroupProgress(ranks=(0, 1, 2, 3), enqueued=5, completed=5)
    pair = GroupProgress(ranks=(2, 3), enqueued=3, completed=2)
    dependent = build_record(2, groups={"0": default, "7": pair}, pending=build_collective(sequence=3, group="7"))
    collectives = find_pending_collectives(
        index_by_rank(build_waiting_record(0), build_waiting_record(1), dependent, build_record(3)), {0, 1, 2, 3}, 4
    )
    assert find_dependents(collectives, {3}) == {0, 1, 2}
    assert find_cycle(collectives) == ()


def test_names_without_backend() -> None:
    """The backend's name is no part of an operation."""
    assert clean_operation("nccl:_allgather_base") == "allgather_base"
    assert clean_operation("nccl:all_reduce_barrier") == clean_operation("gloo:barrier") == "barrier"


def test_ten_thousand_ranks_are_judged_quickly() -> None:
    """Ten thousand ranks that wait in as many different calls take less than two seconds."""
    ranks = range(10_000)
    record = build_waiting_record(0)
    records = {
        rank: record.model_copy(
            update={
                "rank": rank,
                "groups": {"0": GroupProgress(enqueued=rank + 1, completed=rank)},
                "pending": build_collective(sequence=rank + 1),
            }
        )
        for rank in ranks
    }
    started_at = time.process_time()
    find_cycle(find_pending_collectives(records, set(ranks), len(ranks)))
    assert time.process_time() - started_at < 2
