"""The number of open files that a run may have, and needs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load, manifest_plan_of
from tests.processes.supervised import call_supervisor
from torchyard.model.plan import Plan
from torchyard.steps.descriptors import FORMER_LIMIT_VARIABLE, check_file_limit, count_needed_files

Job = Callable[[str, int], Plan]
RAISE_LIMIT_SCRIPT = """
import os, resource, select, subprocess
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
from torchyard.steps.descriptors import raise_file_limit
raise_file_limit(), raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), os.environ["TORCHYARD_NOFILE"])
"""


def test_limit_is_raised_to_what_is_allowed() -> None:
    """The limit of open files is raised to the hard limit, and a second call does not change the recorded old limit."""
    process = subprocess.run([sys.executable, "-c", RAISE_LIMIT_SCRIPT], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["512", "512", "256"]


def test_job_gets_the_old_limit(tmp_path: Path) -> None:
    """A program has the same limit of open files as without the launcher."""
    os.environ[FORMER_LIMIT_VARIABLE] = "200"
    spec = {
        "name": "a",
        "argv": ["bash", "-c", f"ulimit -n; env | grep -c {FORMER_LIMIT_VARIABLE}"],
        "env": {},
        "cwd": "/",
        "label": str(tmp_path),
        "ports": [],
    }
    call_supervisor("submit", tmp_path / "kept", spec=spec)
    while call_supervisor("status", tmp_path / "kept")["phase"] == "running":
        pass
    assert [line.split()[-1] for line in (tmp_path / "kept" / "log").read_text().splitlines()] == ["200", "0"]


@pytest.fixture
def job(write: Write, tmp_path: Path) -> Job:
    """A plan of many nodes."""

    def plan(kind: str, nodes: int) -> Plan:
        if kind == "pods":
            pods = {"launcher": "pytorchjob", "image": "i", "cluster": {"namespace": "n"}}
            return manifest_plan_of(load(write(nodes=nodes, **pods)), tmp_path)
        hosts = {} if kind == "here" else {"hosts": [f"host-{number}" for number in range(nodes)]}
        return command_plan_of(load(write(nodes=nodes, options=hosts)), tmp_path)

    return plan


@pytest.mark.parametrize(("kind", "enough", "too_many"), [("ssh", 100, 172), ("pods", 300, 1000)])
def test_limit_that_is_too_low_fails_the_check(job: Job, kind: str, enough: int, too_many: int) -> None:
    """A job that needs more open files than the limit fails the check with the number that it needs."""
    assert check_file_limit(job(kind, enough), 1024) == ()
    (check,) = check_file_limit(job(kind, too_many), 1024)
    count = count_needed_files(job(kind, too_many))
    detail = f"a job of {too_many} nodes needs about {count} descriptors, and the limit is 1024"
    assert (check.verdict, check.what) == ("failed", detail)
    assert "ulimit -n" in check.remedy


def test_processes_of_one_host_share_their_files(job: Job) -> None:
    """A job of many processes on one machine needs no more open files than one process."""
    assert count_needed_files(job("here", 300)) == count_needed_files(job("here", 1))


def test_three_hundred_hosts_fit_into_4096(job: Job) -> None:
    """A job of 300 hosts fits into a limit of 4,096 open files."""
    assert count_needed_files(job("ssh", 300)) < 4096
