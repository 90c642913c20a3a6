"""Trainings inside a user's own flows: their results, their retries, and the effect of a stop of the flow."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import FailedRun
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from flows.train import train
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.host.processes import find_labelled
from torchyard.model.run import RunResult
from torchyard.run.folder import list_run_folders
from torchyard.run.signals import CancelRequested
from torchyard.tasks import TrainingError, read_result, train_profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
ROW = 'import json; print(json.dumps({"epoch": 1, "accuracy": 0.5}), flush=True)'
SLEEP = "import time; time.sleep(300)"
TWO_AT_ONCE = """
import sys
from prefect import flow
from torchyard.tasks import train_profile

@flow
def outer():
    futures = [train_profile.submit(sys.argv[1], name=name) for name in "ab"]
    for future in futures:
        try:
            future.result()
        except Exception:
            print("CONTINUED")

outer()
"""


def read_ends() -> set[str]:
    """The ends of all runs that have a report."""
    reports = [folder.report() for folder in list_run_folders()]
    return {report.end for report in reports if report}


def are_waiting(count: int) -> bool:
    """Whether exactly `count` runs are in their wait step."""
    waiting = [folder for folder in list_run_folders() if folder.read_record().find_last("step").get("name") == "wait"]
    return len(waiting) == count


def send_until_handled(process: "subprocess.Popen[str]", signal_number: signal.Signals, stderr: Path) -> str:
    """Send a signal, again every half minute until Prefect's engine reports it; return the process's stdout at its end.

    The trainings start threads and processes at this time. One of these threads may handle the signal, which does not
    wake Python's main thread. After the report no signal may follow: the engine waits for the trainings, and a second
    one ends this wait. A loaded machine may need more than ten seconds for the report.
    """
    for _ in range(9):
        process.send_signal(signal_number)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: "Crash detected!" in stderr.read_text(), 30)
            break
    try:
        return process.communicate(timeout=90)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{signal_number.name} did not end the process") from None


def has_processes() -> bool:
    return any(find_labelled(f"{folder.name}/") for folder in list_run_folders())


def cancel_when_waiting(run: Any, count: int) -> None:
    """Cancel a flow run as `prefect flow-run cancel` does, once `count` trainings are in their wait step."""
    wait_until(lambda: are_waiting(count))
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, State(type=StateType.CANCELLING))


def test_subflow_returns_the_result(write: Write) -> None:
    """`train` in another flow returns a typed result, and Prefect's state of the subflow has the same one."""
    path = str(write(code=ROW, **WITHOUT_AGENT))
    run_names: list[str] = []

    @flow
    def outer() -> RunResult:
        result = train(path)
        run_names.append(result.run)
        return result

    result = outer()
    with get_client(sync_client=True) as client:
        (run,) = [candidate for candidate in client.read_flow_runs() if result.run.endswith(candidate.id.hex[-8:])]
    assert run.state
    assert run.state.result() == read_result(run.id) == result
    assert (type(result), result.metrics["accuracy"], result.attempts, run_names) == (RunResult, 0.5, 1, [result.run])


def test_failed_subflow_raises_its_sentence(write: Write) -> None:
    """A failed subflow raises FailedRun with the cause, and a failed task TrainingError with the result."""
    path = str(write(code="raise ValueError('no such data')", **WITHOUT_AGENT))

    @flow
    def outer() -> RunResult:
        with pytest.raises(FailedRun, match="no such data"):
            train(path)
        with pytest.raises(TrainingError, match="no such data") as raised:
            train_profile(path)
        return raised.value.result

    assert outer().end == "failed"


def test_retried_flow_repeats_no_training(write: Write) -> None:
    """A flow that fails after its trainings and is retried gets their results again, without new runs."""
    path = str(write(code=ROW, **WITHOUT_AGENT))
    attempts: list[list[str]] = []

    @flow(retries=1)
    def outer() -> None:
        attempts.append([train_profile(path).run, train_profile(path).run])
        if len(attempts) == 1:
            raise ValueError("a fault after the trainings")

    outer()
    assert attempts[0] == attempts[1]
    assert len(set(attempts[0])) == len(list_run_folders()) == 2


def test_cancel_of_the_flow_ends_its_trainings(write: Write) -> None:
    """A cancel through Prefect ends trainings in other threads, where no signal arrives."""
    path = str(write(code=SLEEP, **WITHOUT_AGENT))

    @flow
    def outer() -> None:
        futures = [train_profile.submit(path, name=name) for name in "ab"]
        threading.Thread(target=cancel_when_waiting, args=(flow_run.id, 2)).start()
        for future in futures:
            future.wait()

    with pytest.raises(CancelRequested):
        outer()
    assert (read_ends(), has_processes()) == ({"cancelled"}, False)


def test_cancel_of_the_flow_ends_its_subflow(write: Write) -> None:
    """`train` as a subflow polls the state of its parent flow too, and the parent does not continue after it."""
    path = str(write(code=SLEEP, **WITHOUT_AGENT))
    continued: list[bool] = []

    @flow
    def outer() -> None:
        threading.Thread(target=cancel_when_waiting, args=(flow_run.id, 1)).start()
        with contextlib.suppress(Exception):
            train(path)
        continued.append(True)

    with pytest.raises(CancelRequested):
        outer()
    assert (read_ends(), has_processes(), continued) == ({"cancelled"}, False, [])


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_of_the_flow_ends_its_trainings(write: Write, tmp_path: Path, signal_number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C, which reach only the main thread, tear every training down and end the flow."""
    environment = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value() or "", "PYTHONPATH": str(ROOT)}
    script = tmp_path / "outer.py"
    script.write_text(TWO_AT_ONCE)
    command = [sys.executable, str(script), str(write(code=SLEEP, **WITHOUT_AGENT))]
    stderr = tmp_path / "stderr"
    with (
        stderr.open("w") as output,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=output, text=True) as process,
    ):
        wait_until(lambda: are_waiting(2))
        stdout = send_until_handled(process, signal_number, stderr)
    assert process.returncode == -signal_number
    assert "CONTINUED" not in stdout
    assert (read_ends(), has_processes()) == ({"stopped"}, False), stderr.read_text()
