"""Finds a run by its name: on this machine, or in the archive."""

import sys
from pathlib import Path

from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import Store, open_store
from torchyard.model.errors import NoRunError, TorchyardError
from torchyard.run.folder import RunFolder, list_similar_runs, runs_folder


def find_run(name: str) -> RunFolder:
    """The folder of a run that has started an attempt: the local one, or a copy of the one in the archive.

    NoRunError if neither exists, TorchyardError if the run has not started an attempt yet; ArchiveError if the archive
    cannot be read.
    """
    folder = RunFolder(runs_folder() / name)
    if folder.attempts():
        return folder
    store = open_store() if is_run_name(name) else None
    copy = fetch_to_read(store, runs_folder(), name) if store else None
    archived = RunFolder(copy) if copy else None
    if store and archived and archived.attempts():
        for node, log in archived.plans()[-1].nodes.items():
            if not Path(log).exists():
                print(f"{store.url} has no log of {node}: a log is archived once its job has ended", file=sys.stderr)
        return archived
    if is_started_here(folder):
        raise TorchyardError(f"run {name} has no attempt yet, so it has no log: `torchyard ps` shows its state")
    raise build_no_run_error(name, store)


def is_started_here(folder: RunFolder) -> bool:
    """Whether a process of this machine has started the run, even if it has no attempt yet."""
    return is_run_name(folder.name) and (folder.path / "journal").exists()


def build_no_run_error(name: str, store: Store | None, hint: str = "") -> NoRunError:
    """The error for a name that no run has. ArchiveError if the runs of the archive cannot be listed."""
    locations = [str(runs_folder())]
    archived_names: list[str] = []
    if store:
        archived_names = store.list_runs()
        locations.append(store.url)
    return NoRunError(name, tuple(locations), list_similar_runs(name, archived_names), hint=hint)


def fetch_run_to_resume(name: str) -> None:
    """Fetch a run of the archive that has no journal here, so that it can be resumed here. ArchiveError."""
    folder = RunFolder(runs_folder() / name)
    if (folder.path / "journal").exists() or not is_run_name(name):
        return
    store = open_store()
    if store:
        fetch_run(store, folder.path)


def is_run_name(name: str) -> bool:
    """Whether it can be the name of a run: a name that contains a path is not one."""
    return name not in ("", ".", "..") and "/" not in name
