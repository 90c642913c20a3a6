"""Checkpoints: what is known of each one, where a run continues, and what a stop has saved of its work."""

from typing import Literal

from pydantic import Field

from torchyard.model.base import FrozenModel

CHECKPOINTS_VARIABLE = "TORCHYARD_CHECKPOINTS"  # the folder in which the program saves
RESUME_VARIABLE = "TORCHYARD_RESUME"  # the checkpoint from which the program continues
RESUME_PLACEHOLDER = "resume"  # the same in `args`

# complete: by its own format, where it lies. torn: its save was not finished. gone: it was complete, and was removed.
# unverified: the program printed its path, or its format cannot show whether it is complete.
CheckpointState = Literal["complete", "torn", "gone", "unverified"]


class Checkpoint(FrozenModel):
    """A checkpoint as its node's recorder reported it last, or as the program printed it."""

    path: str = Field(description="in the job: on its host, or in its pods")
    state: CheckpointState
    is_observed: bool = Field(False, description="a recorder has looked at it; False if only the program printed it")
    step: int | None = Field(None, description="None if neither the program nor the checkpoint has it")
    format: str = Field("", description="such as dcp or safetensors; empty if only its path is known")
    size_bytes: int | None = None
    save_s: float | None = Field(None, description="how long the save took, in seconds, as far as its files show it")
    saved_at: float = Field(description="when it was saved, in seconds since the epoch by its node's clock")
    problem: str = Field("", description="why it is not complete")
    attempt: int = 1
    relative_path: str | None = Field(
        None, description="in the folder of checkpoints, if that is copied between hosts; None if `path` stays valid"
    )

    @property
    def name(self) -> str:
        """`step 1,204`, or the last part of its path."""
        return f"step {self.step:,}" if self.step is not None else self.path.rstrip("/").rpartition("/")[2]


class ResumePoint(FrozenModel):
    """The checkpoint from which an attempt continues."""

    path: str
    relative_path: str | None = Field(None, description="see Checkpoint")
    local_path: str | None = Field(None, description="on the launcher's machine; None if it is not known to be there")
    files: tuple[str, ...] = Field(
        (), description="folders on the launcher's machine, or patterns of them, whose checkpoints are copied to hosts"
    )


class StopRequest(FrozenModel):
    """The job was asked to stop before its end."""

    author: str = Field(description="who asked: a person, a deadline, a judgement, or the platform, as a clause")
    asked_at: float = Field(description="in seconds since the epoch, by the clock of the host or the API server")
    grace_s: float = Field(description="how long the job had to end by itself")


class SavedWork(FrozenModel):
    """What an attempt that did not succeed has saved of its work, and what is lost."""

    sentence: str
    checkpoint: Checkpoint | None = Field(None, description="the last one to continue from; None if there is none")
    lost_s: float | None = Field(None, description="seconds of work since then; None if that is not known")
