"""A run that comes back on another machine: what of its Lease is believed."""

from typing import Any

import pytest

from tests.conftest import RUN_ID, Write
from tests.fake_api import FakeApi
from tests.leases import JOBS, RUN, lease, thing
from torchyard.common.identity import holder_identity
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Profile
from torchyard.model.run import Outcome, Status
from torchyard.pods import lease_record, seal
from torchyard.run.folder import RunFolder
from torchyard.run.takeover import adopt_run

KEY = "a" * 64
DONE = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exits={"worker-0": 0})


@pytest.fixture
def profile(write: Write, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Of a run that has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: KEY)
    return load_profile(str(write(launcher="volcano", image="train:v1", nodes=2)))


def put(fake_api: FakeApi, ago: float = 140.0, **told: str) -> None:
    """The Lease of a machine that was lost, and what it says."""
    annotations = {f"torchyard/{key.replace('_', '-')}": value for key, value in told.items()}
    fake_api.put(lease(ago=ago, annotations=annotations))


def adopted(profile: Profile) -> RunFolder:
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True, exist_ok=True)
    adopt_run(folder, profile, RUN_ID)
    return folder


def outcome(secret: str, attempt: str = "2") -> str:
    return lease_record.seal_outcome(RUN, attempt, DONE, secret)


def test_attempt_goes_on_here(profile: Profile, fake_api: FakeApi) -> None:
    """The latest attempt's plan is in the folder here, and the Lease is held from here."""
    put(fake_api, attempt="2")
    folder = adopted(profile)
    assert (folder.attempts(), [each["event"] for each in folder.events()]) == ([2], ["start"])
    held = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(held) == holder_identity(str(folder.path))


def test_run_without_a_lease_begins_anew(profile: Profile) -> None:
    """Where there is no Lease there is nothing to go on with."""
    assert adopted(profile).attempts() == []


@pytest.mark.parametrize("attempt", ["banana", "0", "9" * 30, ""])
def test_attempt_that_is_none_is_not_guessed(profile: Profile, fake_api: FakeApi, attempt: str) -> None:
    """Another process than the one that was lost ends with a sentence: a guess could submit a second job."""
    put(fake_api, attempt=attempt)
    with pytest.raises(ClusterError, match=r"torchyard/attempt is .*the job is left alone.*kubectl annotate"):
        adopted(profile)
    held = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(held) == "elsewhere:/runs"


def test_process_at_home_knows_its_attempt(profile: Profile, fake_api: FakeApi) -> None:
    """Where the run was carried here, a malformed attempt on the Lease is no matter."""
    put(fake_api, attempt="2")
    folder = adopted(profile)
    place = ("coordination.k8s.io/v1/leases", "default", RUN)
    fake_api.objects.patch(place, {"metadata": {"annotations": {"torchyard/attempt": "banana"}}})
    assert adopted(profile).attempts() == folder.attempts() == [2]


@pytest.mark.parametrize(
    ("told", "believed"), [(outcome(KEY), True), (outcome("b" * 64), False), (outcome(""), False), ("{", False)]
)
def test_end_is_believed_with_its_seal(profile: Profile, fake_api: FakeApi, told: str, believed: bool) -> None:
    """Of a job that is gone, how it ended is known from a launcher of the run or not at all."""
    put(fake_api, attempt="2", outcome=told)
    found = adopted(profile).outcome(2)
    assert (found.status if found else None) == (DONE.status if believed else None)


def test_job_that_is_there_is_asked_itself(profile: Profile, fake_api: FakeApi) -> None:
    """A job that still stands is seen to its end again: its logs are read here."""
    put(fake_api, attempt="2", outcome=outcome(KEY))
    fake_api.put(thing(JOBS, "Job", f"{RUN}-2"))
    assert adopted(profile).outcome(2) is None


def ending(secret: str, attempt: str = "2") -> str:
    made = lease_record.RecordedEnding(end="succeeded", sentence="it went well")
    return lease_record.seal_ending(RUN, attempt, made, secret)


@pytest.mark.parametrize(("told", "ends"), [(ending(KEY), "succeeded"), (ending(""), None), (ending(KEY, "1"), None)])
def test_end_that_the_run_comes_to_is_sealed(profile: Profile, fake_api: FakeApi, told: str, ends: Any) -> None:
    """A run is brought to an end that its launcher wrote down for this attempt, and to no other."""
    put(fake_api, attempt="2", ending=told)
    assert adopted(profile).last("ending").get("end") == ends
