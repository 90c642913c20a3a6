"""Brings what the archive has of a run to this machine: to go on with the run, or only to read it."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from torchyard.archive.contents import JOURNAL, is_log, is_record, list_origins, merge_journals, move_paths
from torchyard.archive.store import Store
from torchyard.common.private_files import make_private_folder, open_private_file
from torchyard.model.errors import ArchiveError
from torchyard.model.plan import Plan
from torchyard.model.run import Outcome

_READ_COPIES = "archived"  # beside the runs: what is only read here must not look like a run of this machine
_LOST = "its machine was lost before the log was archived"


class _Intent(BaseModel):
    """An attempt's plan.json."""

    plan: Plan


def fetch_run(store: Store, folder: Path) -> bool:
    """Bring a run's folder up to what the archive has; False if that is no more than what is here. ArchiveError.

    The journal comes last: a folder without it is fetched again by the next process.
    """
    name = folder.name
    found = store.list_files(name)
    theirs = store.read(f"{name}/{JOURNAL}") if JOURNAL in found else b""
    ours = _read_here(folder / JOURNAL)
    merged = merge_journals(ours, theirs)
    if merged == ours:
        return False
    origins = list_origins(theirs)
    records = store.read_all([f"{name}/{each}" for each in found if is_record(each) and each != JOURNAL])
    for each, data in records.items():
        text = move_paths(data.decode(errors="replace"), origins, str(folder))
        _write_whole(store, folder / each.removeprefix(f"{name}/"), text.encode())
    for each in filter(is_log, found):
        _fetch_log(store, folder, each, found[each])
    _tell_missing_logs(folder, found)
    _write_whole(store, folder / JOURNAL, merged)
    return True


def fetch_to_read(store: Store, runs: Path, name: str) -> Path | None:
    """A copy of a run's folder that is not among the runs of this machine; None if the archive has no such run."""
    copy = runs / _READ_COPIES / name
    with contextlib.suppress(FileNotFoundError):
        (copy / JOURNAL).unlink()  # so that every record is fetched as it is now
    return copy if fetch_run(store, copy) else None


def _fetch_log(store: Store, folder: Path, name: str, size: int) -> None:
    """Fetch a log, unless there is one here that is not shorter."""
    path = folder / name
    if _read_size(path) >= size:
        return
    part = path.with_name(f"{path.name}.part")

    def write() -> None:
        make_private_folder(path.parent)
        with open(part, "wb", opener=open_private_file):
            """Only the user may read it, also while it comes."""
        store.fetch(f"{folder.name}/{name}", part)
        part.replace(path)

    _guard_disk(store, write)


def _tell_missing_logs(folder: Path, found: dict[str, int]) -> None:
    """Record which logs the archive lacks of an attempt whose end is known, and whose logs have not been read yet."""
    for outcome in folder.glob("attempt-*/outcome.json"):
        attempt = outcome.parent
        if (attempt / "ended.json").exists():
            continue
        missing = [each for each in _list_nodes(attempt) if f"{attempt.name}/{each}/log" not in found]
        with contextlib.suppress(OSError, ValidationError):  # what cannot be read is reported where it is used
            was = Outcome.model_validate_json(outcome.read_bytes())
            lost = dict.fromkeys((each for each in missing if not (attempt / each / "log").exists()), _LOST)
            outcome.write_text(was.model_copy(update={"lost": {**was.lost, **lost}}).model_dump_json(), "utf-8")


def _list_nodes(attempt: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return list(_Intent.model_validate_json((attempt / "plan.json").read_bytes()).plan.logs)
    return []


def _read_here(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _read_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _write_whole(store: Store, path: Path, data: bytes) -> None:
    """Write a file of which no reader sees half."""
    part = path.with_name(f"{path.name}.part")

    def write() -> None:
        make_private_folder(path.parent)
        with open(part, "wb", opener=open_private_file) as file:
            file.write(data)
        part.replace(path)

    _guard_disk(store, write)


def _guard_disk(store: Store, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        raise ArchiveError(
            store.url, f"what it has cannot be written here: {error}", "free or mount the disk"
        ) from error
