"""The launcher keeps torchyard's contract."""

import torchyard_processes

from torchyard.testing import check_launcher


def test_launcher_keeps_the_contract() -> None:
    assert check_launcher("processes", torchyard_processes) == []
