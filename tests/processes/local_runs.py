"""Whole runs of `torchyard run` in a process of their own, and the report that they leave."""

import subprocess
import sys
from pathlib import Path

from torchyard.common.project_root import ROOT
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders

# The keys of a job whose processes are the program itself, for tests of the launcher: torchrun imports torch, which
# takes two seconds of a processor for each node.
WITHOUT_AGENT = {"agent": "none", "rendezvous": "env", "metrics": "json-lines"}


def run_training(path: Path) -> "subprocess.CompletedProcess[str]":
    """Run a profile to its end."""
    argv = [sys.executable, "-c", "from torchyard.cli.console import main; main()", "run", str(path)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def read_report() -> Report:
    """The report of the only run."""
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return report
