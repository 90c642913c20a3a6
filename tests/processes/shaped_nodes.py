"""Nodes of a job on this machine: network namespaces, each with its own link of a chosen bandwidth."""

import ctypes
import os
import runpy
import subprocess
import sys

from tests.processes.sshd import run_ip
from tests.processes.started_programs import Finished, build_env
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT

LINK = "eth7"
TIMEOUT_S = 300.0  # with eight processes on a busy machine
NAMESPACE_TYPES = ("net", "uts")  # the network and the host name of a node
RUN_RANKS = "from tests.processes import shaped_nodes; shaped_nodes.run_ranks()"


class ShapedNodes:
    """Nodes node-0, node-1, ..., joined by a bridge. `stop` removes them."""

    def __init__(self, count: int, mbits: float) -> None:
        self.network = f"10.{os.getpid() % 200 + 20}.88"
        self.bridge = f"ts{os.getpid()}"
        self.holders: list[subprocess.Popen[bytes]] = []
        run_ip(f"link add {self.bridge} type bridge", f"link set {self.bridge} up")
        for node in range(count):
            self._add(node)
            self.shape(node, mbits)

    def _add(self, node: int) -> None:
        name = f"hostname node-{node}; exec sleep infinity"
        holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", name])
        self.holders.append(holder)
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/exe").endswith("sleep"))
        port = f"{self.bridge}n{node}"
        holder_pid = str(holder.pid)
        run_ip(
            f"link add {port} type veth peer name {LINK} netns {holder_pid}", f"link set {port} master {self.bridge} up"
        )
        address = f"address add {self.network}.{node + 1}/24 dev {LINK}"
        run_ip("link set lo up", address, f"link set {LINK} up", namespace_pid=holder_pid)

    def shape(self, node: int, mbits: float) -> None:
        """Set the bandwidth of a node's link, in Mbit/s, in both directions."""
        enter = ["nsenter", "--target", str(self.holders[node].pid), "--net"]
        for prefix, link in ((enter, LINK), ([], f"{self.bridge}n{node}")):
            tc_command = f"tc qdisc replace dev {link} root tbf rate {mbits}mbit burst 64kb latency 200ms"
            subprocess.run([*prefix, *tc_command.split()], check=True)

    def run(self, count: int, *program: str) -> Finished:
        """Run a program and its arguments on the first `count` nodes, one process on each."""
        holders = ",".join(str(holder.pid) for holder in self.holders[:count])
        rendezvous = {"MASTER_ADDR": f"{self.network}.1", "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": LINK}
        command = [sys.executable, "-c", RUN_RANKS, holders, *program]
        env = build_env(**rendezvous, WORLD_SIZE=str(count))
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    def stop(self) -> None:
        """Remove the nodes, and with them their links."""
        for node, holder in enumerate(self.holders):
            subprocess.run(["ip", "link", "delete", f"{self.bridge}n{node}"], check=False, capture_output=True)
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", self.bridge], check=False, capture_output=True)


def run_ranks() -> None:
    """Run a program as one rank in each of the nodes, and exit like the first one."""
    import torch  # noqa: F401 - once, before the ranks are forked: it takes seconds

    holders = sys.argv[1].split(",")
    sys.argv = sys.argv[2:]
    ranks = [os.fork() or _run_rank(rank, holder) for rank, holder in enumerate(holders)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(codes[0])


def _run_rank(rank: int, holder: str) -> int:
    for space in NAMESPACE_TYPES:
        with open(f"/proc/{holder}/ns/{space}") as namespace_file:
            assert ctypes.CDLL(None).setns(namespace_file.fileno(), 0) == 0
    os.environ["RANK"] = str(rank)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)
