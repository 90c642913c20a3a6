"""Preflight on this machine, each check made to fail once."""

import os
import pickle
import socket
import sys
from pathlib import Path

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.cluster.checks.cluster import _has_flag
from torchyard.machines.checks import check_hosts
from torchyard.model.errors import PreflightError
from torchyard.model.requirements import (
    Check,
    FreePort,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    WritableFolder,
)
from torchyard.steps.preflight import preflight

TORCH = Package(host="localhost", python=sys.executable, name="torch", at_least="2.0", why="torchrun starts the job")


def only(need: HostRequirement) -> Check:
    (found,) = check_hosts([need])
    return found


def test_good_plan_passes(write: Write, tmp_path: Path) -> None:
    """A profile of this machine passes every check, one a requirement."""
    plan = plan_of(load(write(rendezvous="etcd-v2")), tmp_path / "run")
    checks = preflight(plan)
    assert len(checks) == len(plan.requires)


def test_all_failures_are_told_at_once(write: Write, tmp_path: Path) -> None:
    """A missing program and a missing interpreter make one error, with the remedies."""
    profile = load(write(options={"python": "/no/python"}), program="none.py")
    with pytest.raises(PreflightError) as error:
        preflight(plan_of(profile, tmp_path))
    assert "2 of 5 checks failed" in str(error.value)
    assert "there is no such file; correct the profile's `program`" in str(error.value)
    assert "start /no/python: No such file or directory; choose another interpreter" in str(error.value)


def test_missing_program_is_told(tmp_path: Path) -> None:
    """A program that is not there is named with its path."""
    found = only(ProgramFile(host="localhost", path=str(tmp_path / "none.py")))
    assert (found.verdict, found.need) == ("failed", f"program {tmp_path}/none.py")


def test_missing_package_is_told_with_its_install_line() -> None:
    """A package that is not there is told with what it is for and how to get it."""
    found = only(TORCH.model_copy(update={"name": "no-such-thing"}))
    assert "is not installed (torchrun starts the job)" in found.detail
    assert "-m pip install 'no-such-thing>=2.0'" in found.remedy


def test_old_package_is_told_with_both_versions() -> None:
    """A package that is too old is told with its version and the one that is needed."""
    found = only(TORCH.model_copy(update={"at_least": "99.0"}))
    assert (found.verdict, "99.0 is needed" in found.detail) == ("failed", True)


def test_taken_port_names_its_holder() -> None:
    """A port that somebody listens on is told with the process that does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = only(FreePort(host="localhost", port=server.getsockname()[1], option="options.port"))
    assert (found.verdict, f"held by pid {os.getpid()}" in found.detail) == ("failed", True)


def test_free_port_is_free_again_after_the_check() -> None:
    """The check itself leaves nothing behind on the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    need = FreePort(host="localhost", port=port, option="options.port")
    assert [only(need).verdict, only(need).verdict] == ["ok", "ok"]


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A run folder below a file is refused, with the variable that chooses another place."""
    (tmp_path / "file").write_text("")
    found = only(WritableFolder(host="localhost", path=str(tmp_path / "file" / "run")))
    assert (found.verdict, found.detail) == ("failed", f"Not a directory: {tmp_path}/file/run")
    assert "TORCHYARD_RUNS" in found.remedy


def test_folder_that_was_there_stays(tmp_path: Path) -> None:
    """The check takes away only what it made."""
    (tmp_path / "runs").mkdir()
    assert only(WritableFolder(host="localhost", path=str(tmp_path / "runs" / "a" / "b"))).verdict == "ok"
    assert list((tmp_path / "runs").iterdir()) == []


def test_too_many_processes_are_a_warning() -> None:
    """More processes than processors are told, and allowed."""
    assert only(Processors(host="localhost", count=10_000)).verdict == "warning"
    assert only(Processors(host="localhost", count=1)).verdict == "ok"


def test_error_survives_pickle() -> None:
    """Prefect hands errors from process to process."""
    error = PreflightError((Check(need="a", verdict="failed", detail="b", remedy="c"),))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--gang=volcano"], True),
        (["--gang", "volcano"], True),
        (["--gang=none"], False),
        (["--gangs=volcano"], False),
        ([], False),
    ],
)
def test_flag_of_a_controller_is_found_however_it_is_written(args: list[str], found: bool) -> None:
    """A flag may be one word or two; `none` is as good as no flag."""
    deployment = {"spec": {"template": {"spec": {"containers": [{"command": ["/manager"], "args": args}]}}}}
    assert _has_flag(deployment, "--gang") is found
