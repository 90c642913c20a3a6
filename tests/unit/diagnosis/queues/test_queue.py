"""The sentence about a job in a queue, whatever kind of queue reports it."""

import pytest

from torchyard.diagnosis.queues.queue import Queue, describe_queue, describe_refusal

SINCE = 1_700_000_000.0


@pytest.mark.parametrize(
    ("queue", "sentence"),
    [
        (Queue(), "the job waits in its queue"),
        (Queue(name="a", position=3, length=7), "the job waits in queue a at position 3 of 7"),
        (Queue(name="a", position=1), "the job waits in queue a at position 1"),
        (Queue(since=SINCE), "the job waits in its queue since 22:13:20 UTC"),
        (Queue(name="a", missing="no cpu", holder="run x"), "the job waits in queue a: no cpu; run x has it"),
        (Queue(name="a", state="it is new"), "the job waits in queue a (it is new)"),
        (Queue(name="a", is_admitted=True, since=SINCE), "queue a has admitted the job"),
        (Queue(name="a", refusal="is Closed"), "the job waits for queue a, which is Closed"),
        (
            Queue(refusal="is Closed", open_queues=("b", "c")),
            "the job waits for its queue, which is Closed; open queues: b, c",
        ),
    ],
)
def test_known_facts_are_in_the_sentence(queue: Queue, sentence: str) -> None:
    """The sentence contains what is known, and nothing about the rest."""
    assert describe_queue(queue, "the job") == sentence


def test_refusal_without_open_queues_is_complete() -> None:
    """If no queue accepts jobs, the refusal states that."""
    assert describe_refusal(Queue(name="a", refusal="is Closed", open_queues=())) == "is Closed; open queues: none"
