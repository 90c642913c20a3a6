"""What a person sees while the job runs: rank 0's measurements, as lines and as a bar in Prefect."""

import time
from collections.abc import Callable
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.metrics import LINE_READERS, describe, read_progress
from tasks.model import Row
from tasks.spec import MetricsFormat
from tasks.step import log

EVERY = 2.0


class Progress:
    """Called by wait with rank 0's new lines. Its own troubles never reach the job."""

    def __init__(self, name: str, metrics: MetricsFormat, renew: Callable[[], None]) -> None:
        self._name, self._read, self._renew = name, LINE_READERS[metrics], renew
        self._artifact: UUID | None = None
        self._row: Row = {}
        self._next = 0.0

    def __call__(self, lines: list[str]) -> None:
        for line in lines:
            self._row = {**self._row, **self._read(line)}
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        self._renew()
        if self._row:
            log().info("%s", describe(self._row))
            self._show(read_progress(self._row))
            self._row = {}

    def close(self) -> None:
        """Show the last row, which may have come less than two seconds after the one before."""
        self._next = 0.0
        self([])

    def _show(self, part: float | None) -> None:
        if part is None:
            return
        try:
            if self._artifact is None:
                made = create_progress_artifact(0.0, key="progress", description=self._name)
                self._artifact = made if isinstance(made, UUID) else None
            if self._artifact:
                update_progress_artifact(self._artifact, progress=round(100 * part, 1))
        except Exception as error:
            log().debug("no progress shown: %s", error)
