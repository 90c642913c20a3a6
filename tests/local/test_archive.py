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
from tests.waiting import until
from torchyard.archive.store import ARCHIVE_VARIABLE, Store
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder

COMMAND = [sys.executable, "-c", "from torchyard.cli.console import main; main()"]
ALONE = {"agent": "none", "rendezvous": "env", "metrics": "json-lines"}
URL = "s3://bucket/some/prefix"
Process = subprocess.Popen[str]


class S3:
    """moto's server on a port of its own; it forgets everything when it is stopped."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        serve = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{self.port}'])"
        out = subprocess.DEVNULL
        self._process = subprocess.Popen([sys.executable, "-c", serve], stdout=out, stderr=out)
        until(self._make_bucket)

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
    """An S3 API on loopback; TORCHYARD_ARCHIVE names a bucket in it."""
    made = S3()
    os.environ |= {
        ARCHIVE_VARIABLE: URL,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    made.start()
    yield made
    made.stop()


def start(*words: str) -> Process:
    return subprocess.Popen([*COMMAND, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def call(*words: str) -> tuple[int | None, str]:
    """Run the command; returns its exit code and all that it printed."""
    process = start(*words)
    out, errors = process.communicate(timeout=120)
    return process.returncode, out + errors


def start_waiting(write: Write, go: Path) -> tuple[Process, RunFolder]:
    """Start a run whose program ends once the file `go` exists; returns it once its job was submitted."""
    code = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.05)\nprint('gone')"
    process = start("run", str(write(code=code, **ALONE)))
    folder = until(lambda: next((each for each in list_run_folders() if each.last("step").get("name") == "wait"), None))
    return process, folder


def test_run_outlives_its_folder(s3: S3) -> None:
    """Logs and trend of an ended run come from the archive, and whoever asks for it again gets its end, no training."""
    code, said = call("run", "digits-local", "--set", "args=[--epochs=1]", "--set", "nodes=1")
    assert code == 0, said
    (folder,) = list_run_folders()
    report, journal = folder.report(), folder.events()
    assert report is not None
    assert report.archive == f"{URL}/{folder.name}"
    rmtree(runs_folder())

    code, said = call("logs", folder.name)
    assert (code, '"epoch": 1' in said, list_run_folders()) == (0, True, [])
    assert "1 run" in call("trend")[1]
    code, said = call("attach", folder.name)
    assert (code, "this run has ended already" in said) == (0, True), said
    again = folder.events()
    assert again[: len(journal)] == journal
    assert [each["event"] for each in again[len(journal) :]] == ["start", "end"]
    assert (folder.report(), folder.attempts()) == (report, [1])


def test_store_that_dies_ends_no_run(s3: S3, write: Write, tmp_path: Path) -> None:
    """The run succeeds, its report says what is missing, and the next process of the run completes the archive."""
    process, folder = start_waiting(write, tmp_path / "go")
    until(lambda: "journal" in Store(URL).list_files(folder.name))
    s3.stop()
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=120)
    report = folder.report()
    assert (process.returncode, report and report.end) == (0, "succeeded"), out + errors
    assert report is not None
    assert report.archive.startswith("incomplete: ")
    assert "cannot write" in out
    assert "WARNING | archive" in out
    s3.start()
    code, said = call("attach", folder.name)
    assert code == 0, said
    assert Store(URL).list_files(folder.name).keys() >= {"journal", "report.json", "attempt-1/node-0/log"}


def test_lost_run_is_resumed_from_the_archive(s3: S3, write: Write, tmp_path: Path) -> None:
    """A process that finds the journal only in the archive attaches to the job and knows which process was lost."""
    process, folder = start_waiting(write, tmp_path / "go")
    until(lambda: b'"wait"' in Store(URL).read(f"{folder.name}/journal"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for name in ("journal", "profile.json", "attempt-1/plan.json"):
        (folder.path / name).unlink()
    (tmp_path / "go").touch()
    code, said = call("attach", folder.name)
    assert (code, "attached to" in said, "took over after" in said) == (0, True, True), said
    assert folder.attempts() == [1]
