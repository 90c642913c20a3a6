"""A dry run: it plans and checks, shows both, and starts nothing."""

from pathlib import Path

import pytest

from tests.conftest import RUN_ID
from tests.doubles.shown_pages import KeptPages
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.assembly import list_sinks
from torchyard.loading.profile import load_profile
from torchyard.model.errors import PreflightError, ProfileError
from torchyard.run.control import LocalControl
from torchyard.run.folder import RunFolder
from torchyard.run.preview import preview_run
from torchyard.steps.step_functions import StepFunctions


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_dry_run_shows_plan_and_checks_and_starts_nothing(runs: Path) -> None:
    """A dry run shows both pages and creates no folder, and its sentence reports that nothing was started."""
    pages = KeptPages()
    sentence = preview_run(load_profile("digits-local"), RUN_ID, LocalControl(), (pages,), StepFunctions())
    assert sentence.startswith(f"dry run: digits-local-{RUN_ID[-8:]}, 2 nodes, ")
    assert sentence.endswith("; nothing was started")
    assert pages.pages.keys() == {"plan", "preflight"}
    assert not list(runs.glob("*"))


def test_dry_run_raises_the_failed_checks() -> None:
    """A failed check is raised as in a run, after its page was shown."""
    pages = KeptPages()
    profile = load_profile("digits-local", {"options.python": "/no-such-python"})
    with pytest.raises(PreflightError, match="no-such-python"):
        preview_run(profile, RUN_ID, LocalControl(), (pages,), StepFunctions())
    assert "no-such-python" in pages.pages["preflight"]


def test_dry_run_shows_the_checkpoint_that_the_run_would_get(runs: Path) -> None:
    """The plan has the checkpoint of the run that `resume` names; a run that cannot be continued is an error."""
    earlier = RunFolder(runs / "digits-local-1")
    earlier.save_checkpoints(1, (build_checkpoint("/saved/step-7"),))
    pages = KeptPages()
    preview_run(
        load_profile("digits-local", {"resume": "digits-local-1"}), RUN_ID, LocalControl(), (pages,), StepFunctions()
    )
    assert "TORCHYARD_RESUME: /saved/step-7" in pages.pages["plan"]
    with pytest.raises(ProfileError, match="there is no run digits-local-2"):
        preview_run(
            load_profile("digits-local", {"resume": "digits-local-2"}), RUN_ID, LocalControl(), (), StepFunctions()
        )


@pytest.mark.parametrize("overrides", [{}, {"options.python": "/no-such-python"}])
def test_findings_about_messages_are_those_of_preflight(overrides: dict[str, str]) -> None:
    """An invalid address is raised and shown together with the other failed checks."""
    pages = KeptPages()
    profile = load_profile("digits-local", {"notify": ["$NO_SUCH_HOOK"]} | overrides)
    sinks = (*list_sinks(profile, RUN_ID, ""), pages)
    with pytest.raises(PreflightError, match="NO_SUCH_HOOK is not set") as error:
        preview_run(profile, RUN_ID, LocalControl(), sinks, StepFunctions())
    assert ("no-such-python" in str(error.value)) == bool(overrides)
    assert r"NO\_SUCH\_HOOK" in pages.pages["preflight"]
