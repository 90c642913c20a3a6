"""`torchyard service`: it is a checkout's, and says so elsewhere."""

from pathlib import Path

import pytest

from torchyard.cli import service
from torchyard.cli.main import main


def test_service_shows_the_unit_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a unit `status` says so and how to install it, with exit code 1."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHYARD_POOL", "team-b")
    assert main(["service", "status"]) == 1
    assert "torchyard-team-b.service is not installed" in capfd.readouterr().out


def test_package_without_a_checkout_has_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed package refuses with one sentence that says what to do."""
    monkeypatch.setattr(service, "ROOT", tmp_path)
    assert main(["service", "install"]) == 1
    assert "clone the project" in capsys.readouterr().err
