"""The numbers of each run, one JSON line per run, in one file per key: `history/<key>.jsonl` in the runs folder.

Runs with the same profile, hardware, fabric, nodes and image share a file. Its lines may be deleted by hand: later runs
are then not compared with them. A line that cannot be parsed is skipped and counted.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, Field, ValidationError

from torchyard.common.private_files import append_line, make_private_folder, open_private_file
from torchyard.model.base import FrozenModel
from torchyard.model.profile import Profile
from torchyard.model.trend import Trend

# Of a file, from its end:
_MAX_LINES = 400
MAX_READ_BYTES = 4 * 1024 * 1024
_MAX_STEM_CHARS = 100
_LOCK_TIMEOUT_S = 5.0


class HistoryKey(FrozenModel):
    """The properties that runs must share to be compared with each other."""

    model_config = ConfigDict(extra="ignore")  # a later version may add fields
    profile: str
    hardware: str = ""
    fabric: str = ""
    nodes: str
    image: str = ""

    @property
    def stem(self) -> str:
        """A name for files and artifacts, of a-z, 0-9 and -, unique by its digest."""
        label = "-".join(value for value in (self.profile, self.hardware, self.fabric, self.nodes) if value)
        readable = re.sub("[^a-z0-9]+", "-", label.lower())[:_MAX_STEM_CHARS].strip("-")
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]
        return f"{readable}-{digest}"


class RunIdentity(NamedTuple):
    """A run, and its start in seconds since the epoch: a person may start it again after its end."""

    name: str
    started_at: float


class Record(FrozenModel):
    """One run: its times, how it ended, and its numbers."""

    model_config = ConfigDict(extra="ignore")
    at: float = Field(description="when it ended, in seconds since the epoch")
    run: str
    began: float
    end: str
    cause: str = Field("", description="of a failure: a stable slug; empty if the job did not fail or has no cause")
    seconds: float
    numbers: dict[str, float] = Field({})
    trend: Trend | None = Field(None, description="which number was compared")
    fabric: str = Field("", description="the verdict on the network")
    version: str = ""
    key: HistoryKey

    @property
    def identity(self) -> RunIdentity:
        return RunIdentity(self.run, self.began)


class History(NamedTuple):
    """The records of a file in order of time, and the number of lines that could not be parsed."""

    records: tuple[Record, ...]
    skipped: int = 0


def get_history_key(profile: Profile) -> HistoryKey:
    """The key of a profile's runs."""
    return HistoryKey(
        profile=profile.name,
        hardware=profile.hardware.name if profile.hardware else "",
        fabric=profile.fabric or "",
        nodes=f"{profile.nodes}x{profile.processes}",
        image=profile.image or "",
    )


def history_folder(runs: Path) -> Path:
    return runs / "history"


def history_path(runs: Path, key: HistoryKey) -> Path:
    return history_folder(runs) / f"{key.stem}.jsonl"


def store_record(path: Path, record: Record) -> Record:
    """Append a record unless the file has one of this run; return the one that the file has. OSError."""
    make_private_folder(path.parent)
    with _lock_history(path):
        for existing in read_history(path).records:
            if existing.identity == record.identity:
                return existing
        append_line(path, record.model_dump_json(exclude_defaults=True))
        return record


def add_records(path: Path, records: Iterable[Record]) -> None:
    """Append the records of other machines' runs that the file lacks. OSError."""
    for record in records:
        store_record(path, record)


def read_history(path: Path) -> History:
    """The last records of a file in order of time; none if there is no file. OSError."""
    records: list[Record] = []
    skipped = 0
    for line in _read_last_lines(path)[-_MAX_LINES:]:
        record = _parse_record(line)
        if record:
            records.append(record)
        else:
            skipped += 1
    records.sort(key=lambda record: record.at)
    return History(tuple(records), skipped)


def list_histories(runs: Path) -> list[Path]:
    """The file of every history in a runs folder."""
    return sorted(history_folder(runs).glob("*.jsonl"))


def _read_last_lines(path: Path) -> list[bytes]:
    """The complete lines in the last MAX_READ_BYTES of a file, without empty ones; none if there is no file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_READ_BYTES))
            lines = file.read(MAX_READ_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    if size > MAX_READ_BYTES:
        lines = lines[1:]  # its beginning was not read
    return [line for line in lines if line.strip()]


def _parse_record(line: bytes) -> Record | None:
    """The record of a line; None if it is not one."""
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None


@contextlib.contextmanager
def _lock_history(path: Path) -> Iterator[None]:
    """Hold the file's lock, because two processes may record the same run at once.

    OSError if another process holds it for longer than _LOCK_TIMEOUT_S.
    """
    with open(path, "ab", opener=open_private_file) as file:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield
