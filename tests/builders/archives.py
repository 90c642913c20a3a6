"""Archives in a folder, and the archived runs of other machines."""

import os
import shutil
from pathlib import Path

from torchyard.archive.contents import JOURNAL, build_journal_name
from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.run.folder import RunFolder


def create_archive(root: Path) -> Store:
    """An archive in the folder `root`, which TORCHYARD_ARCHIVE names from now on."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{root}"
    store = Store(f"file://{root}")
    store.initialize()
    return store


def archive_run(root: Path, folder: RunFolder, process_id: str = "0") -> Path:
    """Archive a run's folder as the process `process_id` does; return its folder in the archive at `root`."""
    archived = root / folder.name
    shutil.copytree(folder.path, archived, dirs_exist_ok=True, ignore=shutil.ignore_patterns(JOURNAL))
    if (folder.path / JOURNAL).exists():
        shutil.copy(folder.path / JOURNAL, archived / build_journal_name(process_id))
    return archived
