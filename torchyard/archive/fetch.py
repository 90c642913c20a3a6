"""Fetches a run's folder from the archive to this machine, to resume the run or only to read it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from torchyard.archive.contents import JOURNAL, is_journal, is_log, is_record, list_origins, merge_journals, move_paths
from torchyard.archive.store import Store
from torchyard.common.private_files import make_private_folder, open_private_file
from torchyard.model.errors import ArchiveError
from torchyard.model.plan import Plan
from torchyard.model.run import Outcome

_READ_COPIES = "archived"  # beside the runs: a folder that is only read must not look like a run of this machine
_LOST_LOG_REASON = "its machine was lost before the log was archived"


class _SavedPlan(BaseModel):
    """An attempt's plan.json."""

    plan: Plan


class ArchivedRun(NamedTuple):
    """What the archive has of a run.

    sizes: of all its files, in bytes by path.
    journals: of all its processes.
    records: by path; empty if the folder for which they were read has all lines of the journals.
    """

    sizes: dict[str, int]
    journals: list[bytes]
    records: dict[str, bytes]


def fetch_run(store: Store, folder: Path) -> bool:
    """Update a run's folder from the archive, with its logs; return False if it already had all lines of its journals.

    ArchiveError if the store fails or the disk is full.
    """
    archived = read_run(store, folder)
    has_new_lines = save_records(store, folder, archived)
    for name in list_missing_logs(folder, archived.sizes):
        fetch_log(store, folder, name, lambda: None)
    return has_new_lines


def read_run(store: Store, folder: Path) -> ArchivedRun:
    """Read what the archive has of a run and its folder may lack. Nothing is written. ArchiveError."""
    name = folder.name
    sizes = store.list_files(name)
    journals = list(store.read_all([f"{name}/{path}" for path in sizes if is_journal(path)]).values())
    local_journal = _read_or_empty(folder / JOURNAL)
    records: dict[str, bytes] = {}
    if merge_journals(local_journal, journals) != local_journal:
        contents = store.read_all([f"{name}/{path}" for path in sizes if is_record(path)])
        records = {path.removeprefix(f"{name}/"): data for path, data in contents.items()}
    return ArchivedRun(sizes, journals, records)


def save_records(store: Store, folder: Path, archived: ArchivedRun) -> bool:
    """Update a run's folder with what was read; return False if it already has all lines of the archived journals.

    The local journal is written last, so that a folder whose fetch was interrupted is fetched again. ArchiveError if
    the disk is full.
    """
    local_journal = _read_or_empty(folder / JOURNAL)
    merged = merge_journals(local_journal, archived.journals)
    if merged == local_journal:
        return False
    origins = list_origins(merged)
    for path, data in archived.records.items():
        text = move_paths(data.decode(errors="replace"), origins, str(folder))
        _write_atomically(store, folder / path, text.encode())
    _record_missing_logs(store, folder, archived.sizes)
    _write_atomically(store, folder / JOURNAL, merged)
    return True


def fetch_to_read(store: Store, runs: Path, name: str) -> Path | None:
    """Fetch a copy of a run's folder that is not among the runs of this machine; None if it is not in the archive."""
    copy = runs / _READ_COPIES / name
    with contextlib.suppress(FileNotFoundError):
        (copy / JOURNAL).unlink()  # so that every record is fetched as it is now
    return copy if fetch_run(store, copy) else None


def list_missing_logs(folder: Path, sizes: dict[str, int]) -> list[str]:
    """The archived logs of which this machine has none or a shorter one, of the attempts whose job has ended.

    The log of any other attempt may be written here at this moment. `sizes`: of the archived files.
    """
    names: list[str] = []
    for name in filter(is_log, sizes):
        path = folder / name
        if (path.parent.parent / "outcome.json").exists() and _read_size(path) < sizes[name]:
            names.append(name)
    return names


def fetch_log(store: Store, folder: Path, name: str, on_chunk: Callable[[], object]) -> None:
    """Fetch a log; it gets its name once it is complete. `on_chunk`: called before each part of it is written.

    ArchiveError if the store fails, the disk is full, or `on_chunk` raises an error.
    """
    path = folder / name
    temp_path = path.with_name(f"{path.name}.part")

    def write() -> None:
        make_private_folder(path.parent)
        open(temp_path, "wb", opener=open_private_file).close()  # only the user may read it, also during the fetch
        store.fetch(f"{folder.name}/{name}", temp_path, on_chunk)
        temp_path.replace(path)

    _guard_disk(store, write)


def _record_missing_logs(store: Store, folder: Path, sizes: dict[str, int]) -> None:
    """Record the logs that the archive lacks as lost, for attempts that have ended but whose logs are still to be read.

    Otherwise such an attempt would look like one that printed nothing.
    """
    for outcome_path in folder.glob("attempt-*/outcome.json"):
        attempt = outcome_path.parent
        if (attempt / "ended.json").exists():
            continue
        missing = [node for node in _list_nodes(attempt) if f"{attempt.name}/{node}/log" not in sizes]
        with contextlib.suppress(OSError, ValidationError):  # an unreadable outcome is reported where it is used
            outcome = Outcome.model_validate_json(outcome_path.read_bytes())
            lost = dict(outcome.lost)
            for node in missing:
                if not (attempt / node / "log").exists():
                    lost[node] = _LOST_LOG_REASON
            changed_outcome = outcome.model_copy(update={"lost": lost})
            _write_atomically(store, outcome_path, changed_outcome.model_dump_json().encode())


def _list_nodes(attempt: Path) -> list[str]:
    """The nodes of an attempt that have a log; empty if its plan cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return list(_SavedPlan.model_validate_json((attempt / "plan.json").read_bytes()).plan.logs)
    return []


def _read_or_empty(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _read_size(path: Path) -> int:
    """The size of a file in bytes; -1 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _write_atomically(store: Store, path: Path, data: bytes) -> None:
    """Write a file so that no reader sees half of it."""
    temp_path = path.with_name(f"{path.name}.part")

    def write() -> None:
        make_private_folder(path.parent)
        with open(temp_path, "wb", opener=open_private_file) as file:
            file.write(data)
        temp_path.replace(path)

    _guard_disk(store, write)


def _guard_disk(store: Store, operation: Callable[[], None]) -> None:
    """Run `operation`; its OSError becomes an ArchiveError, which callers retry."""
    try:
        operation()
    except OSError as error:
        reason = f"cannot write its files to this machine's disk: {error}"
        raise ArchiveError(store.url, reason, "free some space, or mount the disk") from error
