"""Taking over a run from another machine: which parts of its Lease are believed."""

import time
from typing import Any

import pytest

from tests.conftest import Write
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import JOBS, RUN, build_object, format_time
from tests.doubles.lost_machines import KEY, OUTCOME, adopt_folder, put_lease, seal_ending, seal_outcome
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
def test_invalid_attempt_is_an_error(profile: Profile, fake_api: FakeApi, attempt: str) -> None:
    """A process that finds an invalid attempt is refused: a guess could submit a second job."""
    put_lease(fake_api, attempt=attempt)
    with pytest.raises(ClusterError, match=r"torchyard/attempt is .*the job is not changed.*kubectl annotate"):
        adopt_folder(profile)
    run_lease = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(run_lease) == "elsewhere:/runs"


def test_own_folder_decides_the_attempt(profile: Profile, fake_api: FakeApi) -> None:
    """If the run's folder is here, a malformed attempt on the Lease does not matter."""
    put_lease(fake_api, attempt="2")
    folder = adopt_folder(profile)
    key = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)
    fake_api.objects.patch(key, {"metadata": {"annotations": {"torchyard/attempt": "banana"}}})
    assert adopt_folder(profile).attempts() == folder.attempts() == [2]


@pytest.mark.parametrize(
    ("annotation", "is_believed"),
    [(seal_outcome(KEY), True), (seal_outcome("b" * 64), False), (seal_outcome(""), False), ("{", False)],
)
def test_outcome_is_believed_only_with_a_seal(
    profile: Profile, fake_api: FakeApi, annotation: str, is_believed: bool
) -> None:
    """The outcome of a job that is gone is believed only if a launcher of the run has sealed it."""
    put_lease(fake_api, attempt="2", outcome=annotation)
    recorded = adopt_folder(profile).outcome(2)
    assert (recorded.status if recorded else None) == (OUTCOME.status if is_believed else None)


def test_existing_job_is_watched_again(profile: Profile, fake_api: FakeApi) -> None:
    """If the job still exists, its recorded outcome is ignored, so that its logs are read here."""
    put_lease(fake_api, attempt="2", outcome=seal_outcome(KEY))
    fake_api.put(build_object(JOBS, "Job", f"{RUN}-2"))
    assert adopt_folder(profile).outcome(2) is None


@pytest.mark.parametrize(
    ("annotation", "end"), [(seal_ending(KEY), "succeeded"), (seal_ending(""), None), (seal_ending(KEY, "1"), None)]
)
def test_ending_is_believed_only_with_a_seal(profile: Profile, fake_api: FakeApi, annotation: str, end: Any) -> None:
    """An ending is believed only if the run's launcher has sealed it for this attempt."""
    put_lease(fake_api, attempt="2", ending=annotation)
    assert adopt_folder(profile).read_record().find_last("ending").get("end") == end


def test_outcome_of_a_job_that_is_being_deleted_is_believed(profile: Profile, fake_api: FakeApi) -> None:
    """The logs of a job that is being deleted are gone: the outcome that the lost machine recorded counts."""
    put_lease(fake_api, attempt="2", outcome=seal_outcome(KEY))
    job = build_object(JOBS, "Job", f"{RUN}-2")
    job["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    fake_api.objects.stored[ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", f"{RUN}-2")] = job
    recorded = adopt_folder(profile).outcome(2)
    assert recorded
    assert (recorded.status, list(recorded.lost)) == (OUTCOME.status, ["worker-0", "worker-1"])


def test_living_holder_keeps_the_run(profile: Profile, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose holder renews its Lease is not taken over."""
    put_lease(fake_api, ago=20, attempt="2")
    key = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)
    monkeypatch.setattr(time, "sleep", lambda _: fake_api.objects.patch(key, {"spec": {"renewTime": format_time(0)}}))
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        adopt_folder(profile)
