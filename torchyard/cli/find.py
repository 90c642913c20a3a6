"""Finds a run by its name: on this machine, or in the archive."""

import sys
from pathlib import Path

from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import open_store
from torchyard.model.errors import ProfileError
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder


def find_run(name: str) -> RunFolder:
    """The folder of a run that has begun an attempt: the one here, or a copy of the one in the archive.

    ProfileError if there is none; ArchiveError if the archive does not say so.
    """
    folder = RunFolder(runs_folder() / name)
    if folder.attempts():
        return folder
    store = open_store() if _is_run_name(name) else None
    copy = fetch_to_read(store, runs_folder(), name) if store else None
    if store and copy and (found := RunFolder(copy)).attempts():
        for node in (node for node, log in found.plans()[-1].nodes.items() if not Path(log).exists()):
            print(f"{store.url} has no log of {node}: a log is archived once its job has ended", file=sys.stderr)
        return found
    known = ", ".join(each.name for each in list_run_folders()) or "none"
    there = f"; in {store.url}: {', '.join(store.list_runs()) or 'none'}" if store else ""
    raise ProfileError(name, (f"there is no such run in {runs_folder()}; there are: {known}{there}",))


def bring_run_here(name: str) -> None:
    """Fetch a run of the archive that has no journal here, so that it can be resumed here. ArchiveError."""
    folder = RunFolder(runs_folder() / name)
    if not (folder.path / "journal").exists() and _is_run_name(name) and (store := open_store()):
        fetch_run(store, folder.path)


def _is_run_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name
