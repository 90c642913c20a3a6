"""The way of the black box into a job's processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.agents.black_box import FILES, build_recorder_lines, build_recorder_spec
from torchyard.host import black_box
from torchyard.loading.profile import load_profile
from torchyard.model.plan import Site
from torchyard.model.profile import Profile

PROFILE = load_profile("digits-local")
OFF = PROFILE.model_copy(update={"on_hang": "off"})
SHELLS = ("sh", "bash")


def run_in_pod(
    shell: str, folder: Path, last_line: str, profile: Profile = PROFILE
) -> subprocess.CompletedProcess[str]:
    script = f"set -e\n{build_recorder_lines(profile)}{last_line}\n"
    environment = {"TMPDIR": str(folder), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run([shell, "-c", script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_unpacks_every_file(shell: str, tmp_path: Path) -> None:
    """After the lines of the pod's shell every file is in the pod unchanged, and on Python's path."""
    completed = run_in_pod(shell, tmp_path, 'echo "$PYTHONPATH $TORCHYARD_BLACK_BOX"')
    unpacked = tmp_path / "torchyard-black-box"
    assert completed.stdout.split() == [str(unpacked / "site"), str(unpacked / "records")]
    source_folder = Path(black_box.__file__).parent
    assert [(unpacked / name).read_text() for name in FILES] == [(source_folder / name).read_text() for name in FILES]


@pytest.mark.parametrize("shell", SHELLS)
def test_path_of_the_image_is_kept(shell: str, tmp_path: Path) -> None:
    """What an image has on PYTHONPATH stays there, behind the black box."""
    script = f"set -e\n{build_recorder_lines(PROFILE)}" + 'echo "$PYTHONPATH"'
    environment = {
        "TMPDIR": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": "/own",
    }
    completed = subprocess.run([shell, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert completed.stdout == f"{tmp_path}/torchyard-black-box/site:/own\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_with_a_read_only_disk_continues(shell: str, tmp_path: Path) -> None:
    """On a read-only file system only the black box is missing, and one line reports that."""
    (tmp_path / "torchyard-black-box").write_text("a file where the folder should be")
    completed = run_in_pod(shell, tmp_path, "echo trained")
    assert (completed.returncode, completed.stdout) == (0, "trained\n")
    assert completed.stderr.startswith("torchyard: no black box: ")


@pytest.mark.parametrize("shell", SHELLS)
def test_pod_without_python_continues(shell: str, tmp_path: Path) -> None:
    """An image without python3 starts its program."""
    script = f"set -e\n{build_recorder_lines(PROFILE)}echo trained"
    completed = subprocess.run(
        [f"/bin/{shell}", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, check=True
    )
    assert (completed.stdout, completed.stderr) == (b"trained\n", b"")


def test_supervisor_gets_the_folder() -> None:
    """On this machine the black box is read from its folder, on a host from what was copied there."""
    site = Site(host="b", python="python3", folder="run", files="/runs/a", work=None, previous_folders=())
    assert build_recorder_spec(PROFILE, None) == {"recorder": str(Path(black_box.__file__).parent / "site")}
    assert build_recorder_spec(PROFILE, site) == {"recorder": "run/supervisor/torchyard/host/black_box/site"}


def test_one_key_switches_it_off() -> None:
    """With `on_hang: off` nothing of it is in the job."""
    assert (build_recorder_spec(OFF, None), build_recorder_lines(OFF)) == ({}, "")
