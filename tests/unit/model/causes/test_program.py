"""Rules of programs: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("line 28: 8156 Killed python3 (OOMKilled)", "oom-host"),
        ("line 28: 8156 Killed python3", "killed"),
        ("line 1: 1234 Segmentation fault (core dumped) python", "segfault"),
        ("line 1: 1234 Aborted (core dumped) python", "abort"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """The OOM killer is more than a SIGKILL, and a core dump follows from a crash."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
