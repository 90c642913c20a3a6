"""Two hosts with a real OpenSSH server, and jobs on them."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of, load
from tests.processes.ssh_jobs import PROGRAM, Planned
from tests.processes.sshd import Hosts
from torchyard.model.plan import CommandPlan
from torchyard.steps.teardown import teardown


@pytest.fixture(autouse=True)
def exclusive_lock() -> Iterator[None]:
    """Run one of these tests at a time: their runs have the same name, and thus the same ports and process labels."""
    with open(Path(tempfile.gettempdir(), f"torchyard-ssh-tests-{os.getuid()}"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def shared_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("ssh"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture
def hosts(shared_hosts: Hosts) -> Hosts:
    """Two hosts that the user's ssh can reach through TORCHYARD_SSH."""
    os.environ["TORCHYARD_SSH"] = shared_hosts.ssh
    return shared_hosts


@pytest.fixture
def build_plan(hosts: Hosts, write: Write, tmp_path: Path) -> Planned:
    """Plan a job of two nodes that print lines, with these profile keys and options instead of the defaults."""

    def plan(attempt: int = 1, options: dict[str, Any] | None = None, run: str = "run", **keys: Any) -> CommandPlan:
        host_settings = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
        merged_options = {"hosts": host_settings, "python": sys.executable} | (options or {})
        # A name of its own: tests in other folders, which may run at the same time, end processes by their label.
        profile_keys: dict[str, Any] = {"name": "behind-ssh", "code": PROGRAM, "args": ["0.1"], "nodes": 2}
        profile_keys |= {"agent": "none", "rendezvous": "env", "options": merged_options} | keys
        return command_plan_of(load(write(**profile_keys)), tmp_path / run, attempt)

    return plan


@pytest.fixture
def plan_job(build_plan: Planned, hosts: Hosts) -> Iterator[Planned]:
    """Plan a job as `build_plan` does; after the test it is torn down, and nothing may remain on the hosts."""
    plans: list[CommandPlan] = []

    def plan(**keys: Any) -> CommandPlan:
        plans.append(build_plan(**keys))
        return plans[-1]

    yield plan
    for job_plan in plans:
        assert teardown(job_plan) == ()
    assert hosts.list_leftovers() == []
