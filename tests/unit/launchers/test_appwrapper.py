"""AppWrappers: a PyTorchJob inside another object, of either controller."""

from typing import Any

import pytest

from tests.conftest import Planned
from torchyard.launchers import appwrapper
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Controller, CrdServed, Permission, ReferencedObject
from torchyard.model.run import Observation

MCAD = ["mcad.ibm.com/v1beta1", "workload.codeflare.dev/v1beta1"]
PREFIX = "workload.codeflare.dev.appwrapper/"


@pytest.fixture
def wrapped(planned: Planned) -> Planned:
    """Plan the AppWrapper of two nodes."""

    def plan(**keys: Any) -> ManifestPlan:
        return planned(**{"launcher": "appwrapper", "rendezvous": "static", "nodes": 2, **keys})

    return plan


def of(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [requirement for requirement in plan.requires if isinstance(requirement, kind)]


def inner(plan: ManifestPlan) -> dict[str, Any]:
    value: Any = plan.main
    for key in appwrapper._find_wrapped_path(plan.main):
        value = value[key]
    job: dict[str, Any] = value
    return job


def seen(**status: Any) -> Observation:
    """An AppWrapper with this status, and nothing in it so far."""
    return Observation({"AppWrapper/a": {"metadata": {}, "status": status}}, frozenset())


# --- the plan


@pytest.mark.parametrize("api", [appwrapper._V1BETA2, *MCAD])
def test_wrapper_holds_the_job_that_pytorchjob_plans(wrapped: Planned, api: str) -> None:
    """Inside is the PyTorchJob's own plan, except for what only the wrapper may do."""
    plan, unwrapped = wrapped(options={"api": api}), wrapped(launcher="pytorchjob")
    assert plan.tasks == unwrapped.tasks == {"master": 1, "worker": 1}
    assert plan.pod["spec"] == unwrapped.pod["spec"]
    assert inner(plan)["metadata"] == unwrapped.main["metadata"]


def test_inner_job_does_not_go_by_itself(wrapped: Planned) -> None:
    """Only the wrapper has a ttl: a component that its own ttl removes would be taken for deleted."""
    plan = wrapped(deadlines={"lease": "10m"})
    assert "ttlSecondsAfterFinished" not in inner(plan)["spec"]["runPolicy"]
    assert plan.main["metadata"]["annotations"][f"{PREFIX}successTTLDuration"] == "600s"


def test_pods_of_a_failed_job_stay_until_they_are_read(wrapped: Planned) -> None:
    """Without this annotation the controller deletes them, and their logs, at once."""
    annotations = wrapped(deadlines={"lease": "1h"}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}deletionOnFailureGracePeriodDuration"] == "3600s"


def test_controller_is_more_patient_than_the_run(wrapped: Planned) -> None:
    """The run decides what is late; the controller would throw the attempt away."""
    annotations = wrapped(deadlines={"start": "30m"}).main["metadata"]["annotations"]
    assert {annotations[f"{PREFIX}{name}GracePeriodDuration"] for name in ("admission", "warmup")} == {"1860s"}


def test_tries_are_the_runs_own(wrapped: Planned) -> None:
    """The controller does not retry: that would delete the pods and logs of the failed try."""
    assert wrapped().main["metadata"]["annotations"][f"{PREFIX}retryLimit"] == "0"


def test_durations_have_no_days(wrapped: Planned) -> None:
    """Durations are in hours at most: Go knows no days, and the controller would ignore them."""
    annotations = wrapped(options={"failure": "2d", "retry_pause": "90s"}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}failureGracePeriodDuration"] == "172800s"
    assert annotations[f"{PREFIX}retryPausePeriodDuration"] == "90s"


def test_pause_may_be_zero(wrapped: Planned) -> None:
    """What the controller waits between two steps may be nothing, and is then written as such."""
    annotations = wrapped(options={"retry_pause": "0s", "deletion_on_failure": 0}).main["metadata"]["annotations"]
    assert annotations[f"{PREFIX}retryPausePeriodDuration"] == "0s"
    assert annotations[f"{PREFIX}deletionOnFailureGracePeriodDuration"] == "0s"


def test_queue_is_a_label_and_is_asked_for(wrapped: Planned) -> None:
    """Kueue reads the queue from a label of the wrapper, and preflight looks for it."""
    plan = wrapped(options={"queue": "team"})
    assert plan.main["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert ReferencedObject(object_kind="LocalQueue", name="team") in plan.requires


@pytest.mark.parametrize("api", MCAD)
def test_dispatcher_learns_of_the_end(wrapped: Planned, api: str) -> None:
    """The dispatcher's AppWrapper has a completionstatus, without which it would be Running for ever."""
    item = wrapped(options={"api": api}).main["spec"]["resources"]["GenericItems"][0]
    assert item["completionstatus"] == "Succeeded,Failed"


@pytest.mark.parametrize("api", MCAD)
def test_dispatcher_counts_the_pods(wrapped: Planned, api: str) -> None:
    """The dispatcher finds the pods by a label, and is given their number and resources."""
    plan = wrapped(options={"api": api}, resources={"gpus": 8, "cpu": 4})
    assert plan.pod["metadata"]["labels"]["appwrapper.mcad.ibm.com"] == plan.job
    assert plan.main["spec"]["schedulingSpec"]["minAvailable"] == 2
    pods = plan.main["spec"]["resources"]["GenericItems"][0]["custompodresources"][0]
    assert (pods["replicas"], pods["requests"]["nvidia.com/gpu"]) == (2, "8")


@pytest.mark.parametrize(("api", "group"), [(appwrapper._V1BETA2, "workload.codeflare.dev"), (MCAD[0], "mcad.ibm.com")])
def test_full_names_tell_the_two_kinds_apart(wrapped: Planned, api: str, group: str) -> None:
    """Both controllers call their kind AppWrapper: requirements name the group."""
    plan = wrapped(options={"api": api})
    assert f"appwrappers.{group}" in {requirement.crd for requirement in of(plan, CrdServed)}
    assert f"appwrappers.{group}" in {requirement.resource for requirement in of(plan, Permission)}
    labels = {requirement.label for requirement in of(plan, Controller)}
    assert ("app.kubernetes.io/name=appwrapper" in labels) == (group != "mcad.ibm.com")


@pytest.mark.parametrize("api", [appwrapper._V1BETA2, *MCAD])
def test_dispatcher_needs_no_right_to_create_what_it_wraps(wrapped: Planned, api: str) -> None:
    """Only the webhook of v1beta2 asks for the right to create a PyTorchJob, and each product has its own remedy."""
    plan = wrapped(options={"api": api})
    (rights,) = (
        requirement.verbs for requirement in of(plan, Permission) if requirement.resource == "pytorchjobs.kubeflow.org"
    )
    assert ("create" in rights, {"list", "watch"} <= set(rights)) == (api not in MCAD, True)
    installs = [requirement.install for requirement in of(plan, CrdServed) if "appwrappers" in requirement.crd]
    assert ["multi-cluster-app-dispatcher" in install for install in installs] == [api in MCAD]


# --- its status; recorded ones are in test_registry.py


@pytest.mark.parametrize("phase", ["", "Suspended", "Resuming", "Resetting", "Suspending", "Running", "Pending", "Odd"])
def test_wrapper_without_a_job_waits(phase: str) -> None:
    """Before there is a PyTorchJob the wrapper is pending, whatever its phase says."""
    assert appwrapper.read_status(seen(phase=phase)).state == "pending"


def test_why_it_waits_is_told() -> None:
    """The reason quotes Kueue's condition, which says what is missing."""
    missing_quota = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for nvidia.com/gpu"}
    status = appwrapper.read_status(seen(phase="Suspended", conditions=[missing_quota]))
    assert status.reason == "the AppWrapper waits for its queue: insufficient quota for nvidia.com/gpu"


def test_job_that_was_taken_out_of_it_is_gone() -> None:
    """If a user deletes the PyTorchJob, the job is gone: the controller calls it a missing component."""
    lost = {"type": "Unhealthy", "status": "True", "reason": "MissingComponent", "message": "found only 0"}
    assert appwrapper.read_status(seen(phase="Failed", conditions=[lost])).state == "gone"


@pytest.mark.parametrize("state", [{"phase": "Succeeded"}, {"state": "Completed"}])
def test_success_is_believed_once_the_pods_are_gone(state: dict[str, str]) -> None:
    """Either controller's word for success counts once the pods are gone."""
    assert appwrapper.read_status(seen(**state)).state == "succeeded"


@pytest.mark.parametrize("state", ["Completed", "RunningHoldCompletion"])
def test_dispatchers_end_with_failed_pods_is_a_failure(state: str) -> None:
    """A job whose every pod failed is Completed to the dispatcher, also when its PyTorchJob is gone."""
    assert appwrapper.read_status(seen(state=state, failed=2)).state == "failed"


@pytest.mark.parametrize("state", [{"phase": "Failed"}, {"state": "Failed"}, {"state": "Deleted"}])
def test_failure_is_the_wrappers_word(state: dict[str, str]) -> None:
    """A wrapper that says Failed has failed, whatever is inside."""
    assert appwrapper.read_status(seen(**state)).state == "failed"


def test_wrapper_that_is_not_there_is_gone() -> None:
    """Without its wrapper the job is gone: deleting the wrapper deletes everything inside."""
    assert appwrapper.read_status(Observation({}, frozenset())).state == "gone"


def test_unknown_api_lists_the_known(wrapped: Planned) -> None:
    """An unknown API is refused with the list of the three that exist."""
    with pytest.raises(ProfileError, match=r"options\.api: .*v1beta2.*mcad"):
        wrapped(options={"api": "workload.codeflare.dev/v1"})
