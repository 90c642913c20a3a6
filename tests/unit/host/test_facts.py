"""What preflight probes on a host: its ports and its folders."""

import os
import socket
from pathlib import Path

import pytest

from torchyard.host.facts import count_gpus
from torchyard.machines.checks import check_hosts
from torchyard.model.finding import Finding
from torchyard.model.requirements import FreePort, HostRequirement, WritableFolder


def run_check(requirement: HostRequirement) -> Finding:
    (check,) = check_hosts([requirement])
    return check


def test_taken_port_names_its_holder() -> None:
    """A port that is in use is reported with the process that listens on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = run_check(FreePort(host="localhost", port=server.getsockname()[1], option="options.port"))
    assert (check.verdict, f"held by pid {os.getpid()}" in check.what) == ("failed", True)


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
