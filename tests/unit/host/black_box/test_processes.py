"""The state of a rank, as /proc reports it."""

import os
import signal

from tests.processes.python_commands import running_python
from tests.support.waiting import wait_until
from torchyard.host.black_box import processes

WAITING = "import time; time.sleep(60)"


def test_stopped_and_ended_processes_have_their_states() -> None:
    """A stopped process has the state T, one that has ended has none, and a thread that has ended ends no process."""
    with running_python(WAITING) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: processes.read_state(pid) == "T")
        assert (processes.read_state(pid, 2**22 + 1), processes.has_ended(pid)) == ("?", False)
    assert processes.has_ended(pid)
    assert (processes.read_state(pid), processes.read_wchan(pid, pid)) == ("", "")


def test_healthy_connections_are_not_listed() -> None:
    """Only connections that retransmit are listed."""
    assert processes.list_retransmitting_links(os.getpid()) == []
