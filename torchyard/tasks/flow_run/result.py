"""The result of a run, for the flow that started it: stored in Prefect as an artifact, and read from there.

Prefect's own result storage is a folder of one machine unless a user configures another one. An artifact can be read
wherever Prefect can be reached.
"""

from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterType
from prefect.client.schemas.sorting import ArtifactSort

from torchyard.model.errors import ResultError
from torchyard.model.run import RunResult

from .states import open_bounded_client

_ARTIFACT_TYPE = "result"  # Prefect's own type for results; Prefect's pages do not list artifacts of this type
_MAX_ARTIFACTS = 200  # of one flow run that are searched for a result


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
