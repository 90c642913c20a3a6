"""Run:ai: its options, the PyTorchJob through Kubernetes, and the meaning of its statuses."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.diagnosis.no_progress import explain_waiting_processes
from torchyard.host.runai_cli import get_pod_status
from torchyard.launchers import runai
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice
from torchyard.model.run import Observation


def profile(write: Write, generation: str = "cli-v1", options: dict[str, Any] | None = None, **keys: Any) -> Profile:
    all_options = {"project": "mlo", "through": generation} | (options or {})
    fields = {"launcher": "runai", "image": "pi:v1", "nodes": 2, "options": all_options}
    return load(write(**(fields | keys)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preemptible": True}, "a training can always be preempted"),
        ({"through": "kubernetes", "backoff_limit": 1}, "cannot be combined with through: kubernetes"),
        ({"through": "cli-v1", "node_pools": ["a", "b"]}, "must have one entry with through: cli-v1"),
    ],
)
def test_options_without_effect_are_refused(write: Write, options: dict[str, Any], message: str) -> None:
    """An option that would have no effect is an error."""
    with pytest.raises(ProfileError, match=message):
        profile(write, options=options)


# --- through the CLI

EIGHT_HCAS = {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_{index}" for index in range(8))}
ROCE: dict[str, Any] = {"hardware": "epfl/rcp", "fabric": "roce", "env": EIGHT_HCAS}


def list_advice(profile: Profile, folder: Path) -> list[Finding]:
    """The warnings of the plan, which preflight repeats."""
    advice = [item.finding for item in plan_of(profile, folder).requires if isinstance(item, Advice)]
    assert {finding.verdict for finding in advice} <= {"warning"}
    return advice


@pytest.mark.parametrize("generation", ["cli-v1", "cli-v2", "kubernetes"])
def test_hcas_are_compared_with_the_networks(write: Write, tmp_path: Path, generation: str) -> None:
    """In each way to Run:ai the plan warns if a pod gets fewer networks than it should use HCAs over RoCE."""
    (finding,) = list_advice(profile(write, generation, **ROCE), tmp_path)
    assert (finding.where, finding.what[:26]) == ("pod.networks", "1 network is attached, but")
    all_networks = {"networks": {"kube-system/roce": 8}}
    assert list_advice(profile(write, generation, **ROCE, pod=all_networks), tmp_path) == []


@pytest.mark.parametrize("generation", ["cli-v1", "cli-v2"])
def test_image_of_the_cli_has_a_fixed_tag(write: Write, tmp_path: Path, generation: str) -> None:
    """An image without a fixed tag is a warning, as for pods of other launchers."""
    assert [item.where for item in list_advice(profile(write, generation, image="pi"), tmp_path)] == ["image pi"]


@pytest.mark.parametrize(
    ("generation", "grace", "locations"),
    [
        ("cli-v1", "90s", ["deadlines.grace"]),
        ("cli-v2", "31s", ["deadlines.grace"]),
        ("cli-v2", "30s", []),
        ("kubernetes", "90s", []),
    ],
)
def test_grace_that_the_pods_do_not_have(
    write: Write, tmp_path: Path, generation: str, grace: str, locations: list[str]
) -> None:
    """The CLI cannot set the pods' grace: a longer one than the cluster's own is a warning, which names that number."""
    findings = list_advice(profile(write, generation, deadlines={"grace": grace}), tmp_path)
    assert [finding.where for finding in findings] == locations
    assert all("30 s, Kubernetes' default" in finding.what for finding in findings)


# --- through Kubernetes


def test_kubernetes_gets_a_pytorch_job(write: Write, tmp_path: Path) -> None:
    """Through Kubernetes the job is a PyTorchJob in the project's namespace, for Run:ai's scheduler and queue."""
    plan = plan_of(profile(write, "kubernetes"), tmp_path)
    assert isinstance(plan, ManifestPlan)
    assert (plan.launcher, plan.cluster.namespace) == ("runai", "runai-mlo")
    assert plan.pod["spec"]["schedulerName"] == "runai-scheduler"
    assert plan.main["metadata"]["labels"].items() >= {"project": "mlo", "runai/queue": "mlo"}.items()


def test_status_through_kubernetes_is_the_operators() -> None:
    """Through Kubernetes the status is read as that of a PyTorchJob."""
    assert runai.read_status(Observation({"Pod/worker-0": {}}, frozenset())).state == "gone"


# --- the job's status


def observe(**statuses: str) -> dict[str, Any]:
    """Two pods with these statuses from the CLI; `job` is the job's own."""
    names = {"job": "", "master": "m", "worker": "w"}
    response = {
        "statuses": {names[name]: state_name for name, state_name in statuses.items()},
        "reason": "",
        "is_deleted": "gone" in statuses.values(),
    }
    response |= {"started": {}, "ended": {"w": 1.0, "m": 2.0}, "since": dict.fromkeys(("m", "w", ""), 100.0)}
    return {"node-0": get_pod_status(response, "m"), "node-1": get_pod_status(response, "w")}


@pytest.mark.parametrize(
    ("pod_states", "state", "reason"),
    [
        ({"job": "Pending"}, "pending", "0 of 2 pods run"),
        ({"job": "Running", "worker": "ContainerCreating"}, "pending", "1 of 2 pods run"),
        ({"job": "Running"}, "running", "2 of 2 pods run"),
        ({"job": "Succeeded", "master": "Succeeded", "worker": "Running"}, "running", "2 of 2 pods run"),
        ({"job": "Running", "master": "Succeeded", "worker": "Succeeded"}, "succeeded", "2 of 2 pods succeeded"),
        ({"job": "COMPLETED"}, "succeeded", "2 of 2 pods succeeded"),
        ({"job": "Running", "worker": "Failed"}, "failed", "node-1 ended as Failed"),
        ({"job": "Failed", "master": "Failed", "worker": "Error"}, "failed", "node-1 ended as Error"),
        ({"job": "Succeeded", "worker": "Failed"}, "failed", "node-1 ended as Failed"),
        ({"job": "Something"}, "pending", "0 of 2 pods run"),
        ({"job": "gone"}, "gone", "the job was deleted from Run:ai by another user"),
    ],
)
def test_state_is_read_from_statuses(pod_states: dict[str, str], state: str, reason: str) -> None:
    """Pods count more than the job, failure counts more than success, and an unknown status is not an end."""
    status = runai.read_status(Observation(observe(**pod_states), frozenset(), 101.0))
    assert (status.state, status.reason) == (state, reason)


@pytest.mark.parametrize(
    ("state_name", "cause", "retry"),
    [
        ("Preempted", "preempted", True),
        ("TimedOut", "pod-deadline", False),
        ("OOMKilled", "oom-pod", False),
        ("ContainerCannotRun", "start-error", False),
        ("ImagePullBackOff", "image-pull", False),
        ("ErrImagePull", "image-pull", False),
    ],
)
def test_status_that_no_log_shows_is_the_cause(state_name: str, cause: str, retry: bool) -> None:
    """A cause that no log shows is read from Run:ai's status, and an image error counts only after a while."""
    failure = runai.read_status(Observation(observe(job=state_name), frozenset(), 200.0)).failure
    assert failure
    assert (failure.cause, failure.retry) == (cause, retry)


def test_recent_image_error_is_not_a_failure() -> None:
    """A registry that failed a moment ago is waited for."""
    status = runai.read_status(Observation(observe(job="ErrImagePull"), frozenset(), 101.0))
    assert (status.state, status.reason) == ("pending", "0 of 2 pods run")


def test_missing_response_is_not_an_end() -> None:
    """Before the CLI's first response the job is pending."""
    status = runai.read_status(Observation({"node-0": {}, "node-1": {}}, frozenset()))
    assert (status.state, status.reason) == ("pending", "0 of 2 pods run; Run:ai has reported no state so far")


@pytest.mark.parametrize(
    ("pod_states", "failed_command", "sentence"),
    [
        ({"job": "Pending"}, "", "node-0: Pending"),
        ({"job": "Running", "worker": "ContainerCreating"}, "", "node-1: ContainerCreating"),
        ({"job": "Pending"}, "no route", "node-0: Pending; no route"),
        ({"job": "Running"}, "no route", "no route"),
        ({"job": "Running"}, "", None),
    ],
)
def test_wait_is_explained_by_the_cli(pod_states: dict[str, str], failed_command: str, sentence: str | None) -> None:
    """The explanation has Run:ai's word for the first pod that waits, and why the CLI does not answer."""
    states = {name: state | {"detail": failed_command} for name, state in observe(**pod_states).items()}
    diagnosis = explain_waiting_processes(states, ())
    assert (diagnosis.sentence if diagnosis else None) == sentence
    assert diagnosis is None or diagnosis.failure is None
