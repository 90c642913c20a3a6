"""Side effects of a function that should have none."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.testing.side_effects import record_side_effects


def connect() -> None:
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("action", "effect"),
    [
        (lambda: Path(os.devnull).write_text("x"), "open /dev/null for writing"),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "subprocess.Popen"),
        (connect, "socket.connect"),
    ],
)
def test_side_effect_is_recorded(action: Callable[[], object], effect: str) -> None:
    """A file that is written, a process and a connection are recorded."""
    with record_side_effects() as effects:
        action()
    assert any(recorded.startswith(effect) for recorded in effects), effects


def test_reading_is_no_side_effect() -> None:
    """Reading a file is not recorded, and nothing is recorded after the block."""
    with record_side_effects() as effects:
        Path(__file__).read_text()
    Path(os.devnull).write_text("x")
    assert effects == []
