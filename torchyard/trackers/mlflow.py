"""MLflow: a run in an experiment of a tracking server or of a database file."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard.model.observe import Mlflow
from torchyard.model.run import End
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_QUIET_VARIABLE = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"  # otherwise MLflow prints into the run's log
_ID_TAG = "torchyard.run_id"
# The limits of one request.
_MAX_POINTS = 1000
_MAX_PARAMETERS = 100
_MAX_TAG_CHARS = 4000
_INVALID_KEY_CHAR = re.compile(r"[^\w\-. /]")
# The status of a run by its end; KILLED for other ends.
_STATUSES: Mapping[End, str] = {"succeeded": "FINISHED", "failed": "FAILED", "gave-up": "FAILED"}


class MlflowRun:
    """One run, found by a tag with the id of torchyard's run."""

    def __init__(self, options: Mlflow) -> None:
        self._options = options
        self._id = ""
        self._client: Any = None

    def open(self, experiment: Experiment) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        os.environ.setdefault(_QUIET_VARIABLE, "true")
        client = MlflowClient(tracking_uri=self._options.uri or os.environ[URI_VARIABLE])
        self._client = client
        experiment_id = _get_or_create_experiment(client, self._options.experiment or experiment.profile)
        id_tag = {_ID_TAG: experiment.run_id}
        runs = client.search_runs([experiment_id], f"tags.`{_ID_TAG}` = '{experiment.run_id}'", max_results=1)
        run = runs[0] if runs else client.create_run(experiment_id, run_name=experiment.run, tags=id_tag)
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        values = {_build_valid_name(name): value for name, value in experiment.parameters.items()}
        parameters = [Param(name, value) for name, value in values.items()]  # one value of each: more are refused
        tags = [RunTag(name, value) for name, value in _shorten_tags(dict(experiment.tags) | id_tag).items()]
        client.log_batch(self._id, params=parameters[:_MAX_PARAMETERS], tags=tags)

    def write(self, points: Sequence[MetricPoint]) -> None:
        from mlflow.entities import Metric

        metrics: list[Metric] = []
        for point in points:
            timestamp_ms = int(1000 * point.timestamp)
            for name, value in point.numbers.items():
                metrics.append(Metric(_build_valid_name(name), value, timestamp_ms, point.step))
        for start in range(0, len(metrics), _MAX_POINTS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MAX_POINTS])

    def close(self, end: ExperimentEnd) -> None:
        from mlflow.entities import RunTag

        self.write([MetricPoint(0, end.timestamp, end.numbers)])
        tags = [RunTag(name, value) for name, value in _shorten_tags(end.tags).items()]
        self._client.log_batch(self._id, tags=tags)
        self._client.set_terminated(self._id, _STATUSES.get(end.end, "KILLED"), int(1000 * end.timestamp))


def _get_or_create_experiment(client: Any, name: str) -> str:
    """The id of the experiment of this name."""
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing:
        return str(existing.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run has just created it
        existing = client.get_experiment_by_name(name)
        if existing is None:
            raise
        return str(existing.experiment_id)


def _build_valid_name(name: str) -> str:
    """The name of a parameter or a metric as MLflow takes it, which may use it as a file's path: `a/b` for `/a//b`."""
    parts = [part for part in _INVALID_KEY_CHAR.sub("_", name).split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "_"


def _shorten_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:_MAX_TAG_CHARS] for name, value in tags.items()}
