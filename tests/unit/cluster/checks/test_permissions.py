"""Checks of permissions: one finding that names every missing verb."""

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from torchyard.cluster.checks.permissions import check_permissions, is_allowed, is_granted, is_known_refusal
from torchyard.kube.client import Client
from torchyard.model.requirements import Permission

PERMISSIONS = (
    Permission(verbs=("create", "get", "watch"), resource="jobs.batch.volcano.sh"),
    Permission(verbs=("get", "watch"), resource="pods"),
    Permission(verbs=("get",), resource="pods/log"),
    Permission(verbs=("get", "delete"), resource="pods"),
)


def count_reviews(fake_api: FakeApi, kind: str) -> int:
    return len(fake_api.find_requests("POST", f"/{kind}$"))


def test_rights_that_rules_grant_cost_one_request(fake_api: FakeApi, fake_server: Client) -> None:
    """The finding counts the different rights; if the user's rules grant all of them, one review is enough."""
    (check,) = check_permissions(fake_server, PERMISSIONS)
    assert (check.verdict, check.what) == ("ok", "all 7 are granted")
    assert count_reviews(fake_api, "selfsubjectrulesreviews") == 1
    assert count_reviews(fake_api, "selfsubjectaccessreviews") == 0
    assert check_permissions(fake_server, ()) == []


def test_right_that_no_rule_grants_is_reviewed_itself(fake_api: FakeApi, fake_server: Client) -> None:
    """If the server lists no rules, because another authorizer decides, each right costs one access review."""
    fake_api.fail("POST", "/selfsubjectrulesreviews", 403)
    (check,) = check_permissions(fake_server, PERMISSIONS)
    assert (check.verdict, check.what) == ("ok", "all 7 are granted")
    assert count_reviews(fake_api, "selfsubjectaccessreviews") == 7


def test_right_in_the_whole_cluster_is_not_one_of_the_namespace(fake_api: FakeApi, fake_server: Client) -> None:
    """A role of the namespace does not grant kinds without one: these rights are reviewed for the cluster."""
    permissions = [Permission(verbs=("create", "get"), resource="priorityclasses.scheduling.k8s.io")]
    (check,) = check_permissions(fake_server, permissions)  # all rules of the namespace grant it
    assert (check.verdict, count_reviews(fake_api, "selfsubjectaccessreviews")) == ("ok", 2)
    fake_api.denied = {("create", "priorityclasses.scheduling.k8s.io")}
    (check,) = check_permissions(fake_server, permissions)
    assert (check.verdict, "let an administrator create" in check.remedy) == ("failed", True)
    attributes = [
        request.body["spec"]["resourceAttributes"]
        for request in fake_api.find_requests("POST", "/selfsubjectaccessreviews$")
    ]
    assert [("namespace" in review, review["resource"]) for review in attributes] == [(False, "priorityclasses")] * 4


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"]}, True),
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}, True),
        ({"verbs": ["list"], "apiGroups": [""], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, False),
        ({"verbs": ["get"], "apiGroups": ["batch"], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"], "resourceNames": ["train"]}, False),
        ({"verbs": None, "resources": None}, False),
    ],
)
def test_rule_grants_a_right(rule: dict[str, list[str]], expected: bool) -> None:
    """A rule grants a right if verb, group and resource match, and it is not limited to objects of some names."""
    assert is_granted([{}, rule], "get", "pods/log") is expected


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
    fake_api.denied = {("get", "pods/log")}
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
