"""The six steps of an attempt, as the runner calls them."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import RUN_ID, Write
from tests.lone_processes import lone_profile
from torchyard.model.errors import PreflightError
from torchyard.model.requirements import Check
from torchyard.run.reporter import LocalReporter
from torchyard.run.runner import Runner
from torchyard.steps.line import StepFunctions


@pytest.fixture
def called() -> list[str]:
    """The steps that were called."""
    return []


def noted(called: list[str]) -> StepFunctions:
    """The real steps, which note that they were called."""

    def note(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **more: Any) -> Any:
            called.append(name)
            return work(*given, **more)

        return step

    return StepFunctions(**{name: note(name, work) for name, work in StepFunctions()._asdict().items()})


def test_attempt_takes_the_steps_in_their_order(write: Write, called: list[str]) -> None:
    """A job without a rendezvous store goes through every other step once, in the order of the fields."""
    profile = lone_profile(write, "print('hello')")
    end, _ = Runner(profile, RUN_ID, LocalReporter(), noted(called)).run()
    assert (end, called) == ("succeeded", [name for name in StepFunctions._fields if name != "rendezvous"])


def test_step_of_another_orchestrator_is_called_in_its_place(write: Write, called: list[str]) -> None:
    """A preflight that another orchestrator passes ends the run by its error, before anything is submitted."""

    def refuse(plan: object) -> tuple[Check, ...]:
        raise PreflightError((Check(need="a licence", verdict="failed", detail="has expired", remedy="renew it"),))

    steps = noted(called)._replace(preflight=refuse)
    end, sentence = Runner(lone_profile(write), RUN_ID, LocalReporter(), steps).run()
    assert (end, called) == ("failed", [])
    assert "a licence: has expired; renew it" in sentence
