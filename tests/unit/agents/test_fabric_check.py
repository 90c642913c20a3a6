"""The check of the fabric before a program: its lines, run by real shells with a torchrun that only records."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.builders.plan_parts import get_command
from tests.conftest import RUN_ID, Planned, Write, command_plan_of, load
from tests.doubles.kubelet import expand_variables, mount_job_files
from torchyard.agents.torchrun import first_port
from torchyard.common.project_root import ROOT
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import FreePort
from torchyard.model.resolved import resolve
from torchyard.model.run import Run
from torchyard.pods.runai_flags import build_script

CHECK: dict[str, Any] = {"check_fabric": "30s", "min_busbw": 12.5, "nodes": 2}
PORT = first_port(Run(id=RUN_ID, attempt=1, folder=""))
TORCHRUN = f"""#!{sys.executable} -IS
import json, os, sys
path = next((arg for arg in sys.argv if arg.endswith("/allreduce.py")), "")
seen = {{"argv": sys.argv[1:], "text": open(path).read() if path else "", "conf": os.environ.get("PET_RDZV_CONF")}}
with open({{record!r}}, "a") as file:
    file.write(json.dumps(seen) + "\\n")
sys.exit(int(os.environ["CODE"]) if path else 0)
"""


class PodResult(NamedTuple):
    """How a pod's command ended, and what each torchrun saw."""

    exit_code: int
    torchrun_calls: list[Any]


@pytest.fixture(params=["dash", "bash", "busybox sh"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    argv: list[str] = request.param.split()
    if not shutil.which(argv[0]):
        pytest.skip(f"there is no {argv[0]}: apt-get install {argv[0]}")
    return argv


def start_pod(folder: Path, shell: list[str], plan: ManifestPlan, code: int = 0) -> PodResult:
    """Start a pod's command as the kubelet would; the check ends with this exit code."""
    record = folder / "record"
    for name in ("torchrun", "python3"):
        (folder / name).write_text(TORCHRUN.replace("{record!r}", repr(str(record))))
        (folder / name).chmod(0o755)
    env = {"TORCHYARD_NODE": "1", "RANK": "1", "CODE": str(code)}
    argv = [expand_variables(arg, env) for arg in mount_job_files(plan, folder)]
    assert argv[0] == "/bin/sh"
    path = f"{folder}:{os.environ['PATH']}"
    completed = subprocess.run([*shell, *argv[1:]], env=env | {"PATH": path}, cwd=folder, check=False)
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    return PodResult(completed.returncode, calls)


PROFILE_KEYS: list[dict[str, Any]] = [
    {"launcher": "volcano"},
    {"launcher": "pytorchjob", "rendezvous": "static"},
    {"launcher": "pytorchjob", "rendezvous": "env", "program": "x.py"},
    {"launcher": "jobset", "rendezvous": "etcd-v2"},
    {"launcher": "job"},
]


@pytest.mark.parametrize("keys", PROFILE_KEYS, ids=str)
def test_program_follows_a_check_that_passes(
    planned: Planned, tmp_path: Path, shell: list[str], keys: dict[str, Any]
) -> None:
    """The pod first runs allreduce.py, identical to ours, with the threshold and the time; then its own program."""
    result = start_pod(tmp_path, shell, planned(**CHECK, **keys, on_hang="off"))
    check, program = result.torchrun_calls
    assert result.exit_code == 0
    assert check["text"] == (ROOT / "programs" / "allreduce.py").read_text()
    assert {"--least=12.5", "--within=30", "--nnodes=2", "--max_restarts=0", "--tee=3"} <= set(check["argv"])
    assert not any("--least" in arg for arg in program["argv"])
    assert check["conf"] == program["conf"]


def test_program_does_not_follow_a_check_that_fails(planned: Planned, tmp_path: Path, shell: list[str]) -> None:
    """If the check fails, its exit code is the pod's, and the program is not started."""
    result = start_pod(tmp_path, shell, planned(**CHECK, on_hang="off"), code=1)
    assert (result.exit_code, len(result.torchrun_calls)) == (1, 1)


def test_profile_decides_whether_there_is_a_check(planned: Planned) -> None:
    """Without `check_fabric` no pod has one, whatever the hardware file promises."""
    shape = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host", "processes": 8, "nodes": 2}
    assert not any("/allreduce.py" in arg for arg in get_command(planned(**shape)))
    assert any("--least=185 " in arg for arg in get_command(planned(**shape, check_fabric="30s")))
    assert any("--least=20 " in arg for arg in get_command(planned(**shape, check_fabric="30s", min_busbw=20)))


RENDEZVOUS_OPTIONS = [
    ("c10d", f"--rdzv_endpoint=sample-a1b2c3d4-1-worker-0.sample-a1b2c3d4-1:{PORT + 2}"),
    ("static", f"--master_port={PORT + 2}"),
    ("etcd-v2", "--rdzv_endpoint=sample-a1b2c3d4-1-etcd:2379"),
]


@pytest.mark.parametrize(("rendezvous", "option"), RENDEZVOUS_OPTIONS)
def test_check_meets_beside_the_job(planned: Planned, rendezvous: str, option: str) -> None:
    """The check's agents never meet those of the job: they have another id and, without a store, another port."""
    script_lines = get_command(planned(**CHECK, rendezvous=rendezvous))[2].splitlines()
    (check,) = (line for line in script_lines if line.startswith("torchrun "))
    assert option in check
    assert "--rdzv_id=sample-a1b2c3d4-1-check " in check


def test_cli_of_runai_needs_no_port_of_its_own(write: Write) -> None:
    """Only Run:ai's pods know the job's port: the check takes the run's, at the address of the master."""
    keys = {"launcher": "runai", "image": "train:v1", "options": {"project": "mlo"}}
    script = build_script(resolve(load(write(**keys, **CHECK))), Run(id=RUN_ID, attempt=1, folder=""))
    assert f"""--rdzv_endpoint='"$MASTER_ADDR"':{PORT + 2}""" in script


# --- on machines


def test_machines_check_too(write: Write, tmp_path: Path) -> None:
    """On this machine each agent starts after the check, at a port that preflight finds free."""
    plan = command_plan_of(load(write(**CHECK)), tmp_path)
    for process in plan.processes:
        assert process.spec
        shell, option, script, _, *argv = process.spec["argv"]
        assert (shell, option, argv[0]) == ("sh", "-c", sys.executable)
        assert f"{tmp_path}/attempt-1/{process.name}/allreduce.py --least=12.5 --within=30" in script
    assert [requirement.port for requirement in plan.requires if isinstance(requirement, FreePort)] == [PORT, PORT + 2]


def test_hosts_behind_ssh_need_no_file_of_ours(write: Write, tmp_path: Path) -> None:
    """Behind ssh the check's program comes with the command, into the run's folder on that host."""
    plan = command_plan_of(load(write(**CHECK, options={"hosts": ["gpu1", "gpu2"]})), tmp_path)
    assert plan.processes[1].spec
    script = plan.processes[1].spec["argv"][2]
    assert f"cat >.torchyard/{plan.processes[1].site.folder.rpartition('/')[2]}/node-1/allreduce.py" in script  # type: ignore[union-attr]
    assert "--local_addr=gpu2" in script
