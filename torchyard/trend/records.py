"""The numbers of each run, one JSON line per run, in one file per key: `history/<key>.jsonl` in the runs folder.

Runs with the same profile, hardware, fabric, nodes and image share a file. Its lines may be deleted by hand: what is
no longer there is not compared with. A line that cannot be read is skipped and counted.
"""

import contextlib
import fcntl
import hashlib
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

_MAX_LINES, _MAX_BYTES = 400, 4 * 1024 * 1024  # of a file, from its end
_MAX_STEM_CHARS = 100
_LOCK_TIMEOUT_S = 5.0


class HistoryKey(FrozenModel):
    """What runs have in common that are compared with each other."""

    model_config = ConfigDict(extra="ignore")  # a later version may know more
    profile: str
    hardware: str = ""
    fabric: str = ""
    nodes: str
    image: str = ""

    @property
    def stem(self) -> str:
        """A name for files and artifacts, of a-z, 0-9 and -; the digest tells apart what looks the same in it."""
        label = "-".join(filter(None, (self.profile, self.hardware, self.fabric, self.nodes)))
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]
        return f"{re.sub('[^a-z0-9]+', '-', label.lower())[:_MAX_STEM_CHARS].strip('-')}-{digest}"


class RunIdentity(NamedTuple):
    """A run, and when it began: a person may start it again after its end."""

    name: str
    started_at: float


class Record(FrozenModel):
    """One run: when, how it ended, and its numbers."""

    model_config = ConfigDict(extra="ignore")
    at: float = Field(description="when it ended, in seconds since the epoch")
    run: str
    began: float
    end: str
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
    """The records of a file in order of time, and how many lines could not be read."""

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
    """Append a record unless the file has one of this run; returns the one that the file has. OSError."""
    make_private_folder(path.parent)
    with _lock_history(path):
        matching = (
            existing_record
            for existing_record in read_history(path).records
            if existing_record.identity == record.identity
        )
        if existing := next(matching, None):
            return existing
        append_line(path, record.model_dump_json(exclude_defaults=True))
        return record


def add_records(path: Path, records: Iterable[Record]) -> None:
    """Append the records of other machines' runs that the file lacks. OSError."""
    for record in records:
        store_record(path, record)


def read_history(path: Path) -> History:
    """The last records of a file in order of time; none if there is no file. OSError."""
    lines = _read_last_lines(path)[-_MAX_LINES:]
    records = [parsed for line in lines if (parsed := _parse_record(line))]
    return History(tuple(sorted(records, key=lambda record: record.at)), len(lines) - len(records))


def list_histories(runs: Path) -> list[Path]:
    """Every history of a runs folder."""
    return sorted(history_folder(runs).glob("*.jsonl"))


def _read_last_lines(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MAX_BYTES))
            lines = file.read(_MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    return [line for line in lines[size > _MAX_BYTES :] if line.strip()]


def _parse_record(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None


@contextlib.contextmanager
def _lock_history(path: Path) -> Iterator[None]:
    """Hold the file's lock: two processes of one run may end at once. OSError if it stays held."""
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
