"""AppWrappers: a PyTorchJob inside another object, of either controller."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Planned, Write, load, manifest_plan_of
from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.kueue import PREEMPTED, build_workload
from tests.inputs.user_manifests import PYTORCHJOB, Launched, change_spec
from torchyard.launchers import appwrapper
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Controller, CrdServed, Permission, ReferencedObject
from torchyard.model.run import Observation

MCAD = ["mcad.ibm.com/v1beta1", "workload.codeflare.dev/v1beta1"]
PREFIX = "workload.codeflare.dev.appwrapper/"


@pytest.fixture
def plan_wrapped(planned: Planned) -> Planned:
    """Plan the AppWrapper of two nodes."""

    def plan(**keys: Any) -> ManifestPlan:
        return planned(**({"launcher": "appwrapper", "rendezvous": "static", "nodes": 2} | keys))

    return plan


def of(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [requirement for requirement in plan.requires if isinstance(requirement, kind)]


def inner(plan: ManifestPlan) -> dict[str, Any]:
    assert plan.wrapped
    return plan.wrapped


def observe(**status: Any) -> Observation:
    """An AppWrapper with this status, without objects in it so far."""
    return Observation({"AppWrapper/a": {"metadata": {}, "status": status}}, frozenset())


# --- the plan


@pytest.mark.parametrize("api", [appwrapper.V1BETA2, *MCAD])
def test_wrapper_contains_the_job_that_pytorchjob_plans(plan_wrapped: Planned, api: str) -> None:
    """The wrapped object is the PyTorchJob's own plan, except for the fields that only the wrapper may have."""
    plan = plan_wrapped(options={"api": api})
    unwrapped = plan_wrapped(launcher="pytorchjob")
    assert plan.pods == unwrapped.pods == {node: f"{plan.job}-{node}" for node in ("master-0", "worker-0")}
    assert plan.pod["spec"] == unwrapped.pod["spec"]
    assert inner(plan)["metadata"] == unwrapped.main["metadata"]


def test_inner_job_has_no_ttl(plan_wrapped: Planned) -> None:
    """Only the wrapper has a ttl, because a component that its own ttl removes would count as deleted."""
    plan = plan_wrapped(deadlines={"lease": "10m"})
    assert "ttlSecondsAfterFinished" not in inner(plan)["spec"]["runPolicy"]
    assert plan.main["metadata"]["annotations"][f"{PREFIX}successTTLDuration"] == "600s"


def test_pods_of_a_failed_job_stay_until_they_are_read(plan_wrapped: Planned) -> None:
    """An annotation keeps the pods of a failed job, which the controller would delete with their logs immediately."""
    annotations = plan_wrapped(deadlines={"lease": "1h"}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}deletionOnFailureGracePeriodDuration"] == "3600s"


def test_limits_of_the_controller_are_longer_than_the_runs(plan_wrapped: Planned) -> None:
    """The controller's limits end after the run's deadlines, so that torchyard reports what is late."""
    annotations = plan_wrapped(deadlines={"start": "30m"}).main["metadata"]["annotations"]
    assert {annotations[f"{PREFIX}{name}GracePeriodDuration"] for name in ("admission", "warmup")} == {"1860s"}


def test_controller_does_not_retry(plan_wrapped: Planned) -> None:
    """The controller does not retry, because that would delete the pods and logs of the failed try."""
    assert plan_wrapped().main["metadata"]["annotations"][f"{PREFIX}retryLimit"] == "0"


def test_durations_have_no_days(plan_wrapped: Planned) -> None:
    """Durations are written without days, which the controller would ignore."""
    annotations = plan_wrapped(options={"failure": "2d", "retry_pause": "90s"}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}failureGracePeriodDuration"] == "172800s"
    assert annotations[f"{PREFIX}retryPausePeriodDuration"] == "90s"


def test_pause_may_be_zero(plan_wrapped: Planned) -> None:
    """A pause of 0 s between two steps of the controller is written as such."""
    annotations = plan_wrapped(options={"retry_pause": "0s", "deletion_on_failure": 0}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}retryPausePeriodDuration"] == "0s"
    assert annotations[f"{PREFIX}deletionOnFailureGracePeriodDuration"] == "0s"


def test_queue_is_a_label_and_is_required(plan_wrapped: Planned) -> None:
    """Kueue reads the queue from a label of the wrapper, and preflight checks that it exists."""
    plan = plan_wrapped(options={"local_queue": "team"})
    assert plan.main["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert ReferencedObject(object_kind="LocalQueue", name="team") in plan.requires


@pytest.mark.parametrize("api", MCAD)
def test_dispatchers_wrapper_has_a_completionstatus(plan_wrapped: Planned, api: str) -> None:
    """The dispatcher's AppWrapper has a completionstatus, without which it would be Running forever."""
    item = plan_wrapped(options={"api": api}).main["spec"]["resources"]["GenericItems"][0]
    assert item["completionstatus"] == "Succeeded,Failed"


@pytest.mark.parametrize("api", MCAD)
def test_dispatcher_counts_the_pods(plan_wrapped: Planned, api: str) -> None:
    """The dispatcher finds the pods by a label, and gets their number and resources."""
    plan = plan_wrapped(options={"api": api}, resources={"gpus": 8, "cpu": 4})
    assert plan.pod["metadata"]["labels"]["appwrapper.mcad.ibm.com"] == plan.job
    assert plan.main["spec"]["schedulingSpec"]["minAvailable"] == 2
    pods = plan.main["spec"]["resources"]["GenericItems"][0]["custompodresources"][0]
    assert (pods["replicas"], pods["requests"]["nvidia.com/gpu"]) == (2, "8")


@pytest.mark.parametrize(("api", "group"), [(appwrapper.V1BETA2, "workload.codeflare.dev"), (MCAD[0], "mcad.ibm.com")])
def test_requirements_contain_the_api_group(plan_wrapped: Planned, api: str, group: str) -> None:
    """Requirements contain the API group, because both controllers call their kind AppWrapper."""
    plan = plan_wrapped(options={"api": api})
    assert f"appwrappers.{group}" in {requirement.crd for requirement in of(plan, CrdServed)}
    assert f"appwrappers.{group}" in {requirement.resource for requirement in of(plan, Permission)}
    labels = {requirement.label for requirement in of(plan, Controller)}
    assert ("app.kubernetes.io/name=appwrapper" in labels) == (group != "mcad.ibm.com")


@pytest.mark.parametrize("api", [appwrapper.V1BETA2, *MCAD])
def test_dispatcher_needs_no_permission_to_create_a_pytorchjob(plan_wrapped: Planned, api: str) -> None:
    """Only the webhook of v1beta2 requires the permission to create a PyTorchJob; each product has its own remedy."""
    plan = plan_wrapped(options={"api": api})
    (rights,) = (
        requirement.verbs for requirement in of(plan, Permission) if requirement.resource == "pytorchjobs.kubeflow.org"
    )
    assert ("create" in rights, {"list", "watch"} <= set(rights)) == (api not in MCAD, True)
    installs = [requirement.install for requirement in of(plan, CrdServed) if "appwrappers" in requirement.crd]
    assert ["multi-cluster-app-dispatcher" in install for install in installs] == [api in MCAD]


# --- its status; recorded ones are in test_registry.py


@pytest.mark.parametrize("phase", ["", "Suspended", "Resuming", "Resetting", "Suspending", "Running", "Pending", "Odd"])
def test_wrapper_without_a_job_waits(phase: str) -> None:
    """Before there is a PyTorchJob the wrapper is pending, whatever its phase."""
    assert appwrapper.read_status(observe(phase=phase)).state == "pending"


@pytest.mark.parametrize("phase", ["Suspending", "Suspended"])
def test_wrapper_that_kueue_evicts_has_failed(phase: str) -> None:
    """A wrapper whose Workload is evicted is suspended, and its attempt is over."""
    observed = observe(phase=phase)
    states = {key: dict(obj) for key, obj in observed.states.items()}
    for wrapper in states.values():
        wrapper["metadata"] = {"labels": {"kueue.x-k8s.io/queue-name": "q"}}
    states["Workload/appwrapper-train-1"] = build_workload(PREEMPTED)
    status = appwrapper.read_status(observed._replace(states=states))
    assert (status.state, status.failure is not None) == ("failed", True)


def test_failed_try_is_quoted() -> None:
    """The status of a wrapper that starts again quotes why its last try failed."""
    unhealthy = {"type": "Unhealthy", "status": "True", "message": "Found 1 failed components"}
    status = appwrapper.read_status(observe(phase="Resetting", conditions=[unhealthy]))
    assert status.reason == "the AppWrapper removes a failed try, to start again: Found 1 failed components"


@pytest.mark.parametrize(
    ("reason", "deleted_at", "cause"),
    [
        ("InsufficientPodsReady", "2023-11-14T22:13:35Z", None),
        ("AutopilotNoExecute", "2023-11-14T22:13:36Z", None),
        ("InsufficientPodsReady", "2023-11-14T22:13:34Z", "pod-deleted"),
        ("FailedComponent", "2023-11-14T22:13:35Z", "pod-deleted"),
    ],
)
def test_pods_that_the_controller_has_deleted_are_not_the_cause(
    reason: str, deleted_at: str, cause: str | None
) -> None:
    """If the controller ends a try in which nothing failed, its own words are the reason, not the deleted pods."""
    unhealthy = {"type": "Unhealthy", "status": "True", "reason": reason, "message": "1 pods running"}
    observed = observe(phase="Failed", conditions=[unhealthy | {"lastTransitionTime": "2023-11-14T22:13:35Z"}])
    removed = build_ended_pod("Running", 0, 0, deletionTimestamp=deleted_at)
    status = appwrapper.read_status(observed._replace(states=dict(observed.states) | {"Removed/worker-0": removed}))
    assert (status.state, status.failure.cause if status.failure else None) == ("failed", cause)
    assert cause or status.reason == "the AppWrapper failed: 1 pods running"


def test_job_whose_component_was_deleted_is_gone() -> None:
    """If a user deletes the PyTorchJob, the job is gone, which the controller reports as a missing component."""
    lost = {"type": "Unhealthy", "status": "True", "reason": "MissingComponent", "message": "found only 0"}
    assert appwrapper.read_status(observe(phase="Failed", conditions=[lost])).state == "gone"


@pytest.mark.parametrize("state", [{"phase": "Succeeded"}, {"state": "Completed"}])
def test_success_counts_after_the_pods_are_removed(state: dict[str, str]) -> None:
    """The success that either controller reports counts once the pods are removed."""
    assert appwrapper.read_status(observe(**state)).state == "succeeded"


@pytest.mark.parametrize("state", ["Completed", "RunningHoldCompletion"])
def test_completed_wrapper_with_failed_pods_has_failed(state: str) -> None:
    """A Completed wrapper of the dispatcher with failed pods has failed, even if its PyTorchJob is deleted."""
    assert appwrapper.read_status(observe(state=state, failed=2)).state == "failed"


@pytest.mark.parametrize("state", [{"phase": "Failed"}, {"state": "Failed"}, {"state": "Deleted"}])
def test_failed_wrapper_has_failed(state: dict[str, str]) -> None:
    """A wrapper in phase Failed has failed, whatever the state of the PyTorchJob in it."""
    assert appwrapper.read_status(observe(**state)).state == "failed"


def test_missing_wrapper_is_gone() -> None:
    """Without its wrapper the job is gone, because deleting the wrapper deletes its components."""
    assert appwrapper.read_status(Observation({}, frozenset())).state == "gone"


@pytest.mark.parametrize("api", MCAD)
def test_archived_dispatcher_has_no_queue_of_kueue(plan_wrapped: Planned, api: str) -> None:
    """A LocalQueue is refused for the archived dispatcher, whose AppWrappers Kueue does not manage."""
    with pytest.raises(ProfileError, match=r"local_queue: requires api: workload\.codeflare\.dev/v1beta2"):
        plan_wrapped(options={"api": api, "local_queue": "team"})


def test_unknown_api_lists_the_choices(plan_wrapped: Planned) -> None:
    """An unknown API is refused with the list of the three that exist."""
    with pytest.raises(ProfileError, match=r"options\.api: .*v1beta2.*mcad"):
        plan_wrapped(options={"api": "workload.codeflare.dev/v1"})


@pytest.mark.parametrize(
    ("api", "spec", "fault"),
    [
        (
            "workload.codeflare.dev/v1beta2",
            {"components": {"template": PYTORCHJOB}},
            "spec.components: it must be a list",
        ),
        (
            "mcad.ibm.com/v1beta1",
            {"resources": {"GenericItems": [{"genericTemplate": PYTORCHJOB}]}},
            r"spec.resources.GenericItems\[0\].genericTemplate: .*; write generictemplate",
        ),
    ],
)
def test_key_that_hides_the_job_is_named(launched: Launched, api: str, spec: dict[str, Any], fault: str) -> None:
    """A wrapper whose objects cannot be read is refused with the key that hides them."""
    document = {"apiVersion": api, "kind": "AppWrapper", "metadata": {"name": "outer"}, "spec": spec}
    with pytest.raises(ProfileError, match=f"AppWrapper outer, {fault}"):
        launched(document)


def test_master_of_a_wrapped_job_is_the_first_node(write: Write, tmp_path: Path) -> None:
    """The job in an AppWrapper has its rank 0 where the same job alone has it."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "a:1", "command": ["python3", "a.py"]}]}}
    job = change_spec(
        PYTORCHJOB, pytorchReplicaSpecs={"Worker": {"template": template}, "Master": {"template": template}}
    )
    document = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "outer"}}
    text = yaml.safe_dump(document | {"spec": {"components": [{"template": job}]}}, sort_keys=False)
    (tmp_path / "job.yaml").write_text(text)
    plan = manifest_plan_of(load(write(launcher="appwrapper", program=None, manifest="job.yaml")), tmp_path)
    assert list(plan.pods) == ["master-0", "worker-0"]
