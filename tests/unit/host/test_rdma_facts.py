"""What a pod prints about its RDMA devices, from synthetic trees of sysfs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.gid_ports import GidPod
from torchyard.host import rdma_facts


class Pod:
    """A synthetic root folder, and what the program prints there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, port: str, table: str = "- v4:2@eth1", state: str = "4: ACTIVE") -> None:
        GidPod(self.root / "sys", []).add_port(port, table, state)
        (self.root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        (self.root / "dev/infiniband" / f"uverbs{port[5]}").touch()

    def run(self, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
        """The exit code, the printed JSON, and the text on stderr."""
        exit_code = rdma_facts.main(args, f"{self.root}/")
        captured = capsys.readouterr()
        (line,) = captured.out.splitlines()
        report: dict[str, Any] = json.loads(line)["torchyard_rdma"]
        return exit_code, report, captured.err


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod without RDMA whose image has libibverbs."""
    monkeypatch.setattr(rdma_facts, "has_libibverbs", lambda: True)
    return Pod(tmp_path)


def test_ports_are_reported_with_their_gids(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """Each port has its state and its GIDs with type and interface, without empty slots."""
    pod.add("mlx5_0/1")
    os.environ["NCCL_IB_GID_INDEX"] = "1"
    exit_code, report, _ = pod.run(capsys, "required")
    (port,) = report["ports"]
    assert (exit_code, report["lacks"], report["devices"], report["gid_index"]) == (0, [], 1, "1")
    assert (port["port"], port["state"]) == ("mlx5_0/1", "4: ACTIVE")
    assert port["gids"] == [[1, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2", "eth1"]]


@pytest.mark.parametrize(
    ("rule", "selected"),
    [
        ("", ["mlx5_0/1", "mlx5_1/1", "mlx5_10/1"]),
        ("mlx5_1", ["mlx5_1/1", "mlx5_10/1"]),
        ("=mlx5_1", ["mlx5_1/1"]),
        ("mlx5_0:1,=", ["mlx5_0/1"]),
        ("mlx5_0:2", []),
        ("^mlx5_1", ["mlx5_0/1"]),
        ("^=mlx5_1", ["mlx5_0/1", "mlx5_10/1"]),
    ],
)
def test_ports_are_selected_as_by_nccl(
    pod: Pod, capsys: pytest.CaptureFixture[str], rule: str, selected: list[str]
) -> None:
    """NCCL_IB_HCA selects ports by prefix, by exact name after `=`, and all others after `^`."""
    for port in ("mlx5_0/1", "mlx5_1/1", "mlx5_10/1"):
        pod.add(port)
    os.environ["NCCL_IB_HCA"] = rule
    _, report, _ = pod.run(capsys)
    assert [port["port"] for port in report["ports"]] == selected


def test_pod_without_devices_reports_what_is_missing(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a device the report lists what is missing, and the pod starts unless RDMA is required."""
    exit_code, report, stderr = pod.run(capsys)
    assert (exit_code, stderr, len(report["lacks"])) == (0, "", 2)
    exit_code, _, stderr = pod.run(capsys, "required")
    assert exit_code == rdma_facts.UNUSABLE_EXIT_CODE
    assert stderr.startswith(
        "torchyard: error: this pod cannot use RDMA: the pod has no /dev/infiniband/uverbs*: ask for"
    )


def test_port_that_is_down_is_reported(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """If no port is ACTIVE, the first one is reported with its state."""
    pod.add("mlx5_0/1", state="1: DOWN")
    _, report, _ = pod.run(capsys)
    assert report["lacks"] == ["no port is ACTIVE: mlx5_0/1 is 1: DOWN"]


def test_missing_library_is_reported(
    pod: Pod, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image without libibverbs cannot use RDMA, whatever devices the pod has."""
    pod.add("mlx5_0/1")
    monkeypatch.setattr(rdma_facts, "has_libibverbs", lambda: False)
    assert pod.run(capsys, "required")[0] == rdma_facts.UNUSABLE_EXIT_CODE
