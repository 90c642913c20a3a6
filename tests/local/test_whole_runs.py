"""Whole runs: all steps of a flow with a real Prefect API and real torchrun agents."""

import itertools
import json
import logging
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.sweep import sweep
from flows.train import train
from tests.conftest import Write
from tests.support.waiting import wait_until
from torchyard.model.errors import LEFT_CLAUSE
from torchyard.model.run import Report
from torchyard.run import folder_lease
from torchyard.run.folder import RunFolder, list_run_folders
from torchyard.steps.collect import collect
from torchyard.tasks.steps import STEP_TASKS

pytestmark = pytest.mark.usefixtures("api")


def run_flow(path: Path, **overrides: Any) -> tuple[State[Any], Report]:
    """Run the flow of a profile to its end; return its state and its report."""
    state = train(str(path), overrides, return_state=True)
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    return state, report


def list_remaining_processes(report: Report) -> list[str]:
    return list_labelled_processes(report.run)


def list_labelled_processes(run: str) -> list[str]:
    """The ids of the living processes with the label of a run."""
    label = f"TORCHYARD_JOB={run}/".encode()
    living = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return [pid for pid in living if b"".join(read_environ(pid).partition(label)[1:2])]


def read_environ(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def read_log(report: Report, node: int = 0, attempt: int = 1) -> str:
    return Path(report.folder, f"attempt-{attempt}", f"node-{node}", "log").read_text()


ROWS = """
import json, os
if os.environ["RANK"] == "0":
    for epoch in (1, 2):
        print(json.dumps({"epoch": epoch, "epochs": 2, "accuracy": epoch / 2}), flush=True)
"""


def test_two_agents_run_and_are_reported(write: Write) -> None:
    """A run of two agents ends Completed, with complete logs and metrics, and no process remains."""
    state, report = run_flow(write(code=ROWS, nodes=2, metrics="json-lines"))
    assert state.is_completed()
    assert report.collected
    assert [row["accuracy"] for row in report.collected.metrics.rows] == [0.5, 1.0]
    assert [log.lost for log in report.collected.logs] == ["", ""]
    assert (list_remaining_processes(report), report.leftovers) == ([], ())


FIRST = """
import os, signal, sys, time
def save(*_):
    time.sleep(5)
    sys.exit(0)
if os.environ["RANK"] == "3":
    time.sleep(0.5); print("out of ideas", flush=True); sys.exit(7)
if os.environ["RANK"] == "2":
    signal.signal(signal.SIGTERM, save)  # until it has ended, its agent does not end
time.sleep(60)
"""


def test_first_rank_that_fails_ends_the_others(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """If rank 3 exits with 7 while the others sleep, the run fails immediately and names the rank and the exit code.

    The log has the rank's last line before its agent has ended, which then reports the exit code.
    """
    state, report = run_flow(write(code=FIRST, nodes=2, processes=2))
    assert report.collected
    failure = report.collected.failure
    assert failure
    assert (state.is_failed(), failure.rank, failure.exit_code) == (True, 3, 7)
    assert "out of ideas" in "".join(failure.tail)
    assert report.attempts[0].outcome.ended_at
    assert report.seconds < 30
    assert list_remaining_processes(report) == []
    last_words = "rank 3 on node-1 has ended; its last lines:\n  | out of ideas"
    stop_message = "node-1 ended with exit code 1; stopping what still runs"
    assert caplog.messages.index(last_words) < caplog.messages.index(stop_message)
    assert "rank 3 on node-1 has ended with exit code 7" in caplog.messages


@pytest.mark.parametrize(
    ("code", "deadlines", "cause"),
    [
        ("import time; time.sleep(60)", {"silence": "1s"}, "silence"),
        ("import time\nwhile True: print('x', flush=True); time.sleep(0.2)", {"run": "6s"}, "run-deadline"),
        ("", {"start": "300ms"}, "start-deadline"),
    ],
)
def test_expired_deadline_ends_a_run(write: Write, code: str, deadlines: dict[str, str], cause: str) -> None:
    """A job that hangs, takes too long or does not start is stopped, and the report has the deadline as the cause."""
    state, report = run_flow(write(code=code, deadlines=deadlines, attempts=3))
    assert report.collected
    assert report.collected.failure
    assert (state.is_failed(), report.collected.failure.cause) == (True, cause)
    assert len(report.attempts) == 1
    assert list_remaining_processes(report) == []


AGAIN = """
import os, signal, time
if os.environ["TORCHYARD_ATTEMPT"] == "1":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
print("second attempt", os.environ["TORCHELASTIC_RUN_ID"], flush=True)
"""


def test_killed_agent_leads_to_a_new_attempt(write: Write) -> None:
    """A killed agent leads to another attempt with a new rendezvous id."""
    state, report = run_flow(write(code=AGAIN, attempts=2))
    assert state.is_completed()
    assert [attempt.outcome.status.state for attempt in report.attempts] == ["failed", "succeeded"]
    assert f"second attempt {report.run}-2" in read_log(report, attempt=2)


def test_program_error_is_not_retried(write: Write) -> None:
    """An exception of the program is not retried, and the report quotes its last line."""
    state, report = run_flow(write(code="raise ValueError('bad learning rate')", attempts=3))
    assert (state.is_failed(), len(report.attempts)) == (True, 1)
    assert "bad learning rate" in report.sentence


def test_bad_profile_fails_with_a_sentence_and_nothing_else(
    write: Write, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A mistake in a profile makes the run Failed with a message, without a traceback and without a folder."""
    state = train(str(write(nodez=2)), return_state=True)
    assert "unknown key nodez: did you mean nodes?" in str(state.message)
    assert "Traceback" not in caplog.text
    assert not (tmp_path / "runs").exists()


def test_failed_preflight_starts_nothing(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """A run whose preflight fails has no attempt, and shows no traceback."""
    with caplog.at_level(logging.ERROR):
        state, report = run_flow(write(), options={"python": "/none/python"})
    assert "start /none/python: No such file or directory" in str(state.message)
    assert report.attempts == ()
    assert not any(record.exc_info for record in caplog.records)


def test_ctrl_c_tears_down(write: Write) -> None:
    """Ctrl-C during the job ends every process of it, and the run is reported as stopped."""
    path = write(code="import time; print('up', flush=True); time.sleep(60)")
    threading.Thread(target=interrupt_once_running, daemon=True).start()
    state, report = run_flow(path)
    assert (state.name, report.end, report.sentence) == ("Stopped", "stopped", "stopped by Ctrl-C")
    assert list_remaining_processes(report) == []


def interrupt_once_running() -> None:
    """Send SIGINT to this process once rank 0 has printed a line."""
    while not has_printed():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def has_printed() -> bool:
    logs = itertools.chain(*(folder.path.glob("*/node-0/log") for folder in list_run_folders()))
    return any("[default0]:up" in log.read_text() for log in logs)


def test_unwritable_run_folder_is_reported_in_one_sentence(write: Write, tmp_path: Path) -> None:
    """If the runs folder cannot be written, the message names the variable for another one."""
    (tmp_path / "file").write_text("")
    os.environ["TORCHYARD_RUNS"] = str(tmp_path / "file")
    state = train(str(write()), return_state=True)
    assert state.is_failed()
    assert "Not a directory; choose another folder with TORCHYARD_RUNS" in str(state.message)


def test_journal_has_the_steps_in_order(write: Write) -> None:
    """The journal has each step in order, followed by the end."""
    _, report = run_flow(write(code=""))
    events = RunFolder(Path(report.folder)).events()
    assert [event["name"] for event in events if event["event"] == "step"] == [
        "preflight",
        "submit",
        "wait",
        "collect",
        "teardown",
    ]
    assert json.loads(json.dumps(events[-1]))["end"] == "succeeded"


def test_full_disk_fails_the_run_and_still_tears_it_down(write: Write, tmp_path: Path) -> None:
    """A run without disk space for its output fails with a message about that, and no process remains."""
    disk = tmp_path / "runs"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], check=False).returncode:
        pytest.skip("a disk of 128 KiB cannot be mounted here: only root may")
    try:
        path = write(code="import time\nfor _ in range(99): print('x' * 9999, flush=True)\ntime.sleep(60)", nodes=2)
        state = train(str(path), return_state=True)
        name = list_run_folders()[0].name
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert state.is_failed()
    assert "No space left on device): free some space, or move TORCHYARD_RUNS" in str(state.message)
    assert list_labelled_processes(name) == []


def test_error_in_the_wait_does_not_end_the_job(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's state is Crashed, so that it is resumed, its agents keep running, and its journal has the error.

    Prefect's message shows that the process left, which decides when the run resumes.
    """

    def raise_error(*_: object) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("torchyard.tasks.train.STEP_TASKS", STEP_TASKS._replace(wait=raise_error))
    state = train(str(write(code="import time; time.sleep(60)")), return_state=True)
    (folder,) = list_run_folders()
    try:
        assert (state.name, folder.report(), folder.read_record().find_last("end")) == ("Crashed", None, {})
        assert "a fault of ours" in folder.read_record().find_last("left")["sentence"]
        assert str(state.message).endswith(LEFT_CLAUSE)
        assert list_labelled_processes(folder.name)
    finally:
        os.utime(folder.path / "lease", (0, 0))
        sweep(runs=[folder.name], return_state=True)


def read_mtime(folder: RunFolder) -> int:
    return (folder.path / "lease").stat().st_mtime_ns


def age_lease(folder: RunFolder) -> int:
    """Set the lease's time of renewal to the distant past; return that time in ns."""
    os.utime(folder.path / "lease", (1, 1))
    return read_mtime(folder)


def test_lease_is_renewed_during_collect(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed while the logs are read, and no longer once the run has ended."""
    monkeypatch.setattr(folder_lease, "RENEW_INTERVAL_S", 0.05)

    def collect_slowly(*args: Any) -> Any:
        (folder,) = list_run_folders()
        old_mtime = age_lease(folder)
        wait_until(lambda: read_mtime(folder) > old_mtime)
        return collect(*args)

    monkeypatch.setattr("torchyard.tasks.train.STEP_TASKS", STEP_TASKS._replace(collect=collect_slowly))
    assert train(str(write(code="")), return_state=True).is_completed()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "lease"])
