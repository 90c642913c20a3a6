"""Teardown removes everything that a plan has started, and verifies that nothing remains."""

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from torchyard.cluster import create, delete, lease_renewal
from torchyard.host.processes import find_labelled
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.pods import lease_record
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown


def test_tearing_down_nothing_succeeds(process: CommandPlan) -> None:
    """A plan that was never submitted has no leftovers, however often it is torn down."""
    assert [teardown(process), teardown(process)] == [(), ()]


def test_processes_are_gone_after_teardown(process: CommandPlan) -> None:
    """No process with the job's label outlives its teardown, which can be repeated."""
    submit(process, Deadlines())
    assert find_labelled(process.label)
    assert teardown(process) == ()
    assert find_labelled(process.label) == []
    assert teardown(process) == ()


@pytest.fixture
def pods(planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> ManifestPlan:
    """The plan of a submitted job of pods, whose Lease this process holds."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", 0.0)
    plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)
    create.create_job(plan)
    return plan


def has_lease(fake_api: FakeApi, plan: ManifestPlan) -> bool:
    return fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run) is not None


def test_lease_is_deleted_with_the_run(pods: ManifestPlan, fake_api: FakeApi) -> None:
    """The Lease stays for the next attempt, and is deleted once the run itself has ended."""
    assert (teardown(pods, end_run=False), has_lease(fake_api, pods)) == ((), True)
    assert (teardown(pods), has_lease(fake_api, pods)) == ((), False)


def test_possible_leftovers_are_reported_and_keep_their_lease(
    pods: ManifestPlan, fake_api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """Pods that cannot be listed are returned and logged as leftovers, and the Lease stays for a sweep."""
    fake_api.fail("GET", r"/pods\?", 403)
    (leftover,) = teardown(pods)
    assert leftover.startswith("Pod in default: cannot be listed, so objects may remain")
    assert f"left behind: {leftover}" in caplog.text
    fake_api.heal()
    assert has_lease(fake_api, pods)
