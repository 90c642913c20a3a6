"""The flow `train` as a command: its arguments and its exit code."""

from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows import train as flow


@pytest.fixture
def flow_arguments(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of the flow's calls; the flow fails for a profile named `bad`."""
    flow_arguments: list[object] = []

    def train(profile: str, overrides: object, resume: str | None, return_state: bool) -> State[Any]:
        flow_arguments.extend([profile, overrides, resume])
        return Failed(message="it broke") if profile == "bad" else Completed(message="all well")

    monkeypatch.setattr(flow, "train", train)
    return flow_arguments


def test_arguments_of_the_command_line_reach_the_flow(flow_arguments: list[object]) -> None:
    """Profile, overrides and the run to continue are the same as from a deployment."""
    assert flow.main(["digits-local", "--set", "nodes=4", "--set", "deadlines.run=5m", "--resume", "a-1"]) == 0
    assert flow_arguments == ["digits-local", {"nodes": 4, "deadlines.run": "5m"}, "a-1"]


@pytest.mark.usefixtures("flow_arguments")
def test_run_that_fails_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed run exits with 1, and its state and sentence are the only line on stderr."""
    assert flow.main(["bad"]) == 1
    assert capsys.readouterr().err == "Failed: it broke\n"


def test_flow_has_the_parameters_of_its_deployments() -> None:
    """The flow is found by its name, and only the profile is required."""
    names = ["profile", "overrides", "resume", "dry_run"]
    assert (flow.train.name, list(flow.train.parameters.properties)) == ("train", names)
    assert flow.train.parameters.required == ["profile"]
