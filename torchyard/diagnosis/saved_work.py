"""What an attempt that did not succeed has saved, and how much of its work is lost, as one sentence."""

from collections.abc import Sequence

from torchyard.common.text import format_duration
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.model.checkpoint import Checkpoint, SavedWork, StopRequest

_CLOCK_TOLERANCE_S = 1.0  # of a node's clock against the one that dates the stop


def describe_saved_work(
    checkpoints: Sequence[Checkpoint], stop: StopRequest | None, ended_at: float | None
) -> SavedWork | None:
    """What was saved and what is lost; None if no checkpoint of the attempt was seen.

    `stop`: None if nobody asked the job to stop. `ended_at`: when its last process ended, in seconds since the epoch by
    the clock of its host; None if that is not known.
    """
    if not checkpoints:
        return None
    last = select_resume_checkpoint(checkpoints)
    if stop and last and last.saved_at >= stop.asked_at - _CLOCK_TOLERANCE_S:
        return SavedWork(sentence=_describe_save(last, stop), checkpoint=last, lost_s=0.0)
    worked_until = stop.asked_at if stop else ended_at
    lost_s = max(worked_until - last.saved_at, 0.0) if last and worked_until else None
    sentence = _describe_loss(last, lost_s)
    if stop:
        sentence = f"{_describe_missing_save(checkpoints, stop)}: {sentence}"
    return SavedWork(sentence=sentence, checkpoint=last, lost_s=lost_s)


def _describe_save(last: Checkpoint, stop: StopRequest) -> str:
    """The sentence about a stop after which the job has saved its work."""
    delay_s = max(last.saved_at - stop.asked_at, 0.0)
    proof = "" if last.state == "complete" else ", as the program reports (not verified)"
    return f"{last.name} was saved {delay_s:.0f} s after the stop, of {stop.grace_s:g} s{proof}: nothing is lost"


def _describe_missing_save(checkpoints: Sequence[Checkpoint], stop: StopRequest) -> str:
    """Why nothing was saved after the stop, as far as that was seen."""
    for checkpoint in reversed(checkpoints):
        if checkpoint.state == "torn" and checkpoint.saved_at >= stop.asked_at - _CLOCK_TOLERANCE_S:
            return f"the save of {checkpoint.name} was not finished within {stop.grace_s:g} s"
    return f"nothing was saved after the stop, within {stop.grace_s:g} s"


def _describe_loss(last: Checkpoint | None, lost_s: float | None) -> str:
    """The last checkpoint, and the work since then."""
    if last is None:
        return "the work of this attempt is lost, because none of its checkpoints is complete"
    work = "the work" if lost_s is None else f"{format_duration(lost_s)} of work"
    proof = "" if last.state == "complete" else " (not verified)"
    return f"{work} since {last.name}{proof} is lost"
