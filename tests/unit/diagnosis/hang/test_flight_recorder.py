"""Tests of the reader of dumps of torch's flight recorder: recorded ones, and synthetic ones of other versions."""

import io
import json
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.common.project_root import ROOT
from torchyard.diagnosis.hang.flight_recorder import DumpError, build_record, parse_dump
from torchyard.diagnosis.hang.judge import detect_hang

FOLDER = ROOT / "tests" / "logs" / "flight_recorder"


def recorded(suffix: str, name: str = "gloo-torch-2.13") -> dict[int, bytes]:
    return {rank: (FOLDER / f"{name}-rank{rank}.{suffix}").read_bytes() for rank in (0, 1)}


def entry(sequence: int, state: str = "completed", **fields: Any) -> dict[str, Any]:
    """The entry of one call in a dump."""
    default_fields = {
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": True,
    }
    return default_fields | fields


def dump(*entries: dict[str, Any], version: str = "2.4", **fields: Any) -> bytes:
    """A dump with these entries."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    document = {"version": version, "pg_config": config, "entries": list(entries)}
    return pickle.dumps(document | fields, protocol=2)


@pytest.mark.parametrize("suffix", ["json", "pickle"])
def test_recorded_dumps_name_the_missing_rank(suffix: str) -> None:
    """Of two recorded gloo ranks, the one that did not call the fifth all_reduce is named."""
    hang = detect_hang({rank: build_record(parse_dump(data), rank, 2) for rank, data in recorded(suffix).items()}, 2)
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.waiting) == ("missing-rank", (1,), (0,))
    assert "all_reduce number 5 of the default group" in hang.sentence


def test_dumps_of_nccls_watchdog_name_both_calls() -> None:
    """Of two recorded NCCL ranks, one waits in a barrier and the other in an all_reduce of the same number."""
    dumps = recorded("pickle", "nccl-torch-2.11")
    hang = detect_hang({rank: build_record(parse_dump(data), rank, 2) for rank, data in dumps.items()}, 2)
    assert hang is not None
    assert (hang.kind, hang.ranks) == ("collective-mismatch", (0, 1))
    assert "rank 0 calls barrier (train.py:382)" in hang.sentence


def test_frames_of_the_open_call() -> None:
    """A pickle has the stack of the pending call, innermost frame first."""
    frames = parse_dump(recorded("pickle")[0]).stack
    assert (frames[0].function, str(frames[2])) == ("all_reduce", "make (trains.py:21)")


def test_retired_call_of_nccl_is_pending() -> None:
    """A retired call of NCCL that is not completed has timed out, and the rank waits in it."""
    parsed = parse_dump(dump(entry(1), entry(2, "started")))
    assert parsed.pending is not None
    assert (parsed.pending.sequence, parsed.pending.operation, parsed.pending.sizes) == (2, "all_reduce", ((3, 4),))
    assert (parsed.groups["0"].enqueued, parsed.groups["0"].completed, parsed.groups["0"].ranks) == (2, 1, (0, 1))


def test_old_dumps_have_one_sequence() -> None:
    """Version 1.5 has `seq_id`, and no counters of groups."""
    old_entry = entry(7, "scheduled") | {"seq_id": 7}
    del old_entry["collective_seq_id"], old_entry["p2p_seq_id"]
    parsed = parse_dump(dump(old_entry, version="1.5"))
    assert parsed.groups["0"].enqueued == 7


def test_dropped_calls_count() -> None:
    """The group's counter includes calls that are no longer among the entries."""
    status = {"0": {"last_enqueued_collective": 9, "last_completed_collective": 9}}
    assert parse_dump(dump(entry(3), pg_status=status)).groups["0"].enqueued == 9


def test_sends_do_not_count_as_collectives() -> None:
    """Sends and receives have separate numbers."""
    send = entry(1, "started", profiling_name="nccl:send 0->1", p2p_seq_id=40, is_p2p=True, record_id=5)
    parsed = parse_dump(dump(entry(1), send))
    assert parsed.groups["0"].enqueued == 1
    assert parsed.pending is not None
    assert parsed.pending.operation == "send 0->1"


class MaliciousObject:
    """An object whose pickle runs a command."""

    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"version": MaliciousObject()}), "more than plain values"),
        (dump(entry(1))[:-9], "not a complete pickle"),
        (b"", "not a complete pickle"),
        (b"{", "not valid JSON"),
        (b"{" + b'"a":[' * 100_000, "not valid JSON"),
        (json.dumps({"version": "3.0"}).encode(), "not a dump"),
        (pickle.dumps([1], protocol=2), "not a dump"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "refused"),
    ],
)
def test_file_that_is_not_a_dump_is_refused(data: bytes, message: str) -> None:
    """A file that is not a dump, or whose pickle runs code, is refused with a message."""
    with pytest.raises(DumpError, match=message):
        parse_dump(data)


_VALUES = st.recursive(
    st.none() | st.integers(-(10**20), 10**20) | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from([*sorted(entry(1)), "frames", "is_p2p", "timeout_ms"]), _VALUES), _VALUES)
def test_any_values_are_read(values: dict[str, Any], status: Any) -> None:
    """A dump with unexpected values is read as far as it makes sense."""
    parse_dump(json.dumps({"version": "2.10", "entries": [values], "pg_config": status, "pg_status": status}).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(data: bytes) -> None:
    """Any bytes at most raise the reader's error."""
    with pytest.raises(DumpError):
        parse_dump(io.BytesIO(data).read())
