"""Which tests may be skipped: TORCHYARD_MAY_SKIP holds pieces of reasons, with commas; unset, any reason will do."""

import os

import pytest

MAY_SKIP = "TORCHYARD_MAY_SKIP"


def refuse_skip(report: pytest.TestReport) -> None:
    """Make a failure of a skip whose reason nobody allowed: what CI should have had was not tested."""
    allowed = os.environ.get(MAY_SKIP)
    if allowed is None or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(piece in reason for piece in filter(None, allowed.split(","))):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {MAY_SKIP} ({allowed or 'empty'}) does not allow it: {reason}"
