"""A benchmark in Prefect: a training for each fabric, and one page."""

import os
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from flows.benchmark import benchmark
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_run_folders, runs_folder

pytestmark = pytest.mark.usefixtures("api")
SHAPE = """\
about: a machine with two speeds
source: the test
match: {}
gpus: {resource: nvidia.com/gpu, per_node: 1}
line_rate: 8
fabrics:
  fast: {about: the fast one, env: {SPEED: "3"}, expect: {transport: socket}}
  slow: {about: the slow one, env: {SPEED: "1"}, expect: {transport: socket}}
"""


@pytest.fixture
def profile(write: Write, tmp_path: Path) -> Path:
    """A profile whose program prints the speed of its fabric; it fails while the file `broken` exists."""
    shape = tmp_path / "hardware" / "lab" / "two.yaml"
    shape.parent.mkdir(parents=True)
    shape.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    program = str(ROOT / "tests" / "programs" / "bandwidth.py")
    keys = WITHOUT_AGENT | {"hardware": "lab/two", "fabric": "fast"}
    return write(program=program, env={"BROKEN": str(tmp_path / "broken")}, **keys)


def count_trainings() -> int:
    """How many trainings all runs together have started."""
    return sum(event.get("entry") == "fresh" for folder in list_run_folders() for event in folder.events())


def test_fabrics_are_measured_one_after_the_other(profile: Path) -> None:
    """Each fabric is a separate run, the state has both bandwidths, and the page has a table and a plot."""
    state = benchmark(str(profile), ["fast", "slow"], return_state=True)
    assert (state.name, state.message) == ("Completed", "fast: 6 GB/s, slow: 2 GB/s")
    assert count_trainings() == 2
    (folder,) = (runs_folder() / "benchmarks").iterdir()
    table = (folder / "table.txt").read_text()
    assert table.count("3.00") == 2  # the ratio at both sizes
    assert "fast: not-applicable: one node" in table
    assert (folder / "plot.svg").read_text().count("line rate of a node") > 0
    with get_client(sync_client=True) as client:
        run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
        pages = client.read_artifacts(flow_run_filter=run_filter)
        (page,) = [artifact for artifact in pages if (artifact.key or "").startswith("benchmark-")]
    assert "data:image/svg+xml;base64," in str(page.data)


def test_benchmark_that_is_started_again_repeats_only_what_failed(profile: Path, tmp_path: Path) -> None:
    """A benchmark that is started again keeps the runs that have succeeded, and repeats those that have failed."""
    (tmp_path / "broken").touch()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(benchmark, parameters={"profile": str(profile), "fabrics": ["fast", "slow"]})
        state_names: list[str] = []
        messages: list[str] = []
        for count in (2, 4, 4):
            if client.read_flow_run(run.id).run_count:
                client.set_flow_run_state(run.id, Scheduled(), force=True)
            state: Any = run_flow(
                benchmark, flow_run=client.read_flow_run(run.id), parameters=run.parameters, return_type="state"
            )
            state_names.append(state.name)
            assert count_trainings() == count, state.message
            messages.append(state.message)
            (tmp_path / "broken").unlink(missing_ok=True)
    assert messages[0].startswith("fast: the run failed: ")
    assert "; slow: the run failed: " in messages[0]
    assert state_names == ["Failed", "Completed", "Completed"]
