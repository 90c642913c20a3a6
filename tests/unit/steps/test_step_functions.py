"""The six steps of an attempt, as the runner calls them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.rank_records import build_missing_rank_records
from tests.conftest import RUN_ID, Write
from tests.doubles.shown_pages import KeptPages
from tests.processes.lone_processes import build_lone_profile
from torchyard.assembly import create_runner
from torchyard.model.errors import PreflightError
from torchyard.model.finding import Finding
from torchyard.model.hang import RECORD_PREFIX
from torchyard.run.control import LocalControl
from torchyard.steps.step_functions import StepFunctions


@pytest.fixture
def calls() -> list[str]:
    """The names of the steps that were called, in order."""
    return []


def record_calls(calls: list[str]) -> StepFunctions:
    """The real steps, which add their names to `calls`."""

    def wrap(name: str, step_function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return step_function(*args, **kwargs)

        return step

    return StepFunctions(
        **{name: wrap(name, step_function) for name, step_function in StepFunctions()._asdict().items()}
    )


def test_attempt_takes_the_steps_in_their_order(write: Write, calls: list[str]) -> None:
    """A job without a rendezvous store goes through every other step once, in the order of the fields."""
    profile = build_lone_profile(write, "print('hello')")
    end, _, _ = create_runner(profile, RUN_ID, LocalControl(), record_calls(calls)).run()
    assert (end, calls) == ("succeeded", [name for name in StepFunctions._fields if name != "rendezvous"])


class TouchingPages(KeptPages):
    """Creates a file when the page of a hang is shown."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def show_page(self, name: str, sentence: str, render: Callable[[], str]) -> None:
        super().show_page(name, sentence, render)
        if name == "hang":
            self._path.touch()


def test_hang_is_a_page_while_the_job_runs(write: Write, tmp_path: Path) -> None:
    """A hang that the ranks' records in the job's log show is a page while the job still runs."""
    lines = [
        f"{RECORD_PREFIX}{record.model_dump_json(exclude={'node'})}" for record in build_missing_rank_records().values()
    ]
    shown_path = tmp_path / "shown"
    code = f"""
import os, time
print({chr(10).join(lines)!r}, flush=True)
while not os.path.exists({str(shown_path)!r}): time.sleep(0.01)
raise SystemExit(1)
"""
    pages = TouchingPages(shown_path)
    create_runner(build_lone_profile(write, code), RUN_ID, LocalControl(), other_sinks=(pages,)).run()
    assert "hangs in load (train.py:88)" in pages.pages["hang"]
    assert "| ranks |" in pages.pages["hang"]


def test_step_of_another_orchestrator_replaces_the_own_one(write: Write, calls: list[str]) -> None:
    """A preflight that another orchestrator passes ends the run by its error, before anything is submitted."""

    def refuse(plan: object) -> tuple[Finding, ...]:
        raise PreflightError((Finding(where="a licence", verdict="failed", what="has expired", remedy="renew it"),))

    steps = record_calls(calls)._replace(preflight=refuse)
    end, sentence, _ = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), steps).run()
    assert (end, calls) == ("failed", [])
    assert "a licence: has expired; renew it" in sentence
