"""Would the API server accept the job? What a dry run finds, and what to do about it."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from torchyard.cluster import create
from torchyard.cluster.checks.admission import _find_remedy, check_admission
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted

OBJECTS, POD = AdmissionAccepted(target="objects"), AdmissionAccepted(target="pod")


@pytest.fixture
def plan(planned: Planned, fake_server: Client) -> ManifestPlan:
    return create.resolve_cluster(planned(rendezvous="etcd-v2"))


def test_accepted_job_leaves_nothing(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A job and a pod that the server accepts are not created by the check."""
    assert [check_admission(fake_server, requirement, "x", plan).verdict for requirement in (OBJECTS, POD)] == [
        "ok",
        "ok",
    ]
    assert fake_api.objects._objects == {}


def test_a_policy_that_may_not_be_made_is_a_warning(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """Preflight warns about a policy that may not be created, and lets the run start."""
    fake_api.fail("POST", "/networkpolicies", 403)
    check = check_admission(fake_server, AdmissionAccepted(target="objects"), "admission", plan)
    assert (check.verdict, "NetworkPolicy" in check.detail, "torchyard-policy" in check.remedy) == (
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
    """An object of somebody else with the job's name fails the check, and the finding says whose it is."""
    client = get_cluster_client(plan.cluster)
    fake_api.put({**plan.main, "metadata": {"name": plan.job, **metadata}})
    check = check_admission(client, OBJECTS, "x", plan)
    assert (check.verdict, check.detail) == ("failed", f"Job {plan.job} already exists, and {owner}")
    fake_api.put(plan.main)
    assert check_admission(client, OBJECTS, "x", plan).verdict == "ok"


def test_pod_is_tried_as_the_controller_would(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A refused pod fails the check before the job's controller meets the refusal; a taken name is no refusal."""
    for status, verdict in ((409, "ok"), (422, "failed")):
        fake_api.heal()
        fake_api.fail("POST", "/pods", status)
        assert check_admission(fake_server, POD, "x", plan).verdict == verdict


SERVICE = 'failed calling webhook "v.sh": Post "https://volcano-admission.volcano-system.svc:443/jobs": refused'


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest"', "`kubectl label namespace default "),
        (SERVICE, "`kubectl -n volcano-system get endpoints volcano-admission`"),
        ('failed calling webhook "v.sh": timeout', "`kubectl get validatingwebhookconfigurations,"),
        ('pods "x" is forbidden: exceeded quota: q', "`kubectl -n default describe quota`"),
        ('jobs is forbidden: User "a" cannot create resource "jobs"', "`kubectl apply -f deploy/kubernetes/rbac.yaml`"),
    ],
)
def test_refusal_comes_with_its_remedy(fake_server: Client, message: str, remedy: str) -> None:
    """For the refusals that clusters make most, the finding has the command that helps."""
    assert remedy in _find_remedy(fake_server, ClusterError("https://x", "create Pod x", message, 403))


def test_refusal_without_a_known_remedy_has_none(fake_server: Client) -> None:
    """The server's own message stands alone if nothing is known to help; a missing kind must be installed."""
    refusal = ClusterError("https://x", "create Job x", "spec.tasks: Required value", 422)
    missing_kind = ClusterError("https://x", "create Job x", "the server could not find the requested resource", 404)
    assert _find_remedy(fake_server, refusal) == ""
    assert "install what provides this kind" in _find_remedy(fake_server, missing_kind)
