"""Rules of memory and disks: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: No space left on device: '/dev/shm/x'", "shm-exhausted"),
        ("OSError: No space left on device: '/out/x'", "disk-full"),
        ("torch.OutOfMemoryError: CUDA out of memory, MemoryError", "oom-gpu"),
        ("ray.exceptions.OutOfMemoryError: node running low on memory", "oom-host"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """A full /dev/shm is not a full disk, and memory of the GPU is not memory of the host."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
