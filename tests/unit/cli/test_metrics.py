"""`torchyard metrics`: printed once, and served until the process is stopped."""

import signal
import subprocess
import sys
import urllib.request

import pytest

from torchyard.cli.main import main
from torchyard.common.project_root import ROOT
from torchyard.exporter.endpoint import serve_metrics

CODE = "from torchyard.cli.console import main; main()"
COMMAND = [sys.executable, "-c", CODE, "metrics"]


def test_metrics_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """`--once` prints the response to one scrape."""
    assert main(["metrics", "--once"]) == 0
    assert "# TYPE torchyard_runs gauge" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_metrics_are_served_until_the_process_is_stopped(number: signal.Signals) -> None:
    """A signal that arrives as soon as the address is printed ends the process with 0 and without a traceback."""
    argv = [*COMMAND, "--port", "0"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(number)
        assert (process.wait(), process.stderr.read()) == (0, "")


def test_address_can_be_scraped_once_it_is_printed() -> None:
    """The first line that `torchyard metrics` prints is an address that serves the metrics."""
    argv = [*COMMAND, "--port", "0"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with urllib.request.urlopen(process.stdout.readline().strip()) as response:
            assert b"torchyard_unreadable_folders 0.0" in response.read()
        process.terminate()


def test_process_that_ignores_ctrl_c_is_ended_by_sigterm() -> None:
    """Where SIGINT is ignored from the start, as by nohup, it stays ignored, and SIGTERM ends the process."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {CODE}"
    argv = [sys.executable, "-c", code, "metrics", "--port", "0"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        with urllib.request.urlopen(address) as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_signal_that_another_thread_handles_ends_the_process() -> None:
    """SIGTERM ends the process even if Linux lets a thread handle it that is not Python's main thread."""
    code = f"""
import signal, sys, threading

def send_to_this_thread():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=send_to_this_thread).start()
{CODE}
"""
    argv = [sys.executable, "-c", code, "metrics", "--port", "0"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.stdin.write("now\n")
        process.stdin.flush()
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_port_in_use_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use is one line with a remedy on stderr, and exit code 1."""
    server, _ = serve_metrics("127.0.0.1", 0)
    assert main(["metrics", "--port", str(server.server_port)]) == 1
    server.shutdown()
    server.server_close()
    assert capsys.readouterr().err.endswith("choose another --port or --host\n")
