"""The report of a fabric, and the final state of a benchmark; tests/local/test_benchmark.py runs whole ones."""

from pathlib import Path

from tests.builders.archives import archive_run, create_archive
from tests.builders.reports import short_report
from tests.conftest import RUN_ID
from tests.doubles.benchmarks import compare_two_fabrics
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks.benchmark import describe_best_bandwidths, read_report


def test_end_names_the_largest_bandwidth_of_each_fabric() -> None:
    """The final state's sentence has the best busbw over each fabric."""
    assert describe_best_bandwidths(compare_two_fabrics()) == "roce: 9.522 GB/s, tcp: 3.767 GB/s"


def test_report_of_a_run_elsewhere_comes_from_the_archive(tmp_path: Path) -> None:
    """A run of another pod, whose folder is not on this machine, is compared if both pods have the same archive."""
    create_archive(tmp_path / "archive")
    remote = RunFolder(tmp_path / "other-machine" / "sample-a1b2c3d4")
    remote.path.mkdir(parents=True)
    remote.record_event("start", run=RUN_ID, folder=str(remote.path))
    remote.save_report(short_report())
    archive_run(tmp_path / "archive", remote)
    report = read_report(RunFolder(runs_folder() / remote.name))
    assert report
    assert (report.run, report.end) == ("x-1", "succeeded")
