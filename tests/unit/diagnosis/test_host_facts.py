"""Checks of host requirements from probe results: passed, failed with a remedy, or a warning."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchyard.diagnosis.host_facts import check_requirement
from torchyard.machines.checks import check_hosts
from torchyard.model.finding import Finding
from torchyard.model.requirements import (
    Clock,
    FreePort,
    Gpus,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    RunaiCli,
    WritableFolder,
)

TORCH = Package(
    host="localhost", python=sys.executable, name="torch", minimum_version="2.0", reason="torchrun starts the job"
)


def check_here(requirement: HostRequirement) -> Finding:
    (check,) = check_hosts([requirement])
    return check


def test_missing_program_is_reported(tmp_path: Path) -> None:
    """A missing program is named with its path."""
    check = check_here(ProgramFile(host="localhost", path=str(tmp_path / "none.py")))
    assert (check.verdict, check.where) == ("failed", f"program {tmp_path}/none.py")


def test_missing_package_is_reported_with_its_install_command() -> None:
    """A missing package is reported with what it is for and how to install it."""
    check = check_here(TORCH.model_copy(update={"name": "no-such-thing"}))
    assert "is not installed (torchrun starts the job)" in check.what
    assert "-m pip install 'no-such-thing>=2.0'" in check.remedy


def test_old_package_is_reported_with_both_versions() -> None:
    """A package that is too old is reported with its version and the one that is needed."""
    check = check_here(TORCH.model_copy(update={"minimum_version": "99.0"}))
    assert (check.verdict, "99.0 is needed" in check.what) == ("failed", True)


def test_too_many_processes_are_a_warning() -> None:
    """More processes than processors are reported as a warning, but allowed."""
    assert check_here(Processors(host="localhost", count=10_000)).verdict == "warning"
    assert check_here(Processors(host="localhost", count=1)).verdict == "ok"


@pytest.mark.parametrize(("count", "verdict"), [(8, "ok"), (9, "ok"), (4, "failed"), (0, "failed"), (None, "warning")])
def test_too_few_gpus_fail_the_check(count: int | None, verdict: str) -> None:
    """Fewer GPUs than a host's processes use are a failure; a driver that is not visible does not prove that."""
    check = check_requirement(Gpus(host="gpu1", count=8), {"count": count})
    assert (check.where, check.verdict, bool(check.remedy)) == ("GPUs of gpu1", verdict, verdict != "ok")


# --- probe results of any host


@pytest.mark.parametrize(
    ("installed", "needed", "verdict"),
    [
        ("2.13.0+cu128", "2.6", "ok"),
        ("2.6", "2.6", "ok"),
        ("2.5.1", "2.6", "failed"),
        ("2.10", "2.9.1", "ok"),
        ("2.6+cu128", "2.6.1", "failed"),
    ],
)
def test_versions_are_compared_by_their_numbers(installed: str, needed: str, verdict: str) -> None:
    """2.10 is newer than 2.9, and the suffix after a plus, such as the CUDA version, is not part of a release."""
    check = check_requirement(TORCH.model_copy(update={"minimum_version": needed}), {"version": installed})
    assert check.verdict == verdict


@pytest.mark.parametrize(
    ("probe", "verdict", "detail"),
    [
        ({"free": True}, "ok", "is free"),
        ({"free": False, "holder": "pid 7 (etcd)"}, "failed", "is held by pid 7 (etcd)"),
        ({"free": False}, "failed", "is held by a process of another user"),
        ({"free": False, "ours": True, "holder": "pid 7 (etcd)"}, "ok", "is held by this run"),
    ],
)
def test_port_may_be_held_by_the_run_itself(probe: dict[str, Any], verdict: str, detail: str) -> None:
    """A resumed run finds its own store on its port; anything else there is a failure, named as far as it is known."""
    check = check_requirement(FreePort(host="gpu1", port=23456, option="options.port"), probe)
    assert (check.where, check.verdict, check.what) == ("port 23456 on gpu1", verdict, detail)
    assert ("options.port" in check.remedy) is (verdict == "failed")


@pytest.mark.parametrize(("host", "setting"), [("localhost", "TORCHYARD_RUNS"), ("gpu1", "options.folder")])
def test_folder_without_room_is_a_warning(host: str, setting: str) -> None:
    """A full disk costs log lines and no run; the remedy is the setting of that host."""
    requirement = WritableFolder(host=host, path="/runs/a")
    probes: list[dict[str, Any]] = [{"free": 2**20}, {"free": 2**30}, {"error": "Read-only"}]
    almost_full, roomy, unwritable = (check_requirement(requirement, probe) for probe in probes)
    assert [check.verdict for check in (almost_full, roomy, unwritable)] == ["warning", "ok", "failed"]
    assert (almost_full.what, roomy.what) == ("only 0.0 GiB free: a full disk costs log lines", "1.0 GiB free")
    assert (setting in almost_full.remedy, setting in unwritable.remedy, roomy.remedy) == (True, True, "")


@pytest.mark.parametrize(
    ("skew_s", "verdict", "detail"),
    [
        (0.5, "ok", "is right to a few seconds"),
        (61.0, "warning", " s behind: times and deadlines will be wrong"),
        (-61.0, "warning", " s ahead: times and deadlines will be wrong"),
    ],
)
def test_clock_that_is_wrong_is_a_warning(skew_s: float, verdict: str, detail: str) -> None:
    """A host whose clock is a minute off can train, but its times mislead."""
    check = check_requirement(Clock(host="gpu1"), {"now": time.time() - skew_s})
    assert (check.verdict, check.what.endswith(detail)) == (verdict, True)


def test_route_names_both_addresses() -> None:
    """A name that resolves is shown with the address that it has there; one that does not is a failure."""
    requirement = Reachable(host="gpu2", address="gpu1")
    check = check_requirement(requirement, {"to": "10.0.0.1", "through": "10.0.0.2"})
    assert (check.verdict, check.what) == ("ok", "gpu1 is 10.0.0.1, from 10.0.0.2")
    unresolved = check_requirement(requirement, {"error": "Name or service not known"})
    assert (unresolved.verdict, unresolved.what, "options.hosts" in unresolved.remedy) == (
        "failed",
        "Name or service not known",
        True,
    )


@pytest.mark.parametrize(
    ("override", "verdict", "part"),
    [
        ({}, "ok", "cli-v2, logged in, project vision"),
        ({"runs": False, "reason": "No such file"}, "failed", "No such file"),
        ({"generations": ["cli-v1"]}, "failed", "is not cli-v2; it is: cli-v1"),
        ({"generations": []}, "failed", "it is: unknown"),
        ({"user": "", "reason": "token expired"}, "failed", "no user is logged in: token expired"),
        ({"project": False}, "failed", "there is no project vision"),
        ({"project": None}, "ok", "project vision"),
    ],
)
def test_runai_needs_its_generation_a_user_and_a_project(override: dict[str, Any], verdict: str, part: str) -> None:
    """The nearest reason is reported; a project that could not be checked is not a failure."""
    requirement = RunaiCli(host="login", cli="runai", generation="cli-v2", project="vision")
    probe: dict[str, Any] = {"runs": True, "generations": ["cli-v2"], "user": "ada", "project": True, "reason": ""}
    check = check_requirement(requirement, probe | override)
    assert (check.verdict, part in check.what) == (verdict, True), check.what
