"""Runs a profile through all steps within a test, and reads its report."""

from typing import Any

from flows.train import train
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders


def read_report() -> Report:
    """The report of this test's only run."""
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return report


def run_to_completion(profile: str, overrides: dict[str, Any]) -> Report:
    """Run a profile and return its report: the run must be Completed, its logs complete, without leftovers."""
    state = train(profile, overrides, return_state=True)
    report = read_report()
    assert (state.name, report.leftovers) == ("Completed", ()), report.sentence
    assert report.collected
    assert all(not log.lost for log in report.collected.logs)
    return report
