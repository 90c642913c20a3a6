"""Rules of the start: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("python: can't open file 'train.py': [Errno 2] No such file or directory", "program-missing"),
        ("sh: train.sh: No such file or directory", "file-missing"),
        (
            "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "library-missing",
        ),
        ("flag provided but not defined: -enable-v2", "etcd-no-v2"),
        ("flag provided but not defined: -x", "usage"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """A missing program, command or module is more than a missing file."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
