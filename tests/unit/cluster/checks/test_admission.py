"""Checks of admission: what a dry run finds, and the remedy."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from torchyard.cluster import create
from torchyard.cluster.checks.admission import check_admission, find_remedy
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted

OBJECTS = AdmissionAccepted(target="objects")
POD = AdmissionAccepted(target="pod")


@pytest.fixture
def plan(planned: Planned, fake_server: Client) -> ManifestPlan:
    return create.resolve_cluster(planned(rendezvous="etcd-v2"))


def test_accepted_job_is_not_created(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A dry run that the server accepts creates neither the job nor the pod."""
    assert [check_admission(fake_server, requirement, "x", plan).verdict for requirement in (OBJECTS, POD)] == [
        "ok",
        "ok",
    ]
    assert fake_api.objects.stored == {}


def test_policy_that_may_not_be_created_is_a_warning(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan
) -> None:
    """Preflight warns about a policy that may not be created, and does not stop the run."""
    fake_api.fail("POST", "/networkpolicies", 403)
    check = check_admission(fake_server, AdmissionAccepted(target="objects"), "admission", plan)
    assert (check.verdict, "NetworkPolicy" in check.what, "torchyard-policy" in check.remedy) == (
        "warning",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"labels": {"torchyard/run": "other-00000001"}}, "belongs to the run other-00000001"),
        ({"ownerReferences": [{"kind": "Workflow", "name": "nightly"}]}, "belongs to Workflow nightly"),
        ({"managedFields": [{"manager": "kubectl-create"}]}, "does not belong to this run: kubectl-create created it"),
        ({}, "does not belong to this run"),
    ],
)
def test_name_that_is_taken_is_reported_with_its_owner(
    fake_api: FakeApi, plan: ManifestPlan, metadata: dict[str, Any], owner: str
) -> None:
    """An object of another owner with the job's name fails the check, and the finding names that owner."""
    client = get_cluster_client(plan.cluster)
    fake_api.put(plan.main | {"metadata": {"name": plan.job} | metadata})
    check = check_admission(client, OBJECTS, "x", plan)
    assert (check.verdict, check.what) == ("failed", f"Job {plan.job} already exists, and {owner}")
    fake_api.put(plan.main)
    assert check_admission(client, OBJECTS, "x", plan).verdict == "ok"


def test_refused_pod_fails_the_check(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A refused pod fails the check before the job's controller meets the refusal; a taken name does not."""
    for status, verdict in ((409, "ok"), (422, "failed")):
        fake_api.heal()
        fake_api.fail("POST", "/pods", status)
        assert check_admission(fake_server, POD, "x", plan).verdict == verdict


WEBHOOK_REFUSAL = 'failed calling webhook "v.sh": Post "https://volcano-admission.volcano-system.svc:443/jobs": refused'


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest"', "`kubectl label namespace default "),
        (WEBHOOK_REFUSAL, "`kubectl -n volcano-system get endpoints volcano-admission`"),
        ('failed calling webhook "v.sh": timeout', "`kubectl get validatingwebhookconfigurations,"),
        ('pods "x" is forbidden: exceeded quota: q', "`kubectl -n default describe quota`"),
        ('jobs is forbidden: User "a" cannot create resource "jobs"', "`kubectl apply -f deploy/kubernetes/rbac.yaml`"),
    ],
)
def test_common_refusals_have_a_remedy(fake_server: Client, message: str, remedy: str) -> None:
    """For the most common refusals of clusters, the finding contains the command that helps."""
    assert remedy in find_remedy(fake_server, ClusterError("https://x", "create Pod x", message, 403))


def test_unknown_refusal_has_no_remedy(fake_server: Client) -> None:
    """A refusal without a known remedy has none; a missing kind must be installed."""
    refusal = ClusterError("https://x", "create Job x", "spec.tasks: Required value", 422)
    missing_kind = ClusterError("https://x", "create Job x", "the server could not find the requested resource", 404)
    assert find_remedy(fake_server, refusal) == ""
    assert "install what provides this kind" in find_remedy(fake_server, missing_kind)
