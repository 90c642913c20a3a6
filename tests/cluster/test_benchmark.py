"""A benchmark on two real nodes: the same all-reduce over two fabrics, one after the other, on the same nodes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import require_real_nodes
from torchyard.assembly import create_runner
from torchyard.benchmark.sequence import find_failure, run_benchmark
from torchyard.benchmark.table import build_tables
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.errors import NoReportError
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.run.control import LocalControl
from torchyard.run.folder import RunFolder

SMALL: dict[str, Any] = json.loads((ROOT / "docs" / "small.json").read_text())
SHAPE = """\
about: the two real nodes of the test cluster
source: the test
match: {torchyard/node: real}
gpus: {resource: nvidia.com/gpu, per_node: 8}
line_rate: 100
fabrics:
  one: {about: one thread, env: {OMP_NUM_THREADS: "1"}, expect: {transport: socket}}
  two: {about: two threads, env: {OMP_NUM_THREADS: "2"}, expect: {transport: socket}}
"""


@pytest.fixture
def overrides(admin_client: Client, user_overrides: dict[str, Any], namespace: str, tmp_path: Path) -> dict[str, Any]:
    """Overrides that run a small all-reduce of a profile on the two real nodes, with two fabrics."""
    require_real_nodes(admin_client)
    hardware_file = tmp_path / "hardware" / "lab" / "real.yaml"
    hardware_file.parent.mkdir(parents=True)
    hardware_file.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    program = {
        "program": "/opt/torchyard/programs/allreduce.py",
        "args": ["--min-size=64K", "--max-size=256K", "--trials=3"],
    }
    return SMALL | user_overrides | program | {"cluster.namespace": namespace, "hardware": "lab/real", "fabric": "one"}


def run_here(profile: Profile, _: dict[str, Any]) -> Report:
    """Run a profile in this process, and return its report."""
    runner = create_runner(profile, os.urandom(16).hex(), LocalControl())
    runner.run()
    report = RunFolder(runner.folder.path).report()
    if report is None:
        raise NoReportError(runner.folder.name, f"see {runner.folder.path}")
    return report


@pytest.mark.parametrize("profile", ["yolov5-volcano", "yolov5-pytorchjob"])
def test_fabrics_are_compared_on_the_same_nodes(overrides: dict[str, Any], profile: str) -> None:
    """Both runs measure three sizes between the same two nodes, and leave nothing behind."""
    reports: list[Report] = []

    def run_one(loaded_profile: Profile, changes: dict[str, Any]) -> Report:
        reports.append(run_here(loaded_profile, changes))
        return reports[-1]

    benchmark = run_benchmark(profile, overrides, ["one", "two"], run_one)
    assert find_failure(benchmark) is None
    assert [(curve.nodes, curve.ranks, len(curve.points)) for curve in benchmark.curves] == [(2, 2, 3)] * 2
    assert benchmark.curves[0].machines == benchmark.curves[1].machines
    assert [report.leftovers for report in reports] == [(), ()]
    ((header, *rows),) = build_tables(benchmark).values()
    assert (header[-3:], [row[0] for row in rows]) == (
        ["one / two", "of line rate", "least on wire"],
        ["64 KiB", "128 KiB", "256 KiB"],
    )
