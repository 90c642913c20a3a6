"""Where a cell's nodes run: on this machine, or each in a network namespace whose cable can be cut; and a full disk."""

import contextlib
import os
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.server import _find_free_port
from tests.waiting import until

_DISK_BYTES = 1 << 20
_GROUPS = Path("/sys/fs/cgroup")
_QUOTA_US = 10_000  # of each tenth of a second


def find_missing_right() -> str:
    """Why this machine cannot have small file systems and network namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    missing = [tool for tool in ("ip", "mount") if not shutil.which(tool)]
    return f"has no {' and no '.join(missing)}" if missing else "" if tried.returncode == 0 else "may not unshare"


class Place:
    """This machine: all nodes share its loopback."""

    def __init__(self) -> None:
        self.address, self.port = "127.0.0.1", _find_free_port()

    def wrap(self, _: int) -> list[str]:
        """What a node's command begins with."""
        return []

    def cut(self, node: int) -> None:
        raise NotImplementedError(f"node {node} has no cable of its own")


class Network(Place):
    """A bridge with a namespace for each node; names and addresses have the number of the network."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number, self._bridge = number, f"tyh{number}"
        self.address = self._address(0)

    def _address(self, node: int) -> str:
        return f"10.77.{self._number}.{node + 1}"

    def wrap(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", f"{self._bridge}-{node}", "env", "GLOO_SOCKET_IFNAME=eth0"]

    def cut(self, node: int) -> None:
        """Take the node's cable out of the bridge: its link stays up, and packets vanish."""
        _run(f"ip link set {self._bridge}v{node} nomaster")

    def make(self, nodes: int) -> None:
        _run(f"ip link add {self._bridge} type bridge")
        _run(f"ip link set {self._bridge} up")
        for node in range(nodes):
            space, cable = f"{self._bridge}-{node}", f"{self._bridge}v{node}"
            _run(f"ip netns add {space}")
            _run(f"ip link add {cable} type veth peer name eth0 netns {space}")
            _run(f"ip link set {cable} master {self._bridge} up")
            _run(f"ip -n {space} link set lo up")
            _run(f"ip -n {space} link set eth0 up")
            _run(f"ip -n {space} address add {self._address(node)}/24 dev eth0")

    def remove(self, nodes: int) -> None:
        for node in range(nodes):
            _run(f"ip netns del {self._bridge}-{node}", must=False)
            _run(f"ip link del {self._bridge}v{node}", must=False)
        _run(f"ip link del {self._bridge}", must=False)


@contextlib.contextmanager
def making_network(number: int, nodes: int) -> Iterator[Network]:
    network = Network(number)
    network.remove(nodes)
    try:
        network.make(nodes)
        yield network
    finally:
        network.remove(nodes)


@contextlib.contextmanager
def mounting_disk(path: Path) -> Iterator[Path]:
    """A file system that a checkpoint does not fit on."""
    path.mkdir()
    _run(f"mount -t tmpfs -o size={_DISK_BYTES} torchyard-hang {path}")
    try:
        yield path
    finally:
        _run(f"umount --lazy {path}", must=False)


@contextlib.contextmanager
def limiting_cpu(name: str) -> Iterator[Path]:
    """The file that takes the number of a process which may use a tenth of a processor from then on."""
    old, new = _GROUPS / "cpu", _GROUPS
    group = (old if old.is_dir() else new) / name
    group.mkdir(exist_ok=True)
    try:
        if old.is_dir():
            (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        else:
            (new / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{_QUOTA_US} 100000")
        yield group / "cgroup.procs"
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@contextlib.contextmanager
def serving_slowly() -> Iterator[int]:
    """The port of a server that sends about 200 kB/s for 10 s."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _SlowAnswer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class _SlowAnswer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.request.sendall(bytes(20_000))
            time.sleep(0.1)


def _run(command: str, must: bool = True) -> None:
    ended = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if must and ended.returncode:
        raise RuntimeError(f"{command}: {ended.stderr.strip()}")
