"""Which tests may be skipped: TORCHYARD_MAY_SKIP lists parts of reasons, separated by commas; unset: any reason.

`python tests/tools/skips.py` prints the list for this machine: a test may be skipped only because of a program or right
that the machine lacks. This module imports the standard library alone.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

MAY_SKIP = "TORCHYARD_MAY_SKIP"
IMAGE_PYTHONS = ("3.6", "3.7", "3.8", "3.13")  # of the images with which tests/local runs pods
NEVER_INSTALLED = "the tests do not install"  # libraries of examples, in a skip's reason: allowed on every machine
_TOOLS = (
    dict.fromkeys(("busybox", "dash"), "a shell")
    | dict.fromkeys(("systemctl", "systemd-analyze"), "the service's unit")
    | {"prometheus": "Prometheus"}
)


def refuse_skip(report: pytest.TestReport) -> None:
    """Turn a skip whose reason is not allowed into a failure: CI lacks something that it should have."""
    allowed = os.environ.get(MAY_SKIP)
    if allowed is None or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(piece in reason for piece in filter(None, allowed.split(","))):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {MAY_SKIP} ({allowed or 'empty'}) does not allow it: {reason}"


def list_missing() -> list[tuple[str, str]]:
    """The things that this machine lacks, each with the parts of reasons for which its tests may be skipped."""
    missing = []
    if not shutil.which("sshd"):
        missing.append(("hosts behind ssh (there is no sshd)", "no OpenSSH server"))
    for tool, capability in _TOOLS.items():
        if not shutil.which(tool):
            missing.append((f"{capability} (there is no {tool})", f"there is no {tool}"))
    if not find_postgres():
        missing.append(("a server on PostgreSQL (it is not installed)", "there is no PostgreSQL"))
    if not find_chromium():
        missing.append(("a browser (there is no chromium)", "there is no chromium"))
    if os.getuid():
        missing.append(("hosts behind ssh and small disks (only root can make them)", "only root"))
    elif not _can_unshare():
        reasons = "namespaces are not allowed,cannot be mounted"
        missing.append(("hosts behind ssh and small disks (no namespaces for root here)", reasons))
    if not can_shape():
        missing.append(("slow links (this takes root, network namespaces and tc)", "links cannot be shaped"))
    return missing + _list_missing_pythons()


def _list_missing_pythons() -> list[tuple[str, str]]:
    return [
        (f"images with Python {version} (it is not installed)", f"there is no Python {version}")
        for version in IMAGE_PYTHONS
        if not find_python(version)
    ]


def find_chromium() -> str | None:
    """The path of the distribution's Chromium; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def find_postgres() -> str | None:
    """The folder of PostgreSQL's programs, which distributions keep out of PATH; None if it is not installed."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    candidates = [*reversed(folders), os.path.dirname(shutil.which("initdb") or "")]
    for folder in candidates:
        if folder and os.path.exists(f"{folder}/initdb"):
            return folder
    return None


def find_python(version: str) -> str | None:
    """The path of an interpreter of this version, such as `3.6`; None if it is not installed.

    pyenv's own `python3.6` in PATH runs only where that version is selected: its folder of versions is searched first.
    """
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    installed = sorted(glob.glob(f"{root}/versions/{version}.*/bin/python3"))
    if installed:
        return installed[-1]
    path = shutil.which(f"python{version}")
    return None if path is None or "/shims/" in path else path


def can_shape() -> bool:
    """Whether the bandwidth of a link in a new network namespace can be limited."""
    shape = "tc qdisc add dev lo root tbf rate 10mbit burst 64kb latency 100ms"
    try:
        return not subprocess.run(["unshare", "--net", *shape.split()], check=False, capture_output=True).returncode
    except OSError:
        return False


def _can_unshare() -> bool:
    try:
        return not subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True).returncode
    except OSError:
        return False


def format_reasons() -> str:
    """The value of TORCHYARD_MAY_SKIP for this machine."""
    return ",".join(["none", NEVER_INSTALLED, *(reasons for _, reasons in list_missing())])


if __name__ == "__main__":
    for lack, _ in list_missing():
        print(f"left out: {lack}", file=sys.stderr)
    print(format_reasons())
