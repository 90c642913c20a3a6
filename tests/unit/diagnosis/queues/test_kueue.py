"""Kueue's queues, as a suspended job and its Workload show them."""

from typing import Any

import pytest

from tests.inputs.kueue import EVICTED_AT, PREEMPTED, WAITING, build_workload
from torchyard.diagnosis.queues.kueue import describe_deactivation, find_eviction, read_suspended_job
from torchyard.diagnosis.queues.queue import Queue

QUOTA = {
    "type": "QuotaReserved",
    "status": "False",
    "message": "no quota",
    "lastTransitionTime": "2023-11-14T22:13:20Z",
}
SUSPENDED = {"type": "Suspended", "status": "True"}


def build_job(queue: str | None, phase: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {"metadata": {"labels": labels}, "status": {"phase": phase, "conditions": list(conditions)}}


@pytest.mark.parametrize(
    ("job", "queue"),
    [
        (build_job("q", "Suspended", QUOTA), Queue(name="q", missing="no quota", since=1_700_000_000.0)),
        (build_job(None, "Suspended"), Queue()),
        (build_job("q", "", SUSPENDED), Queue(name="q")),
        (build_job(None, "", SUSPENDED), None),
        (build_job("q", "Running"), None),
        (build_job("q", "Running", QUOTA | {"status": "True"}), None),
        ({}, None),
    ],
)
def test_suspended_job_is_in_a_queue(job: dict[str, Any], queue: Queue | None) -> None:
    """An AppWrapper that is suspended waits in a queue; a job of another kind only if it names the queue."""
    assert read_suspended_job(job) == queue


def test_workload_has_the_reason_why_a_job_waits() -> None:
    """A suspended Job waits for what its Workload reports, in Kueue's words, since the condition changed."""
    job = build_job("q", "", SUSPENDED)
    queue = read_suspended_job(job, build_workload(WAITING))
    missing = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor any, 1 more needed"
    assert queue == Queue(name="q", missing=missing, since=EVICTED_AT)


def test_preempted_job_has_lost_its_place() -> None:
    """Kueue's own words name the reason, without ids; the job was asked to stop when the condition was set."""
    failure = find_eviction(build_job("q", "", SUSPENDED), build_workload(WAITING, PREEMPTED), has_run=True)
    assert failure
    reason = "preempted to accommodate a workload due to prioritization in the ClusterQueue"
    assert (failure.sentence, failure.stopped_at) == (f"Kueue evicted the job from queue q: {reason}", EVICTED_AT)
    assert (failure.cause, failure.requeue) == ("preempted", True)


def test_job_of_an_unreadable_workload_is_evicted_once_it_has_run() -> None:
    """A user who may not read Workloads sees only a suspended job: one that has run and names a queue was evicted."""
    job = build_job("q", "", SUSPENDED | {"lastTransitionTime": "2023-11-14T22:13:20Z"})
    failure = find_eviction(job, None, has_run=True)
    assert failure
    assert (failure.sentence, failure.stopped_at) == ("Kueue suspended the job in queue q", 1_700_000_000.0)
    assert find_eviction(job, None, has_run=False) is None


READMITTED = PREEMPTED | {"status": "False", "message": "Previously: Preempted"}
NOT_READY = PREEMPTED | {"reason": "PodsReadyTimeout", "message": "Exceeded the PodsReady timeout"}


@pytest.mark.parametrize(
    ("queue", "workload", "has_run"),
    [
        pytest.param("q", build_workload(WAITING), False, id="waits for its first admission"),
        pytest.param("q", build_workload(), True, id="suspended by a user"),
        pytest.param(None, None, True, id="suspended by a user, without a queue"),
        pytest.param("q", build_workload(PREEMPTED, active=False), True, id="deactivated by an administrator"),
        pytest.param("q", build_workload(READMITTED), True, id="admitted again"),
        pytest.param("q", build_workload(NOT_READY), False, id="no pod has started: Kueue's own delay goes on"),
    ],
)
def test_suspended_job_keeps_its_place(queue: str | None, workload: dict[str, Any] | None, has_run: bool) -> None:
    """A job that was not evicted, or that an administrator holds back, waits: a new attempt would not help it."""
    assert find_eviction(build_job(queue, "", SUSPENDED), workload, has_run=has_run) is None


def test_preemption_is_known_without_pods() -> None:
    """A launcher that attaches after the preemption has seen no pod of the job run."""
    assert find_eviction(build_job("q", "", SUSPENDED), build_workload(PREEMPTED), has_run=False)


def test_deactivated_workload_is_explained() -> None:
    """Only an administrator activates such a Workload again; one that waits in its queue is not deactivated."""
    deactivated = build_workload(NOT_READY, active=False)
    expected = "its Workload is deactivated: exceeded the PodsReady timeout"
    assert (describe_deactivation(deactivated), describe_deactivation(build_workload(WAITING))) == (expected, "")
    assert describe_deactivation(None) == ""
