"""Pods of old and new images: what torchyard adds to them under each Python, shell and user, with a read-only root."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import RUN_ID, Planned, Write, load
from tests.doubles.kubelet import expand_variables, mount_job_files
from tests.support.waiting import wait_until
from tests.tools.skips import IMAGE_PYTHONS, find_python
from torchyard.agents.job_files import MOUNTED
from torchyard.common.project_root import ROOT
from torchyard.host.black_box.slot import read_slots
from torchyard.model.resolved import resolve
from torchyard.model.run import Run
from torchyard.pods.runai_flags import build_script

SHELLS = ("dash", "bash", "busybox sh")
USERS = ("root", "nobody", "nobody, read-only root")
MIN_RECORDER_PYTHON = (3, 8)
# One rank, for long enough that its recorder writes some records; then the job's own output.
TORCHRUN = """\
#!/bin/sh
RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 python3 -c 'import time; time.sleep(0.7)' || exit
echo trained
"""
# Makes this process a container's: its image's Python, a root file system, and a user.
CONTAINER = """\
set -e
mount --bind "$1" "$2/python"
if [ -d "$2/{records}" ]; then mount -t tmpfs -o mode=777 records "$2/{records}"; fi
case "$3" in *read-only*) mount -o remount,bind,ro / ;; esac
case "$3" in nobody*) user="--reuid=65534 --regid=65534 --clear-groups" ;; *) user= ;; esac
records="$2/{records}/records"
shift 3
code=0
setpriv $user "$@" || code=$?
if [ -f "$records/rank-0" ]; then echo records: $(stat -c %a "$records") $(base64 -w0 "$records/rank-0"); fi
exit $code
"""
RDMA: dict[str, Any] = {"hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}


class Image(NamedTuple):
    """An image: the version of its Python, its shell, and its user."""

    python: str
    shell: str
    user: str

    @property
    def has_recorder(self) -> bool:
        return tuple(map(int, self.python.split("."))) >= MIN_RECORDER_PYTHON


IMAGES = [Image(python, shell, user) for python in IMAGE_PYTHONS for shell in SHELLS for user in USERS]
StartPod = Callable[[list[str]], subprocess.CompletedProcess[str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can read, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "python").mkdir()
        (path / "bin").mkdir()
        (path / "bin" / "torchrun").write_text(TORCHRUN)
        (path / "bin" / "torchrun").chmod(0o755)
        yield path


@pytest.fixture(params=IMAGES, ids="-".join)
def image(request: pytest.FixtureRequest) -> Image:
    image: Image = request.param
    shell = image.shell.split()[0]
    if os.getuid():
        pytest.skip("only root can make containers")
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}: apt-get install {shell}")
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not allowed")
    return image


@pytest.fixture
def start(image: Image, folder: Path) -> StartPod:
    """Run a command in a container of the image."""
    python = find_python(image.python) or pytest.skip(f"there is no Python {image.python}")
    python_home = Path(python).parent.parent

    def run_command(argv: list[str]) -> subprocess.CompletedProcess[str]:
        script = CONTAINER.replace("{records}", MOUNTED.records.lstrip("/"))
        env = {"PATH": f"{folder}/bin:{folder}/python/bin:/usr/bin:/bin", "TORCHYARD_NODE": "0", "RANK": "0"}
        env["LD_LIBRARY_PATH"] = f"{folder}/python/lib"
        expanded = [expand_variables(arg, env) for arg in argv]
        container = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        arguments = [str(python_home), str(folder), image.user, *image.shell.split(), *expanded[1:]]
        return subprocess.run(
            [*container, *arguments], env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )

    return run_command


def test_pod_of_a_manifest(planned: Planned, image: Image, start: StartPod, folder: Path) -> None:
    """The program runs and RDMA facts are printed; one line reports the lack of a recorder, which else has a record."""
    pod = start(mount_job_files(planned(**RDMA), folder))
    assert pod.returncode == 0, pod.stderr
    facts, trained, *record = pod.stdout.splitlines()
    assert json.loads(facts)["torchyard_rdma"]["devices"] == 0
    assert trained == "trained"
    if image.has_recorder:
        assert (len(record), pod.stderr) == (1, "")
        assert record[0].startswith("records: 700 ")
    else:
        reason = f"Python {image.python} is older than 3.8"
        assert (record, pod.stderr) == ([], f"torchyard: hangs are not detected on this node: {reason}\n")


def test_facts_that_are_required_end_the_pod(planned: Planned, image: Image, start: StartPod, folder: Path) -> None:
    """Under every Python the verdict about RDMA ends the pod, if the profile requires the fabric."""
    pod = start(mount_job_files(planned(**RDMA, on_fabric="fail"), folder))
    assert (pod.returncode, "trained" in pod.stdout) == (1, False)
    assert pod.stderr.startswith("torchyard: error: this pod cannot use RDMA: ")


def test_pod_of_a_command_line(write: Write, image: Image, start: StartPod, folder: Path) -> None:
    """A pod without a ConfigMap unpacks the files; if it cannot, one line reports that, and the program runs."""
    keys = {"launcher": "runai", "image": "train:v1", "options": {"project": "mlo"}, "nodes": 2}
    script = build_script(resolve(load(write(**keys))), Run(id=RUN_ID, attempt=1, folder=""))
    pod = start(["sh", "-c", script])
    assert (pod.returncode, pod.stdout) == (0, "trained\n"), pod.stderr
    if "read-only" in image.user or not image.has_recorder:
        assert pod.stderr.count("\n") == 1
    else:
        assert pod.stderr == ""


# --- machines


@pytest.mark.parametrize("version", IMAGE_PYTHONS[2:])
def test_supervisor_of_a_host(version: str, tmp_path: Path) -> None:
    """The supervisor runs a process to its end, with the recorder, under the oldest Python that it needs."""
    python = find_python(version) or pytest.skip(f"there is no Python {version}")
    code = "import time; time.sleep(1); print('trained')"
    spec = {
        "name": "node-0",
        "argv": [python, "-c", code],
        "env": {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        "cwd": str(tmp_path),
        "label": f"old-{time.monotonic_ns()}",
        "recorder": str(ROOT / "torchyard/host/black_box/site"),
    }

    def call(verb: str, request: dict[str, Any]) -> Any:
        argv = [python, "-I", "-S", str(ROOT / "torchyard/host/supervisor.py"), verb]
        text = json.dumps({"node-0": request})
        completed = subprocess.run(argv, input=text, capture_output=True, text=True, check=True)
        return json.loads(completed.stdout)["node-0"]

    folder = str(tmp_path / "node-0")
    call("submit", {"folder": folder, "spec": spec})
    wait_until(lambda: call("status", {"folder": folder})["phase"] == "exited")
    assert call("status", {"folder": folder})["exit"] == 0
    assert (tmp_path / "node-0" / "log").read_text().endswith("| trained\n")
    assert list(read_slots(f"{folder}/black-box")) == [0]
    assert stat.S_IMODE(os.stat(f"{folder}/black-box").st_mode) == 0o700
