"""Tests of places: the user's line, and ranks at the same one."""

import pytest

from tests.builders.rank_records import LOAD, LOADER, STEP, TORCH, TRAIN, build_record, index_by_rank
from torchyard.diagnosis.hang.stack_locations import describe_location, describe_nodes, find_user_frame, group_ranks
from torchyard.model.hang import Frame

LOOP = Frame(function="main", file=TRAIN, line=30)
QUEUE = Frame(function="get", file="/usr/lib/python3.11/multiprocessing/queues.py", line=113)
GET = Frame(function="_try_get_data", file=f"{TORCH}/utils/data/dataloader.py", line=1275)
NEXT = Frame(function="__next__", file=f"{TORCH}/utils/data/dataloader.py", line=741)
OWN_NEXT = Frame(function="__next__", file=TRAIN, line=12)
SOCKET = Frame(function="recv_into", file="/usr/lib/python3.11/socket.py", line=706)


@pytest.mark.parametrize(
    ("stack", "location"),
    [
        (LOAD, "load (train.py:88)"),
        (LOADER, "load (train.py:88), in DataLoader.__next__"),
        ((QUEUE, GET, LOOP), "main (train.py:30), in DataLoader._try_get_data"),
        ((QUEUE, GET, NEXT, LOOP), "main (train.py:30), in DataLoader.__next__"),
        ((QUEUE, GET, OWN_NEXT), "__next__ (train.py:12), in DataLoader._try_get_data"),
        (STEP, "step (train.py:40), in all_reduce"),
        ((SOCKET, LOOP), "main (train.py:30), in socket.recv_into"),
        ((SOCKET,), "recv_into (socket.py:706)"),
        ((), "unknown"),
    ],
)
def test_location(stack: tuple[Frame, ...], location: str) -> None:
    """The location is the user's innermost line, and the call in it."""
    assert describe_location(build_record(0, stack=stack)) == location


def test_location_without_a_stack() -> None:
    """Without a stack, the location is the state of the process."""
    assert describe_location(build_record(0, stack=(), state="T")) == "is stopped"


@pytest.mark.parametrize(
    "file", [f"{TORCH}/x.py", "/v/site-packages/a.py", "/usr/lib/python3.11/os.py", "<frozen importlib._bootstrap>"]
)
def test_library_frames_are_not_the_users(file: str) -> None:
    """Frames of torch, packages and Python itself are skipped."""
    assert find_user_frame((Frame(function="f", file=file, line=1), LOOP)) == LOOP


def test_smallest_group_comes_first() -> None:
    """Ranks at the same location are one group, and the smallest group comes first."""
    clusters = group_ranks(index_by_rank(build_record(0, stack=STEP), build_record(1, stack=STEP), build_record(2)))
    assert [cluster.ranks for cluster in clusters] == [(2,), (0, 1)]


def test_folder_of_the_user_may_be_called_torch() -> None:
    """A user's folder that is called torch is not part of torch."""
    frame = Frame(function="load", file="/home/me/torch/train.py", line=88)
    assert find_user_frame((GET, frame)) == frame


def test_rank_that_has_ended_has_no_location() -> None:
    """The stack of a process that has ended is not shown."""
    assert describe_location(build_record(0, kind="end")) == "has ended"
    assert describe_location(build_record(0, kind="raised")) == "has ended by an exception"


def test_nodes_by_name() -> None:
    """Each node is named once; no node gives no words."""
    assert (describe_nodes(["b", "a", "a", ""]), describe_nodes([""])) == (" on a, b", "")
