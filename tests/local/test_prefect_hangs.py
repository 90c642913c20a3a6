"""A Prefect server that hangs: it accepts connections and answers nothing, and no run suffers from it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.server.api.server import SubprocessASGIServer

from tests.flow_processes import Carried, ticking, until
from torchyard.host.state import read_state
from torchyard.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("api")
BLIND_S = 8.0  # long enough to report progress and to poll the run's state


class Server:
    """The tests' own Prefect server."""

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def _process(self) -> "subprocess.Popen[Any]":
        process = SubprocessASGIServer().server_process
        assert process
        return process


@pytest.fixture
def server() -> Iterator[Server]:
    """The server, which answers again after the test."""
    yield Server()
    Server().go_on()


def renewed(folder: RunFolder) -> float:
    return (folder.path / "lease").stat().st_mtime


def seen(folder: RunFolder) -> float:
    """Seconds from the end of the last agent until the wait was over."""
    ends = [read_state(str(folder.attempt(1) / f"node-{node}")) or {} for node in (0, 1)]
    done = [event["at"] for event in folder.events() if event["event"] == "step" and event["name"] == "collect"]
    return float(done[0] - max(end["ended"] for end in ends))


def test_run_does_not_notice_that_prefect_hangs(
    carried: Callable[..., Carried],
    server: Server,
    tmp_path: Path,
) -> None:
    """With a server that hangs during the wait, the lease is renewed and the end is seen, torn down and reported."""
    run = carried(ticks=120)
    process = run.process()
    until(lambda: ticking(tmp_path))
    server.hang()
    since = renewed(run.folder)
    until(lambda: renewed(run.folder) > since + BLIND_S)
    report = until(run.folder.report, 60)
    assert (report.end, report.leftovers, run.living(), process.poll()) == ("succeeded", (), [], None)
    assert seen(run.folder) < 2.0
    server.go_on()
    process.communicate(timeout=90)
    assert run.state().is_completed()


def test_cancel_waits_for_no_answer(
    carried: Callable[..., Carried],
    server: Server,
    tmp_path: Path,
) -> None:
    """A SIGTERM while the server hangs tears everything down within the half minute that Prefect gives."""
    run = carried(ticks=600)
    process = run.process()
    until(lambda: ticking(tmp_path))
    server.hang()
    os.kill(process.pid, signal.SIGTERM)
    report = until(run.folder.report, 30)
    assert (report.end, report.leftovers, run.living()) == ("stopped", (), [])
    process.kill()
    process.communicate()
