"""A run that a test carries along the line, and its report."""

from typing import Any

from flows.train import train
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders


def reported() -> Report:
    """The report of the one run of this test."""
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return report


def completed(profile: str, overrides: dict[str, Any]) -> Report:
    """The report of a run that was Completed, whose logs are whole, and of which nothing is left."""
    end = train(profile, overrides, return_state=True)
    report = reported()
    assert (end.name, report.left) == ("Completed", ()), report.sentence
    assert report.collected
    assert all(not log.lost for log in report.collected.logs)
    return report
