"""A run that is resumed on another machine: its folder there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Write
from tests.fake_api import FakeApi
from tests.leases import RUN
from tests.lost_machines import KEY, adopted, put
from torchyard.archive import copier
from torchyard.archive.copier import open_run_archive
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.common.identity import holder_identity
from torchyard.loading.profile import load_profile
from torchyard.model.errors import DetachedError
from torchyard.model.profile import Profile
from torchyard.pods import lease_record, seal
from torchyard.run.folder import RunFolder
from torchyard.run.resume import choose_entry
from torchyard.run.takeover import fetch_past


@pytest.fixture
def profile(write: Write, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """The profile of a run that has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: KEY)
    return load_profile(str(write(launcher="volcano", image="train:v1", nodes=2)))


def test_attempt_goes_on_here(profile: Profile, fake_api: FakeApi) -> None:
    """The latest attempt's plan is in the folder here, and the Lease is held from here."""
    put(fake_api, attempt="2")
    folder = adopted(profile)
    assert (folder.attempts(), [event["event"] for event in folder.events()]) == ([2], ["start"])
    lease = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(lease) == holder_identity(str(folder.path))


def test_run_without_a_lease_begins_anew(profile: Profile) -> None:
    """Without a Lease there is no attempt to resume."""
    assert adopted(profile).attempts() == []


@pytest.fixture
def learn(profile: Profile, tmp_path: Path) -> Callable[[], RunFolder]:
    """Learn a run's past; its archive is a file, which answers nothing, unless a test makes it a folder."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{tmp_path}/archive"
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True)

    def learn_it() -> RunFolder:
        with open_run_archive(folder.path, lambda: None, True) as archive:
            fetch_past(folder, profile, RUN_ID, archive)
        return folder

    return learn_it


@pytest.fixture
def silent_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive answers nothing."""
    (tmp_path / "archive").write_text("")
    monkeypatch.setattr(copier, "_FETCH_TIMEOUT_S", 0.1)


def test_past_comes_from_the_archive(learn: Callable[[], RunFolder], profile: Profile, tmp_path: Path) -> None:
    """A run that has ended on another machine has ended here."""
    remote = RunFolder(tmp_path / "archive" / RunFolder.of(profile, RUN_ID).name)
    remote.path.mkdir(parents=True)
    remote.note("start", run=RUN_ID)
    remote.note("end", end="succeeded", sentence="done")
    assert choose_entry(learn().events(), lambda: False) == "echo"


def test_archive_that_knows_nothing_lets_the_run_begin(learn: Callable[[], RunFolder]) -> None:
    """An archive that answers, and a cluster without a Lease: the run has not been started."""
    assert learn().events() == []


def test_run_of_which_nobody_can_tell_is_not_started(learn: Callable[[], RunFolder], silent_archive: None) -> None:
    """Without an answer of the archive, and without a Lease, the run may have ended: this process leaves."""
    with pytest.raises(DetachedError, match=r"whether this run has been started before is not known .*cannot list"):
        learn()


def test_lease_is_enough(learn: Callable[[], RunFolder], silent_archive: None, fake_api: FakeApi) -> None:
    """If the archive does not answer, the run goes on with what its Lease says."""
    put(fake_api, attempt="2")
    assert learn().attempts() == [2]
