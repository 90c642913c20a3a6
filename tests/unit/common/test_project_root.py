"""The folder of the project's own files, in a checkout and in an unpacked wheel."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT, runs_folder

PRINT_CODE = (
    "from torchyard.common.project_root import ROOT, default_runs_folder as runs; print(ROOT, runs(), sep='\\n')"
)


def print_folders(site: Path, folder: Path) -> list[str]:
    """The root and the runs folder, as printed by a process in `folder` that imports torchyard from `site`."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); {PRINT_CODE}"
    process = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


@pytest.mark.parametrize("is_wheel", [False, True])
def test_files_are_beside_the_package_or_inside_it(tmp_path: Path, is_wheel: bool) -> None:
    """A checkout has its files beside the package, a wheel inside it; runs are in the current folder.

    In a subfolder of a checkout they are in the checkout's own folder.
    """
    site = tmp_path / "site"
    current_folder = tmp_path / "current"
    shutil.copytree(ROOT / "torchyard" / "common", site / "torchyard" / "common")
    (site / "torchyard" / "__init__.py").touch()
    current_folder.mkdir()
    (site / "torchyard" / "profiles" if is_wheel else site / "profiles").mkdir()
    root = site / "torchyard" if is_wheel else site
    assert print_folders(site, current_folder) == [str(root), str(current_folder / "runs")]
    subfolder = site / "torchyard"
    assert print_folders(site, subfolder) == [str(root), str((subfolder if is_wheel else site) / "runs")]


def test_runs_are_where_the_user_wants_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TORCHYARD_RUNS names the folder of all runs."""
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "mine"))
    assert runs_folder() == tmp_path / "mine"
