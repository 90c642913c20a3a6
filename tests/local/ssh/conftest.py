"""Two hosts behind a real OpenSSH, and jobs on them."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of, load
from tests.ssh_jobs import TALK, Planned
from tests.sshd import Hosts
from torchyard.model.plan import CommandPlan
from torchyard.steps.teardown import teardown


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One of these tests at a time: their runs have one name, and so the same ports and process labels."""
    with open(Path(tempfile.gettempdir(), f"torchyard-ssh-tests-{os.getuid()}"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("ssh"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture
def hosts(both: Hosts) -> Hosts:
    """Two hosts that the user's ssh can reach."""
    os.environ["TORCHYARD_SSH"] = both.ssh
    return both


@pytest.fixture
def thought(hosts: Hosts, write: Write, tmp_path: Path) -> Planned:
    """Plan a job of two nodes that print lines, with the given keys changed."""

    def plan(attempt: int = 1, options: dict[str, Any] | None = None, run: str = "run", **keys: Any) -> CommandPlan:
        named = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
        chosen = {"hosts": named, "python": sys.executable, **(options or {})}
        document = {"code": TALK, "args": ["0.1"], "nodes": 2, "agent": "none", "rendezvous": "env", **keys}
        return command_plan_of(load(write(**document, options=chosen)), tmp_path / run, attempt)

    return plan


@pytest.fixture
def planned(thought: Planned, hosts: Hosts) -> Iterator[Planned]:
    """Plan such a job, which is torn down after the test."""
    made: list[CommandPlan] = []

    def plan(**keys: Any) -> CommandPlan:
        made.append(thought(**keys))
        return made[-1]

    yield plan
    for each in made:
        assert teardown(each) == ()
    assert hosts.left() == []
