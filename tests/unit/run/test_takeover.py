"""A run that is resumed on another machine: its folder there."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.conftest import RUN_ID, Write
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import RUN
from tests.doubles.lost_machines import KEY, adopt_folder, put_lease
from torchyard.archive.copier import ArchiveTimeouts, open_run_archive
from torchyard.archive.store import MARKER
from torchyard.common.identity import identify_holder
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


def test_attempt_of_another_machine_is_resumed(profile: Profile, fake_api: FakeApi) -> None:
    """The latest attempt's plan is in this machine's folder, and this machine holds the Lease."""
    put_lease(fake_api, attempt="2")
    folder = adopt_folder(profile)
    assert (folder.attempts(), [event["event"] for event in folder.events()]) == ([2], ["start"])
    lease = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(lease) == identify_holder(str(folder.path))


@pytest.mark.parametrize(("attempts", "number", "first"), [(3, "2", 1), (2, "5", 4), (1, "2", 2)])
def test_attempt_of_another_machine_counts_in_the_budget(
    profile: Profile, fake_api: FakeApi, attempts: int, number: str, first: int
) -> None:
    """The budget of a run that is taken over includes the attempt of the other machine and those before it."""
    put_lease(fake_api, attempt=number)
    folder = adopt_folder(profile.model_copy(update={"attempts": attempts}))
    assert folder.read_record().last_start["first"] == first


def test_run_without_a_lease_has_no_attempt(profile: Profile) -> None:
    """Without a Lease there is no attempt to resume."""
    assert adopt_folder(profile).attempts() == []


@pytest.fixture
def fetch(profile: Profile, tmp_path: Path) -> Callable[..., RunFolder]:
    """Fetch a run's past from its archive; a test may put a file in its place, so that the archive does not answer."""
    create_archive(tmp_path / "archive")
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True)

    def fetch_into_folder(fetch_s: float = 60.0) -> RunFolder:
        timeouts = ArchiveTimeouts(fetch_s=fetch_s)
        with open_run_archive(folder.path, lambda: None, is_resumed=True, timeouts=timeouts) as archive:
            fetch_past(folder, profile, RUN_ID, archive)
        return folder

    return fetch_into_folder


@pytest.fixture
def silent_archive(tmp_path: Path) -> None:
    """The archive does not answer: its folder is a file."""
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "archive").write_text("")


def test_past_comes_from_the_archive(fetch: Callable[..., RunFolder], profile: Profile, tmp_path: Path) -> None:
    """A run whose end on another machine is in the archive has ended on this machine too."""
    remote = RunFolder(tmp_path / "other-machine" / RunFolder.of(profile, RUN_ID).name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run=RUN_ID)
    remote.record_event("end", end="succeeded", sentence="done")
    archive_run(tmp_path / "archive", remote)
    assert choose_entry(fetch().read_record(), lambda _: False, time.time()) == "echo"


def test_run_without_archive_and_lease_is_new(fetch: Callable[..., RunFolder]) -> None:
    """If neither the archive, which answers, nor the cluster has the run, it has not been started."""
    assert fetch().events() == []


def test_run_without_any_answer_is_not_started(fetch: Callable[..., RunFolder], silent_archive: None) -> None:
    """Without an answer of the archive, and without a Lease, the run may have ended, and is not started."""
    with pytest.raises(DetachedError, match=r"cannot find out whether this run has been started .*cannot read"):
        fetch(fetch_s=0.1)


def test_run_whose_archive_is_not_mounted_is_not_started(fetch: Callable[..., RunFolder], tmp_path: Path) -> None:
    """An empty folder in place of the archive does not prove that the run has never been started."""
    (tmp_path / "archive" / MARKER).unlink()
    with pytest.raises(DetachedError, match="not mounted"):
        fetch(fetch_s=0.1)


def test_lease_is_enough(fetch: Callable[..., RunFolder], silent_archive: None, fake_api: FakeApi) -> None:
    """If the archive does not answer, the run is resumed by its Lease."""
    put_lease(fake_api, attempt="2")
    assert fetch(fetch_s=0.1).attempts() == [2]
