"""MLflow: a run in an experiment of a tracking server, or of a database file."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard.model.observe import Mlflow
from torchyard.model.run import End
from torchyard.trackers.tracker import Experiment, ExperimentEnd, Point

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_QUIET_VARIABLE = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"  # else it writes into the run's log
_ID_TAG = "torchyard.run_id"
_MAX_POINTS, _MAX_PARAMETERS, _MAX_TAG_CHARS = 1000, 100, 4000  # that one request takes
_WRONG_KEY_CHAR = re.compile(r"[^\w\-. /]")
_STATUSES: Mapping[End, str] = {"succeeded": "FINISHED", "failed": "FAILED", "gave-up": "FAILED"}  # else KILLED


class MlflowRun:
    """One run, found by a tag with the id of torchyard's run."""

    def __init__(self, options: Mlflow) -> None:
        self._options, self._id = options, ""
        self._client: Any = None

    def open(self, experiment: Experiment) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        os.environ.setdefault(_QUIET_VARIABLE, "true")
        client = self._client = MlflowClient(tracking_uri=self._options.uri or os.environ[URI_VARIABLE])
        group = _get_or_create_group(client, self._options.experiment or experiment.profile)
        found = client.search_runs([group], f"tags.`{_ID_TAG}` = '{experiment.run_id}'", max_results=1)
        tags = {**experiment.tags, _ID_TAG: experiment.run_id}
        run = (
            found[0] if found else client.create_run(group, run_name=experiment.run, tags={_ID_TAG: experiment.run_id})
        )
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        known = [Param(_spell_key(name), value) for name, value in experiment.parameters.items()]
        client.log_batch(self._id, params=known[:_MAX_PARAMETERS], tags=[RunTag(*each) for each in _cut(tags).items()])

    def write(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        found = [
            Metric(_spell_key(name), value, int(1000 * point.at), point.step)
            for point in points
            for name, value in point.numbers.items()
        ]
        for start in range(0, len(found), _MAX_POINTS):
            self._client.log_batch(self._id, metrics=found[start : start + _MAX_POINTS])

    def close(self, end: ExperimentEnd) -> None:
        from mlflow.entities import RunTag

        self.write([Point(0, end.at, end.numbers)])
        self._client.log_batch(self._id, tags=[RunTag(*each) for each in _cut(end.tags).items()])
        self._client.set_terminated(self._id, _STATUSES.get(end.end, "KILLED"), int(1000 * end.at))


def _get_or_create_group(client: Any, name: str) -> str:
    """The id of the experiment of this name."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run has just created it
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


def _spell_key(name: str) -> str:
    return _WRONG_KEY_CHAR.sub("_", name)


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:_MAX_TAG_CHARS] for name, value in tags.items()}
