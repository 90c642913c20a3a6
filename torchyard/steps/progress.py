"""What a person sees while the job runs: rank 0's measurements, as lines and as a bar in Prefect."""

import time
from collections.abc import Callable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.runtime import flow_run, task_run

from tasks.reporter import Reporter
from torchyard.common import escaping
from torchyard.common.log import log
from torchyard.metrics.registry import LINE_READERS, describe, read_progress
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Row

EVERY = 2.0
LONGEST = 500  # characters of a line


class Progress:
    """Called by wait with rank 0's new lines. Its own troubles never reach the job.

    `beat` is called every other second; what it raises ends the wait.
    """

    def __init__(self, name: str, metrics: MetricsFormat, reporter: Reporter, beat: Callable[[], None]) -> None:
        self._name, self._read, self._reporter, self._beat = name, LINE_READERS[metrics], reporter, beat
        self._artifact: UUID | None = None
        self._row: Row = {}
        self._next = 0.0

    def __call__(self, lines: list[str]) -> None:
        for line in lines:
            self._row = {**self._row, **self._read(line)}
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._beat()
            self.close()

    def close(self) -> None:
        """Say what has not been said yet: the last row may come less than two seconds after the one before."""
        if self._row:
            log().info("%s", escaping.line(describe(self._row), LONGEST))
            self._show(read_progress(self._row))
            self._row = {}

    def _show(self, part: float | None) -> None:
        """Show in Prefect how much is done."""
        if part is None:
            return
        value, runs = round(100 * part, 1), {"flow_run_id": flow_run.id, "task_run_id": task_run.id}

        def call(client: SyncPrefectClient) -> None:
            if self._artifact:
                client.update_artifact(self._artifact, ArtifactUpdate(data=value))
            else:
                about = {"key": "progress", "type": "progress", "description": self._name}
                self._artifact = client.create_artifact(ArtifactCreate(data=value, **about, **runs)).id

        self._reporter.send("progress", call)
