"""The owner of a run on machines: only its hosts record one."""

import os
from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Write, load
from torchyard.backends import owner_of
from torchyard.launchers.registry import make_plan
from torchyard.machines.owner import MachinesOwner
from torchyard.model.errors import DetachedError
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.run import Run


@pytest.fixture
def plans(write: Write, tmp_path: Path) -> list[CommandPlan]:
    """The plans of attempts 1 and 2 on two hosts, which report folders of these two attempts."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho '{\"attempts\": [[1, 0], [2, 3]]}'\n")
    ssh.chmod(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)
    profile = load(write("behind-ssh", nodes=2, options={"hosts": ["gpu1", "gpu2"]}))
    plans: list[CommandPlan] = []
    for attempt in (1, 2):
        plan = make_plan(profile, Run(id=RUN_ID, attempt=attempt, folder=str(tmp_path / "run")))
        assert isinstance(plan, CommandPlan)
        plans.append(plan)
    return plans


def test_last_attempt_on_the_hosts_is_taken_over(plans: list[CommandPlan]) -> None:
    """A machine without attempts of the run continues with the last one that has a folder on a host, and its port."""

    port_tries: list[int] = []

    def build_plan(number: int, port_try: int = 0) -> Plan:
        port_tries.append(port_try)
        return plans[number - 1]

    owner = owner_of(plans[0])
    assert isinstance(owner, MachinesOwner)
    remote_attempt = owner.take_over(build_plan, [])
    assert remote_attempt
    assert (remote_attempt.number, remote_attempt.plan, remote_attempt.outcome) == (2, plans[1], None)
    assert (owner.take_over(build_plan, [1]), port_tries) == (None, [3])


def test_host_that_does_not_answer_may_have_the_last_attempt(plans: list[CommandPlan], tmp_path: Path) -> None:
    """While a host does not answer, no attempt is taken for the last one: the process exits, and the run resumes."""
    (tmp_path / "ssh").write_text(
        '#!/bin/sh\ncase "$*" in *gpu2*) echo Permission denied >&2; exit 255;; esac\necho \'{"attempts": [[1, 0]]}\'\n'
    )
    with pytest.raises(DetachedError, match=r"started before \(gpu2: reach it by ssh: Permission denied"):
        MachinesOwner(plans[0]).take_over(lambda number, port_try=0: plans[number - 1], [])
