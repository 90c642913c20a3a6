"""Weights & Biases: a run in a project, online or offline according to the launcher's environment (WANDB_MODE)."""

import os
from collections.abc import Sequence
from typing import Any

from torchyard.model.observe import Wandb
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint

# wandb sets it. It is removed again, because a job that inherits it would write through this process's connection.
_SERVICE_VARIABLE = "WANDB_SERVICE"


class WandbRun:
    """One run, whose id is that of torchyard's run."""

    def __init__(self, options: Wandb) -> None:
        self._options = options
        self._run: Any = None

    def open(self, experiment: Experiment) -> None:
        import wandb

        previous_service = os.environ.get(_SERVICE_VARIABLE)
        self._run = wandb.init(
            project=self._options.project or experiment.profile,
            entity=self._options.entity,
            id=experiment.run_id.replace("-", ""),
            name=experiment.run,
            resume="allow",
            dir=experiment.folder,
            config=dict(experiment.parameters) | dict(experiment.tags),
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True, save_code=False
            ),
        )
        if previous_service is None:
            os.environ.pop(_SERVICE_VARIABLE, None)

    def write(self, points: Sequence[MetricPoint]) -> None:
        for point in points:
            self._run.log({"row": point.step} | dict(point.numbers))

    def close(self, end: ExperimentEnd) -> None:
        self._run.summary.update(dict(end.numbers) | dict(end.tags))
        self._run.finish(exit_code=0 if end.end == "succeeded" else 1)
