"""A dry run: it plans and checks, shows both, and starts nothing."""

from pathlib import Path

import pytest

from tests.shown_pages import PageReporter
from torchyard.loading.profile import load_profile
from torchyard.model.errors import PreflightError
from torchyard.run.preview import preview_run
from torchyard.steps.step_functions import StepFunctions


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_dry_run_shows_plan_and_checks_and_starts_nothing(runs: Path) -> None:
    """A dry run shows both pages and creates no folder, and its sentence reports that nothing was started."""
    reporter = PageReporter()
    sentence = preview_run(load_profile("digits-local"), "0" * 32, reporter, StepFunctions())
    assert sentence.startswith("dry run: digits-local-00000000, 2 nodes, ")
    assert sentence.endswith("; nothing was started")
    assert reporter.pages.keys() == {"plan", "preflight"}
    assert not list(runs.glob("*"))


def test_dry_run_raises_the_failed_checks() -> None:
    """A failed check is raised as in a run, after its page was shown."""
    reporter = PageReporter()
    with pytest.raises(PreflightError, match="no-such-python"):
        preview_run(
            load_profile("digits-local", {"options.python": "/no-such-python"}), "0" * 32, reporter, StepFunctions()
        )
    assert "no-such-python" in reporter.pages["preflight"]


@pytest.mark.parametrize("overrides", [{}, {"options.python": "/no-such-python"}])
def test_findings_about_messages_are_those_of_preflight(overrides: dict[str, str]) -> None:
    """An invalid address is raised and shown together with the other failed checks."""
    reporter = PageReporter()
    profile = load_profile("digits-local", {"notify": ["$NO_SUCH_HOOK"]} | overrides)
    with pytest.raises(PreflightError, match="NO_SUCH_HOOK is not set") as error:
        preview_run(profile, "0" * 32, reporter, StepFunctions())
    assert ("no-such-python" in str(error.value)) == bool(overrides)
    assert r"NO\_SUCH\_HOOK" in reporter.pages["preflight"]
