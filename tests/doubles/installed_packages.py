"""Packages that are installed for one test: a folder on sys.path with their modules and their metadata."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchyard.common.extensions import load_extension

LAUNCHER = '''\
"""Runs nothing, anywhere."""

from pydantic import BaseModel

PROGRAM_IS_A_FILE = True


class Options(BaseModel):
    queue: str = "default"


def plan(profile, run):
    raise AssertionError("is not called")


def read_status(observed):
    raise AssertionError("is not called")
'''


class InstalledPackages:
    """Installs packages into a folder that is on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, entry_points: str, *, version: str = "1.0", **modules: str) -> None:
        """Install a package with the text of its entry_points.txt and its modules, by name."""
        metadata_folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata_folder.mkdir()
        (metadata_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata_folder / "entry_points.txt").write_text(entry_points)
        for module, text in modules.items():
            (self.folder / f"{module}.py").write_text(text)
        importlib.invalidate_caches()


def run_installed_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstalledPackages]:
    """Put the folder on sys.path; afterwards forget the modules that were imported from it."""
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield InstalledPackages(folder)
    load_extension.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
