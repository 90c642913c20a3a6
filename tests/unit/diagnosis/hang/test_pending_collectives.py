"""Tests of who waits for whom."""

import time

from tests.hang_tables import STEP, name_call, plant, plant_absent, plant_waiting, table
from torchyard.diagnosis.hang.pending_collectives import (
    clean_operation,
    find_cycle,
    find_dependents,
    find_pending_collectives,
)
from torchyard.model.hang import GroupProgress


def test_missing_are_those_that_have_called_less() -> None:
    """A collective misses the ranks of its group whose counter is below its number."""
    (collective,) = find_pending_collectives(plant_absent(), {0, 1, 2, 3}, 4)
    assert (collective.sequence, set(collective.waiting), set(collective.missing)) == (6, {0, 1, 2}, {3})


def test_ranks_outside_the_group_do_not_miss() -> None:
    """Only members of a group are expected in its collectives."""
    progress = GroupProgress(ranks=(0, 1), called=3, completed=2)
    waiting = plant(0, groups={"7": progress}, waits=name_call(sequence=3, group="7"))
    (collective,) = find_pending_collectives(table(waiting, plant(1), plant(2)), {0}, 4)
    assert collective.missing == {1}


def test_group_without_ranks_has_those_that_know_it() -> None:
    """Gloo does not say who is in a group: its members are the ranks that have it."""
    waiting = plant(0, groups={"7": GroupProgress(called=3, completed=2)}, waits=name_call(sequence=3, group="7"))
    other = plant(1, groups={"7": GroupProgress(called=2, completed=2)})
    (collective,) = find_pending_collectives(table(waiting, other, plant(2)), {0}, 4)
    assert collective.missing == {1}


def test_stopped_rank_has_not_come() -> None:
    """The counters of a stopped rank are old, and what it has called it does not do: it waits in nothing."""
    stopped = plant_waiting(3, state="T")
    (collective,) = find_pending_collectives(table(*map(plant_waiting, range(3)), stopped), {0, 1, 2, 3}, 4)
    assert (set(collective.waiting), set(collective.missing)) == ({0, 1, 2}, {3})


def test_receiver_waits_for_its_sender() -> None:
    """Of a receive, the name says which rank is missing."""
    receiver = plant_waiting(2, waits=name_call("gloo:recv 2<-0"))
    (collective,) = find_pending_collectives(table(plant(0), plant(1), receiver), {0, 1, 2}, 4)
    assert collective.missing == {0}


def test_stack_shows_a_wait_that_no_counter_shows() -> None:
    """Without counters, a rank in a call of torch.distributed waits for those that are in none."""
    records = table(*(plant(rank, groups={}, stack=STEP) for rank in range(3)), plant(3, groups={}))
    (collective,) = find_pending_collectives(records, set(range(4)), 4)
    assert collective.missing == {3}


def test_dependents_of_dependents() -> None:
    """Ranks that wait for a rank that waits for the culprit wait for it, too."""
    default = GroupProgress(ranks=(0, 1, 2, 3), called=5, completed=5)
    pair = GroupProgress(ranks=(2, 3), called=3, completed=2)
    dependent = plant(2, groups={"0": default, "7": pair}, waits=name_call(sequence=3, group="7"))
    collectives = find_pending_collectives(
        table(plant_waiting(0), plant_waiting(1), dependent, plant(3)), {0, 1, 2, 3}, 4
    )
    assert find_dependents(collectives, {3}) == {0, 1, 2}
    assert find_cycle(collectives) == ()


def test_names_without_backend() -> None:
    """The backend's name is no part of an operation."""
    assert clean_operation("nccl:_allgather_base") == "allgather_base"


def test_ten_thousand_ranks_are_judged_quickly() -> None:
    """Ten thousand ranks that wait in as many different calls take less than two seconds."""
    ranks = range(10_000)
    record = plant_waiting(0)
    records = {
        rank: record.model_copy(
            update={
                "rank": rank,
                "groups": {"0": GroupProgress(called=rank + 1, completed=rank)},
                "waits": name_call(sequence=rank + 1),
            }
        )
        for rank in ranks
    }
    started_at = time.process_time()
    find_cycle(find_pending_collectives(records, set(ranks), len(ranks)))
    assert time.process_time() - started_at < 2
