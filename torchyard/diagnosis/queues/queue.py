"""A job's place in a queue, and the sentence about it: the same for every kind of queue."""

from datetime import UTC, datetime
from typing import NamedTuple


class Queue(NamedTuple):
    """What is known about a job that waits in a queue; a field is None if it is unknown.

    name: of the queue: `default`.
    position: of the job; 1 is the next to start.
    length: how many jobs wait in the queue, this one included.
    missing: what the queue lacks for the job, in the scheduler's words: `insufficient cpu`.
    holder: who has it: a job, a run or a user.
    since: when the job began to wait, in seconds since the epoch.
    state: what the queue's object reports about the job, as a clause: `its PodGroup is Pending`.
    is_admitted: whether the job has left the queue, so that its controller creates the pods next.
    refusal: why the queue accepts no job, as a clause: `is Closed`; None if it accepts jobs, too.
    open_queues: the queues that accept jobs, in order.
    """

    name: str | None = None
    position: int | None = None
    length: int | None = None
    missing: str | None = None
    holder: str | None = None
    since: float | None = None
    state: str | None = None
    is_admitted: bool | None = None
    refusal: str | None = None
    open_queues: tuple[str, ...] | None = None


def describe_queue(queue: Queue, subject: str) -> str:
    """The sentence about a job in a queue; `subject`: `the gang of 2 pods x 8 nvidia.com/gpu`.

    `SUBJECT waits in queue default at position 3 of 7 since 22:13:20 UTC (its PodGroup is Pending): insufficient cpu`
    """
    if queue.refusal:
        return f"{subject} waits for {_describe_name(queue)}, which {describe_refusal(queue)}"
    if queue.is_admitted:
        sentence = f"{_describe_name(queue)} has admitted {subject}"
    else:
        sentence = f"{subject} waits in {_describe_name(queue)}{_describe_position(queue)}"
        if queue.since:
            sentence += f" since {datetime.fromtimestamp(queue.since, UTC):%H:%M:%S} UTC"
    if queue.state:
        sentence += f" ({queue.state})"
    if queue.missing:
        sentence += f": {queue.missing}"
    if queue.holder:
        sentence += f"; {queue.holder} has it"
    return sentence


def describe_refusal(queue: Queue) -> str:
    """`is Closed; open queues: a, b` of a queue with a refusal."""
    if queue.open_queues is None:
        return f"{queue.refusal}"
    return f"{queue.refusal}; open queues: {', '.join(queue.open_queues) or 'none'}"


def _describe_name(queue: Queue) -> str:
    return f"queue {queue.name}" if queue.name else "its queue"


def _describe_position(queue: Queue) -> str:
    """` at position 3 of 7`; "" if the position is unknown."""
    if queue.position is None:
        return ""
    suffix = "" if queue.length is None else f" of {queue.length}"
    return f" at position {queue.position}{suffix}"
