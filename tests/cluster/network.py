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

LINK = "torchyard0"  # the machine's end


def lay(plane: Plane, nodes: Iterable[Node]) -> int:
    """Start the switch, give the machine its address on the nodes' network, and return the switch's process id."""
    switch = plane.start("switch", ["unshare", "--net", "sleep", "infinity"])
    entered(switch)
    configure(os.getpid(), [f"link add {LINK} type veth peer name uplink netns {switch}"])
    configure(switch, ["link add bridge type bridge", "link set bridge up", "link set uplink master bridge up"])
    routes = [f"route add {node.pods} via {node.address}" for node in nodes]
    configure(os.getpid(), [f"address add {PODS_GATEWAY}/24 dev {LINK}", f"link set {LINK} up", *routes])
    return switch


def plug(node: Node, process: int, switch: int, others: Iterable[Node]) -> None:
    """Connect the node with this first process; it gets the DNS address and routes to the other nodes' pods."""
    entered(process)
    port = f"link add {node.name} type veth peer name eth0 netns {process}"
    configure(switch, [port, f"link set {node.name} master bridge up"])
    addresses = [f"address add {node.address}/24 dev eth0", f"address add {DNS}/32 dev lo"]
    routes = [f"route add {other.pods} via {other.address}" for other in others]
    # The default route comes last: the node waits for it.
    ways = ["link set lo up", "link set eth0 up", *routes, f"route add default via {PODS_GATEWAY}"]
    configure(process, addresses + ways)


def entered(process: int) -> None:
    """Wait until a process has left the machine's network namespace."""
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 10
    while (namespace := Path(f"/proc/{process}/ns/net")).exists() and os.readlink(namespace) == own:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    else:
        if namespace.exists():
            return
    raise ClusterError("a process of the real nodes got no network namespace of its own")


def configure(process: int, commands: list[str]) -> None:
    """Run commands of `ip` in the network namespace of a process."""
    argv = ["nsenter", "--target", str(process), "--net", "ip", "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the network of the real nodes could not be laid: {done.stderr.strip()}")
