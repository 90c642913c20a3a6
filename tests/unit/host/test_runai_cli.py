"""Run:ai's CLI: its output in any shape."""

import pytest

from torchyard.host.runai_cli import parse_statuses


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ('{"name": "j", "status": "RUNNING", "instances": [{"name": "j-master-0", "status": "PENDING"}]}', "PENDING"),
        ('{"general": {"name": "j", "phase": "Running"}, "pods": [{"podName": "j-master-0", "state": "W"}]}', "W"),
        ('{"Status": {"Phase": "Running"}, "pods": [{"metadata": {"name": "j-master-0"}, "status": "P"}]}', "P"),
        ("NAME: j\nSTATUS: Running\n", None),
        ('STATUS: Running\n{"a": ' + "[" * 100_000 + "}", None),
        ('warning: old\n{"status": {"value": "Running"}}', None),
    ],
)
def test_statuses_are_found_in_any_shape(output: str, status: str | None) -> None:
    """The status of job and pods is found in JSON of several shapes, and that of the job also in plain text."""
    statuses = parse_statuses(output, "j")
    assert (statuses[""].lower(), statuses.get("j-master-0")) == ("running", status)
