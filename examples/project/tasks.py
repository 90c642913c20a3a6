"""This project's own steps; torchyard's are torchyard.tasks."""

import json
from pathlib import Path

from prefect import task

from torchyard.tasks import RunResult


@task
def note_best(results: list[RunResult], path: Path) -> RunResult:
    """Write down which run has the smallest loss."""
    best = min(results, key=lambda each: float(each.metrics["loss"] or 0))
    said = {"run": best.run, "loss": best.metrics["loss"], "model": best.checkpoints[0]}
    path.write_text(json.dumps(said) + "\n", encoding="utf-8")
    return best
