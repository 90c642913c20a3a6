"""The systemd unit of this folder: its content, that systemd accepts it, and whose unit is not changed."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import processes, service
from scripts.api import YardError
from torchyard.common.project_root import ROOT


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path) -> None:
    """Hide the user's units and systemd from the tests."""
    os.environ |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path / "no-systemd")}
    os.environ.pop("DBUS_SESSION_BUS_ADDRESS", None)


def test_systemd_accepts_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`systemd-analyze verify` accepts the unit, also in a folder with spaces, % and $."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    home = tmp_path / "50 % of $HOME" / ".prefect"
    home.mkdir(parents=True)
    (home / "service.env").touch()
    monkeypatch.setattr(service, "PREFECT_HOME", home)
    monkeypatch.setattr(service, "ROOT", home.parent)
    unit = tmp_path / "torchyard.service"
    unit.write_text(service.build_unit())
    Path(os.environ["XDG_RUNTIME_DIR"]).mkdir(mode=0o700)
    completed = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True, check=False
    )
    own_lines = [
        line for line in completed.stderr.splitlines() if unit.name in line
    ]  # it reads the distribution's units too
    assert (completed.returncode, own_lines) == (0, [])


def test_jobs_outlive_the_service() -> None:
    """A stop signals only the main process, and a program that runs out of memory does not stop the service."""
    lines = service.build_unit().splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "Restart=always", "TasksMax=infinity"} <= set(lines)
    assert f'ExecStart="{sys.executable}" "{processes.YARD_SCRIPT}" "serve"' in lines


def test_passwords_are_in_a_file_for_this_user_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service gets the installing shell's variables from a private file; the unit itself has none of them."""
    monkeypatch.setattr(service, "PREFECT_HOME", home)
    os.environ |= {"PREFECT_API_AUTH_STRING": 'ada:a"b$c\\d', "TORCHYARD_RUNS": "/data/my runs"}
    service.write_environment()
    text = (home / "service.env").read_text()
    assert 'PREFECT_API_AUTH_STRING="ada:a\\"b\\$c\\\\d"\n' in text
    assert 'TORCHYARD_RUNS="/data/my runs"\n' in text
    assert stat.S_IMODE((home / "service.env").stat().st_mode) == 0o600
    assert "ada:" not in service.build_unit()


@pytest.mark.parametrize(
    ("name", "value", "is_passed"),
    [
        ("TORCHYARD_ARCHIVE", "s3://bucket/x", True),
        ("TORCHYARD_SSH", "ssh -F config", True),
        ("AWS_SECRET_ACCESS_KEY", "secret", True),
        ("HF_TOKEN", "secret", True),
        ("TEAM_CHAT", "slack://x", True),
        ("SSH_AUTH_SOCK", "/run/user/1/ssh", True),
        ("SSH_CONNECTION", "1.2.3.4 1 5.6.7.8 22", False),
        ("DISPLAY", ":0", False),
        ("XDG_SESSION_ID", "3", False),
        ("BASH_FUNC_module%%", "() { :; }", False),
        ("LATIN", "caf\udce9", False),
    ],
)
def test_service_has_what_runs_need(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_passed: bool
) -> None:
    """The worker of the service has the variables of the worker of `make up`, but not those of a login session."""
    monkeypatch.setattr(service, "PREFECT_HOME", home)
    monkeypatch.setenv(name, value)
    service.write_environment()
    assert (f'{name}="{value}"\n' in (home / "service.env").read_text()) is is_passed


@pytest.mark.parametrize(
    ("first_line", "owner"),
    [("# torchyard of /home/ada/torchyard", "belongs to /home/ada/torchyard: "), ("[Unit]", "was written by hand: ")],
)
def test_unit_of_another_owner_is_not_changed(first_line: str, owner: str) -> None:
    """A unit of another folder, or one that a person wrote, is neither replaced nor removed."""
    path = service.get_unit_path()
    path.parent.mkdir(parents=True)
    path.write_text(first_line + "\n")
    with pytest.raises(YardError, match=rf"{owner}.*make service POOL=team-b"):
        service.uninstall_service()
    assert path.read_text() == first_line + "\n"


def test_installation_with_a_name_has_a_unit_of_its_own() -> None:
    """Two folders of one user have two units, if one of them has a separate name."""
    names = []
    for pool in ("torchyard", "team-b"):
        os.environ["TORCHYARD_POOL"] = pool
        names.append(service.get_unit_path().name)
    assert names == ["torchyard.service", "torchyard-team-b.service"]


@pytest.mark.parametrize("has_systemctl", [True, False])
def test_machine_without_systemd_is_one_sentence(has_systemctl: bool) -> None:
    """Without systemd nothing is written, and the error contains the alternative."""
    if has_systemctl and not shutil.which("systemctl"):
        pytest.skip("there is no systemctl")
    path = os.environ["PATH"] if has_systemctl else "/nonexistent"
    completed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "service.py"), "install"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.count("\n") == 1
    assert "with `make up`" in completed.stderr
    assert not service.get_unit_path().exists()
