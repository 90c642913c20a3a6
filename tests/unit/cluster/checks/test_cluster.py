"""Checks of a cluster: the connection, the namespace, kinds, controllers and queues."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi, ReceivedRequest
from tests.doubles.fake_objects import ObjectKey, RefusedError
from torchyard.cluster.checks.cluster import (
    check_cluster,
    check_controller,
    check_crd_served,
    check_queue,
    has_flag,
)
from torchyard.kube import client
from torchyard.kube.client import Client
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Controller, CrdServed, OpenQueue

TRAINING_OPERATOR = Controller(label="app=training-operator", deployment="training-operator", gang="--gang")


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    """A plan for a cluster that has its namespace."""
    fake_api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    return planned()


def find_check(checks: tuple[Finding, ...], name: str) -> Finding:
    return next(check for check in checks if check.where.startswith(name))


# --- the cluster itself


def test_every_requirement_has_one_finding(plan: ManifestPlan) -> None:
    """All rights together are one finding, and so is each other requirement of the cluster."""
    requirements = [requirement for requirement in plan.requires if requirement.kind not in ("permission", "folder")]
    checks = check_cluster(plan)
    assert len(checks) == 1 + len(requirements)
    assert (find_check(checks, "rights").verdict, find_check(checks, "kind jobs.batch.volcano.sh").verdict) == (
        "ok",
        "ok",
    )


def test_refused_credentials_are_the_only_finding(
    fake_api: FakeApi, plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server refuses the credentials, nothing else is checked, and the remedy is to log in."""
    monkeypatch.setattr(client, "BRIEF_TIMEOUT_S", 0.05)
    does_not_respond = "does not respond"
    for status, message in (
        (401, "refuses the credentials"),
        (0, does_not_respond),
        (429, does_not_respond),
        (503, does_not_respond),
    ):
        fake_api.heal()
        fake_api.fail("GET", "^/api$", status)
        (check,) = check_cluster(plan)
        assert (check.verdict, message in check.what) == ("failed", True)


@pytest.mark.parametrize(("user", "is_refused"), [("system:anonymous", True), ("trainer", False)])
def test_anonymous_user_has_to_log_in(
    fake_api: FakeApi, plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch, user: str, is_refused: bool
) -> None:
    """A server that treats the user as anonymous has refused the credentials; any other user may only lack rights."""

    respond = fake_api.respond

    def refuse_discovery(request: ReceivedRequest) -> Any:
        if request.path == "/api":
            raise RefusedError(403, "Forbidden", f'User "{user}" cannot get path "/api"')
        return respond(request)

    monkeypatch.setattr(fake_api, "respond", refuse_discovery)
    checks = check_cluster(plan)
    assert (len(checks) == 1 and "refuses the credentials" in checks[0].what) is is_refused


def test_missing_namespace_is_one_finding(fake_api: FakeApi, planned: Planned) -> None:
    """A missing namespace is one finding. What it would contain is not checked, and the rest of the cluster is."""
    checks = check_cluster(planned())
    assert (checks[0].what, checks[0].remedy) == ("there is no such namespace", "`kubectl create namespace default`")
    assert not [check for check in checks if check.where.startswith("admission")]
    assert find_check(checks, "kind jobs.batch.volcano.sh").verdict == "ok"
    assert fake_api.find_requests("POST", "/jobs") == []


def test_terminating_namespace_fails_the_check(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A namespace that is being deleted accepts no new objects."""
    key = ObjectKey("v1/namespaces", "", "default")
    fake_api.objects.patch(key, {"status": {"phase": "Terminating"}})
    assert check_cluster(plan)[0].what == "is being deleted"


def test_unreadable_requirement_is_a_warning(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A requirement that this user may not read is a warning; any other error of the check fails it."""
    fake_api.fail("GET", "/nodes", 403)
    assert find_check(check_cluster(plan), "room for").verdict == "warning"
    fake_api.heal()
    fake_api.fail("GET", "/nodes", 400)
    assert find_check(check_cluster(plan), "room for").verdict == "failed"


# --- kinds, controllers and queues


def test_kind_of_another_group_is_not_the_needed_kind(fake_server: Client) -> None:
    """A missing kind is not confused with a kind of the same name in another group."""
    requirement = CrdServed(crd="jobs.example.org", version="v1", install="helm install example")
    check = check_crd_served(fake_server, requirement, "x")
    assert (check.verdict, check.remedy) == ("failed", "helm install example")
    assert check.what == "is not installed; jobs.batch.volcano.sh is another kind of the same name"


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("default", "Open", ("ok", "is open")),
        ("default", "Closed", ("failed", "is Closed; open queues: spare")),
        ("default", None, ("failed", "has no state yet; open queues: spare")),
        ("other", "Closed", ("failed", "does not exist; open queues: spare")),
    ],
)
def test_queue_must_be_open(fake_api: FakeApi, name: str, state: str | None, expected: tuple[str, str]) -> None:
    """A queue that is missing or not open fails the check, and the open ones are listed."""
    for queue_name, queue_state in ((name, state), ("spare", "Open")):
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": queue_name}}
        fake_api.put(queue | {"status": {"state": queue_state} if queue_state else {}})
    check = check_queue(client.get_cluster_client(Cluster()), OpenQueue(name="default"), "x")
    assert (check.verdict, check.what) == expected
    assert check.remedy in ("", "choose one with options.queue, or in the manifest")


def build_deployment(available: int, *args: str, **labels: str) -> dict[str, Any]:
    """The training operator's Deployment."""
    pod = {"containers": [{"image": "registry:5000/operator:v1.8.1@sha256:0a", "args": list(args)}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "training-operator", "labels": labels},
        "spec": {"template": {"spec": pod}},
        "status": {"availableReplicas": available},
    }


def test_controller_must_run_with_its_flag(fake_api: FakeApi, fake_server: Client) -> None:
    """A controller is found by label or name; without an available pod it fails, without its flag it is a warning."""
    stages: tuple[tuple[dict[str, Any] | None, str, str], ...] = (
        (None, "failed", "no namespace has a Deployment with the label "),
        (build_deployment(0), "failed", "kubeflow/training-operator v1.8.1 has no available pod"),
        (build_deployment(1), "warning", "kubeflow/training-operator v1.8.1 runs without --gang: "),
        (build_deployment(1, "--gang=volcano", app="training-operator"), "ok", "kubeflow/training-operator v1.8.1"),
    )
    for obj, verdict, detail in stages:
        if obj:
            fake_api.put(obj, "kubeflow")
        check = check_controller(fake_server, TRAINING_OPERATOR, "x")
        assert (check.verdict, check.what[: len(detail)]) == (verdict, detail)


@pytest.mark.parametrize(
    ("args", "is_found"),
    [
        (["--gang=volcano"], True),
        (["--gang", "volcano"], True),
        (["--gang=none"], False),
        (["--gangs=volcano"], False),
        ([], False),
    ],
)
def test_flag_is_found_as_one_argument_or_two(args: list[str], is_found: bool) -> None:
    """A flag is found as one argument or as two; with the value `none` it is not set."""
    deployment = {"spec": {"template": {"spec": {"containers": [{"command": ["/manager"], "args": args}]}}}}
    assert has_flag(deployment, "--gang") is is_found
