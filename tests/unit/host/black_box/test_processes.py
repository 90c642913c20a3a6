"""The state and the activity of a rank, as /proc reports them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import wait_until
from torchyard.host.black_box import processes
from torchyard.host.black_box.processes import Sample

RECORD = {"tid": 0}
WAITING = "import time; time.sleep(60)"
COMPUTING = "while True: pass"
WRITING = "import os\nwhile True: os.write(1, b'x' * 65536)"
WITH_BUSY_CHILD = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {COMPUTING!r}]).wait()"


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(pid: int, seconds: float = 0.5) -> tuple[Sample, Sample]:
    before = Sample(time.monotonic(), pid, RECORD | {"threads": [pid]})
    time.sleep(seconds)
    return before, Sample(time.monotonic(), pid, RECORD | {"threads": [pid]})


def test_waiting_process_is_not_active() -> None:
    """A process that sleeps uses nothing, whatever it did before."""
    with running(WAITING) as pid:
        wait_until(lambda: processes.read_state(pid) == "S" and processes.read_wchan(pid).endswith("nanosleep"))
        assert not processes.is_active(*measure(pid))


def test_computing_process_is_active() -> None:
    """A process that computes is active, and writes nothing."""
    with running(COMPUTING) as pid:
        before, after = measure(pid)
        assert (processes.is_active(before, after), processes.is_writing(before, after)) == (True, False)


def test_downloading_process_is_active() -> None:
    """A process that waits for a slow server, and is woken ten times a second, receives data."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nwith socket.create_connection({server.getsockname()}) as c:\n while c.recv(65536): pass"
        with running(code) as pid, server.accept()[0] as connection:
            before = Sample(time.monotonic(), pid, RECORD | {"threads": [pid]})
            for _ in range(5):
                connection.sendall(bytes(20_000))
                time.sleep(0.1)
            assert processes.is_active(before, Sample(time.monotonic(), pid, RECORD | {"threads": [pid]}))


def test_process_whose_child_computes_is_active() -> None:
    """The activity of a rank's child processes, such as a compiler, counts as the rank's."""
    with running(WITH_BUSY_CHILD) as pid:
        wait_until(lambda: processes.is_active(*measure(pid)))


def test_writing_process_writes() -> None:
    """A process that writes is distinguished from one that computes."""
    with running(WRITING) as pid:
        assert processes.is_writing(*measure(pid))


def test_stopped_and_ended_processes_have_their_states() -> None:
    """A stopped process has the state T, and one that has ended has none."""
    with running(WAITING) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: processes.read_state(pid) == "T")
    assert processes.read_state(pid) == ""


def test_healthy_connections_are_not_listed() -> None:
    """Only connections that retransmit are listed."""
    assert processes.list_retransmitting_links(os.getpid()) == []
