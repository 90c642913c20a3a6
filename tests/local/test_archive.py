"""Whole runs whose folders are archived through a real S3 API, that of moto's server."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import pytest

from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.archive.contents import is_journal
from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder

COMMAND = [sys.executable, "-c", "from torchyard.cli.console import main; main()"]
URL = "s3://bucket/some/prefix"
Process = subprocess.Popen[str]


class S3:
    """moto's server on a free port; all its data are lost when it is stopped.

    `start` may be called again after `stop`, and creates the bucket and the archive in it again on the same port.
    """

    def __init__(self) -> None:
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            self.port = free_socket.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        server_code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{self.port}'])"
        devnull = subprocess.DEVNULL
        self._process = subprocess.Popen([sys.executable, "-c", server_code], stdout=devnull, stderr=devnull)
        wait_until(self._make_bucket)
        Store(URL).initialize()

    def _make_bucket(self) -> bool:
        import boto3
        from botocore.exceptions import BotoCoreError

        with suppress(BotoCoreError):
            boto3.client("s3").create_bucket(Bucket="bucket")
            return True
        return False

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def s3() -> Iterator[S3]:
    """An S3 API on loopback; TORCHYARD_ARCHIVE names its bucket."""
    s3_server = S3()
    os.environ |= {
        ARCHIVE_VARIABLE: URL,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_server.port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    s3_server.start()
    yield s3_server
    s3_server.stop()


def read_archived_journal(name: str) -> bytes:
    """The journals of all processes of a run in the archive, one after the other."""
    store = Store(URL)
    names = [f"{name}/{path}" for path in store.list_files(name) if is_journal(path)]
    return b"".join(store.read_all(names).values())


def start_command(*args: str) -> Process:
    return subprocess.Popen([*COMMAND, *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_command(*args: str) -> tuple[int | None, str]:
    """Run the command; return its exit code, and its stdout and stderr together."""
    process = start_command(*args)
    stdout, stderr = process.communicate(timeout=120)
    return process.returncode, stdout + stderr


def start_waiting(write: Write, go_file: Path) -> tuple[Process, RunFolder]:
    """Start a run whose program ends once `go_file` exists; return it once it waits for its job."""
    code = f"""
import pathlib, time
while not pathlib.Path({str(go_file)!r}).exists():
    time.sleep(0.05)
print('done')
"""
    process = start_command("run", str(write(code=code, **WITHOUT_AGENT)))
    return process, wait_until(find_waiting_run)


def find_waiting_run() -> RunFolder | None:
    """A run that is in its wait step; None if there is none yet."""
    for folder in list_run_folders():
        if folder.read_record().find_last("step").get("name") == "wait":
            return folder
    return None


def test_archived_run_is_readable_without_its_folder(s3: S3) -> None:
    """Logs and trend of an ended run come from the archive, and `attach` restores the run without training again."""
    code, output = run_command("run", "digits-local", "--set", "args=[--epochs=1]", "--set", "nodes=1")
    assert code == 0, output
    (folder,) = list_run_folders()
    report = folder.report()
    journal = folder.events()
    assert report is not None
    assert report.archive == f"{URL}/{folder.name}"
    rmtree(runs_folder())

    code, output = run_command("logs", folder.name)
    assert (code, '"epoch": 1' in output, list_run_folders()) == (0, True, [])
    assert "1 run" in run_command("trend")[1]
    code, output = run_command("attach", folder.name)
    assert (code, "this run has ended already" in output) == (0, True), output
    new_journal = folder.events()
    assert new_journal[: len(journal)] == journal
    assert [event["event"] for event in new_journal[len(journal) :]] == ["start", "end"]
    assert (folder.report(), folder.attempts()) == (report, [1])


def test_unreachable_store_does_not_end_the_run(s3: S3, write: Write, tmp_path: Path) -> None:
    """Without its store the run succeeds, its report has the archive as incomplete, and `attach` completes it."""
    process, folder = start_waiting(write, tmp_path / "go")
    wait_until(lambda: read_archived_journal(folder.name))
    s3.stop()
    (tmp_path / "go").touch()
    stdout, stderr = process.communicate(timeout=120)
    report = folder.report()
    assert (process.returncode, report and report.end) == (0, "succeeded"), stdout + stderr
    assert report is not None
    assert report.archive.startswith("incomplete: ")
    assert "cannot write" in stdout
    assert "WARNING | archive" in stdout
    s3.start()
    code, output = run_command("attach", folder.name)
    assert code == 0, output
    assert Store(URL).list_files(folder.name).keys() >= {"report.json", "attempt-1/node-0/log"}
    assert b'"end"' in read_archived_journal(folder.name)


def test_lost_run_is_resumed_from_the_archive(s3: S3, write: Write, tmp_path: Path) -> None:
    """`attach` with the journal only in the archive attaches to the job and reports the lost process."""
    process, folder = start_waiting(write, tmp_path / "go")
    wait_until(lambda: b'"wait"' in read_archived_journal(folder.name))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for name in ("journal", "profile.json", "attempt-1/plan.json"):
        (folder.path / name).unlink()
    (tmp_path / "go").touch()
    code, output = run_command("attach", folder.name)
    assert (code, "attached to" in output, "took over after" in output) == (0, True, True), output
    assert folder.attempts() == [1]
