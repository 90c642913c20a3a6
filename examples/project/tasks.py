"""The steps of this project; those of torchyard are torchyard.tasks."""

import json
from pathlib import Path

from prefect import task

from torchyard.tasks import RunResult


@task
def note_best(results: list[RunResult], path: Path) -> RunResult:
    """Write the run with the smallest loss to a file, and return it."""
    best = min(results, key=lambda result: float(result.metrics["loss"] or 0))
    summary = {"run": best.run, "loss": best.metrics["loss"], "model": best.checkpoints[0]}
    path.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return best
