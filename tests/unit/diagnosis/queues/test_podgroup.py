"""Volcano's queues, as its PodGroups, events and Queues show them."""

from typing import Any

import pytest

from torchyard.diagnosis.queues.podgroup import read_pod_group, read_volcano_queue
from torchyard.diagnosis.queues.queue import Queue

QUOTA = "queue resource quota insufficient: insufficient cpu"


def build_group(phase: str | None, *messages: str) -> dict[str, Any]:
    """A PodGroup with true conditions, the newest last."""
    conditions = [
        {"status": "True", "message": message, "lastTransitionTime": f"2023-11-14T22:13:2{index}Z"}
        for index, message in enumerate(messages)
    ]
    metadata = {"creationTimestamp": "2023-11-14T22:13:20Z"}
    return {"metadata": metadata, "spec": {"queue": "q"}, "status": {"phase": phase, "conditions": conditions}}


def build_event(message: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": "PodGroup", "name": "job"}, "reason": "Unschedulable", "message": message}


@pytest.mark.parametrize(
    ("phase", "state", "is_admitted"),
    [
        (None, "its PodGroup is new", False),
        ("Pending", "its PodGroup is Pending: the queue is full or closed, or the cluster too small for it", False),
        ("Inqueue", "its PodGroup is Inqueue", True),
        ("Unknown", "its PodGroup is Unknown", True),
    ],
)
def test_phase_shows_whether_the_queue_has_admitted_the_gang(phase: str, state: str, is_admitted: bool) -> None:
    """A gang waits until its PodGroup has left the phase Pending."""
    queue = read_pod_group({"PodGroup/x": build_group(phase)}, ())
    assert queue == Queue(name="q", since=1_700_000_000.0, state=state, is_admitted=is_admitted)


def test_newest_condition_is_quoted() -> None:
    """Of the conditions, of which Volcano resets none, the newest is quoted."""
    queue = read_pod_group({"PodGroup/x": build_group("Pending", "old", "new")}, ())
    assert queue
    assert (queue.missing, queue.state) == ("new", "its PodGroup is Pending")


def test_gang_that_is_admitted_misses_nothing() -> None:
    """Once the queue has admitted the gang, old events and conditions about its wait are not quoted."""
    group = build_group("Inqueue", "3/3 tasks in gang unschedulable")
    queue = read_pod_group({"PodGroup/x": group}, [build_event(QUOTA)])
    assert queue
    assert (queue.missing, queue.is_admitted) == (None, True)


def test_condition_of_success_is_not_missing() -> None:
    """The condition Scheduled says that the gang can be scheduled, not what it lacks."""
    group = build_group("Pending", "tasks in gang are ready to be scheduled")
    group["status"]["conditions"][0]["type"] = "Scheduled"
    queue = read_pod_group({"PodGroup/x": group}, ())
    assert queue
    assert queue.missing is None


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (QUOTA, QUOTA),
        ("0/2 tasks in gang unschedulable: pod group is not ready", None),
    ],
)
def test_event_about_the_quota_counts(message: str, missing: str | None) -> None:
    """Only an event about a quota shows what is missing: others belong to any start."""
    queue = read_pod_group({"PodGroup/x": build_group("Pending")}, [build_event(message)])
    assert queue
    assert queue.missing == missing


def test_event_counts_without_a_pod_group() -> None:
    """If PodGroups may not be read, the event about the quota is enough; without one the queue is unknown."""
    assert read_pod_group({}, [build_event(QUOTA)]) == Queue(missing=QUOTA)
    assert read_pod_group({}, ()) is None


@pytest.mark.parametrize(
    ("state", "refusal"),
    [("Open", None), ("Closed", "is Closed"), (None, "has no state yet")],
)
def test_queue_accepts_jobs_only_if_it_is_open(state: str | None, refusal: str | None) -> None:
    """A Queue that is not Open refuses jobs."""
    assert read_volcano_queue("q", {"status": {"state": state}}, ()).refusal == refusal


def test_open_queues_are_listed() -> None:
    """For a Queue that does not exist, those that accept jobs are listed in order."""
    all_queues = [
        {"metadata": {"name": name}, "status": {"state": state}}
        for name, state in (("b", "Open"), ("a", "Open"), ("c", "Closed"))
    ]
    assert read_volcano_queue("q", None, all_queues) == Queue(
        name="q", refusal="does not exist", open_queues=("a", "b")
    )
