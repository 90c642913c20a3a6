"""The check of the fabric before a program: its lines, run by real shells with a torchrun that only records."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import RUN_ID, Planned, Write, command_plan_of, load
from tests.kubelet import kubelet
from tests.plan_parts import command
from torchyard.agents.torchrun import first_port
from torchyard.common.project_root import ROOT
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import FreePort
from torchyard.model.run import Run
from torchyard.pods.runai_flags import _build_script

CHECK: dict[str, Any] = {"check_fabric": "30s", "min_busbw": 12.5, "nodes": 2}
PORT = first_port(Run(id=RUN_ID, attempt=1, folder=""))
TORCHRUN = f"""#!{sys.executable} -IS
import json, os, sys
path = next((each for each in sys.argv if each.endswith("torchyard-allreduce.py")), "")
seen = {{"argv": sys.argv[1:], "text": open(path).read() if path else "", "conf": os.environ.get("PET_RDZV_CONF")}}
with open({{record!r}}, "a") as file:
    file.write(json.dumps(seen) + "\\n")
sys.exit(int(os.environ["CODE"]) if path else 0)
"""


class Ran(NamedTuple):
    """How a pod's command ended, what each torchrun saw, and whether the check's program is still there."""

    code: int
    saw: list[Any]
    left: bool


@pytest.fixture(params=["dash", "bash", "busybox sh"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param.split()
    if not shutil.which(words[0]):
        pytest.skip(f"there is no {words[0]}: apt-get install {words[0]}")
    return words


def start(folder: Path, shell: list[str], plan: ManifestPlan, code: int = 0) -> Ran:
    """Start a pod's command as the kubelet would; the check ends with this exit code."""
    record = folder / "record"
    for name in ("torchrun", "python3"):
        (folder / name).write_text(TORCHRUN.replace("{record!r}", repr(str(record))))
        (folder / name).chmod(0o755)
    env = {"TORCHYARD_NODE": "1", "RANK": "1", "CODE": str(code), "TMPDIR": str(folder)}
    words = [kubelet(word, env) for word in command(plan)]
    assert words[0] == "/bin/sh"
    path = f"{folder}:{os.environ['PATH']}"
    made = subprocess.run([*shell, *words[1:]], env={**env, "PATH": path}, cwd=folder, check=False)
    saw = [json.loads(line) for line in record.read_text().splitlines()]
    return Ran(made.returncode, saw, (folder / "torchyard-allreduce.py").exists())


KINDS: list[dict[str, Any]] = [
    {"launcher": "volcano"},
    {"launcher": "pytorchjob", "rendezvous": "static"},
    {"launcher": "pytorchjob", "rendezvous": "env", "program": "x.py"},
    {"launcher": "jobset", "rendezvous": "etcd-v2"},
]


@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_program_follows_a_check_that_passes(
    planned: Planned, tmp_path: Path, shell: list[str], keys: dict[str, Any]
) -> None:
    """The pod first runs allreduce.py, byte by byte ours, with the threshold and the time; then its own program."""
    ran = start(tmp_path, shell, planned(**CHECK, **keys, on_hang="off"))
    check, program = ran.saw
    assert (ran.code, ran.left) == (0, False)
    assert check["text"] == (ROOT / "programs" / "allreduce.py").read_text()
    assert {"--least=12.5", "--within=30", "--nnodes=2", "--max_restarts=0", "--tee=3"} <= set(check["argv"])
    assert not any("--least" in word for word in program["argv"])
    assert check["conf"] == program["conf"]


def test_program_does_not_follow_a_check_that_fails(planned: Planned, tmp_path: Path, shell: list[str]) -> None:
    """If the check fails, its exit code is the pod's, and the program is not started."""
    ran = start(tmp_path, shell, planned(**CHECK, on_hang="off"), code=1)
    assert (ran.code, len(ran.saw)) == (1, 1)


def test_profile_decides_whether_there_is_a_check(planned: Planned) -> None:
    """Without `check_fabric` no pod has one, whatever the hardware file promises."""
    shape = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host", "processes": 8, "nodes": 2}
    assert not any("CHECK_FABRIC" in word for word in command(planned(**shape)))
    assert any("--least=185 " in word for word in command(planned(**shape, check_fabric="30s")))
    assert any("--least=20 " in word for word in command(planned(**shape, check_fabric="30s", min_busbw=20)))


MEETINGS = [
    ("c10d", f"--rdzv_endpoint=sample-a1b2c3d4-1-worker-0.sample-a1b2c3d4-1:{PORT + 2}"),
    ("static", f"--master_port={PORT + 2}"),
    ("etcd-v2", "--rdzv_endpoint=sample-a1b2c3d4-1-etcd:2379"),
]


@pytest.mark.parametrize(("rendezvous", "word"), MEETINGS)
def test_check_meets_beside_the_job(planned: Planned, rendezvous: str, word: str) -> None:
    """The check's agents never meet those of the job: they have another port or, in a store, another id."""
    lines = command(planned(**CHECK, rendezvous=rendezvous))[2].splitlines()
    (check,) = (line for line in lines if line.startswith("torchrun "))
    assert word in check
    assert ("--rdzv_id=sample-a1b2c3d4-1-check " in check) == (rendezvous != "static")


def test_cli_of_runai_needs_no_port_of_its_own(write: Write) -> None:
    """Only Run:ai's pods know the job's port: the check takes the run's, at the address of the master."""
    keys = {"launcher": "runai", "image": "train:v1", "options": {"project": "mlo"}}
    script = _build_script(load(write(**keys, **CHECK)), Run(id=RUN_ID, attempt=1, folder=""))
    assert f"""--rdzv_endpoint='"$MASTER_ADDR"':{PORT + 2}""" in script


# --- on machines


def test_machines_check_too(write: Write, tmp_path: Path) -> None:
    """On this machine each agent starts after the check, at a port that preflight finds free."""
    plan = command_plan_of(load(write(**CHECK)), tmp_path)
    for process in plan.processes:
        assert process.submit
        assert process.submit.input
        shell, option, script, _, *words = process.submit.input["argv"]
        assert (shell, option, words[0]) == ("sh", "-c", sys.executable)
        assert f"{tmp_path}/attempt-1/{process.name}/allreduce.py --least=12.5 --within=30" in script
    assert [need.port for need in plan.requires if isinstance(need, FreePort)] == [PORT, PORT + 2]


def test_hosts_behind_ssh_need_no_file_of_ours(write: Write, tmp_path: Path) -> None:
    """Behind ssh the check's program comes with the command, into the run's folder on that host."""
    plan = command_plan_of(load(write(**CHECK, options={"hosts": ["gpu1", "gpu2"]})), tmp_path)
    assert plan.processes[1].submit
    assert plan.processes[1].submit.input
    script = plan.processes[1].submit.input["argv"][2]
    assert f"cat >.torchyard/{plan.processes[1].site.folder.rpartition('/')[2]}/node-1/allreduce.py" in script  # type: ignore[union-attr]
    assert "--local_addr=gpu2" in script
