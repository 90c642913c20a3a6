"""What preflight checks on a host: passed, failed with a remedy, or a warning."""

import importlib.metadata
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchyard.host import facts
from torchyard.host.facts import PROBES, count_gpus, probe_gpus
from torchyard.model.finding import Finding
from torchyard.model.requirements import (
    FreePort,
    Gpus,
    HostRequirement,
    Package,
    Processors,
    ProgramFile,
    Reachable,
    WritableFolder,
)

TORCH = Package(
    host="localhost", python=sys.executable, name="torch", minimum_version="2.0", reason="torchrun starts the job"
)


def run_check(requirement: HostRequirement) -> Finding:
    return Finding(**PROBES[requirement.kind](requirement.to_probe()))


def test_missing_program_is_reported(tmp_path: Path) -> None:
    """A missing program is named with its path, and with its host if that is another machine."""
    local, remote = (
        run_check(ProgramFile(host=host, path=str(tmp_path / "none.py"))) for host in ("localhost", "gpu1")
    )
    assert (local.verdict, local.where) == ("failed", f"program {tmp_path}/none.py")
    assert (remote.verdict, remote.where) == ("failed", f"program {tmp_path}/none.py on gpu1")
    assert ("`program`" in local.remedy, "options.program_there" in remote.remedy) == (True, True)


def test_package_that_is_older_than_recommended_is_a_warning() -> None:
    """A package with the needed version, but not the recommended one, is a warning with what it cannot do."""
    update = {"minimum_version": "1", "limitation": "it kills the ranks after 30 s"}
    old = run_check(TORCH.model_copy(update=update | {"recommended_version": "999"}))
    assert old.verdict == "warning"
    assert "it kills the ranks after 30 s" in old.what
    assert "-m pip install 'torch>=999'" in old.remedy
    assert run_check(TORCH.model_copy(update=update | {"recommended_version": "1.0"})).verdict == "ok"


def test_missing_package_is_reported_with_its_install_command() -> None:
    """A missing package is reported with what it is for and how to install it."""
    check = run_check(TORCH.model_copy(update={"name": "no-such-thing"}))
    assert "is not installed (torchrun starts the job)" in check.what
    assert "-m pip install 'no-such-thing>=2.0'" in check.remedy


def test_leftover_of_a_package_is_not_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without METADATA is what a broken uninstallation leaves, and the package may be installed elsewhere."""
    (tmp_path / "torch-99.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_check(TORCH).verdict == "ok"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    check = run_check(TORCH)
    assert (check.verdict, check.what) == ("failed", "is not installed (torchrun starts the job)")


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
def test_versions_are_compared_by_their_numbers(
    monkeypatch: pytest.MonkeyPatch, installed: str, needed: str, verdict: str
) -> None:
    """2.10 is newer than 2.9, and the suffix after a plus, such as the CUDA version, is not part of a release."""
    distribution = SimpleNamespace(metadata={"Version": installed})
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [distribution])
    check = run_check(TORCH.model_copy(update={"minimum_version": needed}))
    assert check.verdict == verdict
    assert check.what == (installed if verdict == "ok" else f"is {installed}, {needed} is needed")


def test_too_many_processes_are_a_warning() -> None:
    """More processes than processors are reported as a warning, but allowed."""
    assert run_check(Processors(host="localhost", count=10_000)).verdict == "warning"
    assert run_check(Processors(host="localhost", count=1)).verdict == "ok"


def test_taken_port_names_its_holder() -> None:
    """A port that is in use is reported with the process that listens on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = run_check(FreePort(host="localhost", port=server.getsockname()[1], option="options.port"))
    assert (check.verdict, f"held by pid {os.getpid()}" in check.what) == ("failed", True)
    assert "options.port" in check.remedy


@pytest.mark.parametrize("is_derived", [True, False])
def test_only_a_derived_port_is_replaced(is_derived: bool) -> None:
    """A held port that the run has derived from its id can be replaced, one that a user has chosen cannot."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = run_check(FreePort(host="gpu1", port=port, option="options.port", is_derived=is_derived))
    assert (check.verdict, check.takes_other_port) == ("failed", is_derived)


def test_port_of_another_user_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of a port is unknown if /proc shows none, and the port is taken nevertheless."""
    monkeypatch.setattr(facts, "_list_listening_sockets", lambda _: set())
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = run_check(FreePort(host="gpu1", port=server.getsockname()[1], option="options.port"))
    assert (check.verdict, check.what) == ("failed", "is held by a process of another user")


def test_port_may_be_held_by_the_run_itself() -> None:
    """A resumed run finds its own store on its port."""
    listen = (
        "import socket; server = socket.create_server(('', 0)); print(server.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TORCHYARD_JOB": "job-1"},
    ) as holder:
        assert holder.stdout
        port = int(holder.stdout.readline())
        ours, foreign = (
            run_check(FreePort(host="gpu1", port=port, option="options.port", label=label))
            for label in ("job-1", "job-2")
        )
        holder.communicate(b"\n")
    assert (ours.where, ours.verdict, ours.what) == (f"port {port} on gpu1", "ok", "is held by this run")
    assert foreign.verdict == "failed"


def test_free_port_is_free_again_after_the_check() -> None:
    """The check itself does not keep the port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    requirement = FreePort(host="localhost", port=port, option="options.port")
    assert [run_check(requirement).verdict, run_check(requirement).verdict] == ["ok", "ok"]


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """A run folder below a file is refused, and the remedy names the variable that chooses another one."""
    (tmp_path / "file").write_text("")
    check = run_check(WritableFolder(host="localhost", path=str(tmp_path / "file" / "run")))
    assert (check.verdict, check.what) == ("failed", f"Not a directory: {tmp_path}/file/run")
    assert "TORCHYARD_RUNS" in check.remedy


def test_existing_folder_is_kept(tmp_path: Path) -> None:
    """The check removes only the folders that it has created."""
    (tmp_path / "runs").mkdir()
    assert run_check(WritableFolder(host="localhost", path=str(tmp_path / "runs" / "a" / "b"))).verdict == "ok"
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(("host", "setting"), [("localhost", "TORCHYARD_RUNS"), ("gpu1", "options.folder")])
def test_folder_without_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, setting: str
) -> None:
    """A full disk costs log lines and no run; the remedy is the setting of that host."""
    requirement = WritableFolder(host=host, path=str(tmp_path))
    checks: list[Finding] = []
    for free_bytes in (2**20, 2**30):
        usage = SimpleNamespace(f_bavail=free_bytes, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _, usage=usage: usage)
        checks.append(run_check(requirement))
    almost_full, roomy = checks
    assert (almost_full.verdict, roomy.verdict) == ("warning", "ok")
    assert (almost_full.what, roomy.what) == ("only 0.0 GiB free: a full disk costs log lines", "1.0 GiB free")
    assert (setting in almost_full.remedy, roomy.remedy) == (True, "")


def test_route_names_both_addresses() -> None:
    """A name that resolves is shown with the address that it has there; one that does not is a failure."""
    check = run_check(Reachable(host="gpu2", address="localhost"))
    assert (check.verdict, check.what) == ("ok", "localhost is 127.0.0.1, from 127.0.0.1")
    unresolved = run_check(Reachable(host="gpu2", address="no-such-host.invalid"))
    assert (unresolved.where, unresolved.verdict) == ("route from gpu2 to no-such-host.invalid", "failed")
    assert "options.hosts" in unresolved.remedy


def write_drivers(root: Path, nvidia: int | None, amd: int | None) -> None:
    """The files of a driver with that many GPUs; no files for None. AMD's first node is a processor."""
    for number in range(nvidia or 0):
        (root / "proc/driver/nvidia/gpus" / f"0000:{number:02}:00.0").mkdir(parents=True)
    simd_counts = [] if amd is None else [0, *[304] * amd]
    for number, simd_count in enumerate(simd_counts):
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd_count}\n")


@pytest.mark.parametrize(
    ("nvidia", "amd", "count"), [(8, None, 8), (None, 4, 4), (None, 0, 0), (2, 0, 2), (None, None, None)]
)
def test_gpus_of_both_drivers_are_counted(
    tmp_path: Path, nvidia: int | None, amd: int | None, count: int | None
) -> None:
    """The GPUs of both drivers are counted, without AMD's processors; without a driver their number is unknown."""
    write_drivers(tmp_path, nvidia, amd)
    assert count_gpus(str(tmp_path)) == count


@pytest.mark.parametrize(("count", "verdict"), [(8, "ok"), (9, "ok"), (4, "failed"), (0, "failed"), (None, "warning")])
def test_too_few_gpus_fail_the_check(tmp_path: Path, count: int | None, verdict: str) -> None:
    """Fewer GPUs than a host's processes use are a failure; a driver that is not visible does not prove that."""
    write_drivers(tmp_path, None, count)
    check = Finding(**probe_gpus(Gpus(host="gpu1", count=8).to_probe(), str(tmp_path)))
    assert (check.where, check.verdict, bool(check.remedy)) == ("GPUs of gpu1", verdict, verdict != "ok")
