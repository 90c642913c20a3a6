"""The machine that holds a run on plain machines; tests/local plays two machines with a real server."""

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RUN_ID, Write, load
from tests.doubles.fake_prefect import STATE, FakePrefect
from torchyard.common.identity import identify_machine
from torchyard.host.identity import read_boot_id
from torchyard.model.errors import HolderGoneError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks.flow_run import machine_hold
from torchyard.tasks.flow_run.machine_hold import MachineHold, hold_run

ELSEWHERE = {"torchyard.machine": "other:/runs#1", "torchyard.boot": "another", "torchyard.states": 0}
LOST = ("RUNNING", "CRASHED", "SCHEDULED", "RUNNING")


class GivenBackError(Exception):
    """Stands for the exit of the process."""


@pytest.fixture
def prefect(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> FakePrefect:
    """A run of a deployment that this process has taken, after a process on another machine was lost."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", RUN_ID)
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "labels": dict(ELSEWHERE)}
    set_states(fake_prefect, "Process exited with status code: -9")

    def stop_process(*_: Any, delay_s: float) -> None:
        raise GivenBackError

    monkeypatch.setattr(machine_hold, "give_back", stop_process)
    path = "torchyard.tasks.flow_run.machine_hold._take_over_or_give_back.retry.stop"
    monkeypatch.setattr(path, lambda _: True)  # no second try
    return fake_prefect


def set_states(prefect: FakePrefect, message: str) -> None:
    """Set the run's states in Prefect, with this message of the loss."""
    states = [STATE | {"type": kind, "name": kind.title(), "message": message} for kind in LOST]
    prefect.responses["/flow_run_states/"] = states


def hold_sample_run(write: Write, run_count: int = 2, **keys: Any) -> None:
    profile = load(write(deadlines={"lease": "60s"}, **keys))
    hold_run(profile, RUN_ID, RunFolder.of(profile, RUN_ID), run_count)


def get_written_labels(prefect: FakePrefect) -> Any:
    """The run's labels as they were last written; None if they were not."""
    return prefect.updates[-1] if prefect.updates else None


def test_first_process_records_its_machine(prefect: FakePrefect, write: Write) -> None:
    """Before anything is started, the run's labels name the machine that is about to hold its processes."""
    hold_sample_run(write, run_count=1)
    machine = {"torchyard.machine": identify_machine(runs_folder()), "torchyard.boot": read_boot_id()}
    assert get_written_labels(prefect) == machine | {"torchyard.states": 0, "torchyard.sought": 0.0}


def test_busy_prefect_is_queried_again_immediately(
    prefect: FakePrefect, write: Write, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server refuses two changes, as a locked SQLite does, the machine is recorded a moment later."""
    pauses: list[float] = []
    monkeypatch.setattr("prefect.client.base.time.sleep", pauses.append)
    prefect.refusals = 2
    hold_sample_run(write, run_count=1)
    assert get_written_labels(prefect)["torchyard.machine"] == identify_machine(runs_folder())
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("torchyard")]
    assert (len(pauses) > 1, max(pauses) < 1.0, messages) == (True, True, [])


def test_run_of_another_machine_is_given_back(prefect: FakePrefect, write: Write) -> None:
    """A process that cannot see the run's processes starts nothing, and records when the run was first taken here."""
    with pytest.raises(Exception, match="cannot read from Prefect"):  # the process would have ended
        hold_sample_run(write)
    labels_written = get_written_labels(prefect)
    assert (labels_written["torchyard.machine"], labels_written["torchyard.sought"] > 0) == ("other:/runs#1", True)


@pytest.mark.parametrize(("age_s", "is_given_back"), [(50.0, True), (100.0, False)])
def test_lease_is_measured_by_prefects_clock(
    prefect: FakePrefect, write: Write, age_s: float, is_given_back: bool
) -> None:
    """The clocks of two machines may differ by hours, so that a run is taken over by the times of its states alone."""
    taken_at = datetime.fromisoformat(str(STATE["timestamp"])).timestamp()
    prefect.run_fields["labels"]["torchyard.sought"] = taken_at - age_s
    if is_given_back:
        with pytest.raises(Exception, match="cannot read from Prefect"):  # the process would have ended
            hold_sample_run(write)
    else:
        hold_sample_run(write)
    own_machine = identify_machine(runs_folder())
    assert (get_written_labels(prefect)["torchyard.machine"] == own_machine) != is_given_back


def test_run_whose_launcher_is_dead_starts_here_after_its_lease(prefect: FakePrefect, write: Write) -> None:
    """Once the lease on the other machine has ended, this machine takes a run whose launcher is known to be dead."""
    prefect.run_fields["labels"]["torchyard.sought"] = 1.0
    hold_sample_run(write)
    assert get_written_labels(prefect)["torchyard.machine"] == identify_machine(runs_folder())
    assert get_written_labels(prefect)["torchyard.states"] == len(LOST)


def test_run_of_a_silent_machine_fails_after_its_lease(prefect: FakePrefect, write: Write) -> None:
    """A machine that only fell silent may still be training: the run is not started again, and a user must decide."""
    prefect.run_fields["labels"]["torchyard.sought"] = 1.0
    set_states(prefect, "no heartbeat for 120 s")
    with pytest.raises(HolderGoneError, match=r"on other:/runs#1, .* within 60 s .* retry this run"):
        hold_sample_run(write)
    assert get_written_labels(prefect) is None


def test_run_on_hosts_behind_ssh_is_not_recorded(prefect: FakePrefect, write: Write) -> None:
    """A run whose processes are all on hosts behind ssh may be taken by any machine: the hosts refuse a second one."""
    hold_sample_run(write, nodes=2, options={"hosts": ["gpu1", "gpu2"]})
    assert get_written_labels(prefect) is None


def test_renamed_container_is_the_same_machine(tmp_path: Path) -> None:
    """A machine that has the run's journal and the same kernel holds the run, even under another name."""
    hold = MachineHold("box-1:/runs#1", "boot")
    own_hold = MachineHold("box-2:/runs#1", "boot")
    assert not hold.is_elsewhere(own_hold, has_journal=True)
    assert hold.is_elsewhere(own_hold, has_journal=False)
    assert hold.is_elsewhere(own_hold._replace(boot_id="another"), has_journal=True)
    assert not MachineHold().is_elsewhere(own_hold, has_journal=False)


def test_outside_of_a_flow_run_prefect_is_not_queried(write: Write) -> None:
    """Without a flow run there is no pool that another machine shares."""
    os.environ.pop("PREFECT__RUNTIME__FLOW_RUN__ID", None)
    hold_sample_run(write)
