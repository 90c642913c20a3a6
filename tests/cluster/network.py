"""The network of real nodes: a switch in its own network namespace, linked to the machine and to each node.

While it exists, the machine has one more interface; its packet filter is not touched, because the bridge is not in the
machine's namespace. Every link ends in the switch, so all links are deleted when the switch's process ends.
"""

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.plane import PODS_GATEWAY, ClusterError, Plane
from tests.cluster.real_node import DNS, Node

LINK_NAME = "torchyard0"  # the machine's interface on the nodes' network


def create_network(plane: Plane, nodes: Iterable[Node]) -> int:
    """Start the switch, give the machine its address on the nodes' network, and return the switch's process id."""
    switch_pid = plane.start("switch", ["unshare", "--net", "sleep", "infinity"])
    wait_for_namespace(switch_pid)
    run_ip_commands(os.getpid(), [f"link add {LINK_NAME} type veth peer name uplink netns {switch_pid}"])
    run_ip_commands(
        switch_pid, ["link add bridge type bridge", "link set bridge up", "link set uplink master bridge up"]
    )
    routes = [f"route add {node.pod_network} via {node.address}" for node in nodes]
    run_ip_commands(
        os.getpid(), [f"address add {PODS_GATEWAY}/24 dev {LINK_NAME}", f"link set {LINK_NAME} up", *routes]
    )
    return switch_pid


def connect_node(node: Node, pid: int, switch_pid: int, other_nodes: Iterable[Node]) -> None:
    """Connect the node with this first process; it gets the DNS address and routes to the other nodes' pods."""
    wait_for_namespace(pid)
    port = f"link add {node.name} type veth peer name eth0 netns {pid}"
    run_ip_commands(switch_pid, [port, f"link set {node.name} master bridge up"])
    addresses = [f"address add {node.address}/24 dev eth0", f"address add {DNS}/32 dev lo"]
    routes = [f"route add {other.pod_network} via {other.address}" for other in other_nodes]
    # The default route is added last: the node waits for it.
    link_commands = ["link set lo up", "link set eth0 up", *routes, f"route add default via {PODS_GATEWAY}"]
    run_ip_commands(pid, addresses + link_commands)


def wait_for_namespace(pid: int) -> None:
    """Wait until a process has left the machine's network namespace; ClusterError if it does not, or has exited."""
    own_namespace = os.readlink("/proc/self/ns/net")
    namespace = Path(f"/proc/{pid}/ns/net")
    deadline = time.monotonic() + 10
    while namespace.exists() and time.monotonic() < deadline:
        if os.readlink(namespace) != own_namespace:
            return
        time.sleep(0.005)
    raise ClusterError("a process of the real nodes did not get its own network namespace")


def run_ip_commands(pid: int, commands: list[str]) -> None:
    """Run commands of `ip` in the network namespace of a process; raises ClusterError."""
    argv = ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"]
    result = subprocess.run(argv, input="\n".join(commands), capture_output=True, text=True, check=False)
    if result.returncode:
        raise ClusterError(f"cannot create the network of the real nodes: {result.stderr.strip()}")
