"""Tests of places: the user's line, and ranks at the same one."""

import pytest

from tests.rank_records import LOAD, LOADER, STEP, TORCH, TRAIN, build_record, index_by_rank
from torchyard.diagnosis.hang.stack_locations import describe_location, describe_nodes, find_user_frame, group_ranks
from torchyard.model.hang import Frame

LOOP = Frame(function="main", file=TRAIN, line=30)
QUEUE = Frame(function="get", file="/usr/lib/python3.11/multiprocessing/queues.py", line=113)
GET = Frame(function="_try_get_data", file=f"{TORCH}/utils/data/dataloader.py", line=1275)
SOCKET = Frame(function="recv_into", file="/usr/lib/python3.11/socket.py", line=706)


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (LOAD, "load (train.py:88)"),
        (LOADER, "load (train.py:88), in DataLoader.__next__"),
        ((QUEUE, GET, LOOP), "main (train.py:30), in DataLoader._try_get_data"),
        (STEP, "step (train.py:40), in all_reduce"),
        ((SOCKET, LOOP), "main (train.py:30), in socket.recv_into"),
        ((SOCKET,), "recv_into (socket.py:706)"),
        ((), "unknown"),
    ],
)
def test_place(stack: tuple[Frame, ...], place: str) -> None:
    """The user's innermost line, and what it calls."""
    assert describe_location(build_record(0, stack=stack)) == place


def test_state_where_no_stack_is_known() -> None:
    """Without a stack, the process's state is the place."""
    assert describe_location(build_record(0, stack=(), state="T")) == "is stopped"


@pytest.mark.parametrize(
    "file", [f"{TORCH}/x.py", "/v/site-packages/a.py", "/usr/lib/python3.11/os.py", "<frozen importlib._bootstrap>"]
)
def test_library_frames_are_not_the_users(file: str) -> None:
    """Frames of torch, packages and Python itself are passed over."""
    assert find_user_frame((Frame(function="f", file=file, line=1), LOOP)) == LOOP


def test_the_fewest_ranks_come_first() -> None:
    """Ranks at the same place are one cluster; the odd one comes first."""
    clusters = group_ranks(index_by_rank(build_record(0, stack=STEP), build_record(1, stack=STEP), build_record(2)))
    assert [each.ranks for each in clusters] == [(2,), (0, 1)]


def test_folder_of_the_user_may_be_called_torch() -> None:
    """Only what looks like torch's own tree is torch's."""
    frame = Frame(function="load", file="/home/me/torch/train.py", line=88)
    assert find_user_frame((GET, frame)) == frame


def test_rank_that_has_ended_is_nowhere() -> None:
    """The stack of a process that is gone says nothing."""
    assert describe_location(build_record(0, kind="end")) == "has ended"


def test_nodes_by_name() -> None:
    """Each node is named once; no node gives no words."""
    assert (describe_nodes(["b", "a", "a", ""]), describe_nodes([""])) == (" on a, b", "")
