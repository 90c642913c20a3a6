"""The result of a run, for the flow that started it: built from the report, and stored in Prefect as an artifact.

Prefect's own result storage is a folder of one machine unless a user configures another one. An artifact can be read
wherever Prefect can be reached.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
from prefect.client.schemas.sorting import ArtifactSort

from torchyard.common.escaping import shorten_text
from torchyard.model.errors import ResultError
from torchyard.model.result import RunResult
from torchyard.model.run import Metrics, Report, Row, RowValue

from .states import open_bounded_client

_ARTIFACT_TYPE = "result"  # Prefect's own type for results; Prefect's pages do not list artifacts of this type
# Limits of one result, which callers get as JSON.
_MAX_VALUES = 100
_MAX_TEXT_CHARS = 1000
_MAX_CHECKPOINTS = 50
_MAX_ARTIFACTS = 200  # of one flow run that are searched for a result


def build_result(report: Report) -> RunResult:
    """The result that callers get, built from the report."""
    metrics = report.collected.metrics if report.collected else Metrics()
    row: Row = dict(metrics.rows[-1]) if metrics.rows else {}
    row.update(metrics.summary)
    return RunResult(
        profile=report.profile,
        run=report.run,
        end=report.end,
        sentence=report.sentence,
        seconds=round(report.seconds, 3),
        attempts=len(report.attempts),
        metrics={key: _shorten(value) for key, value in islice(row.items(), _MAX_VALUES)},
        warnings=tuple(shorten_text(warning, _MAX_TEXT_CHARS) for warning in _list_warnings(report)),
        checkpoints=_find_checkpoints(report, metrics),
        report=f"{report.folder}/report.json",
    )


def _list_warnings(report: Report) -> tuple[str, ...]:
    return report.collected.warnings if report.collected else ()


def _shorten(value: RowValue) -> RowValue:
    """Shorten a text to `_MAX_TEXT_CHARS`; numbers, booleans and None are returned as they are."""
    return shorten_text(value, _MAX_TEXT_CHARS) if isinstance(value, str) else value


def _find_checkpoints(report: Report, metrics: Metrics) -> tuple[str, ...]:
    """The paths that rank 0 printed, then those in the run's folder; of each at most the last `_MAX_CHECKPOINTS`."""
    printed_paths = (str(row["checkpoint"]) for row in (*metrics.rows, metrics.summary) if row.get("checkpoint"))
    # The checkpoints of an agent behind ssh are copied back to the attempt's folder.
    saved_paths = [
        *_list_newest_last(report.folder, "attempt-*/*/files/checkpoints/*"),
        *_list_newest_last(report.folder, "checkpoints/*"),
    ]
    return tuple(dict.fromkeys((*_keep_last(printed_paths), *_keep_last(saved_paths))))


def _keep_last(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))[-_MAX_CHECKPOINTS:]


def _list_newest_last(folder: str, pattern: str) -> list[str]:
    """The files and folders that match, without unfinished ones; a checkpoint may be either."""
    try:
        checkpoints = [(path.stat().st_mtime, str(path)) for path in Path(folder).glob(pattern)]
    except OSError:  # a user removes files at this moment
        return []
    return [path for _, path in sorted(checkpoints) if not path.endswith((".tmp", ".part"))]


def build_result_artifact(flow_run_id: UUID, result: RunResult) -> ArtifactCreate:
    """The artifact that stores a result in Prefect."""
    return ArtifactCreate(
        type=_ARTIFACT_TYPE, description=result.run, data=result.model_dump(mode="json"), flow_run_id=flow_run_id
    )


def read_result(flow_run_id: UUID | str, run: str = "") -> RunResult:
    """Read the result of a flow run's last training, or of the run named `run`, from Prefect.

    Raises ResultError if Prefect has none: no training has ended there, or Prefect was unreachable when it did.
    """
    with open_bounded_client() as client:
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(flow_run_id))]),
                type=ArtifactFilterType(any_=[_ARTIFACT_TYPE]),
            ),
            sort=ArtifactSort.CREATED_DESC,
            limit=_MAX_ARTIFACTS,
        )
    for artifact in artifacts:
        if not _is_result(artifact.data):
            continue
        result = RunResult.model_validate(artifact.data)
        if run in ("", result.run):
            return result
    suffix = f" of the run {run}" if run else ""
    raise ResultError(
        f"flow run {flow_run_id} has left no result{suffix} in Prefect: either it has not ended, or Prefect was "
        "unreachable when it did; its report is in the folder of the run (TORCHYARD_RUNS)"
    )


def _is_result(data: object) -> bool:
    """Whether an artifact's data is a RunResult: the user's tasks may have stored other artifacts of this type."""
    return isinstance(data, dict) and {"profile", "run", "end", "sentence"} <= data.keys()
