"""Two real nodes for the test cluster: kubelet, containerd and runc, each node in its own namespaces.

`up` starts them beside the control plane if the machine allows it, and `why_not` says what is missing. A node is one
process tree (node/boot.sh), so the teardown of the plane ends it like any other component; what a killed tree leaves
behind (control groups, empty mount points) is registered with the plane beforehand.

In a pod: image `torchyard/node-python:local`, whose PATH has the Python and the torchrun that run the tests, and
programs/ at /opt/torchyard/programs. The nodes have the labels of LABELS and eight made-up GPUs each.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import cgroups, images, network
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.plane import ClusterError, Plane
from tests.cluster.real_node import CNI, HERE, NODES, Node, furnish

PACKAGES = "apt-get install containerd runc containernetworking-plugins iptables iproute2"
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "ip", "nsenter", "unshare")
PLUGINS = ("bridge", "host-local", "loopback")
GPUS = {"nvidia.com/gpu": "8"}
# Paths that are compiled into kubelet and CNI, and a folder that pods with RDMA mount from the node.
MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/dev/infiniband"))
PATIENCE = 180.0  # seconds; on two cores both are Ready after about two, and free of taints after forty


def why_not() -> str:
    """Why this machine cannot run real nodes, in a sentence; "" if it can."""
    if os.geteuid() != 0:
        return "real nodes need root"
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    lacking += [f"CNI plugin {name}" for name in PLUGINS if not any((folder / name).exists() for folder in CNI)]
    if lacking:
        return f"real nodes need {', '.join(lacking)}: {PACKAGES}"
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"], check=False).returncode:
        return "real nodes need namespaces, and this machine makes none for root"
    if not all(os.access(root, os.W_OK) for root in cgroups.hierarchies()):
        return f"real nodes need control groups, and {cgroups.MOUNT} cannot be written"
    return ""


def begin(plane: Plane) -> str:
    """Start all nodes, which register with the running API server; returns why there are none, or ""."""
    if reason := why_not():
        return reason
    reserve(plane)
    folder = plane.state / "nodes"
    folder.mkdir()
    made = [images.pause(), images.python(), images.alpine(), images.etcd(plane.program("etcd-v2"))]
    images.pack(made, folder / "images.tar")
    table = "".join(f"{here}\t{there}\n" for here, there in images.userland())
    (folder / "userland").write_text(table)
    switch = network.lay(plane, NODES)
    for node in NODES:
        boot(plane, node, switch)
    return ""


def reserve(plane: Plane) -> None:
    """Create what nodes need on the machine itself, after registering its removal with the plane."""
    plane.on_down([sys.executable, cgroups.__file__])
    cgroups.remove()
    cgroups.make([node.name for node in NODES])
    for path in MOUNT_POINTS:
        if not path.exists():
            plane.on_down(["rmdir", path])
            path.mkdir(parents=True)


def boot(plane: Plane, node: Node, switch: int) -> None:
    folder = furnish(plane, node, plane.state / "nodes" / "userland")
    own = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    process = plane.start(node.name, [*own, "sh", HERE / "boot.sh", folder])
    network.plug(node, process, switch, [other for other in NODES if other != node])


def wait_ready(plane: Plane) -> str:
    """Wait until every node is Ready, and give it GPUs (a kubelet keeps resources that it does not know)."""
    api = plane.api()
    deadline = time.monotonic() + PATIENCE
    for node in NODES:
        while not ready(api, node):
            if node.name in plane.ended() or time.monotonic() > deadline:
                raise ClusterError(f"real node {node.name} did not get ready:\n{plane.last_words(node.name)}")
            time.sleep(0.05)
        status = {"status": {"capacity": GPUS, "allocatable": GPUS}}
        api.call("PATCH", f"/api/v1/nodes/{node.name}/status", status, patch="merge")
    return f"{len(NODES)} real nodes: {', '.join(node.name for node in NODES)}"


def ready(api: Api, node: Node) -> bool:
    try:
        found: Object = api.call("GET", f"/api/v1/nodes/{node.name}")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    conditions = found["status"].get("conditions") or []
    # Its taint goes a moment after the condition comes.
    tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in found["spec"].get("taints") or [])
    return not tainted and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
