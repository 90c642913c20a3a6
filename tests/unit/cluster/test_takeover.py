"""Taking over a run from another machine: which parts of its Lease are believed."""

import time
from typing import Any

import pytest

from tests.conftest import Write
from tests.fake_api import FakeApi
from tests.leases import JOBS, RUN, stamp, thing
from tests.lost_machines import DONE, KEY, adopted, ending, outcome, put
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.profile import Profile
from torchyard.pods import lease_record, seal


@pytest.fixture
def profile(write: Write, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """The profile of a run that has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: KEY)
    return load_profile(str(write(launcher="volcano", image="train:v1", nodes=2)))


@pytest.mark.parametrize("attempt", ["banana", "0", "9" * 30, ""])
def test_attempt_that_is_none_is_not_guessed(profile: Profile, fake_api: FakeApi, attempt: str) -> None:
    """A process that finds an invalid attempt ends with a sentence: a guess could submit a second job."""
    put(fake_api, attempt=attempt)
    with pytest.raises(ClusterError, match=r"torchyard/attempt is .*the job is left alone.*kubectl annotate"):
        adopted(profile)
    held = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(held) == "elsewhere:/runs"


def test_process_at_home_knows_its_attempt(profile: Profile, fake_api: FakeApi) -> None:
    """If the run's folder is here, a malformed attempt on the Lease does not matter."""
    put(fake_api, attempt="2")
    folder = adopted(profile)
    place = ("coordination.k8s.io/v1/leases", "default", RUN)
    fake_api.objects.patch(place, {"metadata": {"annotations": {"torchyard/attempt": "banana"}}})
    assert adopted(profile).attempts() == folder.attempts() == [2]


@pytest.mark.parametrize(
    ("told", "believed"), [(outcome(KEY), True), (outcome("b" * 64), False), (outcome(""), False), ("{", False)]
)
def test_end_is_believed_with_its_seal(profile: Profile, fake_api: FakeApi, told: str, believed: bool) -> None:
    """The outcome of a job that is gone is believed only if a launcher of the run has sealed it."""
    put(fake_api, attempt="2", outcome=told)
    found = adopted(profile).outcome(2)
    assert (found.status if found else None) == (DONE.status if believed else None)


def test_job_that_is_there_is_asked_itself(profile: Profile, fake_api: FakeApi) -> None:
    """If the job still exists, it is waited for again, so that its logs are read here."""
    put(fake_api, attempt="2", outcome=outcome(KEY))
    fake_api.put(thing(JOBS, "Job", f"{RUN}-2"))
    assert adopted(profile).outcome(2) is None


@pytest.mark.parametrize(("told", "ends"), [(ending(KEY), "succeeded"), (ending(""), None), (ending(KEY, "1"), None)])
def test_end_that_the_run_comes_to_is_sealed(profile: Profile, fake_api: FakeApi, told: str, ends: Any) -> None:
    """An ending is believed only if the run's launcher has sealed it for this attempt."""
    put(fake_api, attempt="2", ending=told)
    assert adopted(profile).last("ending").get("end") == ends


def test_end_of_a_job_that_is_going_is_believed(profile: Profile, fake_api: FakeApi) -> None:
    """A job that is being deleted says nothing more: what the lost machine has seen of its end counts."""
    put(fake_api, attempt="2", outcome=outcome(KEY))
    job = thing(JOBS, "Job", f"{RUN}-2")
    job["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    fake_api.objects._all["batch.volcano.sh/v1alpha1/jobs", "default", f"{RUN}-2"] = job
    found = adopted(profile).outcome(2)
    assert found
    assert (found.status, list(found.lost)) == (DONE.status, ["worker-0", "worker-1"])


def test_living_holder_is_not_robbed(profile: Profile, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose holder renews its Lease stays where it is."""
    put(fake_api, ago=20, attempt="2")
    where = ("coordination.k8s.io/v1/leases", "default", RUN)
    monkeypatch.setattr(time, "sleep", lambda _: fake_api.objects.patch(where, {"spec": {"renewTime": stamp(0)}}))
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        adopted(profile)
