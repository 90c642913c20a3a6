"""The process that keeps a worker running stops it at its end, and never starts a second one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import keep_alive, listener, processes

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(60)\n"


def test_worker_that_ignores_sigterm_is_killed() -> None:
    """A service that stops leaves no worker behind, which would take runs without a server."""
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        worker.stdout.readline()
        keep_alive.stop_worker(worker, timeout_s=0.2)
        assert worker.returncode == -9


def test_worker_holds_the_port_and_ends_with_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker inherits the server's socket; when the server is not kept running any more, the worker is stopped."""
    workers: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_idle(_: list[str], *, pass_fds: list[int], **__: object) -> "subprocess.Popen[bytes]":
        workers.append(start([sys.executable, "-c", "import time\ntime.sleep(60)\n"], pass_fds=pass_fds))
        return workers[-1]

    with listener.open_listener(0) as held:

        class Borrowed:
            """The copy of a server that dies once the worker runs."""

            fd = held.fileno()
            close = staticmethod(lambda: None)

            def is_server_kept(self) -> bool:
                return not workers

        monkeypatch.setattr(keep_alive, "BorrowedListener", Borrowed)
        monkeypatch.setattr(subprocess, "Popen", start_idle)
        inherited: list[str] = []
        monkeypatch.setattr(keep_alive, "_POLL_INTERVAL_S", 0.0)
        stop = keep_alive.stop_worker

        def look_and_stop(worker: "subprocess.Popen[bytes]") -> None:
            inherited.append(os.readlink(f"/proc/{worker.pid}/fd/{held.fileno()}"))
            stop(worker)

        monkeypatch.setattr(keep_alive, "stop_worker", look_and_stop)
        with pytest.raises(keep_alive.ServerGoneError):
            keep_alive._keep_worker(is_own_server=True)
        assert inherited == [os.readlink(f"/proc/self/fd/{held.fileno()}")]
        assert [worker.poll() for worker in workers] == [-15]


def test_worker_of_a_killed_service_is_left_running(home: Path) -> None:
    """After a service was killed, its worker, which has runs, is found by its name and not started twice."""
    argv = [sys.executable, "-c", "import time\nprint(1, flush=True)\ntime.sleep(60)\n", processes.get_worker_name()]
    assert not keep_alive.has_other_worker()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        worker.stdout.readline()
        assert keep_alive.has_other_worker()
        worker.kill()


def test_service_is_found(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service, which would start again what `make down` stops, is found by its command line."""
    script = tmp_path / "yard.py"
    script.write_text("import time\nprint(1, flush=True)\ntime.sleep(60)\n")
    monkeypatch.setattr(processes, "YARD_SCRIPT", script)
    with subprocess.Popen([sys.executable, str(script), "serve"], stdout=subprocess.PIPE) as service:
        assert service.stdout
        service.stdout.readline()
        assert processes.find_yard_processes()["service"].pid == service.pid
        assert "service" not in processes.find_yard_processes(skipped_pid=service.pid)
        service.kill()
