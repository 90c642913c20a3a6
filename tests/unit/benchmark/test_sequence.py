"""A profile over several fabrics, one after the other and on the same nodes."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.doubles.benchmarks import RUNAI, bandwidth_report, bandwidth_rows, compare_two_fabrics, replay_reports
from torchyard.benchmark.sequence import find_failure, run_benchmark, save_benchmark
from torchyard.benchmark.table import list_notes
from torchyard.model.errors import NoReportError, ProfileError
from torchyard.model.profile import Profile
from torchyard.model.run import Report


def test_second_fabric_runs_on_the_nodes_of_the_first(write: Write) -> None:
    """The pods of every run after the first must go to the first one's nodes."""
    path = write(launcher="volcano", image="t:1", program="a.py", nodes=2, metrics="nccl-tests")
    path.write_text(path.read_text() + "hardware: oke/bm-gpu-h100-8\nfabric: vf\n")
    overrides_seen: list[dict[str, Any]] = []
    reports: dict[str | None, Report] = {name: bandwidth_report(bandwidth_rows(1.0)) for name in ("vf", "no-rdma")}
    run_benchmark(str(path), {"nodes": 2}, [], replay_reports(reports, overrides_seen))
    assert overrides_seen == [
        {"nodes": 2, "fabric": "vf"},
        {"nodes": 2, "fabric": "no-rdma", "pod.only": {"kubernetes.io/hostname": ["a", "b"]}},
    ]


def test_launcher_that_chooses_nodes_itself_gets_no_nodes() -> None:
    """Run:ai's CLI cannot pin pods to nodes, so a note reports if the second run is on other nodes."""
    overrides_seen: list[dict[str, Any]] = []
    reports: dict[str | None, Report] = {
        "roce": bandwidth_report(bandwidth_rows(2.0)),
        "tcp": bandwidth_report(bandwidth_rows(1.0), ("c", "d")),
    }
    benchmark = run_benchmark(RUNAI, {}, [], replay_reports(reports, overrides_seen))
    assert [overrides["fabric"] for overrides in overrides_seen] == ["roce", "tcp"]
    assert not any("pod.only" in overrides for overrides in overrides_seen)
    assert any("not on the same nodes" in note for note in list_notes(benchmark))


@pytest.mark.parametrize(
    ("name", "fabrics", "message"),
    [
        (RUNAI, ["rose"], "fabric: rose is not a fabric of this hardware: use roce, tcp"),
        ("allreduce-local", ["roce"], "fabric: roce requires a hardware file, and the profile names none"),
        ("yolov5-volcano", [], "metrics: yolov5 has no bandwidth to compare"),
    ],
)
def test_mistake_is_an_error_before_anything_runs(name: str, fabrics: list[str], message: str) -> None:
    """A fabric that does not exist, or a profile without bandwidths, is one error, and no run is started."""
    with pytest.raises(ProfileError, match=message):
        run_benchmark(name, {}, fabrics, replay_reports({}))


def test_failed_run_does_not_prevent_the_others() -> None:
    """After a failed run the others are measured; the sentence names the fabric that failed, and the reason."""
    failed = bandwidth_report([]).model_copy(update={"end": "failed", "sentence": "no room"})
    benchmark = run_benchmark(
        RUNAI, {}, [], replay_reports({"roce": failed, "tcp": bandwidth_report(bandwidth_rows(1.0))})
    )
    assert [len(curve.points) for curve in benchmark.curves] == [0, 1]
    assert find_failure(benchmark) == "roce: the run failed: no room"


def test_every_failure_is_reported() -> None:
    """If two runs fail, the sentence has both."""
    reports: dict[str | None, Report] = {
        name: bandwidth_report([]).model_copy(update={"end": "failed", "sentence": sentence})
        for name, sentence in (("roce", "no room"), ("tcp", "no image"))
    }
    benchmark = run_benchmark(RUNAI, {}, [], replay_reports(reports))
    assert find_failure(benchmark) == "roce: the run failed: no room; tcp: the run failed: no image"


def test_run_without_a_report_is_reported() -> None:
    """A run without a report is a failed run, and the next fabric is measured."""

    def run_one(profile: Profile, _: dict[str, Any]) -> Report:
        if profile.fabric == "roce":
            raise NoReportError("x-1", "its disk was full")
        return bandwidth_report(bandwidth_rows(1.0))

    benchmark = run_benchmark(RUNAI, {}, [], run_one)
    assert (benchmark.curves[0].run, find_failure(benchmark)) == ("x-1", "roce: the run failed: its disk was full")
    assert len(benchmark.curves[1].points) == 1


@pytest.mark.parametrize("end", ["stopped", "cancelled"])
def test_stopped_run_is_the_last(end: str) -> None:
    """After a run that was stopped by Ctrl-C, or cancelled, no other run is started."""
    stopped = bandwidth_report([]).model_copy(update={"end": end, "sentence": "Ctrl-C"})
    benchmark = run_benchmark(RUNAI, {}, [], replay_reports({"roce": stopped}))
    assert (len(benchmark.curves), find_failure(benchmark)) == (1, f"roce: the run {end}: Ctrl-C")


def test_run_without_bandwidth_is_reported() -> None:
    """A run that succeeded and printed no bandwidth fails the benchmark, and the sentence names the folder."""
    benchmark = run_benchmark(RUNAI, {}, ["tcp"], replay_reports({"tcp": bandwidth_report([])}))
    assert find_failure(benchmark) == "tcp: the run printed no bandwidth: see `metrics` in the profile and /r"


def test_runs_folder_is_private(tmp_path: Path) -> None:
    """Only the user can read the files of a benchmark."""
    benchmark = compare_two_fabrics()
    folder = save_benchmark(benchmark, "x-1")
    assert folder.is_relative_to(Path(os.environ["TORCHYARD_RUNS"]))
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
