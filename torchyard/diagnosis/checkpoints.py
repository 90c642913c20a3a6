"""Reads the checkpoints of a job from its logs: what the recorders report, and what rank 0 prints.

A recorder reports a checkpoint that it has looked at, in the folder of TORCHYARD_CHECKPOINTS. A program may also print
`{"checkpoint": PATH, "step": N}`: that shows a save, but not that it is complete.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from torchyard.common.json_text import parse_json
from torchyard.diagnosis.hang.records import read_record_text
from torchyard.model.base import FrozenModel
from torchyard.model.checkpoint import Checkpoint, CheckpointState

PRINTED_MARKER = b'"checkpoint"'  # of a line that the program prints
RECORD_MARKER = b'"kind":"checkpoint"'  # of a line of a recorder
_MAX_CHECKPOINTS = 1000  # that are remembered: the oldest are forgotten
_MAX_PATH_CHARS = 1024


class _Record(FrozenModel):
    """A recorder's line about a checkpoint; see torchyard/host/black_box/checkpoint_watch.py."""

    model_config = ConfigDict(extra="ignore")  # of a newer recorder

    kind: Literal["checkpoint"]
    path: str = Field(min_length=1, max_length=_MAX_PATH_CHARS)
    state: CheckpointState
    step: int | None = Field(None, ge=0)
    format: str = Field("", max_length=100)
    size_bytes: int | None = Field(None, ge=0, alias="bytes")
    save_s: float | None = Field(None, ge=0, alias="seconds", allow_inf_nan=False)
    saved_at: float = Field(ge=0, allow_inf_nan=False)
    problem: str | None = Field(None, max_length=1000)


class CheckpointReader:
    """Collects checkpoints from the lines of a job's logs, each node's in order.

    checkpoints: the latest state of each, in the order of their last change.
    """

    def __init__(self) -> None:
        self._by_path: dict[str, Checkpoint] = {}

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return tuple(self._by_path.values())

    def add_record(self, text: str) -> None:
        """Take a line of a recorder; a line that is malformed, or is about something else, is ignored."""
        try:
            record = _Record.model_validate_json(read_record_text(text) or "")
        except ValidationError:
            return
        previous = self._by_path.get(record.path)
        step = record.step
        if step is None and previous:  # the program knows the step of a checkpoint whose name does not have it
            step = previous.step
        self._store(
            Checkpoint(
                path=record.path,
                state=record.state,
                is_observed=True,
                step=step,
                format=record.format,
                size_bytes=record.size_bytes,
                save_s=record.save_s,
                saved_at=record.saved_at,
                problem=record.problem or "",
            )
        )

    def add_printed(self, text: str, timestamp: float) -> None:
        """Take a line that rank 0 printed at `timestamp`; a line that is not a JSON object with a path is ignored."""
        values = _parse_object(text)
        path = values.get("checkpoint")
        if not isinstance(path, str) or not 0 < len(path) <= _MAX_PATH_CHARS:
            return
        step = values.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            step = None
        known = self._by_path.get(path)
        if known and known.is_observed:  # a recorder has looked at it, and sees its changes
            self._store(known.model_copy(update={"step": known.step if step is None else step}))
        else:
            self._store(Checkpoint(path=path, state="unverified", step=step, saved_at=timestamp))

    def _store(self, checkpoint: Checkpoint) -> None:
        self._by_path.pop(checkpoint.path, None)
        self._by_path[checkpoint.path] = checkpoint
        if len(self._by_path) > _MAX_CHECKPOINTS:
            del self._by_path[next(iter(self._by_path))]


def _parse_object(text: str) -> dict[str, Any]:
    """The JSON object of a line; empty if it is not one."""
    start = text.find("{")
    try:
        values = parse_json(text[start:]) if start >= 0 else None
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def select_resume_checkpoint(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The checkpoint from which a new attempt continues: the last one that is complete; None if there is none.

    If no recorder has looked at any checkpoint, because their folder is out of its reach, the program's lines are
    believed. A torn or removed checkpoint never counts.
    """
    is_observed = any(checkpoint.is_observed for checkpoint in checkpoints)
    needed_state: CheckpointState = "complete" if is_observed else "unverified"
    candidates = [checkpoint for checkpoint in checkpoints if checkpoint.state == needed_state]
    return max(candidates, key=_get_order, default=None)


def _get_order(checkpoint: Checkpoint) -> tuple[float, float]:
    """By the time of the save, then by the step."""
    return checkpoint.saved_at, -math.inf if checkpoint.step is None else checkpoint.step
