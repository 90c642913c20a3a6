"""The result of a run, for the flow that asked for it: made from the report, and kept in Prefect as an artifact.

Prefect's own result storage is a folder of one machine unless a user configures another one. An artifact can be read
wherever Prefect can be reached.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
from prefect.client.schemas.sorting import ArtifactSort

from torchyard.common.escaping import shorten_text
from torchyard.model.errors import ResultError
from torchyard.model.result import RunResult
from torchyard.model.run import Metrics, Report, Row

from .states import open_bounded_client

_ARTIFACT_TYPE = "result"  # the type that Prefect gives results itself; its pages of artifacts leave it out
_MAX_VALUES, _MAX_TEXT_CHARS, _MAX_CHECKPOINTS = 100, 1000, 50  # of a result, at most
_MAX_ARTIFACTS = 200  # of one flow run that are searched for a result


def build_result(report: Report) -> RunResult:
    """What callers get of a report."""
    metrics = report.collected.metrics if report.collected else Metrics()
    row: Row = {**(metrics.rows[-1] if metrics.rows else {}), **metrics.summary}
    return RunResult(
        profile=report.profile,
        run=report.run,
        end=report.end,
        sentence=report.sentence,
        seconds=round(report.seconds, 3),
        attempts=len(report.attempts),
        metrics={key: _shorten(value) for key, value in islice(row.items(), _MAX_VALUES)},
        checkpoints=_find_checkpoints(report, metrics),
        report=f"{report.folder}/report.json",
    )


def _shorten(value: float | int | str | bool | None) -> float | int | str | bool | None:
    return shorten_text(value, _MAX_TEXT_CHARS) if isinstance(value, str) else value


def _find_checkpoints(report: Report, metrics: Metrics) -> tuple[str, ...]:
    """The checkpoints that rank 0 named, then those in the run's folder: the last ones, if there are many."""
    named_paths = (str(row["checkpoint"]) for row in (*metrics.rows, metrics.summary) if row.get("checkpoint"))
    # Of an agent behind ssh, the checkpoints are copied back to the attempt's folder.
    saved_paths = (
        *_list_newest_last(report.folder, "attempt-*/*/files/checkpoints/*"),
        *_list_newest_last(report.folder, "checkpoints/*"),
    )
    return tuple(dict.fromkeys((*_keep_last(named_paths), *_keep_last(saved_paths))))


def _keep_last(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))[-_MAX_CHECKPOINTS:]


def _list_newest_last(folder: str, pattern: str) -> Iterator[str]:
    """The paths that match; a checkpoint may be a file or a folder of files."""
    try:
        checkpoints = [(path.stat().st_mtime, str(path)) for path in Path(folder).glob(pattern)]
    except OSError:  # removed by the user in this moment
        return
    yield from (name for _, name in sorted(checkpoints) if not name.endswith((".tmp", ".part")))


def build_result_artifact(flow_run_id: UUID, result: RunResult) -> ArtifactCreate:
    """The artifact that keeps a result in Prefect."""
    return ArtifactCreate(
        type=_ARTIFACT_TYPE, description=result.run, data=result.model_dump(mode="json"), flow_run_id=flow_run_id
    )


def read_result(flow_run_id: UUID | str, run: str = "") -> RunResult:
    """The result of a flow run's last training, or of the one named `run`, from wherever Prefect can be reached.

    ResultError if Prefect has none: no training has ended there, or Prefect was away when it did.
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
    results = (RunResult.model_validate(artifact.data) for artifact in artifacts if _is_result(artifact.data))
    result = next((candidate for candidate in results if run in ("", candidate.run)), None)
    if result is None:
        raise ResultError(
            f"flow run {flow_run_id} has left no result{f' of the run {run}' if run else ''} in Prefect: either it has "
            "not ended, or Prefect was away when it did; its report is in the folder of the run (TORCHYARD_RUNS)"
        )
    return result


def _is_result(data: object) -> bool:
    """Whether an artifact is ours: the flow's own tasks may have made others of this type."""
    return isinstance(data, dict) and {"profile", "run", "end", "sentence"} <= data.keys()
