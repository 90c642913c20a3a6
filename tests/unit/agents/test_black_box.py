"""The way of the black box into a job's processes."""

import subprocess
from pathlib import Path

import pytest

from torchyard.agents.black_box import build_recorder_lines, build_recorder_spec, read_files
from torchyard.host import black_box
from torchyard.loading.profile import load_profile
from torchyard.model.plan import Site

PROFILE = load_profile("digits-local")
OFF = PROFILE.model_copy(update={"on_hang": "off"})
SHELLS = ("sh", "bash")


def run_in_pod(shell: str, folder: Path, **env: str) -> str:
    """What a pod's shell prints whose files of torchyard are in `folder`."""
    script = f'set -e\n{build_recorder_lines(PROFILE, str(folder), "/r")}echo "$PYTHONPATH $TORCHYARD_BLACK_BOX"\n'
    completed = subprocess.run(
        [shell, "-c", script], env=env | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    return completed.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_has_the_black_box_on_its_path(shell: str, tmp_path: Path) -> None:
    """The folder is on Python's path, before what the image has there; the records have another folder."""
    (tmp_path / "black_box").mkdir()
    assert run_in_pod(shell, tmp_path) == f"{tmp_path}/black_box/site /r/records\n"
    assert run_in_pod(shell, tmp_path, PYTHONPATH="/own") == f"{tmp_path}/black_box/site:/own /r/records\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_without_the_files_continues(shell: str, tmp_path: Path) -> None:
    """If the files could not be unpacked, the environment stays as it is."""
    assert run_in_pod(shell, tmp_path, PYTHONPATH="/own") == "/own \n"


def test_every_module_is_among_the_files() -> None:
    """The files are all modules of the black box, unchanged."""
    folder = Path(black_box.__file__).parent
    files = read_files()
    assert files["black_box/site/sitecustomize.py"] == (folder / "site" / "sitecustomize.py").read_text()
    assert len(files) == len(list(folder.rglob("*.py")))


def test_supervisor_gets_the_folder() -> None:
    """On this machine the black box is read from its folder, on a host from what was copied there."""
    site = Site(host="b", python="python3", folder="run", files="/runs/a", work=None, previous_folders=())
    assert build_recorder_spec(PROFILE, None) == {"recorder": str(Path(black_box.__file__).parent / "site")}
    assert build_recorder_spec(PROFILE, site) == {"recorder": "run/supervisor/torchyard/host/black_box/site"}


def test_one_key_switches_it_off() -> None:
    """With `on_hang: off` nothing of it is in the job."""
    assert (build_recorder_spec(OFF, None), build_recorder_lines(OFF, "/f", "/r")) == ({}, "")
