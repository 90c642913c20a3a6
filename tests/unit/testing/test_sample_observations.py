"""The observations of the contract."""

from tests.conftest import Planned, Write, command_plan_of, load
from torchyard.testing.sample_observations import (
    list_empty_observations,
    list_malformed_observations,
    list_unknown_observations,
)


def test_observation_has_each_process(write: Write) -> None:
    """On machines every observation has each process, as the watch of a job does."""
    plan = command_plan_of(load(write(nodes=2)), write().parent)
    samples = [*list_empty_observations(plan), *list_unknown_observations(plan), *list_malformed_observations(plan)]
    assert {frozenset(sample.observed.states) for sample in samples} == {frozenset({"node-0", "node-1"})}


def test_observation_has_each_object(planned: Planned) -> None:
    """In a cluster an observation has the job and its pods, or nothing."""
    plan = planned(nodes=2)
    nothing, parts = list_empty_observations(plan)
    assert nothing.observed.states == {}
    assert sorted(parts.observed.states) == sorted([f"Job/{plan.job}", *(f"Pod/{pod}" for pod in plan.pods.values())])
