"""Two real nodes for the test cluster: kubelet, containerd and runc, each node in its own namespaces.

`up` starts them beside the control plane if the machine allows it, and `describe_obstacle` returns what is missing. A
node is one process tree (node/boot.sh), so the teardown of the plane ends it like any other component; the removal of
what a killed tree leaves behind (control groups, empty mount points) is registered with the plane beforehand.

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
from tests.cluster.real_node import CNI_FOLDERS, HERE, NODES, Node, write_node_files

INSTALL_COMMAND = "apt-get install containerd runc containernetworking-plugins iptables iproute2"
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "ip", "nsenter", "unshare")
CNI_PLUGINS = ("bridge", "host-local", "loopback")
GPUS = {"nvidia.com/gpu": "8"}
# Paths that are compiled into kubelet and CNI, and a folder that pods with RDMA mount from the node.
MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/dev/infiniband"))
READY_TIMEOUT_S = 180.0  # on two cores both are Ready after about two seconds, and free of taints after forty


def describe_obstacle() -> str | None:
    """Why this machine cannot run real nodes, in a sentence; None if it can."""
    if os.geteuid() != 0:
        return "real nodes need root"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    for name in CNI_PLUGINS:
        if not any((folder / name).exists() for folder in CNI_FOLDERS):
            missing.append(f"CNI plugin {name}")
    if missing:
        return f"real nodes need {', '.join(missing)}: {INSTALL_COMMAND}"
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"], check=False).returncode:
        return "real nodes need namespaces, and root cannot create them on this machine"
    if not all(os.access(root, os.W_OK) for root in cgroups.list_hierarchies()):
        return f"real nodes need control groups, and {cgroups.MOUNT} is not writable"
    return None


def start_nodes(plane: Plane) -> str | None:
    """Start all nodes, which register with the running API server; return the obstacle if there is one, else None."""
    obstacle = describe_obstacle()
    if obstacle:
        return obstacle
    prepare_machine(plane)
    folder = plane.state_folder / "nodes"
    folder.mkdir()
    node_images = [
        images.build_pause_image(),
        images.build_python_image(),
        images.build_alpine_image(),
        images.build_etcd_image(plane.get_program_path("etcd-v2")),
    ]
    images.write_archive(node_images, folder / "images.tar")
    mounts = "".join(f"{source}\t{target}\n" for source, target in images.list_userland_mounts())
    (folder / "userland").write_text(mounts)
    switch_pid = network.create_network(plane, NODES)
    for node in NODES:
        boot_node(plane, node, switch_pid)
    return None


def prepare_machine(plane: Plane) -> None:
    """Create what nodes need on the machine itself, after registering its removal with the plane."""
    plane.add_teardown_command([sys.executable, cgroups.__file__])
    cgroups.remove_groups()
    cgroups.create_groups([node.name for node in NODES])
    for path in MOUNT_POINTS:
        if not path.exists():
            plane.add_teardown_command(["rmdir", path])
            path.mkdir(parents=True)


def boot_node(plane: Plane, node: Node, switch_pid: int) -> None:
    """Start a node's process tree and connect it to the switch."""
    folder = write_node_files(plane, node, plane.state_folder / "nodes" / "userland")
    unshare = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    pid = plane.start(node.name, [*unshare, "sh", HERE / "boot.sh", folder])
    network.connect_node(node, pid, switch_pid, [other for other in NODES if other != node])


def wait_until_ready(plane: Plane) -> str:
    """Wait until every node is Ready, and give it GPUs (a kubelet keeps resources that it does not manage).

    Returns a line for the user; raises ClusterError if a node has exited or is not Ready in time.
    """
    api = plane.api()
    deadline = time.monotonic() + READY_TIMEOUT_S
    for node in NODES:
        while not is_ready(api, node):
            if node.name in plane.list_ended_components() or time.monotonic() > deadline:
                raise ClusterError(
                    f"real node {node.name} did not become Ready:\n{plane.read_last_log_lines(node.name)}"
                )
            time.sleep(0.05)
        status = {"status": {"capacity": GPUS, "allocatable": GPUS}}
        api.call("PATCH", f"/api/v1/nodes/{node.name}/status", status, patch_type="merge")
    return f"{len(NODES)} real nodes: {', '.join(node.name for node in NODES)}"


def is_ready(api: Api, node: Node) -> bool:
    """Whether a node is Ready and has lost the taint of one that is not."""
    try:
        obj: Object = api.call("GET", f"/api/v1/nodes/{node.name}")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    conditions = obj["status"].get("conditions") or []
    # The taint is removed a moment after the condition is set; until then no pod can be scheduled.
    is_tainted = any(taint["key"] == "node.kubernetes.io/not-ready" for taint in obj["spec"].get("taints") or [])
    return not is_tainted and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
