"""The flow `benchmark`, as its deployments start it."""

from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows import benchmark as flow
from flows.benchmark import benchmark


def test_flow_has_the_parameters_of_its_deployments() -> None:
    """The flow is found by its name, and only the profile is required."""
    assert (benchmark.name, list(benchmark.parameters.properties)) == ("benchmark", ["profile", "fabrics", "overrides"])
    assert benchmark.parameters.required == ["profile"]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"profile": "allreduce-runai", "fabrics": ["rose"]}, "rose is not a fabric of this hardware: use roce, tcp"),
        ({"profile": "no-such"}, "no-such"),
        ({"profile": "yolov5-volcano"}, "metrics: yolov5 has no bandwidth to compare"),
    ],
)
def test_mistake_is_the_state_of_the_run(keys: dict[str, Any], message: str) -> None:
    """A wrong profile, a wrong fabric, or a profile without bandwidths fails the flow run with one sentence."""
    state: State[Any] = flow.benchmark(**keys, return_state=True)
    assert (state.name, message in str(state.message)) == ("Failed", True), state.message
