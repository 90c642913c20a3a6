"""Tests of detect_hang: synthetic records of ranks, and the hang that they prove."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.rank_records import (
    LOAD,
    LOADER,
    STEP,
    TORCH,
    TRAIN,
    build_collective,
    build_missing_rank_records,
    build_record,
    build_waiting_record,
    index_by_rank,
)
from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.model.hang import Collective, Frame, GroupProgress, Hang, Link, RankRecord


def judge(records: dict[int, RankRecord]) -> Hang:
    hang = detect_hang(records, 4)
    assert hang is not None
    return hang


def test_sentence_names_rank_location_and_waiting_ranks() -> None:
    """The sentence names the rank that hangs, its location, and the ranks that wait for it."""
    assert judge(build_missing_rank_records(stack=LOADER)).sentence == (
        "rank 3 on node-1 hangs in load (train.py:88), in DataLoader.__next__: "
        "ranks 0-2 wait for it in all_reduce number 6 of the default group (train.py:40)"
    )


CHILD = (Frame(function="wait", file="/usr/lib/python3.11/subprocess.py", line=1264), *LOAD)
SAVE = (Frame(function="save", file=f"{TORCH}/serialization.py", line=850), *LOAD)
SOCKET = (Frame(function="recv_into", file="/usr/lib/python3.11/socket.py", line=706), *LOAD)
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("missing-rank", {}),
    ("missing-rank", {"stack": CHILD}),
    ("stopped", {"state": "T", "frozen_s": 12.0}),
    ("missing-rank", {"state": "Z"}),
    ("missing-rank", {"kind": "end", "state": ""}),
    ("compute", {"frozen_s": 310.0, "state": "R", "idle_s": 0.0, "stalled_s": 310.0}),
    ("gil", {"frozen_s": 11.0, "state": "S"}),
    ("storage", {"state": "D", "wchan": "folio_wait_bit_common"}),
    ("storage", {"wchan": "wait_for_partner"}),
    ("storage", {"stack": SAVE, "stalled_s": 70.0}),
    ("data-loader", {"stack": LOADER}),
    ("network", {"stack": SOCKET}),
    ("network", {"wchan": "sk_wait_data"}),
    ("compute", {"idle_s": 0.0, "stalled_s": 310.0}),
]


@pytest.mark.parametrize(("kind", "fields"), KINDS, ids=lambda value: str(value)[:60])
def test_class_of_missing_rank(kind: str, fields: dict[str, Any]) -> None:
    """A rank that others wait for has the class that its own record shows."""
    records = build_missing_rank_records(**fields)
    for rank in range(3):
        records[rank] = records[rank].model_copy(update={"stalled_s": 320.0})
    hang = judge(records)
    assert (hang.kind, hang.ranks, hang.waiting) == (kind, (3,), (0, 1, 2))


NO_HANG: list[tuple[str, dict[str, Any]]] = [
    ("computes", {"idle_s": 0.0, "stalled_s": 200.0}),
    ("writes a checkpoint", {"uses_files": True, "idle_s": 0.0, "stack": SAVE, "state": "D", "stalled_s": 200.0}),
    ("flushes a checkpoint", {"state": "D", "stack": (Frame(function="fsync", file=TRAIN, line=9),)}),
    ("waits for its child, which works", {"stack": CHILD, "idle_s": 0.0, "stalled_s": 200.0}),
    ("was idle for short times in this stall", {"longest_idle_s": 5.0, "idle_s": 12.0, "stalled_s": 200.0}),
    ("polls another machine", {"is_polling": True, "idle_s": 11.0, "stalled_s": 200.0}),
    ("compiles, with the GIL held now and then", {"idle_s": 0.0, "frozen_s": 2.0, "stalled_s": 200.0}),
    ("holds the GIL, but not for long", {"idle_s": 0.0, "state": "R", "frozen_s": 6.0, "stalled_s": 200.0}),
    ("is as slow as usual", {"typical_pause_s": 5.0}),
    ("has ended a moment ago", {"kind": "end", "state": "", "stalled_s": 0.0}),
    ("has not begun", {"groups": {}, "typical_pause_s": 0.0, "stalled_s": 11.0}),
    ("is healthy", {"kind": "pulse", "stalled_s": 0.1}),
]


@pytest.mark.parametrize("fields", [fields for _, fields in NO_HANG], ids=[name for name, _ in NO_HANG])
def test_rank_that_may_still_come_does_not_hang(fields: dict[str, Any]) -> None:
    """A rank that may still call the collective does not hang."""
    stalled_s = 9.0 if fields.get("kind") == "end" else float(fields.get("stalled_s", 12.0)) or 12.0
    records = build_missing_rank_records(**fields)
    for rank in range(3):
        records[rank] = records[rank].model_copy(update={"stalled_s": stalled_s})
    assert detect_hang(records, 4) is None


def test_waiting_for_one_busy_rank_excuses_an_idle_one() -> None:
    """An idle rank does not hang while another rank is busy, for which it may wait."""
    records = index_by_rank(
        build_waiting_record(0), build_waiting_record(1), build_record(2, idle_s=0.0), build_record(3)
    )
    assert detect_hang(records, 4) is None


def test_stopped_rank_hangs() -> None:
    """A stopped rank hangs, whatever another one does."""
    records = index_by_rank(
        build_waiting_record(0), build_waiting_record(1), build_record(2, idle_s=0.0), build_record(3, state="T")
    )
    assert judge(records).ranks == (3,)


def test_old_stalls_prove_nothing() -> None:
    """A stall that is no longer reported has ended."""
    assert detect_hang(build_missing_rank_records(), 4, dict.fromkeys(range(4), 30.0)) is None


def test_one_old_stall_is_not_blamed() -> None:
    """A rank whose log comes late is not blamed."""
    assert detect_hang(build_missing_rank_records(), 4, {0: 0.0, 1: 0.0, 2: 0.0, 3: 40.0}) is None


def test_silent_rank_is_named_late() -> None:
    """A rank without any record hangs once even a slow rank would have called."""
    records = {rank: build_waiting_record(rank, stalled_s=301.0) for rank in range(3)}
    hang = judge(records)
    assert (hang.kind, hang.ranks) == ("missing-rank", (3,))
    assert hang.sentence.startswith("rank 3 has sent no record: ")
    assert hang.proven_s == 0.0
    assert detect_hang({rank: build_waiting_record(rank, stalled_s=100.0) for rank in range(3)}, 4) is None


def test_node_that_has_become_silent_is_named() -> None:
    """Ranks whose last record is old are named with their node, and silence is not a proof."""
    records = {rank: build_waiting_record(rank, stalled_s=85.0) for rank in range(3)}
    records[3] = build_record(3, kind="pulse", stalled_s=0.1)
    assert detect_hang(records, 4, dict.fromkeys(range(3), 1.0) | {3: 60.0}) is None
    hang = detect_hang(records, 4, dict.fromkeys(range(3), 1.0) | {3: 80.0})
    assert hang is not None
    assert (hang.ranks, hang.nodes, hang.proven_s) == ((3,), ("node-1",), 0.0)


@pytest.mark.parametrize(
    ("fields", "proven_s"),
    [
        pytest.param({"stalled_s": 90.0, "idle_s": 40.0}, 40.0, id="idle"),
        pytest.param({"stalled_s": 310.0, "idle_s": 0.0}, 0.0, id="computes"),
        pytest.param({"state": "T", "frozen_s": 25.0, "idle_s": 0.0}, 25.0, id="stopped"),
        pytest.param({"kind": "end", "state": ""}, 320.0, id="ended"),
        pytest.param(
            {"full_mount": "/data", "writes_files": True, "stalled_s": 60.0, "idle_s": 0.0},
            0.0,
            id="retries a full disk",
        ),
    ],
)
def test_proof_is_the_time_without_activity(fields: dict[str, Any], proven_s: float) -> None:
    """Only measurements of the rank that hangs prove it: not the time since the last collective."""
    records = build_missing_rank_records(**fields)
    for rank in range(3):
        records[rank] = records[rank].model_copy(update={"stalled_s": 320.0})
    assert judge(records).proven_s == proven_s


def test_rank_at_its_end_does_not_wait() -> None:
    """A rank whose recorder no longer runs, because its interpreter ends, is not in its last record's collective."""
    records = index_by_rank(
        *(build_record(rank, kind="end", state="") for rank in range(3)),
        build_waiting_record(3, stalled_s=15.0, frozen_s=14.0),
    )
    assert detect_hang(records, 4) is None


def pair(enqueued: int, completed: int) -> GroupProgress:
    return GroupProgress(ranks=(2, 3), enqueued=enqueued, completed=completed)


def test_chain_ends_at_the_first_cause() -> None:
    """A rank that waits itself does not hang, but the one that it waits for."""
    default = GroupProgress(ranks=(0, 1, 2, 3), enqueued=5, completed=5)
    dependent = build_record(
        2, groups={"0": default, "7": pair(3, 2)}, pending=build_collective(sequence=3, group="7"), stack=STEP
    )
    records = index_by_rank(
        build_waiting_record(0),
        build_waiting_record(1),
        dependent,
        build_record(3, groups={"0": default, "7": pair(2, 2)}),
    )
    hang = judge(records)
    assert (hang.ranks, hang.waiting) == ((3,), (0, 1, 2))


def test_ring_is_a_deadlock() -> None:
    """Ranks that wait for each other in two groups are a deadlock, and both groups are named."""
    one, two = (GroupProgress(ranks=(0, 1), enqueued=enqueued, completed=2) for enqueued in (3, 2))
    records = index_by_rank(
        build_record(
            0, world=2, groups={"a": one, "b": two}, pending=build_collective(sequence=3, group="a"), stack=STEP
        ),
        build_record(
            1, world=2, groups={"a": two, "b": one}, pending=build_collective("barrier", 3, group="b"), stack=LOAD
        ),
    )
    hang = detect_hang(records, 2)
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("deadlock-between-groups", (0, 1))
    assert "number 3 of group a (ranks 0-1)" in hang.sentence
    assert "number 3 of group b (ranks 0-1)" in hang.sentence


def test_receive_without_a_sender_is_a_deadlock() -> None:
    """A rank in a receive that no counter shows, while all others wait for it in a collective, is a deadlock."""
    receive = (Frame(function="recv", file=f"{TORCH}/distributed/distributed_c10d.py", line=9), *LOAD)
    hang = judge(build_missing_rank_records(stack=receive))
    assert (hang.kind, hang.ranks) == ("deadlock-between-groups", (0, 1, 2, 3))


def test_minority_of_a_mismatch_is_to_blame() -> None:
    """If one rank calls another operation than the others, both calls are named, and the minority is to blame."""
    other = build_waiting_record(
        3, pending=build_collective(size=500), stack=(*STEP[:2], Frame(function="step", file=TRAIN, line=44))
    )
    hang = judge(index_by_rank(*map(build_waiting_record, range(3)), other))
    assert (hang.kind, hang.ranks, hang.waiting) == ("collective-mismatch", (3,), (0, 1, 2))
    assert "ranks 0-2 call all_reduce of 1,000 float (train.py:40)" in hang.sentence
    assert "rank 3 calls all_reduce of 500 float (train.py:44)" in hang.sentence


def test_mismatch_in_nccl_is_proven_by_its_calls() -> None:
    """With NCCL the calls have returned, and the ranks compute while they wait for the GPU, wherever they stand."""
    spinning: dict[str, Any] = {"stack": LOAD, "idle_s": 0.0, "stalled_s": 40.0, "state": "R"}
    others = [build_waiting_record(rank, **spinning) for rank in range(3)]
    other = build_waiting_record(3, pending=build_collective(size=500), **spinning)
    hang = judge(index_by_rank(*others, other))
    assert (hang.kind, hang.proven_s) == ("collective-mismatch", 40.0)
    assert hang.sentence.endswith("rank 3 calls all_reduce of 500 float (before train.py:88)")


@pytest.mark.parametrize(
    ("file", "kind", "ranks"),
    [(f"{TORCH}/autograd/graph.py", "missing-rank", (3,)), (TRAIN, "all-waiting-outside", ())],
)
def test_torch_that_does_not_count_completions(file: str, kind: str, ranks: tuple[int, ...]) -> None:
    """If all ranks are idle, the one that has called fewer collectives hangs, if all others stand in torch's code."""
    stack = (Frame(function="_engine_run_backward", file=file, line=768), *STEP[-1:])
    ahead = GroupProgress(ranks=(0, 1, 2, 3), enqueued=6, completed=6)
    others = [build_record(rank, stalled_s=20.0, stack=stack, groups={"0": ahead}) for rank in range(3)]
    hang = judge(index_by_rank(*others, build_record(3, stalled_s=20.0)))
    assert (hang.kind, hang.ranks) == (kind, ranks)


def test_most_certain_of_the_ranks_that_have_called_fewer_is_blamed() -> None:
    """Of two ranks that have called fewer collectives, the one with a data loader as its reason hangs."""
    stack = (Frame(function="_engine_run_backward", file=f"{TORCH}/autograd/graph.py", line=768), *STEP[-1:])
    ahead = GroupProgress(ranks=(0, 1, 2, 3), enqueued=6, completed=6)
    others = [build_record(rank, stalled_s=20.0, stack=stack, groups={"0": ahead}) for rank in range(2)]
    hang = judge(index_by_rank(*others, build_record(2, stalled_s=20.0), build_record(3, stalled_s=20.0, stack=LOADER)))
    assert (hang.kind, hang.ranks) == ("data-loader", (3,))


def test_unknown_root_is_not_another_root() -> None:
    """A broadcast that has returned while it is pending shows no root: it is not another call than one with a root."""
    call = build_collective("broadcast")
    inside = build_waiting_record(0, pending=call.model_copy(update={"root": 1}))
    others = [build_waiting_record(rank, pending=call, stack=LOAD) for rank in (1, 2, 3)]
    assert detect_hang(index_by_rank(inside, *others), 4) is None


def test_first_calls_of_two_groups_in_opposite_order() -> None:
    """Two ranks that each wait in the first call of another group deadlock; a third one only waits for them."""
    members = GroupProgress(ranks=(0, 1), enqueued=0, completed=0)
    default = GroupProgress(enqueued=4, completed=4)
    records = []
    for rank, name in enumerate(("1", "2")):
        call = build_collective().model_copy(update={"group": name, "sequence": 1})
        records.append(build_waiting_record(rank, pending=call, groups={"0": default, name: members}))
    waiting = build_waiting_record(2, pending=build_collective())
    hang = judge(index_by_rank(*records, waiting))
    assert (hang.kind, hang.ranks, hang.waiting) == ("deadlock-between-groups", (0, 1), (2,))


@pytest.mark.parametrize(("waits_for_device", "proven_s"), [(True, 40.0), (False, 0.0)])
def test_deadlock_in_nccl_is_proven_while_the_ranks_wait_for_their_gpus(
    waits_for_device: bool, proven_s: float
) -> None:
    """A rank that computes elsewhere may still call what another rank waits for; one that waits for its GPU cannot."""
    spinning: dict[str, Any] = {"stack": LOAD, "idle_s": 0.0, "stalled_s": 40.0, "state": "R"}
    spinning["waits_for_device"] = waits_for_device
    records = []
    pending = GroupProgress(ranks=(0, 1, 2, 3), enqueued=2, completed=1)
    complete = GroupProgress(ranks=(0, 1, 2, 3), enqueued=1, completed=1)
    for rank, (called, missing) in enumerate([("1", "2"), ("1", "2"), ("2", "1"), ("2", "1")]):
        call = build_collective().model_copy(update={"group": called, "sequence": 2})
        groups = {called: pending, missing: complete}
        records.append(build_waiting_record(rank, pending=call, groups=groups, **spinning))
    hang = judge(index_by_rank(*records))
    assert (hang.kind, hang.proven_s) == ("deadlock-between-groups", proven_s)


def test_sizes_of_all_to_all_may_differ() -> None:
    """An all_to_all of different sizes is not a mismatch."""
    records = index_by_rank(
        *(build_waiting_record(rank, pending=build_collective("all_to_all", size=rank)) for rank in range(4))
    )
    assert detect_hang(records, 4) is None


def test_completed_by_one_rank_alone() -> None:
    """A rank that has completed an all_reduce in which all others still wait has called another operation."""
    finished = build_record(3, groups={"0": GroupProgress(ranks=(0, 1, 2, 3), enqueued=6, completed=6)}, stalled_s=30.0)
    hang = judge(index_by_rank(*(build_waiting_record(rank, stalled_s=30.0) for rank in range(3)), finished))
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (3,))


def test_broadcasts_from_different_ranks_are_a_mismatch() -> None:
    """Broadcasts of one size from different ranks are different calls."""
    broadcast = build_collective("broadcast")
    records = [
        build_waiting_record(rank, pending=broadcast.model_copy(update={"root": 1 if rank == 3 else 0}))
        for rank in range(4)
    ]
    hang = judge(index_by_rank(*records))
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (3,))
    assert "rank 3 calls broadcast from rank 1 of 1,000 float (train.py:40)" in hang.sentence


def test_broadcast_that_only_one_rank_waits_in_is_a_mismatch() -> None:
    """A rank that waits in a broadcast which all others have completed waits for another root than they had."""
    finished = GroupProgress(ranks=(0, 1, 2, 3), enqueued=7, completed=6)
    records = [
        build_waiting_record(rank, groups={"0": finished}, pending=build_collective(sequence=7), stalled_s=30.0)
        for rank in range(3)
    ]
    waiting = build_waiting_record(3, pending=build_collective("broadcast"), stalled_s=30.0)
    hang = judge(index_by_rank(*records, waiting))
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (3,))


def test_new_groups_of_different_ranks_are_a_mismatch() -> None:
    """A rank that sets up a group of other members than the others is named, with both lists."""
    records = []
    for rank in range(4):
        members = (0, 1) if rank == 3 else (0, 1, 2, 3)
        call = Collective(group="set-up", sequence=0, operation="new_group", members=members)
        records.append(build_waiting_record(rank, groups={}, pending=call))
    hang = judge(index_by_rank(*records))
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (3,))
    assert hang.sentence == (
        "the next group is not the same call in all ranks: "
        "ranks 0-2 call new_group of ranks 0-3 (train.py:40), rank 3 calls new_group of ranks 0-1 (train.py:40)"
    )


def test_group_with_other_members_is_a_mismatch() -> None:
    """A rank whose group has the name, but not the members, of the others' group is named with both lists."""
    records = []
    for rank in range(4):
        members = (0, 2, 3) if rank == 0 else (0, 1, 2, 3)
        groups = {"1": GroupProgress(ranks=members, enqueued=1, completed=0)}
        records.append(build_waiting_record(rank, groups=groups, pending=build_collective(sequence=1, group="1")))
    hang = judge(index_by_rank(*records))
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (0,))
    assert "rank 0 calls all_reduce in a group of ranks 0, 2-3 (train.py:40)" in hang.sentence


def test_groups_of_one_name_without_a_common_rank_are_different() -> None:
    """Pairs of ranks may have groups of one name: only a pair whose other rank is missing hangs."""
    pairs = {0: (0, 1), 2: (2, 3), 3: (2, 3)}
    records = [
        build_waiting_record(
            rank,
            groups={"1": GroupProgress(ranks=members, enqueued=1, completed=0)},
            pending=build_collective(sequence=1, group="1"),
        )
        for rank, members in pairs.items()
    ]
    other = build_record(1, groups={"1": GroupProgress(ranks=(0, 1), enqueued=0, completed=0)})
    assert judge(index_by_rank(*records, other)).ranks == (1,)


def test_all_inside_is_unknown() -> None:
    """If all ranks are in the same call and no data moves, no rank is to blame."""
    hang = judge(index_by_rank(*(build_waiting_record(rank, stalled_s=30.0) for rank in range(4))))
    assert (hang.kind, hang.ranks) == ("unknown", ())


def test_all_inside_and_active_is_patient() -> None:
    """A collective that may still move data does not hang."""
    assert (
        detect_hang(index_by_rank(*(build_waiting_record(rank, stalled_s=30.0, idle_s=0.0) for rank in range(4))), 4)
        is None
    )


def test_network_of_the_node_that_all_lost_connections_share() -> None:
    """If one node's connections to several others retransmit, that node is to blame."""
    links = tuple(Link(peer=f"10.0.0.{host}:7", retransmits=5, queued=9000) for host in (2, 3))
    hang = judge(index_by_rank(*(build_waiting_record(rank, links=links if rank == 3 else ()) for rank in range(4))))
    assert (hang.kind, hang.nodes, hang.ranks) == ("network", ("node-1",), (2, 3))


def test_one_lost_connection_blames_neither_end() -> None:
    """One connection that retransmits does not show which end is at fault."""
    links = (Link(peer="10.0.0.2:7", retransmits=5, queued=9000),)
    hang = judge(index_by_rank(*(build_waiting_record(rank, links=links if rank == 3 else ()) for rank in range(4))))
    assert (hang.kind, hang.ranks) == ("network", ())


def test_all_idle_outside_collectives() -> None:
    """If no rank waits in a collective and none is active, the groups of ranks show their locations."""
    hang = judge(index_by_rank(*(build_record(rank, stalled_s=70.0) for rank in range(4))))
    assert hang.kind == "all-waiting-outside"
    assert [(group.ranks, group.location) for group in hang.rank_groups] == [((0, 1, 2, 3), "load (train.py:88)")]


@pytest.mark.parametrize("busy", [{"idle_s": 0.0}, {"idle_s": 11.0}, {"kind": "pulse"}, {"stalled_s": 10.0}])
def test_job_with_a_busy_rank_is_not_idle(busy: dict[str, Any]) -> None:
    """A job with one active rank is not idle."""
    busy_record = build_record(3, **({"stalled_s": 70.0} | busy))
    records = index_by_rank(*(build_record(rank, stalled_s=70.0) for rank in range(3)), busy_record)
    assert detect_hang(records, 4) is None


def test_job_without_process_groups_does_not_hang() -> None:
    """No hang is detected in programs that never join a process group."""
    assert (
        detect_hang(index_by_rank(build_record(0, world=1, groups={}, typical_pause_s=0.0, stalled_s=900.0)), 1) is None
    )


@pytest.mark.parametrize(
    ("completed", "pause_s", "stalled_s", "is_hang"),
    [(0, 0.0, 25.0, False), (0, 0.0, 301.0, True), (0, 0.5, 25.0, True), (1, 0.0, 25.0, True)],
)
def test_job_before_its_first_step_may_stand_still_for_longer(
    completed: int, pause_s: float, stalled_s: float, is_hang: bool
) -> None:
    """Ranks without a pause and a completed collective so far may still compile or load: they hang after 300 s."""
    progress = GroupProgress(ranks=(0, 1, 2, 3), enqueued=completed, completed=completed)
    records = [
        build_record(rank, groups={"0": progress}, typical_pause_s=pause_s, stalled_s=stalled_s) for rank in range(4)
    ]
    assert (detect_hang(index_by_rank(*records), 4) is not None) is is_hang


SETUP = (Frame(function="init_process_group", file=f"{TORCH}/distributed/distributed_c10d.py", line=9), *LOAD)
BEFORE_SETUP: dict[str, Any] = {"groups": {}, "typical_pause_s": 0.0, "stalled_s": 25.0}


def test_setup_waits_for_the_rank_that_is_elsewhere() -> None:
    """In the set-up of a process group, which has no counters, the stacks show the missing rank."""
    waiting_records = [build_record(rank, stack=SETUP, **BEFORE_SETUP) for rank in range(3)]
    records = index_by_rank(*waiting_records, build_record(3, **BEFORE_SETUP))
    hang = judge(records)
    assert (hang.kind, hang.ranks) == ("missing-rank", (3,))
    assert "the set-up of a process group" in hang.sentence


@pytest.mark.parametrize("slow_rank", [{"kind": "pulse"}, {"idle_s": 0.0}], ids=["unknown", "imports"])
def test_ranks_that_have_passed_the_setup_are_not_waited_for_in_it(slow_rank: dict[str, Any]) -> None:
    """A rank in its first call and one in the set-up of the default group do not wait for each other."""
    records = index_by_rank(
        build_waiting_record(0),
        build_record(1, **{**BEFORE_SETUP, **slow_rank}),
        build_record(2, stack=SETUP, **BEFORE_SETUP),
        build_record(3, stack=SETUP, **BEFORE_SETUP),
    )
    assert detect_hang(records, 4) is None


@pytest.mark.parametrize(("stalled_s", "is_hang"), [(8.0, False), (25.0, True)])
def test_rank_that_stays_in_the_setup_is_waited_for(stalled_s: float, is_hang: bool) -> None:
    """A rank that alone has not left the set-up of the default group, and is idle there, hangs as in any other call."""
    late = {**BEFORE_SETUP, "stalled_s": stalled_s, "idle_s": stalled_s}
    others = [build_waiting_record(rank, stalled_s=stalled_s) for rank in range(3)]
    hang = detect_hang(index_by_rank(*others, build_record(3, stack=SETUP, **late)), 4)
    assert (hang is not None) is is_hang
    if hang:
        assert (hang.kind, hang.ranks) == ("missing-rank", (3,))


def build_new_group_record(rank: int, *members: int) -> RankRecord:
    """The record of a rank that waits in the set-up of a group of some ranks."""
    call = Collective(group="set-up", sequence=0, operation="new_group", members=members)
    stack = (Frame(function="new_group", file=f"{TORCH}/distributed/distributed_c10d.py", line=9), *LOAD)
    return build_record(rank, stack=stack, pending=call)


def test_ranks_that_are_not_in_a_new_group_are_not_waited_for_in_its_setup() -> None:
    """A rank that sets up a group waits for its members alone: here for one that computes, as all others do."""
    records = [build_waiting_record(0), build_waiting_record(1), build_new_group_record(2, 2, 3)]
    assert detect_hang(index_by_rank(*records, build_record(3, idle_s=0.0)), 4) is None
    hang = judge(index_by_rank(*records, build_record(3)))
    assert (hang.kind, hang.ranks, hang.waiting) == ("missing-rank", (3,), (0, 1, 2))


def test_rank_that_has_a_new_group_is_not_waited_for_in_its_setup() -> None:
    """With NCCL a rank may pass the set-up of a group before others: it waits for them, and not they for it."""
    has_group = {"0": GroupProgress(enqueued=6, completed=5), "1": GroupProgress(enqueued=0, completed=0)}
    late_rank = build_new_group_record(3, 0, 1, 2, 3).model_copy(update={"idle_s": 0.0})
    records = [build_waiting_record(rank, groups=has_group) for rank in range(3)]
    assert detect_hang(index_by_rank(*records, late_rank), 4) is None


def test_member_that_waits_elsewhere_is_a_deadlock_with_a_new_group() -> None:
    """A member of a new group that waits in another call for a rank that sets it up: they wait for each other."""
    hang = judge(
        index_by_rank(
            build_waiting_record(0),
            build_waiting_record(1),
            build_new_group_record(2, 1, 2, 3),
            build_new_group_record(3, 1, 2, 3),
        )
    )
    assert (hang.kind, set(hang.ranks) >= {1}) == ("deadlock-between-groups", True)


def test_late_completion_is_not_a_wait() -> None:
    """A rank that hangs outside, and has not recorded that its last call is complete, is still the culprit."""
    lag = GroupProgress(ranks=(0, 1, 2, 3), enqueued=5, completed=4)
    hang = judge(build_missing_rank_records(groups={"0": lag}, pending=build_collective(sequence=5), stack=LOADER))
    assert (hang.kind, hang.ranks) == ("data-loader", (3,))


def test_asynchronous_calls_ahead() -> None:
    """If NCCL ranks call ahead by different numbers, the rank before the first pending call is the culprit."""
    ahead = [GroupProgress(ranks=(0, 1, 2, 3), enqueued=enqueued, completed=5) for enqueued in (50, 48, 6)]
    records = index_by_rank(
        *(build_waiting_record(rank, groups={"0": progress}) for rank, progress in enumerate(ahead)), build_record(3)
    )
    assert judge(records).ranks == (3,)


_COUNTS = st.integers(0, 4)
_GROUPS = st.dictionaries(
    st.sampled_from(["0", "a", "b"]),
    st.builds(
        GroupProgress, ranks=st.sampled_from([(), (0, 1), (1, 2, 3), (0, 99)]), enqueued=_COUNTS, completed=_COUNTS
    ),
)
_OPERATIONS = st.sampled_from(["all_reduce", "gloo:barrier", "send 0->1", "recv 9<-2", "send", ""])
_WAITS = st.none() | st.builds(build_collective, _OPERATIONS, _COUNTS, _COUNTS, st.sampled_from(["0", "a", "x"]))
_RECORD = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["stall", "stall", "stall", "pulse", "resume", "end"]),
        "groups": _GROUPS,
        "pending": _WAITS,
        "stack": st.sampled_from([(), LOAD, STEP, LOADER, SOCKET]),
        "state": st.sampled_from(["", "R", "S", "D", "T", "Z", "?"]),
        "idle_s": st.sampled_from([0.0, 30.0, 400.0]),
        "frozen_s": st.sampled_from([0.0, 400.0]),
        "stalled_s": st.sampled_from([0.0, 30.0, 400.0]),
        "links": st.sampled_from([(), (Link(peer="", retransmits=1, queued=1),)]),
    }
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, 4), _RECORD))
def test_any_records_give_a_verdict_or_none(fields_by_rank: dict[int, dict[str, Any]]) -> None:
    """Any records give a verdict or none, and no rank that runs is missing from a collective that it waits in."""
    records = {rank: build_record(rank, **fields) for rank, fields in fields_by_rank.items()}
    hang = detect_hang(records, 4)
    if hang is None:
        return
    assert hang.sentence
    assert not set(hang.ranks) & set(hang.waiting)
    kinds_within_a_collective = ("collective-mismatch", "network", "deadlock-between-groups", "stopped")
    if hang.kind not in kinds_within_a_collective and hang.collective:
        for rank in hang.ranks:
            if rank in records and records[rank].kind == "stall" and records[rank].frozen_s == 0:
                assert hang.collective != records[rank].pending
