"""`torchyard run` and `attach`: whole runs of the command line, without a Prefect server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.cli.main import main
from torchyard.common.project_root import ROOT
from torchyard.host.processes import find_labelled
from torchyard.run.folder import RunFolder, list_run_folders

COMMAND = [sys.executable, "-c", "from torchyard.cli.console import main; main()"]
COUNTS = """
import json, time
for step in range(1, 31):
    print(json.dumps({"step": step, "steps": 30}), flush=True)
    time.sleep(0.1)
"""


def start_command(*args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([*COMMAND, *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def only_run() -> RunFolder:
    (folder,) = list_run_folders()
    return folder


@pytest.mark.parametrize(
    ("code", "exit_code", "end"), [("print(1)", 0, "succeeded"), ("raise ValueError", 1, "failed")]
)
def test_run_needs_no_server(write: Write, code: str, exit_code: int, end: str) -> None:
    """The run's name is printed first, its report at the end; the exit code follows; Prefect is not imported."""
    path = str(write(code=code, **WITHOUT_AGENT))
    check = f"import sys; from torchyard.cli.main import main; code = main(['run', {path!r}]); "
    check += "print('prefect' in sys.modules); sys.exit(code)"
    completed = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    report = only_run().report()
    assert (completed.returncode, report and report.end, report and report.leftovers) == (exit_code, end, ()), (
        completed.stderr
    )
    first_line, *_, last_line = completed.stdout.splitlines()
    assert first_line.endswith(f"INFO    | run {only_run().name}")
    assert last_line == "False"
    assert "nothing left" in completed.stdout


def test_killed_run_is_attached_to(write: Write) -> None:
    """`attach` follows the job of a killed run to its end, and each of its lines is in the log once."""
    first = start_command("run", str(write(code=COUNTS, **WITHOUT_AGENT)))
    (log,) = wait_until(lambda: list(Path(os.environ["TORCHYARD_RUNS"]).glob("*/attempt-1/node-0/log")))
    wait_until(lambda: '"step": 3' in log.read_text())
    first.send_signal(signal.SIGKILL)
    first.communicate()
    folder = only_run()
    assert find_labelled(f"{folder.name}/1/")
    second = start_command("attach", folder.name)
    stdout, stderr = second.communicate(timeout=60)
    assert second.returncode == 0, stderr
    steps = [json.loads(line.partition(" | ")[2])["step"] for line in log.read_text().splitlines() if "{" in line]
    assert steps == list(range(1, 31))
    assert "the launcher" in stdout
    assert main(["attach", folder.name]) == 0
    assert len(folder.attempts()) == 1


def test_termination_ends_the_run(write: Write) -> None:
    """SIGTERM tears the job down, the exit code shows the stop, and with --json stdout is only the document."""
    process = start_command("run", str(write(code=COUNTS, **WITHOUT_AGENT)), "--json")
    wait_until(
        lambda: [
            folder for folder in list_run_folders() if folder.read_record().find_last("step").get("name") == "wait"
        ]
    )
    process.terminate()
    stdout, _ = process.communicate(timeout=60)
    report = only_run().report()
    assert (process.returncode, report and report.sentence) == (130, "stopped by SIGTERM"), stdout
    document = json.loads(stdout)
    assert (document["run"], document["end"]) == (only_run().name, "stopped")
    assert not find_labelled(f"{only_run().name}/1/")
