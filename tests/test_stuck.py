"""Why a job does not get on: what is read from its objects, events, nodes and queues, without a cluster."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Planned
from tests.test_observed import JUNK, damaged, places
from torchyard.diagnosis import job_status, pod_reasons
from torchyard.diagnosis.no_progress import ClusterContext, Diagnosis, explain_no_progress
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Check, failed_check, passed_check
from torchyard.model.run import Failure, Observation, Outcome, Status
from torchyard.steps.collect import _find_failure

NOW = 1_700_000_000.0
OPEN = passed_check("room", "2 fit on 4 of 9 nodes")
ROOM = failed_check("room", "2 needed, 0 fit; 4 nodes: no nvidia.com/gpu", "ask for less nvidia.com/gpu")
TAINT = failed_check("room", "2 needed, 0 fit; 4 nodes: taint team-b", "add team-b to `pod.tolerations`")
CLOSED = failed_check("queue default", "is Closed; open are: none", "")
NOT_FOUND = 'MountVolume.SetUp failed for volume "a" : secret "a" not found'
GO = 'err: &errors.StatusError{ListMeta:{Self:""}, Message:"pods \\"a\\" is forbidden: exceeded quota: q, '
USED = 'requested: cpu=2, used: cpu=7, limited: cpu=8", Code:403}'
WHOLE = 'requested: cpu=9, used: cpu=0, limited: cpu=8", Code:403}'


def stamp(ago: float) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    """A gang of two pods with 8 GPUs each."""
    return planned(nodes=2, resources={"gpus": 8})


def pod(phase: str = "Pending", **condition: Any) -> dict[str, Any]:
    status = {"phase": phase, "conditions": [{"lastTransitionTime": stamp(30), **condition}] if condition else []}
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": "n-1"}, "status": status}


def unplaced(message: str = "0/9 nodes are available", reason: str = "Unschedulable") -> dict[str, Any]:
    return pod(type="PodScheduled", status="False", reason=reason, message=message)


def event(plan: ManifestPlan, reason: str, message: str, ago: float = 10) -> dict[str, Any]:
    """An event of a pod, seen first `ago` seconds ago, and last just now."""
    thing = {"kind": "Pod", "name": f"{plan.job}-worker-0", "uid": "u"}
    times = {"firstTimestamp": stamp(ago), "lastTimestamp": stamp(1)}
    return {"involvedObject": thing, "reason": reason, "message": message, **times}


def of_job(plan: ManifestPlan, reason: str, message: str) -> dict[str, Any]:
    """An event of the job or its PodGroup, since 100 seconds."""
    return {**event(plan, reason, message, 100), "involvedObject": {"kind": "Job", "name": plan.job}}


def why(plan: ManifestPlan, around: ClusterContext = ClusterContext(), **pods: Mapping[str, Any]) -> Diagnosis | None:  # noqa: B008
    """Why a job does not get on, of which these pods are seen: worker_0."""
    seen: dict[str, Mapping[str, Any]] = {f"Pod/{name.replace('_', '-')}": each for name, each in pods.items()}
    job = {"status": {"state": {"phase": "Pending"}}}
    return explain_no_progress(
        plan, Observation({f"Job/{plan.job}": job, "PodGroup/g": {}, **seen}, frozenset(), NOW), around
    )


def told(found: Diagnosis | None) -> tuple[str, str, bool]:
    assert found
    return found.failure.cause, found.failure.sentence, found.failure.retry


# --- events

EVENTS = {
    "volume that is not there": ("FailedMount", NOT_FOUND, "volume-mount", False),
    "volume that is late": ("FailedMount", "timed out waiting for the condition", "volume-mount", True),
    "disk": ("FailedAttachVolume", "Multi-Attach error for volume", "volume-mount", True),
    "network": ("FailedCreatePodSandBox", 'network-attachment-definitions "a" not found', "pod-network", False),
    "sandbox": ("FailedCreatePodSandBox", "failed to assign an IP address", "pod-network", True),
}


@pytest.mark.parametrize("case", EVENTS)
def test_event_of_a_pod_explains(plan: ManifestPlan, case: str) -> None:
    """What only an event says is a cause, with the pod, and with whether another attempt may go better."""
    reason, message, cause, retry = EVENTS[case]
    found = told(why(plan, ClusterContext([event(plan, reason, message)]), worker_0=pod()))
    assert (found[0], found[2]) == (cause, retry)
    assert found[1].startswith("worker-0: ")
    assert found[1].endswith(f"({reason}: {message})")


def test_event_is_believed_after_its_patience(plan: ManifestPlan) -> None:
    """A Secret that is not there may still come; after a while the job is ended, whatever deadline it has."""
    ends = [
        why(plan, ClusterContext([event(plan, "FailedMount", NOT_FOUND, ago)]), worker_0=pod()) for ago in (30, 100)
    ]
    assert [each.ends for each in ends if each] == [False, True]


@pytest.mark.parametrize("least", [1, 2])
def test_elastic_job_does_without_one_pod(planned: Planned, least: int) -> None:
    """A pod that will never start ends only a job that needs it."""
    plan = planned(nodes={"min": least, "max": 2})
    found = why(plan, ClusterContext([event(plan, "FailedMount", NOT_FOUND, 100)]), worker_0=pod(), worker_1=pod())
    assert found
    assert found.ends == (least == 2)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pod that runs": ({}, pod("Running")),
    "a pod that was there before": ({}, pod() | {"metadata": {"uid": "new"}}),
    "long ago": ({"lastTimestamp": stamp(200), "firstTimestamp": stamp(300)}, pod()),
    "another reason": ({"reason": "BackOff"}, pod()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_event_of_something_else_explains_nothing(plan: ManifestPlan, case: str) -> None:
    """An event counts while the pod that it is about has not started."""
    other, seen = OTHERS[case]
    assert why(plan, ClusterContext([event(plan, "FailedMount", NOT_FOUND) | other]), worker_0=seen) is None


def test_event_of_a_later_attempt_explains_nothing(plan: ManifestPlan) -> None:
    """The name of attempt 10 begins with that of attempt 1."""
    other = {"involvedObject": {"kind": "Job", "name": f"{plan.job}0"}}
    assert why(plan, ClusterContext([of_job(plan, "FailedCreate", "no") | other])) is None


@pytest.mark.parametrize(("end", "ends"), [(USED, False), (WHOLE, True)])
def test_quota_of_others_is_waited_for(plan: ManifestPlan, end: str, ends: bool) -> None:
    """What others use may come free; more than the whole quota never will."""
    found = why(plan, ClusterContext([of_job(plan, "FailedCreate", GO + end)]))
    assert told(found)[0] == "quota"
    assert found
    assert found.ends is ends


def test_error_that_go_has_printed_is_told_by_its_message(plan: ManifestPlan) -> None:
    """Volcano prints an error with all its parts: what the API server said is in the middle."""
    sentence = told(why(plan, ClusterContext([of_job(plan, "FailedCreate", GO + USED)])))[1]
    said = 'pods "a" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=7, limited: cpu=8'
    assert sentence.endswith(f"(FailedCreate: {said})")


# --- nodes, queues, schedulers


def test_node_that_does_not_answer_is_told(plan: ManifestPlan) -> None:
    """The readiness of a running pod that is taken away without a reason is its node's silence."""
    silent = pod("Running", type="Ready", status="False")
    found = told(why(plan, worker_0=pod("Running"), worker_1=silent))
    assert found == ("node-lost", "worker-1: its node n-1 does not answer since 22:12:50 UTC", True)


def test_container_that_is_not_ready_is_no_lost_node(plan: ManifestPlan) -> None:
    """A kubelet that answers says why a pod is not ready."""
    busy = pod("Running", type="Ready", status="False", reason="ContainersNotReady")
    assert why(plan, worker_0=pod("Running"), worker_1=busy) is None


ROOMS: dict[str, tuple[Check | None, str, str]] = {
    "too small": (ROOM, "unschedulable", "and even empty nodes would not do: 2 needed, 0 fit; 4 nodes: no nvidia"),
    "tainted": (TAINT, "taint", "4 nodes: taint team-b; add team-b to `pod.tolerations`"),
    "busy": (OPEN, "unschedulable", "; nodes would do if they were free: 0/9 nodes are available"),
    "not to be seen": (None, "unschedulable", ": 0/9 nodes are available"),
}


@pytest.mark.parametrize("case", ROOMS)
def test_gang_without_room_is_explained(plan: ManifestPlan, case: str) -> None:
    """What the gang needs, and whether its nodes are too small, tainted, or only busy."""
    room, cause, part = ROOMS[case]
    found = told(why(plan, ClusterContext(room=room), worker_0=unplaced(), worker_1=unplaced()))
    assert found[1].startswith("waits for the gang: it needs 2 pods x 8 nvidia.com/gpu")
    assert (found[0], part in found[1], found[2]) == (cause, True, False)


def test_pod_that_only_waits_for_its_gang_is_not_to_blame(plan: ManifestPlan) -> None:
    """The scheduler's word of the pod that does not fit is told, not that of the one that would."""
    fits = unplaced("can possibly be assigned to n-1", "Schedulable")
    assert told(why(plan, worker_0=fits, worker_1=unplaced("no cpu")))[1].endswith(": no cpu")


def test_port_of_another_run_is_told(plan: ManifestPlan) -> None:
    """Who holds the port is named, where this user sees the pod."""
    spec = {"containers": [{"ports": [{"hostPort": 23456}]}], "nodeName": "n-1"}
    mine = unplaced("1 node(s) didn't have free ports for the requested pod ports") | {"spec": spec}
    holder = {"metadata": {"labels": {"torchyard/run": "other"}}, "spec": spec}
    found = told(why(plan, ClusterContext(room=OPEN, pods=[holder]), worker_0=mine))
    assert (found[0], found[2]) == ("host-port", True)
    assert found[1].endswith("no node has port 23456 free (run other has it)")


@pytest.mark.parametrize(
    ("around", "cause", "part"),
    [
        ({"queue": CLOSED}, "queue-closed", "waits for queue default, which is Closed"),
        ({"message": "queue resource quota insufficient: insufficient cpu"}, "queue-full", "insufficient cpu"),
        ({"message": "resource in cluster is overused"}, "unschedulable", "is overused"),
        ({"room": ROOM}, "unschedulable", "even empty nodes would not do"),
    ],
)
def test_job_without_pods_is_explained(plan: ManifestPlan, around: dict[str, Any], cause: str, part: str) -> None:
    """Before there are pods, the queue, an event of the PodGroup, or the nodes say what is waited for."""
    said = around.pop("message", None)
    found = told(why(plan, ClusterContext([of_job(plan, "Unschedulable", said)] if said else [], **around)))
    assert (found[0], part in found[1]) == (cause, True)


def test_job_that_no_controller_has_seen_is_told(plan: ManifestPlan) -> None:
    """A job without any status has a controller that does not run, or is far behind."""
    found = explain_no_progress(
        plan, Observation({f"Job/{plan.job}": {"status": {}}}, frozenset(), NOW), ClusterContext()
    )
    assert told(found)[0] == "controller-silent"


def test_healthy_start_needs_no_explanation(plan: ManifestPlan) -> None:
    """Pods that are made or run are nothing to tell of, whatever Volcano warns of at every start."""
    warning = of_job(plan, "Unschedulable", "0/2 tasks in gang unschedulable: pod group is ready")
    assert why(plan, ClusterContext([warning]), worker_0=pod(), worker_1=pod("Running")) is None


def test_explained_cause_goes_before_the_deadline(plan: ManifestPlan) -> None:
    """Where the cluster knows why a deadline passed, that is the cause, and says whether to try again."""
    known = Failure(cause="host-port", sentence="not started within 4 s (deadlines.start): port", retry=True)
    status = Status(state="failed", reason=known.sentence, failure=known)
    found = _find_failure(plan, Outcome(status=status, cause="start-deadline", exits={}))
    assert (found.cause, found.sentence, found.retry) == (known.cause, known.sentence, True)


# --- images


PULLS = {
    'dial tcp: lookup registry.invalid on 10.0.0.1:53: no such host")': ("registry", True),
    "unexpected status from HEAD request to https://r/v2/a/manifests/1: 503 Service Unavailable": ("registry", True),
    "pull access denied, repository does not exist or may require authorization": ("image", False),
    "r/a:1: not found": ("image", False),
    "something new": ("image", False),
}


@pytest.mark.parametrize("message", PULLS)
def test_registry_that_is_away_is_no_bad_name(message: str) -> None:
    """A registry that does not answer is worth another attempt; a name that it does not know is not."""
    state = {"waiting": {"reason": "ErrImagePull", "message": message}}
    seen = {"status": {"containerStatuses": [{"name": "worker", "state": state}]}}
    found = pod_reasons.find_pod_failure({"worker-0": seen}, NOW)
    assert found
    assert (found.cause, found.retry) == PULLS[message]


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}, "preempted"),
        ({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}, "node-lost"),
        ({"type": "Ready", "status": "False", "reason": "Evict", "message": "because of preempt"}, "preempted"),
    ],
)
def test_who_took_a_pod_away_is_told(condition: dict[str, Any], cause: str) -> None:
    """A pod that is gone when its peers fail has been taken by whom its last conditions name."""
    gone = pod("Running", **condition)
    gone["metadata"]["deletionTimestamp"] = stamp(20)
    failure = job_status.failed_status(Observation({"Removed/worker-0": gone}, frozenset(), NOW), "").failure
    assert failure
    assert (failure.cause, failure.retry) == (cause, True)


# --- anything


@st.composite
def broken(draw: st.DrawFn) -> tuple[Observation, ClusterContext]:
    """A damaged observation, and events and pods of others that are damaged as well."""
    told: dict[str, Any] = {"involvedObject": {"kind": "Pod", "name": "job-worker-0"}, "reason": "FailedMount"}
    told |= {"message": "not found", "firstTimestamp": stamp(9), "series": {"lastObservedTime": stamp(1)}}
    other = {"metadata": {"labels": {"torchyard/run": "a"}}, "spec": {"containers": [{"ports": [{"hostPort": 1}]}]}}
    around = [copy.deepcopy(told), {**told, "reason": draw(st.sampled_from(["FailedCreate", "Unschedulable"]))}, other]
    for _ in range(draw(st.integers(0, 4))):
        thing, key = draw(places(around))
        thing[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        around = [each if each else {"x": 1} for each in around]
    checks = st.sampled_from([None, OPEN, ROOM, CLOSED])
    observed = draw(damaged(spoken=False))[1]
    return observed, ClusterContext(around[:2], draw(checks), draw(checks), around[2:])


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(broken())
def test_anything_is_explained_or_not(plan: ManifestPlan, seen: tuple[Observation, ClusterContext]) -> None:
    """Whatever a cluster says, no explanation breaks; and one that there is is a sentence."""
    found = explain_no_progress(plan.model_copy(update={"job": "job"}), *seen)
    assert found is None or (found.failure.cause and found.failure.sentence)
