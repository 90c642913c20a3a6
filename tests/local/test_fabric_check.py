"""The check of the fabric in real processes: two pods' commands with torchrun and gloo, and a run on this machine."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.plan_parts import get_env
from tests.conftest import Planned, Write
from tests.doubles.kubelet import expand_variables, mount_job_files
from torchyard.cli.main import main
from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.metrics.registry import read_json_lines
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import LogLine

PROGRAM = """\
import json
print(json.dumps({"step": 1, "loss": 0.5}), flush=True)
"""
PREFIX = "[default0]:"


class PodResult(NamedTuple):
    """The exit code of a pod's command, and the lines that it printed."""

    exit_code: int
    lines: list[str]


def run_pods(plan: ManifestPlan, shell: str, folder: Path) -> list[PodResult]:
    """Run the commands of both pods at the same time on loopback, as the kubelet does."""
    pods = []
    for node in range(2):
        pod_env = {"TORCHYARD_NODE": str(node)}
        pod_env |= {name: str(value) for name, value in get_env(plan).items()}
        pod_env |= {"TORCHYARD_NODE": str(node), "PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        pod_env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = mount_job_files(plan, folder / str(node))
        master_host = f"{plan.job}-worker-0.{plan.job}"
        argv = [expand_variables(arg, pod_env).replace(master_host, "127.0.0.1") for arg in command]
        process_env = pod_env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        pod = subprocess.Popen(
            [shell, *argv[1:]], env=process_env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        pods.append(pod)
    outputs = [pod.communicate(timeout=120)[0].splitlines() for pod in pods]
    return [PodResult(pod.returncode, lines) for pod, lines in zip(pods, outputs, strict=True)]


@pytest.fixture(params=["dash", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    path: str = shutil.which(request.param) or pytest.skip(f"there is no {request.param}")
    return path


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def read_rank_zero(results: list[PodResult]) -> list[str]:
    lines = itertools.chain(*(result.lines for result in results))
    return [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]


def test_program_runs_on_a_fabric_that_is_fast_enough(
    planned: Planned, tmp_path: Path, shell: str, program: str
) -> None:
    """With a threshold that the loopback reaches both programs run, and their metrics do not contain the check."""
    plan = planned(nodes=2, program=program, check_fabric="30s", min_busbw=0.0001)
    results = run_pods(plan, shell, tmp_path)
    assert [result.exit_code for result in results] == [0, 0], results
    lines = read_rank_zero(results)
    (check,) = (json.loads(line)["check_fabric"] for line in lines if line.startswith('{"check_fabric"'))
    assert (check["collective"], check["wrong"], check["busbw"] > 0.0001) == ("all_reduce", 0, True)
    assert [dict(row) for row in read_json_lines(lines).rows] == [{"step": 1, "loss": 0.5}]


def test_slow_fabric_ends_the_attempt_before_the_program(planned: Planned, tmp_path: Path, program: str) -> None:
    """With a threshold out of reach no program runs, every pod fails, and the cause has both bandwidths."""
    plan = planned(nodes=2, program=program, check_fabric="3s", min_busbw=5000)
    results = run_pods(plan, "/bin/sh", tmp_path)
    assert [result.exit_code for result in results] == [1, 1]
    assert not any("loss" in line for line in itertools.chain(*(result.lines for result in results)))
    logs = {}
    for index, result in enumerate(results):
        node = f"worker-{index}"
        logs[node] = [LogLine(float(number), node, text) for number, text in enumerate(result.lines)]
    failure = diagnose_failure(logs, {name: 1 for name in logs})
    assert failure is not None
    assert (failure.cause, failure.retry) == ("fabric-slow", False)
    (check,) = (json.loads(line)["check_fabric"] for line in read_rank_zero(results) if "check_fabric" in line)
    assert f"measured {check['busbw']:.4g} GB/s (busbw) before the program" in failure.sentence
    assert "check_fabric needs 5000 GB/s" in failure.sentence


def test_run_on_this_machine_is_checked(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on this machine fails with the same cause, before its program runs."""
    path = write(code="print('trained')", nodes=2, check_fabric="3s", min_busbw=5000)
    assert main(["run", str(path)]) == 1
    output = capsys.readouterr()
    printed = output.out + output.err
    assert "cause        fabric-slow, another attempt would not help" in printed
    assert "trained" not in printed
