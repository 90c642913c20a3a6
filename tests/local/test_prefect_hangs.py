"""A Prefect server that hangs: it accepts connections without a response, and no run is affected."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.server.api.server import SubprocessASGIServer

from tests.processes.flow_processes import FlowRunProcesses, have_ranks_ticked
from tests.support.waiting import wait_until
from torchyard.host.state import read_state
from torchyard.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("api")
BLIND_S = 8.0  # long enough to report progress and to poll the run's state


class Server:
    """The Prefect server of the `api` fixture, which a signal can stop and continue."""

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
    """The server; it responds again after the test."""
    yield Server()
    Server().go_on()


def read_renewal_time(folder: RunFolder) -> float:
    return (folder.path / "lease").stat().st_mtime


def measure_reaction_s(folder: RunFolder) -> float:
    """Seconds from the end of the last agent to the end of the wait step."""
    states = [read_state(str(folder.attempt(1) / f"node-{node}")) or {} for node in (0, 1)]
    collected_at = [event["at"] for event in folder.events() if event["event"] == "step" and event["name"] == "collect"]
    return float(collected_at[0] - max(state["ended"] for state in states))


def test_run_is_not_affected_by_a_prefect_that_hangs(
    create_run: Callable[..., FlowRunProcesses],
    server: Server,
    tmp_path: Path,
) -> None:
    """While the server hangs, the lease is renewed, and the end of the job is detected, torn down and reported."""
    run = create_run(ticks=6000)
    process = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    server.hang()
    renewed_at = read_renewal_time(run.folder)
    wait_until(lambda: read_renewal_time(run.folder) > renewed_at + BLIND_S)
    (tmp_path / "end").touch()
    report = wait_until(run.folder.report, 60)
    assert (report.end, report.leftovers, run.list_running_pids(), process.poll()) == ("succeeded", (), [], None)
    assert measure_reaction_s(run.folder) < 2.0
    server.go_on()
    process.communicate(timeout=90)
    assert run.read_state().is_completed()


def test_cancel_does_not_wait_for_a_response(
    create_run: Callable[..., FlowRunProcesses],
    server: Server,
    tmp_path: Path,
) -> None:
    """A SIGTERM while the server hangs tears the run down within the 30 s that Prefect allows."""
    run = create_run(ticks=6000)
    process = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    server.hang()
    os.kill(process.pid, signal.SIGTERM)
    report = wait_until(run.folder.report, 30)
    assert (report.end, report.leftovers, run.list_running_pids()) == ("stopped", (), [])
    process.kill()
    process.communicate()
