"""The state of a rank, as /proc reports it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import wait_until
from torchyard.host.black_box import processes

WAITING = "import time; time.sleep(60)"


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_stopped_and_ended_processes_have_their_states() -> None:
    """A stopped process has the state T, and one that has ended has none."""
    with running(WAITING) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: processes.read_state(pid) == "T")
    assert (processes.read_state(pid), processes.read_wchan(pid, pid)) == ("", "")


def test_healthy_connections_are_not_listed() -> None:
    """Only connections that retransmit are listed."""
    assert processes.list_retransmitting_links(os.getpid()) == []
