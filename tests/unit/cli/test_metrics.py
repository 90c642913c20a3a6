"""`torchyard metrics`: printed once, and served until the process is stopped."""

import signal
import subprocess
import sys
import urllib.request

import pytest

from torchyard.cli.main import main
from torchyard.common.project_root import ROOT
from torchyard.exporter.endpoint import serve_metrics

COMMAND = [sys.executable, "-c", "from torchyard.cli.console import main; main()", "metrics"]


def test_metrics_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """`--once` prints what a scrape would get."""
    assert main(["metrics", "--once"]) == 0
    assert "# TYPE torchyard_runs gauge" in capsys.readouterr().out


def test_metrics_are_served_until_the_process_is_stopped() -> None:
    """The address is printed once it can be scraped, and Ctrl-C ends the process without a traceback."""
    words = [*COMMAND, "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address) as answer:
            assert b"torchyard_unreadable_folders 0.0" in answer.read()
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (0, "")


def test_port_in_use_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says what to change, and exits with 1."""
    server, _ = serve_metrics("127.0.0.1", 0)
    assert main(["metrics", "--port", str(server.server_port)]) == 1
    server.shutdown()
    server.server_close()
    assert capsys.readouterr().err.endswith("choose another --port or --host\n")
