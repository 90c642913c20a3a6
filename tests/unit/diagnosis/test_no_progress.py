"""Why a job makes no progress: what is read from its objects, events, nodes and queues, without a cluster."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Planned
from tests.recorded_jobs import JUNK, damaged, places
from tests.stuck_pods import (
    KINDS,
    NOT_FOUND,
    NOW,
    PODS,
    READS,
    event,
    of_job,
    pod,
    stamp,
    standing,
    told,
    unplaced,
    why,
)
from torchyard.diagnosis.no_progress import ClusterContext, explain_no_progress
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Check, failed_check, passed_check
from torchyard.model.run import Observation

OPEN = passed_check("room", "2 fit on 4 of 9 nodes")
ROOM = failed_check("room", "2 needed, 0 fit; 4 nodes: no nvidia.com/gpu", "ask for less nvidia.com/gpu")
TAINT = failed_check("room", "2 needed, 0 fit; 4 nodes: taint team-b", "add team-b to `pod.tolerations`")
CLOSED = failed_check("queue default", "is Closed; open queues: none", "")


# --- events


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
    """An event counts only if it is recent and about this pod, and the pod has not started."""
    other, seen = OTHERS[case]
    assert why(plan, ClusterContext([event(plan, "FailedMount", NOT_FOUND) | other]), worker_0=seen) is None


def test_event_of_a_later_attempt_explains_nothing(plan: ManifestPlan) -> None:
    """An event of attempt 10 does not count for attempt 1, although its name begins with that of attempt 1."""
    other = {"involvedObject": {"kind": "Job", "name": f"{plan.job}0"}}
    assert why(plan, ClusterContext([of_job(plan, "FailedCreate", "no") | other])) is None


# --- nodes, queues, schedulers


def test_node_that_does_not_answer_is_told(plan: ManifestPlan) -> None:
    """A running pod that loses its readiness without a reason is on a node that does not answer."""
    silent = pod("Running", type="Ready", status="False")
    found = told(why(plan, worker_0=pod("Running"), worker_1=silent))
    assert found == ("node-lost", "worker-1: its node n-1 has not answered since 22:12:50 UTC", True)


def test_container_that_is_not_ready_is_no_lost_node(plan: ManifestPlan) -> None:
    """A pod that is not ready for a given reason is not on a lost node: its kubelet answers."""
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
    """The explanation says what the gang needs, and whether its nodes are too small, tainted, or only busy."""
    room, cause, part = ROOMS[case]
    found = told(why(plan, ClusterContext(room=room), worker_0=unplaced(), worker_1=unplaced()))
    assert found[1].startswith("waits for the gang: it needs 2 pods x 8 nvidia.com/gpu")
    assert (found[0], part in found[1], found[2]) == (cause, True, False)


def test_pod_that_only_waits_for_its_gang_is_not_to_blame(plan: ManifestPlan) -> None:
    """The explanation quotes the scheduler about the pod that does not fit, not about one that would."""
    fits = unplaced("can possibly be assigned to n-1", "Schedulable")
    assert told(why(plan, worker_0=fits, worker_1=unplaced("no cpu")))[1].endswith(": no cpu")


def test_port_of_another_run_is_told(plan: ManifestPlan) -> None:
    """The run that holds the port is named if this user may see its pod."""
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
    """Before there are pods, the queue, an event about the PodGroup, or the nodes explain the wait."""
    said = around.pop("message", None)
    found = told(why(plan, ClusterContext([of_job(plan, "Unschedulable", said)] if said else [], **around)))
    assert (found[0], part in found[1]) == (cause, True)


def test_job_that_no_controller_has_seen_is_told(plan: ManifestPlan) -> None:
    """A job without any status has a controller that does not run, or is far behind."""
    found = explain_no_progress(
        plan, Observation({f"Job/{plan.job}": {"status": {}}}, frozenset(), NOW), ClusterContext()
    )
    assert told(found)[0] == "controller-silent"


@pytest.mark.parametrize(
    ("phase", "ago", "missed"), [("Inqueue", 40, True), ("Inqueue", 5, False), ("Pending", 40, False)]
)
def test_admitted_gang_without_pods_was_missed(plan: ManifestPlan, phase: str, ago: float, missed: bool) -> None:
    """A gang that is out of its queue and gets no pods waits for its controller; another attempt may be noticed."""
    seen: dict[str, Any] = {
        f"Job/{plan.job}": {"status": {"state": {"phase": "Pending"}}},
        "PodGroup/x": {"status": {"phase": phase}},
    }
    seen[f"Job/{plan.job}"]["metadata"] = {"creationTimestamp": stamp(ago)}
    found = explain_no_progress(plan, Observation(seen, frozenset(), NOW), ClusterContext())
    assert bool(found) == missed
    if found:
        assert (found.failure.cause, found.failure.retry) == ("controller-silent", True)
        assert "its controller has created no pods so far" in found.failure.sentence


def test_healthy_start_needs_no_explanation(plan: ManifestPlan) -> None:
    """A healthy start has no explanation, despite the warning that Volcano gives at every start."""
    warning = of_job(plan, "Unschedulable", "0/2 tasks in gang unschedulable: pod group is ready")
    assert why(plan, ClusterContext([warning]), worker_0=pod(), worker_1=pod("Running")) is None


# --- images


# --- anything


@st.composite
def broken(draw: st.DrawFn) -> tuple[Observation, ClusterContext]:
    """A damaged observation, with damaged events and pods around it."""
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
    """Whatever a cluster says, explaining it does not fail, and an explanation has a cause and a sentence."""
    found = explain_no_progress(plan.model_copy(update={"job": "job"}), *seen)
    assert found is None or (found.failure.cause and found.failure.sentence)


@pytest.mark.parametrize("launcher", KINDS)
def test_a_warning_costs_one_look_at_its_pod(planned: Planned, launcher: str) -> None:
    """More warnings add only a few reads of the pod that each one is about."""
    plan = planned(nodes=PODS, launcher=launcher)
    few, many = standing(plan, 1), standing(plan, 3)
    for observed, around, _ in (few, many):
        found = explain_no_progress(plan, observed, around)
        assert found
        assert found.failure.cause == "volume-mount"
    reads = [max(pod.reads for pod in pods) for _, _, pods in (few, many)]
    assert reads[0] <= READS
    assert reads[1] - reads[0] <= 2 * 2 * 2  # two more warnings, each in two places
