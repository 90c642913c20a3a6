"""`torchyard run` and `attach`: the run that is resumed, and its profile."""

import os
from pathlib import Path

import pytest

from torchyard.cli.main import main
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder


def test_unknown_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`attach` with an unknown run is an error."""
    assert main(["attach", "nobody-1234"]) == 3
    assert "there is no run nobody-1234 in" in capsys.readouterr().err


def test_run_of_prefect_is_not_attached_to(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that a flow has started is refused, and the error contains the command that resumes it."""
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / "sample-1")
    with folder.owned():
        folder.record_event("start", run="an-id")
    assert main(["attach", "sample-1"]) == 1
    assert "prefect flow-run retry an-id" in capsys.readouterr().err


@pytest.mark.parametrize("name", list_profiles())
def test_profile_is_saved_completely(name: str) -> None:
    """The profile that `attach` reads equals the one that `run` was given."""
    profile = load_profile(name)
    assert Profile.model_validate_json(profile.model_dump_json(exclude_unset=True)) == profile
