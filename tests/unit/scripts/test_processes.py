"""The server and the worker of this folder are found only by their arguments."""

import os
import sys
import threading
from pathlib import Path

import pytest

from scripts import processes

IDLE = "import time\ntime.sleep(60)\n"


def test_started_processes_are_found_without_a_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of this folder are found by their command line; another folder's are neither found nor ended."""
    scripts = []
    for name in ("mine", "other"):
        scripts.append(tmp_path / name / "yard.py")
        scripts[-1].parent.mkdir()
        scripts[-1].write_text(IDLE)
    worker, other = (processes.start_yard_process("worker", [sys.executable, str(path), "tend"]) for path in scripts)
    try:
        monkeypatch.setattr(processes, "YARD_SCRIPT", scripts[0])
        # A process's command line appears a moment after its id.
        processes.wait_for_result("no process was found", processes.find_yard_processes, timeout_s=30)
        assert {name: process.pid for name, process in processes.find_yard_processes().items()} == {
            "worker": worker.pid
        }
        reaper = threading.Thread(target=worker.wait)  # a zombie keeps its process group alive
        reaper.start()
        processes.stop_yard_process("worker")
        reaper.join()
        assert (processes.find_yard_processes(), other.poll()) == ({}, None)
    finally:
        for process in (worker, other):
            process.kill()
            process.wait()


def test_database_password_is_for_the_server_alone(home: Path) -> None:
    """The worker, and so every flow, does not get the address of the server's database."""
    os.environ[processes.DATABASE_VARIABLE] = "postgresql+asyncpg://ada:secret@db.lan/prefect"
    code = f"import os; print(os.environ.get({processes.DATABASE_VARIABLE!r}))"
    for name in ("server", "worker"):
        processes.start_yard_process(name, [sys.executable, "-c", code]).wait()
    outputs = [(home / f"{name}.log").read_text().strip() for name in ("server", "worker")]
    assert outputs == [os.environ[processes.DATABASE_VARIABLE], "None"]
