"""Causes that torchyard itself detects, in its launcher, its supervisors or its recorder.

A log shows only one of them, if a program checks its own loss.
"""

from torchyard.model.causes.cause import Cause, CauseFacts


class LauncherCause(Cause):
    """The launcher, its supervisors and its recorder."""

    START_DEADLINE = CauseFacts("start-deadline")
    RUN_DEADLINE = CauseFacts("run-deadline")
    SILENCE = CauseFacts("silence")
    STOPPED = CauseFacts("stopped")
    GONE = CauseFacts("gone")
    LEASE_ENDED = CauseFacts("lease-ended")
    SUPERVISOR_KILLED = CauseFacts("supervisor-killed", retry=True)
    HOST_REBOOTED = CauseFacts("host-rebooted", retry=True)
    HOST_SILENT = CauseFacts("host-silent", retry=True)
    RANK_HANGS = CauseFacts("rank-hangs", retry=True)
    LOSS_NAN = CauseFacts(
        "loss-nan", advice="check the data, the learning rate and the precision", points_at_node=False
    )
