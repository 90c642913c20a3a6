"""`torchyard run` and `attach`: which run is resumed, and with which profile."""

import os
from pathlib import Path

import pytest

from torchyard.cli.main import main
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder


def test_unknown_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Attaching to an unknown run gives one sentence."""
    assert main(["attach", "nobody-1234"]) == 1
    assert "there is no such run" in capsys.readouterr().err


def test_run_of_prefect_is_retried_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that a flow has started is not taken over here; the error says how to resume it."""
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / "sample-1")
    with folder.owned():
        folder.record_event("start", run="an-id")
    assert main(["attach", "sample-1"]) == 1
    assert "prefect flow-run retry an-id" in capsys.readouterr().err


@pytest.mark.parametrize("name", list_profiles())
def test_profile_is_kept_whole(name: str) -> None:
    """What `attach` reads is the profile that `run` was given."""
    profile = load_profile(name)
    assert Profile.model_validate_json(profile.model_dump_json(exclude_unset=True)) == profile
