"""A real node: its name, its addresses, and every file that its programs read."""

import ipaddress
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import cgroups, images
from tests.cluster.plane import PODS_GATEWAY, Plane

HERE = Path(__file__).resolve().parent / "node"
DNS = "10.96.0.10"  # in SERVICE_NETWORK; no Service gets it by chance, because the first 256 are assigned last
DOMAIN = "cluster.local"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  # the distribution's folder, and the usual one
LABELS = {"torchyard/node": "real", "node.kubernetes.io/instance-type": "BM.GPU.B4.8"}


@dataclass(frozen=True)
class Node:
    """A real node by its number from 1: its name, its address on the machine's network, and its pods' network."""

    number: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return str(ipaddress.ip_network(f"{PODS_GATEWAY}/24", strict=False)[10 + self.number])

    @property
    def pod_network(self) -> str:
        return f"10.31.{self.number}.0/24"


NODES = (Node(1), Node(2))


def write_node_files(plane: Plane, node: Node, userland: Path) -> Path:
    """Write every file that a node's programs read, and return the folder; they write their data there too."""
    folder = get_node_folder(plane, node)
    for name in ("log", "kubelet", "cni", "net.d", "containerd"):
        (folder / name).mkdir(parents=True)
    plane.write_kubeconfig(folder / "kubeconfig", node.name, ["system:masters"], PODS_GATEWAY)
    host_lines = "".join(f"{other.address} {other.name}\n" for other in NODES)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{host_lines}")
    (folder / "resolv.conf").write_text(f"nameserver {DNS}\n")
    (folder / "containerd.toml").write_text(render_containerd_config(folder))
    (folder / "spec.json").write_text(json.dumps(build_container_spec(userland)))
    (folder / "net.d" / "10-bridge.conf").write_text(json.dumps(build_bridge_config(node)))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(build_kubelet_config(plane, node)))
    (folder / "kube-proxy.yaml").write_text(yaml.safe_dump(build_kube_proxy_config(folder, node)))
    (folder / "Corefile").write_text(render_corefile(folder))
    (folder / "node.env").write_text(render_environment(plane, node))
    return folder


def get_node_folder(plane: Plane, node: Node) -> Path:
    """The folder of a node's files, within the cluster's state."""
    return plane.state_folder / "nodes" / node.name


def render_environment(plane: Plane, node: Node) -> str:
    """The variables of boot.sh, as shell assignments."""
    variables: dict[str, object] = {"NAME": node.name, "ADDRESS": node.address, "LOGS": plane.log_folder}
    variables["LABELS"] = ",".join(f"{key}={value}" for key, value in LABELS.items())
    variables["IMAGES"] = plane.state_folder / "nodes" / "images.tar"
    variables |= {
        name.upper().replace("-", "_"): plane.get_program_path(name) for name in ("kubelet", "kube-proxy", "coredns")
    }
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items())


def render_containerd_config(folder: Path) -> str:
    """containerd's configuration, in version 2, which both 1.x and 2.x read."""
    plugin_folder = find_cni_folder()
    unused = ["snapshotter.v1." + name for name in ("aufs", "btrfs", "devmapper", "zfs")]
    cri_plugin = 'plugins."io.containerd.grpc.v1.cri"'
    # If root may not lower a process's OOM score, no sandbox starts unless containerd restricts the scores it sets.
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps([f"io.containerd.{name}" for name in unused])}
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/containerd/opt"
[{cri_plugin}]
sandbox_image = "{images.PAUSE}"
restrict_oom_score_adj = true
[{cri_plugin}.cni]
bin_dir = "{plugin_folder}"
conf_dir = "{folder}/net.d"
[{cri_plugin}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{folder}/spec.json"
[{cri_plugin}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def find_cni_folder() -> Path:
    """The folder of the CNI plugins; the distribution's if there is none."""
    for folder in CNI_FOLDERS:
        if folder.is_dir():
            return folder
    return CNI_FOLDERS[0]


def build_container_spec(userland: Path) -> dict[str, Any]:
    """containerd's default container spec, plus the hook that mounts the machine's userland."""
    output = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True).stdout
    hook = {
        "path": shutil.which("sh"),
        "args": ["sh", str(HERE / "userland.sh"), str(userland)],
        "env": [f"PATH={os.environ['PATH']}"],  # without it the hook would get the image's PATH
    }
    spec: dict[str, Any] = json.loads(output)
    return spec | {"hooks": {"createContainer": [hook]}}


def build_bridge_config(node: Node) -> dict[str, Any]:
    """The node's bridge for its pods; routes lead to other nodes' pods, so nothing is masqueraded."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": node.pod_network}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }


def build_kubelet_config(plane: Plane, node: Node) -> dict[str, Any]:
    """The kubelet's configuration; it never evicts, because others may fill the shared machine's disk or memory."""
    folder = get_node_folder(plane, node)
    shared = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(plane.ca_path)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.TREE}/{node.name}",
        "clusterDNS": [DNS],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": shared,
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "resolvConf": str(folder / "resolv.conf"),
        "volumePluginDir": str(folder / "volume-plugins"),
    }


def build_kube_proxy_config(folder: Path, node: Node) -> dict[str, Any]:
    """kube-proxy's configuration; it masquerades all traffic, else replies on one bridge would bypass the node."""
    # Zero means unchanged: these settings are the machine's, and the nodes share them.
    untouched = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(folder / "kubeconfig")},
        "conntrack": untouched,
        "hostnameOverride": node.name,
        "iptables": {"masqueradeAll": True},
        "mode": "iptables",
        "oomScoreAdj": 0,
    }


def render_corefile(folder: Path) -> str:
    """CoreDNS resolves the cluster's names and answers NXDOMAIN to others.

    Nodes and pods reach nothing off this machine.
    """
    zones = f"{DOMAIN} in-addr.arpa ip6.arpa"
    return f"""{zones} {{
    bind {DNS}
    errors
    kubernetes {zones} {{
        kubeconfig "{folder}/kubeconfig"
        ttl 1
    }}
}}
. {{
    bind {DNS}
    template IN ANY . {{
        rcode NXDOMAIN
    }}
}}
"""
