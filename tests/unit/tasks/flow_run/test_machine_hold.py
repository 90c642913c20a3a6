"""The machine that holds a run of plain machines; two machines with a real server are played in tests/local."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RUN_ID, Write, load
from tests.fake_prefect import STATE, FakePrefect
from torchyard.common.identity import identify_machine
from torchyard.host.state import read_boot_id
from torchyard.model.errors import HolderGoneError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks.flow_run import machine_hold
from torchyard.tasks.flow_run.machine_hold import MachineHold, hold_run

ELSEWHERE = {"torchyard.machine": "other:/runs#1", "torchyard.boot": "another", "torchyard.states": 0}
LOST = ("RUNNING", "CRASHED", "SCHEDULED", "RUNNING")


class GivenBackError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def taken(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> FakePrefect:
    """A run of a deployment that this process has taken, after a process on another machine was lost."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", RUN_ID)
    fake_prefect.run = {"deployment_id": RUN_ID, "labels": dict(ELSEWHERE)}
    say(fake_prefect, "Process exited with status code: -9")

    def end(*_: Any) -> None:
        raise GivenBackError

    monkeypatch.setattr(machine_hold, "_give_back", end)
    monkeypatch.setattr(machine_hold, "_ANSWER_TIMEOUT_S", 0.0)
    return fake_prefect


def say(prefect: FakePrefect, message: str) -> None:
    """Let Prefect know the run's states, and this message of the loss."""
    states = [{**STATE, "type": kind, "name": kind.title(), "message": message} for kind in LOST]
    prefect.answers["/flow_run_states/"] = states


def take(write: Write, count: int = 2, **keys: Any) -> None:
    profile = load(write(deadlines={"lease": "60s"}, **keys))
    hold_run(profile, RUN_ID, RunFolder.of(profile, RUN_ID), count)


def labels(prefect: FakePrefect) -> Any:
    """What was written to the run's labels last."""
    return prefect.named[-1] if prefect.named else None


def test_first_process_records_its_machine(taken: FakePrefect, write: Write) -> None:
    """Before anything is started, the run's labels name the machine that is about to hold its processes."""
    take(write, count=1)
    machine = {"torchyard.machine": identify_machine(runs_folder()), "torchyard.boot": read_boot_id()}
    assert labels(taken) == {**machine, "torchyard.states": 0, "torchyard.sought": 0.0}


def test_busy_prefect_is_asked_again_at_once(
    taken: FakePrefect, write: Write, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses two changes, as a locked SQLite does, knows the machine a moment later."""
    pauses: list[float] = []
    monkeypatch.setattr("prefect.client.base.time.sleep", pauses.append)
    taken.busy = 2
    take(write, count=1)
    assert labels(taken)["torchyard.machine"] == identify_machine(runs_folder())
    assert (len(pauses) > 1, max(pauses) < 1.0, caplog.text) == (True, True, "")


def test_run_of_another_machine_is_given_back(taken: FakePrefect, write: Write) -> None:
    """A process that cannot see the run's processes starts nothing, and records when the run was first taken here."""
    with pytest.raises(Exception, match="Prefect does not say"):  # the process would have ended
        take(write)
    said = labels(taken)
    assert (said["torchyard.machine"], said["torchyard.sought"] > 0) == ("other:/runs#1", True)


def test_run_whose_launcher_is_dead_starts_here_after_its_lease(taken: FakePrefect, write: Write) -> None:
    """Once the lease on the other machine has ended, a run whose launcher is known to be dead is this machine's."""
    taken.run["labels"]["torchyard.sought"] = 1.0
    take(write)
    assert labels(taken)["torchyard.machine"] == identify_machine(runs_folder())
    assert labels(taken)["torchyard.states"] == len(LOST)


def test_run_of_a_silent_machine_fails_after_its_lease(taken: FakePrefect, write: Write) -> None:
    """A machine that only fell silent may train on: the run is not started again, and a person is asked."""
    taken.run["labels"]["torchyard.sought"] = 1.0
    say(taken, "no heartbeat for 120 s")
    with pytest.raises(HolderGoneError, match=r"on other:/runs#1, .* lease of 60 s: .* retry this run"):
        take(write)
    assert labels(taken) is None


def test_hosts_behind_ssh_know_their_owner(taken: FakePrefect, write: Write) -> None:
    """A run whose processes are all on hosts behind ssh may be taken by any machine: the hosts refuse a second one."""
    take(write, nodes=2, options={"hosts": ["gpu1", "gpu2"]})
    assert labels(taken) is None


def test_renamed_container_is_the_same_machine(tmp_path: Path) -> None:
    """A machine that has the run's journal and the same kernel holds the run, whatever it is called."""
    held, mine = MachineHold("box-1:/runs#1", "boot"), MachineHold("box-2:/runs#1", "boot")
    assert not held.is_elsewhere(mine, has_journal=True)
    assert held.is_elsewhere(mine, has_journal=False)
    assert held.is_elsewhere(mine._replace(boot="another"), has_journal=True)
    assert not MachineHold().is_elsewhere(mine, has_journal=False)


def test_outside_of_a_flow_run_nobody_is_asked(write: Write) -> None:
    """Without a flow run there is no pool that another machine shares."""
    os.environ.pop("PREFECT__RUNTIME__FLOW_RUN__ID", None)
    take(write)
