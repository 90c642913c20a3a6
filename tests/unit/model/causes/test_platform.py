"""Rules of the platform: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("MountVolume.SetUp failed for volume: mount failed: access denied", "volume-access-denied"),
        ("MountVolume.SetUp failed for volume: DeadlineExceeded", "volume-mount"),
        ("0/9 nodes are available: 9 node(s) didn't match Pod's node affinity/selector.", "unschedulable-selector"),
        (
            "0/9 nodes are available: 4 node(s) didn't match node selector, 5 Insufficient nvidia.com/gpu.",
            "unschedulable",
        ),
        ("*** JOB 1 ON n5 CANCELLED AT 21:42 DUE TO PREEMPTION ***", "preempted"),
        ("*** JOB 1 ON n5 CANCELLED AT 21:42 DUE TO TIME LIMIT ***", "time-limit"),
        ("*** JOB 1 ON n5 CANCELLED AT 21:42 ***", "cancelled"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """A refused volume is more than a volume that cannot be mounted, and a preemption is more than a cancelled job."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
