"""The environment of a cell's nodes: this machine or network namespaces, a full disk, control groups, a slow server."""

import contextlib
import os
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.server import find_free_port
from tests.hang.environment import REQUEST
from tests.support.waiting import wait_until

_DISK_BYTES = 1 << 20
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_QUOTA_US = 10_000  # of each tenth of a second


def find_missing_permission() -> str | None:
    """Why this process cannot create file systems and network namespaces; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    completed = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    missing_tools = [tool for tool in ("ip", "mount") if not shutil.which(tool)]
    if missing_tools:
        return f"has no {' and no '.join(missing_tools)}"
    return None if completed.returncode == 0 else "may not unshare"


class LoopbackNetwork:
    """This machine: all nodes share its loopback."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.interface = "lo"
        self.port = find_free_port()

    def build_prefix(self, _: int) -> list[str]:
        """The arguments before a node's command."""
        return []

    def isolate(self, node: int) -> None:
        raise NotImplementedError(f"node {node} has no cable of its own")


class BridgedNetwork(LoopbackNetwork):
    """A bridge with a namespace for each node; names and addresses have the number of the network."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._bridge = f"tyh{number}"
        self.address = self._address(0)
        self.interface = "eth0"

    def _address(self, node: int) -> str:
        return f"10.77.{self._number}.{node + 1}"

    def build_prefix(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", f"{self._bridge}-{node}"]

    def isolate(self, node: int) -> None:
        """Take the node's cable out of the bridge: its link stays up, and packets vanish."""
        _run(f"ip link set {self._bridge}v{node} nomaster")

    def create(self, nodes: int) -> None:
        _run(f"ip link add {self._bridge} type bridge")
        _run(f"ip link set {self._bridge} up")
        for node in range(nodes):
            netns = f"{self._bridge}-{node}"
            cable = f"{self._bridge}v{node}"
            _run(f"ip netns add {netns}")
            _run(f"ip link add {cable} type veth peer name eth0 netns {netns}")
            _run(f"ip link set {cable} master {self._bridge} up")
            _run(f"ip -n {netns} link set lo up")
            _run(f"ip -n {netns} link set eth0 up")
            _run(f"ip -n {netns} address add {self._address(node)}/24 dev eth0")

    def remove(self, nodes: int) -> None:
        for node in range(nodes):
            _run(f"ip netns del {self._bridge}-{node}", is_required=False)
            _run(f"ip link del {self._bridge}v{node}", is_required=False)
        _run(f"ip link del {self._bridge}", is_required=False)


@contextlib.contextmanager
def create_network(number: int, nodes: int) -> Iterator[BridgedNetwork]:
    network = BridgedNetwork(number)
    network.remove(nodes)
    try:
        network.create(nodes)
        yield network
    finally:
        network.remove(nodes)


@contextlib.contextmanager
def mount_small_disk(path: Path) -> Iterator[Path]:
    """Mount a file system that is too small for a checkpoint."""
    path.mkdir()
    _run(f"mount -t tmpfs -o size={_DISK_BYTES} torchyard-hang {path}")
    try:
        yield path
    finally:
        _run(f"umount --lazy {path}", is_required=False)


@contextlib.contextmanager
def limit_cpu(name: str) -> Iterator[Path]:
    """Yield a file; a process whose id is written to it may use a tenth of a processor from then on."""
    v1_cpu_root = _CGROUP_ROOT / "cpu"
    v2_root = _CGROUP_ROOT
    group = (v1_cpu_root if v1_cpu_root.is_dir() else v2_root) / name
    group.mkdir(exist_ok=True)
    try:
        if v1_cpu_root.is_dir():
            (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        else:
            (v2_root / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{_QUOTA_US} 100000")
        yield group / "cgroup.procs"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextlib.contextmanager
def create_freezer(name: str) -> Iterator[Path]:
    """Yield the folder of a control group that a process can freeze."""
    v1_root = _CGROUP_ROOT / "freezer"
    group = (v1_root if v1_root.is_dir() else _CGROUP_ROOT) / name
    group.mkdir(exist_ok=True)
    try:
        yield group
    finally:
        if v1_root.is_dir():
            (group / "freezer.state").write_text("THAWED")
        else:
            (group / "cgroup.freeze").write_text("0")
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextlib.contextmanager
def serve_slowly() -> Iterator[int]:
    """The port of a server that answers each `REQUEST`, and sends about 200 kB/s for 10 s after any other one."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _SlowAnswer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class _SlowAnswer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while self.request.recv(100) == REQUEST:
                self.request.sendall(b"not yet")
            for _ in range(100):
                self.request.sendall(bytes(20_000))
                time.sleep(0.1)


def _run(command: str, is_required: bool = True) -> None:
    completed = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if is_required and completed.returncode:
        raise RuntimeError(f"{command}: {completed.stderr.strip()}")
