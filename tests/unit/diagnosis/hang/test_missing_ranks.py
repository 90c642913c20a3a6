"""Tests of the fault of a rank that is missing in a collective."""

from typing import Any

import pytest

from tests.builders.rank_records import LOAD, build_record
from torchyard.diagnosis.hang.missing_ranks import diagnose_missing_rank
from torchyard.model.hang import Frame


def frame(function: str, file: str) -> tuple[Frame, ...]:
    return (Frame(function=function, file=file, line=1), *LOAD)


@pytest.mark.parametrize(
    ("fields", "limit_s"),
    [
        ({}, 3.0),
        ({"typical_pause_s": 4.0}, 12.0),
        ({"longest_idle_s": 5.0}, 15.0),
        ({"is_polling": True}, 12.0),
        ({"is_polling": True, "stack": frame("get", "/l/multiprocessing/queues.py")}, 4.0),
        ({"typical_pause_s": 0.0, "groups": {}}, 12.0),
        ({"state": "T", "typical_pause_s": 0.1}, 2.0),
        ({"idle_s": 0.0}, 300.0),
        ({"idle_s": 0.0, "typical_pause_s": 30.0}, 600.0),
        ({"state": "D"}, 8.0),
        ({"state": "D", "wchan": "jbd2_log_wait_commit"}, 60.0),
        ({"state": "D", "uses_files": True, "idle_s": 0.0}, 300.0),
        ({"full_mount": "/data", "writes_files": True, "idle_s": 0.0}, 8.0),
    ],
)
def test_limit_by_record(fields: dict[str, Any], limit_s: float) -> None:
    """The time that a rank may be missing depends on its activity, and on the usual pause at its line."""
    assert diagnose_missing_rank(build_record(0, **fields), 0.0, 12.0).limit_s == limit_s


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"stack": frame("load", "/v/site-packages/torch/serialization.py")}, "storage"),
        ({"wchan": "pipe_read"}, "storage"),
        ({"wchan": "pipe_read", "stack": frame("_recv", "/l/multiprocessing/connection.py")}, "missing-rank"),
        ({"wchan": "nfs_wait_bit_killable"}, "storage"),
        ({"stack": frame("get", "/l/multiprocessing/queues.py")}, "data-loader"),
        ({"stack": frame("read", "/l/ssl.py")}, "network"),
        ({"stack": frame("urlopen", "/l/urllib/request.py")}, "network"),
        ({"wchan": "inet_csk_accept"}, "network"),
        ({"frozen_s": 5.0, "state": "S"}, "gil"),
        ({"frozen_s": 5.0, "state": "R", "idle_s": 0.0}, "compute"),
        ({"wchan": "request_wait_answer"}, "storage"),
        ({"wchan": "do_freezer_trap"}, "stopped"),
        ({"state": "D", "wchan": "__refrigerator"}, "stopped"),
        ({"full_mount": "/data", "writes_files": True}, "storage"),
        ({"full_mount": "/data", "stack": frame("save_weights", "/home/me/train.py")}, "storage"),
        ({"full_mount": "/data"}, "missing-rank"),
        ({"full_mount": "/data", "uses_files": True, "idle_s": 0.0}, "compute"),
        (
            {"full_mount": "/data", "writes_files": True, "idle_s": 0.0, "groups": {}, "typical_pause_s": 0.0},
            "compute",
        ),
        ({"frozen_s": 5.0, "state": "D"}, "storage"),
        ({"frozen_s": 5.0, "state": "T"}, "stopped"),
    ],
)
def test_kind_by_record(fields: dict[str, Any], kind: str) -> None:
    """The strongest evidence in the record decides the kind."""
    assert diagnose_missing_rank(build_record(0, **fields), 0.0, 12.0).kind == kind


def test_rank_without_a_record_gets_the_longest_limit() -> None:
    """A rank without any record may be writing a checkpoint."""
    assert diagnose_missing_rank(None, 0.5, 12.0).limit_s == 300.0


def test_rank_whose_last_record_is_old_is_not_waited_for_that_long() -> None:
    """A healthy rank has a record every minute: one without any for longer is on a node that hangs, or is cut off."""
    assert diagnose_missing_rank(build_record(0, kind="silent"), 0.5, 80.0).limit_s == 75.0


def test_short_idle_moment_of_a_rank_that_works_does_not_shorten_its_limit() -> None:
    """A rank that has made no progress for the limit of active ranks hangs, also if it is idle at this moment."""
    fault = diagnose_missing_rank(build_record(0, stalled_s=310.0, idle_s=0.7), 0.0, 310.0)
    assert (fault.kind, fault.limit_s, fault.lasted_s) == ("compute", 300.0, 310.0)
