"""scan_pickle: what it reads of a pickle, which it does not execute."""

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.host.black_box.pickle_scan import (
    OPAQUE,
    Global,
    PickleScanError,
    TruncatedPickleError,
    scan_pickle,
)

PROTOCOLS = range(1, pickle.HIGHEST_PROTOCOL + 1)


class Command:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._path}",)


class StoragePickler(pickle.Pickler):
    """Writes a set as a persistent id, as torch's writes a storage."""

    def persistent_id(self, obj: Any) -> Any:
        return ("storage", collections.OrderedDict, "7", "cpu", 12) if isinstance(obj, set) else None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_and_texts_at_the_top_are_read(protocol: int, tmp_path: Path) -> None:
    """The values of a dictionary at the top are read in every binary protocol; what is deeper is opaque."""
    value = {"step": 1204, "size": -(2**40), "name": "ä", "nested": {"step": 1}, "list": [1, (2, 3)], "none": None}
    value["more"] = [3.5, True, b"x", bytearray(b"y"), {1, 2}, frozenset([3]), Path("x"), collections.Counter("ab")]
    data = pickle.dumps(value, protocol=protocol)
    scan = scan_pickle(b"##" + data + b"##", 2)
    assert scan.end == 2 + len(data)
    assert (scan.top_pairs["step"], scan.top_pairs["size"], scan.top_pairs["name"]) == (1204, -(2**40), "ä")
    assert scan.top_pairs["nested"] is OPAQUE


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_dictionaries_with_a_field_are_collected(protocol: int) -> None:
    """Dictionaries anywhere that have the field are collected, also if their texts are only referred to."""
    infos = [{"relative_path": f"__{rank}_0.distcp", "offset": 8, "length": rank} for rank in range(300)]
    scan = scan_pickle(
        pickle.dumps({"storage_data": {rank: info for rank, info in enumerate(infos)}}, protocol), field="relative_path"
    )
    assert scan.fields == infos


def test_references_are_collected(tmp_path: Path) -> None:
    """A persistent id is read as a short tuple."""
    path = tmp_path / "pickle"
    with path.open("wb") as file:
        StoragePickler(file, protocol=2).dump([set(), "x"])
    (reference,) = scan_pickle(path.read_bytes()).references
    assert reference == ("storage", Global("collections", "OrderedDict"), "7", "cpu", 12)


def test_nothing_is_executed(tmp_path: Path) -> None:
    """An object that would run a command when it is loaded is opaque."""
    scan = scan_pickle(pickle.dumps({"step": 3, "object": Command(tmp_path / "executed")}))
    assert scan.top_pairs == {"step": 3, "object": OPAQUE}
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_beginning_of_a_pickle_is_a_pickle(protocol: int) -> None:
    """Every pickle that is cut off is truncated."""
    data = pickle.dumps([{"step": 5, "name": "x" * 300}, 2.5, (1, 2), {3}, Path("y")], protocol)
    for size in range(len(data)):
        with pytest.raises(TruncatedPickleError):
            scan_pickle(data[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + b"\xff" * 8,  # bytes of 2**64
        b"\x80\x04r\xff\xff\xff\xff.",  # memoize at 2**32 without a value
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02)" + b"\x85" * 100_000,
        b"I" + b"9" * 100_000,
    ],
)
def test_sizes_are_not_believed(data: bytes) -> None:
    """A size that the bytes do not have, deep nesting and long numbers need neither memory nor a stack."""
    with pytest.raises((TruncatedPickleError, PickleScanError)):
        scan_pickle(data)


@given(st.binary(), st.integers(0, 40), st.binary(min_size=1, max_size=3))
def test_any_bytes_are_scanned(data: bytes, position: int, change: bytes) -> None:
    """No bytes break the scan, random or in a pickle that was changed."""
    valid = pickle.dumps({"step": 1, "items": [(1, 2), "a" * 20, {"b": 2.5}]}, 4)
    for candidate in (data, valid[:position] + change + valid[position + len(change) :]):
        try:
            scan_pickle(candidate, field="b")
        except (TruncatedPickleError, PickleScanError):
            continue
