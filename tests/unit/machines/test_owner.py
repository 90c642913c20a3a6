"""The owner of a run on machines: only its hosts record one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Write, load
from torchyard.backends import owner_of
from torchyard.launchers.registry import make_plan
from torchyard.machines.owner import MachinesOwner
from torchyard.model.errors import DetachedError, RunInUseError
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


@pytest.mark.parametrize("check", [MachinesOwner.check, MachinesOwner.check_not_elsewhere])
def test_run_of_another_machine_is_refused(
    plans: list[CommandPlan], tmp_path: Path, check: Callable[[MachinesOwner], None]
) -> None:
    """If one host names another living owner, the run is that one's, whatever the other hosts report."""
    write_ssh(tmp_path, '*gpu1*) echo \'{"other_owner": ""}\';; *) echo \'{"other_owner": "there:/b"}\'')
    with pytest.raises(RunInUseError, match="gpu2 is owned by there:/b"):
        check(MachinesOwner(plans[0]))


def test_host_that_does_not_answer_names_no_owner(plans: list[CommandPlan], tmp_path: Path) -> None:
    """A host that cannot be reached refuses nothing: what it has is left over."""
    write_ssh(tmp_path, "*) echo Permission denied >&2; exit 255")
    MachinesOwner(plans[0]).check()
    MachinesOwner(plans[0]).check_not_elsewhere()


def test_host_that_has_just_confirmed_the_owner_is_not_asked(plans: list[CommandPlan], tmp_path: Path) -> None:
    """A check of a run that is watched costs no connection; before a run of a lost launcher is ended, all are asked."""
    write_ssh(tmp_path, f'*) echo x >> {tmp_path}/calls; echo \'{{"other_owner": ""}}\'')
    owner = MachinesOwner(plans[0])
    owner.check()
    owner.check()
    assert (tmp_path / "calls").read_text() == "x\n" * 2
    owner.check_not_elsewhere()
    assert (tmp_path / "calls").read_text() == "x\n" * 4


def write_ssh(tmp_path: Path, cases: str) -> None:
    """Replace the hosts by others, which run the first of these cases of shell code that matches the command."""
    (tmp_path / "ssh").write_text(f'#!/bin/sh\ncase "$*" in {cases};; esac\n')
