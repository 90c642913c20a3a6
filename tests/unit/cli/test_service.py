"""`torchyard service`: the unit of a checkout, and the error in an installed package."""

from pathlib import Path

import pytest

from torchyard.cli import service
from torchyard.cli.main import main


def test_service_shows_the_unit_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a unit `status` reports that it is not installed, with exit code 1."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHYARD_POOL", "team-b")
    assert main(["service", "status"]) == 1
    assert "torchyard-team-b.service is not installed" in capfd.readouterr().out


def test_package_without_a_checkout_has_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an installed package the command is an error with a remedy."""
    monkeypatch.setattr(service, "ROOT", tmp_path)
    assert main(["service", "install"]) == 1
    assert "clone the project" in capsys.readouterr().err
