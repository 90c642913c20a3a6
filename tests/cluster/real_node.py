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
DNS = "10.96.0.10"  # in SERVICES; no Service gets it by chance, because the first 256 are assigned last
DOMAIN = "cluster.local"
CNI = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  # the distribution's, and the usual one
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
    def pods(self) -> str:
        return f"10.31.{self.number}.0/24"


NODES = (Node(1), Node(2))


def furnish(plane: Plane, node: Node, userland: Path) -> Path:
    """Write every file that a node's programs read, and return the folder; they write their data there too."""
    folder = home(plane, node)
    for name in ("log", "kubelet", "cni", "net.d", "containerd"):
        (folder / name).mkdir(parents=True)
    plane.kubeconfig(folder / "kubeconfig", node.name, ["system:masters"], PODS_GATEWAY)
    known = "".join(f"{one.address} {one.name}\n" for one in NODES)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{known}")
    (folder / "resolv.conf").write_text(f"nameserver {DNS}\n")
    (folder / "containerd.toml").write_text(containerd(folder))
    (folder / "spec.json").write_text(json.dumps(container_spec(userland)))
    (folder / "net.d" / "10-bridge.conf").write_text(json.dumps(bridge(node)))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet(plane, node)))
    (folder / "kube-proxy.yaml").write_text(yaml.safe_dump(kube_proxy(folder, node)))
    (folder / "Corefile").write_text(corefile(folder))
    (folder / "node.env").write_text(environment(plane, node))
    return folder


def home(plane: Plane, node: Node) -> Path:
    return plane.state / "nodes" / node.name


def environment(plane: Plane, node: Node) -> str:
    """The variables of boot.sh, as shell assignments."""
    known: dict[str, object] = {"NAME": node.name, "ADDRESS": node.address, "LOGS": plane.logs}
    known["LABELS"] = ",".join(f"{key}={value}" for key, value in LABELS.items())
    known["IMAGES"] = plane.state / "nodes" / "images.tar"
    known |= {name.upper().replace("-", "_"): plane.program(name) for name in ("kubelet", "kube-proxy", "coredns")}
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in known.items())


def containerd(folder: Path) -> str:
    """containerd's configuration, in version 2, which both 1.x and 2.x read."""
    plugins = next((path for path in CNI if path.is_dir()), CNI[0])
    unused = ["snapshotter.v1." + name for name in ("aufs", "btrfs", "devmapper", "zfs")]
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    # If root may not lower a process's OOM score, no sandbox starts unless containerd restricts the scores it sets.
    return f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps([f"io.containerd.{name}" for name in unused])}
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/containerd/opt"
[{cri}]
sandbox_image = "{images.PAUSE}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/net.d"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{folder}/spec.json"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def container_spec(userland: Path) -> dict[str, Any]:
    """containerd's default container spec, plus the hook that mounts the machine's userland."""
    made = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True).stdout
    hook = {
        "path": shutil.which("sh"),
        "args": ["sh", str(HERE / "userland.sh"), str(userland)],
        "env": [f"PATH={os.environ['PATH']}"],  # without it the hook would get the image's PATH
    }
    spec: dict[str, Any] = json.loads(made)
    return spec | {"hooks": {"createContainer": [hook]}}


def bridge(node: Node) -> dict[str, Any]:
    """The node's bridge for its pods; routes lead to other nodes' pods, so nothing is masqueraded."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }


def kubelet(plane: Plane, node: Node) -> dict[str, Any]:
    """The kubelet's configuration; it never evicts, because others may fill the shared machine's disk or memory."""
    folder = home(plane, node)
    shared = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(plane.authority)},
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


def kube_proxy(folder: Path, node: Node) -> dict[str, Any]:
    """kube-proxy's configuration; it masquerades all traffic, else replies on one bridge would bypass the node."""
    # These settings belong to the machine, not to the node.
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


def corefile(folder: Path) -> str:
    """Resolves the cluster's names and answers NXDOMAIN to others: nodes and pods reach nothing off this machine."""
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
