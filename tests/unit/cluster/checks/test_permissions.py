"""Checks of permissions: one finding that names every missing verb."""

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from torchyard.cluster.checks.permissions import check_permissions, is_allowed, is_known_refusal
from torchyard.kube.client import Client
from torchyard.model.requirements import Permission

PERMISSIONS = (
    Permission(verbs=("create", "get", "watch"), resource="jobs.batch.volcano.sh"),
    Permission(verbs=("get", "watch"), resource="pods"),
    Permission(verbs=("get",), resource="pods/log"),
    Permission(verbs=("get", "delete"), resource="pods"),
)


def test_every_right_is_reviewed_once(fake_api: FakeApi, fake_server: Client) -> None:
    """The finding counts the different rights, and each of them costs one access review."""
    (check,) = check_permissions(fake_server, PERMISSIONS)
    assert (check.verdict, check.what) == ("ok", "all 7 are granted")
    assert len(fake_api.find_requests("POST", "/selfsubjectaccessreviews")) == 7
    assert check_permissions(fake_server, ()) == []


def test_all_missing_rights_are_in_one_finding(fake_api: FakeApi, fake_server: Client) -> None:
    """The finding has the user's name, every missing verb by resource, and the command that creates the role."""
    fake_api.denied = {("create", "jobs.batch.volcano.sh"), ("get", "pods/log"), ("get", "pods"), ("watch", "pods")}
    (check,) = check_permissions(fake_server, PERMISSIONS)
    missing = "create jobs.batch.volcano.sh, nor get, watch pods, nor get pods/log"
    assert (check.verdict, check.what) == ("failed", f"fake-user may not {missing} in namespace default")
    assert "`kubectl apply -f deploy/kubernetes/rbac.yaml`" in check.remedy
    assert check.remedy.endswith("bind it to fake-user")


def test_server_without_self_review_hides_only_the_name(fake_api: FakeApi, fake_server: Client) -> None:
    """An old server that cannot report the user's name still reports the missing rights."""
    fake_api.denied = {("get", "pods/log")}
    fake_api.fail("POST", "/selfsubjectreviews", 404)
    (check,) = check_permissions(fake_server, PERMISSIONS)
    assert check.what == "this user may not get pods/log in namespace default"


def test_refused_review_fails_the_check(fake_api: FakeApi, fake_server: Client) -> None:
    """If an access review is refused, the check fails."""
    fake_api.fail("POST", "/selfsubjectaccessreviews", 403)
    (check,) = check_permissions(fake_server, PERMISSIONS)
    assert (check.verdict, check.what.partition(":")[0]) == ("failed", "cannot be checked")


def test_subresource_and_group_are_reviewed_separately(fake_api: FakeApi, fake_server: Client) -> None:
    """A right to `pods` does not include `pods/log`, and a right to `jobs.batch` no other group."""
    fake_api.denied = {("get", "pods/log"), ("get", "jobs.batch.volcano.sh")}
    resources = ("pods", "pods/log", "jobs.batch", "jobs.batch.volcano.sh")
    assert [is_allowed(fake_server, "get", resource) for resource in resources] == [True, False, True, False]


@pytest.mark.parametrize(
    ("message", "is_known"),
    [
        (
            'jobs is forbidden: User "a" cannot create resource "jobs" in API group "batch.volcano.sh"',
            True,
        ),
        ("user a is not authorized to create jobs in namespace b", True),
        ('pods "x" is forbidden: User "a" cannot create resource "pods" in API group ""', False),
        ('jobs.batch.volcano.sh "x" is forbidden: exceeded quota: q', False),
    ],
)
def test_refusal_to_create_is_reported_once(planned: Planned, message: str, is_known: bool) -> None:
    """A dry run that is refused for a missing right does not fail again if the check of rights names that right."""
    assert is_known_refusal(planned(), message) is is_known
