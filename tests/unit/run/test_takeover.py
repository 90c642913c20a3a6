"""A run that is resumed on another machine: its folder there."""

import pytest

from tests.conftest import Write
from tests.fake_api import FakeApi
from tests.leases import RUN
from tests.lost_machines import KEY, adopted, put
from torchyard.common.identity import holder_identity
from torchyard.loading.profile import load_profile
from torchyard.model.profile import Profile
from torchyard.pods import lease_record, seal


@pytest.fixture
def profile(write: Write, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """The profile of a run that has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: KEY)
    return load_profile(str(write(launcher="volcano", image="train:v1", nodes=2)))


def test_attempt_goes_on_here(profile: Profile, fake_api: FakeApi) -> None:
    """The latest attempt's plan is in the folder here, and the Lease is held from here."""
    put(fake_api, attempt="2")
    folder = adopted(profile)
    assert (folder.attempts(), [each["event"] for each in folder.events()]) == ([2], ["start"])
    held = fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) or {}
    assert lease_record.read_holder(held) == holder_identity(str(folder.path))


def test_run_without_a_lease_begins_anew(profile: Profile) -> None:
    """Without a Lease there is no attempt to resume."""
    assert adopted(profile).attempts() == []
