"""The ids of the runs inside a flow."""

import pytest
from prefect.runtime import flow_run, task_run

from tests.conftest import RUN_ID, Write, load
from torchyard.model.errors import TorchyardError
from torchyard.tasks.flow_run.inner_run import derive_run_id, plan


@pytest.fixture
def inside_flow_run(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A flow run, set with the environment variables that Prefect offers for tests."""
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", RUN_ID)
    set_task_run(monkeypatch, 1, "first")
    return monkeypatch


def set_task_run(monkeypatch: pytest.MonkeyPatch, run_count: int, task_run_id: str) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(run_count))
    monkeypatch.setenv("PREFECT__RUNTIME__TASK_RUN__ID", task_run_id)
    assert (str(flow_run.run_count), task_run.id) == (str(run_count), task_run_id)


def test_trainings_of_one_flow_are_runs_of_their_own(inside_flow_run: pytest.MonkeyPatch) -> None:
    """Other arguments, or the same arguments in another task run, are a new run; the same task run is not."""
    first = derive_run_id("x", {}, "")
    assert derive_run_id("x", {}, "") == first
    set_task_run(inside_flow_run, 1, "second")
    other_arguments = [("x", {}, ""), ("x", {"nodes": 2}, ""), ("x", {}, "b")]
    assert len({first, *(derive_run_id(*arguments) for arguments in other_arguments)}) == 4


def test_flow_that_starts_again_finds_its_trainings(inside_flow_run: pytest.MonkeyPatch) -> None:
    """The ids are the same in the flow run's next process, even if the trainings are started in another order."""
    first_ids = {rate: derive_run_id("y", {"lr": rate}, "") for rate in (1, 2)}
    set_task_run(inside_flow_run, 2, "third")
    assert {rate: derive_run_id("y", {"lr": rate}, "") for rate in (2, 1)} == first_ids


def test_training_outside_of_a_flow_is_refused() -> None:
    """No later process could find it again, so it is an error with a remedy."""
    with pytest.raises(TorchyardError, match="outside of a flow: call it in a function with @flow"):
        derive_run_id("x", {}, "")


def test_plan_is_the_same_in_the_same_flow_run(inside_flow_run: pytest.MonkeyPatch, write: Write) -> None:
    """The same profile and name give the same plan, so that its steps find what they have started."""
    profile = load(write())
    other_profile = profile.model_copy(update={"args": ("--lr=1",)})
    assert plan(profile) == plan(profile)
    assert len({plan(profile).job, plan(profile, "b").job, plan(other_profile).job}) == 3
    inside_flow_run.delenv("PREFECT__RUNTIME__FLOW_RUN__ID")
    assert plan(profile).job != plan(profile).job
