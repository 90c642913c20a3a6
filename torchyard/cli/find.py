"""Finds a run by its name: on this machine, or in the archive."""

import sys
from pathlib import Path

from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import open_store
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder


def find_run(name: str) -> RunFolder:
    """The folder of a run that has started an attempt: the local one, or a copy of the one in the archive.

    ProfileError if neither exists; ArchiveError if the archive cannot be read.
    """
    folder = RunFolder(runs_folder() / name)
    if folder.attempts():
        return folder
    store = open_store() if _is_run_name(name) else None
    copy = fetch_to_read(store, runs_folder(), name) if store else None
    archived = RunFolder(copy) if copy else None
    if store and archived and archived.attempts():
        for node, log in archived.plans()[-1].nodes.items():
            if not Path(log).exists():
                print(f"{store.url} has no log of {node}: a log is archived once its job has ended", file=sys.stderr)
        return archived
    choices = ", ".join(folder.name for folder in list_run_folders()) or "none"
    archive_choices = ""
    if store:
        archive_choices = f"; in {store.url}: {', '.join(store.list_runs()) or 'none'}"
    raise ProfileError(
        name, (Finding("", f"there is no such run in {runs_folder()}; there are: {choices}{archive_choices}"),)
    )


def fetch_run_to_resume(name: str) -> None:
    """Fetch a run of the archive that has no journal here, so that it can be resumed here. ArchiveError."""
    folder = RunFolder(runs_folder() / name)
    if (folder.path / "journal").exists() or not _is_run_name(name):
        return
    store = open_store()
    if store:
        fetch_run(store, folder.path)


def _is_run_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name
