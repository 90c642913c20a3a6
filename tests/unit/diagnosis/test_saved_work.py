"""The sentence about what an attempt has saved, and what is lost."""

import pytest

from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.diagnosis.saved_work import describe_saved_work
from torchyard.model.checkpoint import Checkpoint, StopRequest

STOP = StopRequest(author="cancelled through Prefect", asked_at=1000.0, grace_s=90.0)


@pytest.mark.parametrize(
    ("checkpoints", "stop", "sentence", "lost_s"),
    [
        (
            [build_checkpoint("/c/a", saved_at=100.0, step=880), build_checkpoint("/c/b", saved_at=1041.0, step=1204)],
            STOP,
            "step 1,204 was saved 41 s after the stop, of 90 s: nothing is lost",
            0.0,
        ),
        (
            [build_checkpoint("/c/a", saved_at=40.0, step=880)],
            STOP,
            "nothing was saved after the stop, within 90 s: 16 min 00 s of work since step 880 is lost",
            960.0,
        ),
        (
            [build_checkpoint("/c/a", saved_at=40.0), build_checkpoint("/c/b", "torn", saved_at=1050.0)],
            STOP,
            "the save of b was not finished within 90 s: 16 min 00 s of work since a is lost",
            960.0,
        ),
        (
            [build_checkpoint("/c/b", "torn", saved_at=1050.0)],
            STOP,
            (
                "the save of b was not finished within 90 s: the work of this attempt is lost, because none of its "
                "checkpoints is complete"
            ),
            None,
        ),
        (
            [build_checkpoint("/c/b", "unverified", saved_at=1050.0, step=7, is_observed=False)],
            STOP,
            "step 7 was saved 50 s after the stop, of 90 s, as the program reports (not verified): nothing is lost",
            0.0,
        ),
        ([build_checkpoint("/c/a", saved_at=40.0, step=880)], None, "1 min 00 s of work since step 880 is lost", 60.0),
    ],
)
def test_sentence_names_what_is_saved_and_what_is_lost(
    checkpoints: list[Checkpoint], stop: StopRequest | None, sentence: str, lost_s: float | None
) -> None:
    """Work is lost from the last complete checkpoint on, until the stop or the end."""
    saved_work = describe_saved_work(checkpoints, stop, 100.0)
    assert saved_work is not None
    assert (saved_work.sentence, saved_work.lost_s) == (sentence, lost_s)


def test_job_without_checkpoints_has_no_sentence() -> None:
    """Nothing is reported of a program that saves nothing, such as a benchmark."""
    assert describe_saved_work([], STOP, 100.0) is None
