"""Preflight on hosts: how often each is queried, and what is reported if one cannot be queried."""

import os
import sys
from pathlib import Path

import pytest

from torchyard.machines import host_command
from torchyard.machines.checks import check_clock, check_hosts
from torchyard.model.finding import warning_check
from torchyard.model.requirements import Advice, Clock, FreePort, Package, Processors, ProgramFile, ScriptCheck


def write_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_each_interpreter_is_queried_once(tmp_path: Path) -> None:
    """All packages of an interpreter are checked in one call, and each gets its own check."""
    python = write_script(tmp_path / "python", f'echo call >> {tmp_path}/calls; exec {sys.executable} "$@"')
    requirements = [
        Package(host="localhost", python=python, name=name, minimum_version="1.0", reason="the job needs it")
        for name in ("pytest", "pydantic", "no-such-thing")
    ]
    verdicts = {
        check.where: check.verdict for check in check_hosts([*requirements, Processors(host="localhost", count=1)])
    }
    assert (sorted(verdicts.values()), len(verdicts)) == (["failed", "ok", "ok", "ok"], 4)
    assert (tmp_path / "calls").read_text() == "call\n"


def test_host_that_is_down_is_reported_once(tmp_path: Path) -> None:
    """A host that ssh cannot reach gives one finding with ssh's message, however many requirements it has."""
    os.environ["TORCHYARD_SSH"] = write_script(tmp_path / "ssh", "echo no route to host >&2; exit 255")
    port = FreePort(host="gpu1", port=1, option="options.port")
    program = ProgramFile(host="gpu1", path="/x.py")
    package = Package(host="gpu1", python="python3", name="torch", minimum_version="2.0", reason="the job needs it")
    (check,) = check_hosts([port, program, package])
    assert (check.where, check.verdict) == ("gpu1", "failed")
    assert check.what == "reach it by ssh: no route to host; `ssh gpu1 true` must work without a question"


def test_advice_needs_no_host() -> None:
    """Advice of a plan is among its checks as it is; no host is queried for it."""
    advice = Advice(finding=warning_check("pod.networks", "1 network is attached"))
    assert check_hosts([advice]) == (advice.finding,)


_SCRIPT = """\
import json, sys
needs = json.load(sys.stdin)["needs"]
subjects = [need["settings"]["partition"] for need in needs]
findings = [{"where": subject, "what": "exists", "remedy": "", "verdict": "ok"} for subject in subjects]
print(json.dumps({"now": 0.0, "findings": findings}))
"""


@pytest.mark.parametrize("host", ["localhost", "login1"])
def test_script_of_a_launcher_makes_its_own_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """A script is called once for all of its requirements on a host, also if only its text is sent there by ssh."""
    (tmp_path / "partitions.py").write_text(_SCRIPT)
    monkeypatch.setattr(host_command, "SCRIPTS_FOLDER", tmp_path)
    calls = tmp_path / "calls"
    command = f'echo call >> {calls}; for command; do :; done; exec sh -c "$command"'
    os.environ["TORCHYARD_SSH"] = write_script(tmp_path / "ssh", command)
    requirements = [
        ScriptCheck(host=host, script="partitions.py", settings={"partition": name}) for name in ("gpu", "cpu")
    ]
    checks = check_hosts(requirements)
    assert [(check.where, check.what, check.verdict) for check in checks] == [
        ("gpu", "exists", "ok"),
        ("cpu", "exists", "ok"),
    ]
    assert host == "localhost" or calls.read_text() == "call\n"


def test_missing_interpreter_names_the_option_that_chooses_another() -> None:
    """On this machine only options.python chooses the interpreter; on a host options.supervisor_python does too."""
    requirement = Package(
        host="localhost", python="/no/python", name="torch", minimum_version="2.0", reason="the job needs it"
    )
    (check,) = check_hosts([requirement])
    assert check.where == "/no/python on localhost"
    assert check.remedy == "choose another interpreter with options.python"


@pytest.mark.parametrize(
    ("host_time", "verdict", "detail"),
    [
        (100.5, "ok", "is right to a few seconds"),
        (112.0, "ok", "is right to a few seconds"),
        (39.0, "warning", "is 61 s behind: times and deadlines will be wrong"),
        (171.0, "warning", "is 61 s ahead: times and deadlines will be wrong"),
    ],
)
def test_clock_that_is_wrong_is_a_warning(host_time: float, verdict: str, detail: str) -> None:
    """A host whose clock is a minute off can train, but its times mislead; a slow response proves nothing."""
    check = check_clock("gpu1", host_time, started_at=100.0, ended_at=110.0)
    assert (check.where, check.verdict, check.what) == ("clock of gpu1", verdict, detail)


def test_clock_of_a_host_is_checked() -> None:
    """The clock of this machine agrees with itself, also if it is the only requirement."""
    (check,) = check_hosts([Clock(host="localhost")])
    assert (check.where, check.verdict) == ("clock of localhost", "ok")
