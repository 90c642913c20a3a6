"""Fixtures for the shell text that runs in a pod."""

import shutil
from pathlib import Path

import pytest

from tests.inputs.gid_ports import GidPod


@pytest.fixture(params=["dash", "bash", "busybox"])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> GidPod:
    """A pod with two interfaces and no RDMA yet; the path of its sysfs has characters that shells trip over."""
    shell = shutil.which(request.param) or pytest.skip(f"there is no {request.param}")
    root = tmp_path / "it's a $root"
    for interface in ("eth0", "net1"):
        (root / "class/net" / interface).mkdir(parents=True)
    return GidPod(root, [shell, "sh"] if request.param == "busybox" else [shell])
