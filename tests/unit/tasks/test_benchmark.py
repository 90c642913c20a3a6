"""The report of a fabric, and the final state of a benchmark; tests/local/test_benchmark.py runs whole ones."""

from pathlib import Path

import pytest

from tests.builders.reports import short_report
from tests.conftest import RUN_ID
from tests.doubles.benchmarks import compare_two_fabrics
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks.benchmark import describe_best_bandwidths, read_report


def test_end_names_the_largest_bandwidth_of_each_fabric() -> None:
    """The final state's sentence has the best busbw over each fabric."""
    assert describe_best_bandwidths(compare_two_fabrics()) == "roce: 9.522 GB/s, tcp: 3.767 GB/s"


def test_report_of_a_run_elsewhere_comes_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another pod, whose folder is not on this machine, is compared if both pods have the same archive."""
    monkeypatch.setenv(ARCHIVE_VARIABLE, f"file://{tmp_path}/archive")
    archived = RunFolder(tmp_path / "archive" / "sample-a1b2c3d4")
    archived.path.mkdir(parents=True)
    archived.record_event("start", run=RUN_ID, folder=str(archived.path))
    archived.save_report(short_report())
    report = read_report(RunFolder(runs_folder() / archived.name))
    assert report
    assert (report.run, report.end) == ("x-1", "succeeded")
