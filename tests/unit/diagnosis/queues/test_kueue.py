"""Kueue's queues, as a suspended job shows them."""

from typing import Any

import pytest

from torchyard.diagnosis.queues.kueue import read_suspended_job
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
