"""read_file_content: which files are complete, by their own format."""

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.checkpoints import write_json, write_safetensors, write_torch
from torchyard.host.black_box.checkpoint_files import (
    FileContent,
    IncompleteError,
    UnverifiedError,
    read_dcp_files,
    read_file_content,
    read_torch_fields,
)


def read_content(path: Path) -> FileContent:
    return read_file_content(str(path), needs_step=True)


def write_pickle(path: Path) -> Path:
    path.write_bytes(pickle.dumps({"step": 7, "state": list(range(300))}))
    return path


def write_long_json(path: Path) -> Path:
    return write_json(path, {"vocabulary": {f"token {number}": number for number in range(60_000)}})


WRITERS = {
    "model.pt": write_torch,
    "model.safetensors": write_safetensors,
    "state.pkl": write_pickle,
    "index.json": lambda path: write_json(path, {"weight_map": {"a": "b"}}),
    "tokenizer.json": write_long_json,
}

READERS: list[Callable[[str], object]] = [
    partial(read_file_content, needs_step=True),
    read_dcp_files,
    read_torch_fields,
]


@pytest.mark.parametrize("name", WRITERS)
def test_only_the_whole_file_is_complete(name: str, tmp_path: Path) -> None:
    """A file is complete, and no beginning of it is."""
    path = WRITERS[name](tmp_path / name)
    assert read_content(path).format in {"torch", "safetensors", "pickle", "json"}
    size = path.stat().st_size
    for end in sorted({*range(0, size - 1, max(size // 40, 1)), *range(max(size - 60, 0), size - 1)}, reverse=True):
        os.truncate(path, end)
        with pytest.raises((IncompleteError, UnverifiedError)):
            read_content(path)


@pytest.mark.parametrize(
    ("values", "step"),
    [({"step": 5}, 5), ({"global_step": 7, "step": 5}, 7), ({"model": 3}, None), ({"step": -1}, None)],
)
def test_step_in_a_file(values: dict[str, int], step: int | None, tmp_path: Path) -> None:
    """The step is read from the object that torch.save wrote."""
    assert read_content(write_torch(tmp_path / "last.ckpt", **values)) == FileContent("torch", step)


def test_entry_outside_the_file_is_incomplete(tmp_path: Path) -> None:
    """A zip whose directory names more bytes than the file has is incomplete, though its end is there."""
    path = write_torch(tmp_path / "model.pt")
    data = path.read_bytes()
    path.write_bytes(data[:500] + data[1000:])
    with pytest.raises(IncompleteError):
        read_content(path)


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("model.pt", b"", IncompleteError),
        ("model.pt", b"\0" * 4096, IncompleteError),
        ("model.pt", b"PK", IncompleteError),
        ("model.pt", b"something else", UnverifiedError),
        ("model.pt", b"PK\3\4" + b"\xff" * 100 + b"PK\5\6" + b"\xff" * 16 + b"\0\0", IncompleteError),
        ("model.safetensors", b"\xff" * 8 + b"{}", IncompleteError),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", IncompleteError),
        ("model.safetensors", (4000).to_bytes(8, "little") + b"[" * 4000, IncompleteError),
        (
            "model.safetensors",
            (40).to_bytes(8, "little") + b'{"a":{"data_offsets":[0,' + b"9" * 12 + b"]}} ",
            IncompleteError,
        ),
        ("state.pkl", pickle.dumps(1) + b"x", UnverifiedError),
        ("trainer_state.json", b"1" * 1000, IncompleteError),
    ],
)
def test_invalid_files(name: str, data: bytes, error: type[Exception], tmp_path: Path) -> None:
    """What a format disproves is incomplete; an unknown format is not verified."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error):
        read_content(tmp_path / name)


def test_pipe_does_not_block_the_reader(tmp_path: Path) -> None:
    """What is not a regular file is not read."""
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(UnverifiedError):
        read_content(tmp_path / "model.pt")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    position=st.integers(0, 2500),
    change=st.binary(min_size=1, max_size=8),
    name=st.sampled_from(["model.pt", "model.safetensors", "state.pkl"]),
)
def test_changed_bytes_are_judged(position: int, change: bytes, name: str, tmp_path: Path) -> None:
    """No bytes of a file break the reader."""
    path = WRITERS[name](tmp_path / name)
    data = path.read_bytes()
    position %= len(data)
    path.write_bytes(data[:position] + change + data[position + len(change) :])
    (tmp_path / ".metadata").write_bytes(path.read_bytes())
    for candidate in (path, tmp_path / ".metadata"):
        for reader in READERS:
            try:
                reader(str(candidate))
            except (IncompleteError, UnverifiedError):
                continue
