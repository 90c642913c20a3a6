"""The result of a run: stored in Prefect, and read again."""

from uuid import UUID, uuid4

import pytest

from tests.builders.reports import short_report
from torchyard.model.errors import ResultError
from torchyard.run.result import build_result
from torchyard.tasks.flow_run.result import build_result_artifact, read_result
from torchyard.tasks.flow_run.states import open_bounded_client


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_result_is_read_from_prefect() -> None:
    """The last result of a flow run is found, or that of a named run; a missing result is an error."""
    flow_run = uuid4()
    first = build_result(short_report())
    second = first.model_copy(update={"run": "x-2"})
    with open_bounded_client() as client:
        for result in (first, second):
            client.create_artifact(build_result_artifact(flow_run, result))
    assert read_result(flow_run) == second
    assert read_result(str(flow_run), first.run) == first
    for arguments in ((UUID(int=1),), (flow_run, "x-3")):
        with pytest.raises(ResultError, match="has left no result"):
            read_result(*arguments)
