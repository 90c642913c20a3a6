"""Tests of a hang's sentence and its evidence."""

from typing import Any

import pytest

from tests.builders.rank_records import build_missing_rank_records, build_record, build_waiting_record, index_by_rank
from torchyard.diagnosis.hang.judge import detect_hang


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"state": "T"}, "rank 3 on node-1 is stopped in load (train.py:88): ranks 0-2 wait for it in "),
        (
            {"full_mount": "/data", "writes_files": True, "idle_s": 0.0},
            "rank 3 on node-1 is out of disk space at /data in load (train.py:88): ranks 0-2 wait ",
        ),
        ({"kind": "end", "state": ""}, "rank 3 on node-1 has ended: ranks 0-2 wait for it in "),
        ({"frozen_s": 12.0}, "in a call that holds Python's global lock: "),
        ({"state": "D"}, "where it reads or writes files: "),
        ({"stack": ()}, "rank 3 on node-1 does not come: "),
    ],
)
def test_sentence_by_kind(fields: dict[str, Any], text: str) -> None:
    """The sentence describes the state of the missing rank."""
    hang = detect_hang(build_missing_rank_records(**fields), 4)
    assert hang is not None
    assert text in hang.sentence


def test_two_culprits_in_one_sentence() -> None:
    """Two ranks with the same fault are in one sentence."""
    hang = detect_hang(
        index_by_rank(build_waiting_record(0), build_waiting_record(1), build_record(2), build_record(3)), 4
    )
    assert hang is not None
    assert hang.sentence.startswith("ranks 2-3 on node-1 hang in load (train.py:88): ranks 0-1 wait for them in ")


def test_evidence_has_counts_and_facts() -> None:
    """The evidence names the counters of both sides and the culprit's process."""
    hang = detect_hang(build_missing_rank_records(wchan="hrtimer_nanosleep"), 4)
    assert hang is not None
    assert hang.evidence == (
        "rank 3 has called 5 collectives of the default group",
        "ranks 0-2 wait in number 6, all_reduce of 1,000 float",
        (
            "rank 3: no progress for 12 s, usually 0.5 s at most at this line, "
            "idle for 12 s, with its children (processor, bytes and page faults), process 103 in state S, "
            "asleep in the kernel's hrtimer_nanosleep"
        ),
    )
