"""Fake nodes and fake pods: kwok drives them, according to each pod's annotations.

A pod that is bound to a fake node (label `type: kwok`) is ContainerCreating at once, Running after `start-after`, and
runs forever unless an annotation ends it. All annotations begin with `torchyard.test/` and hold strings; put them in a
pod template or on an existing pod:

| annotation    | meaning                                                                                        |
|---------------|------------------------------------------------------------------------------------------------|
| `start-after` | seconds (fractions too) from being bound to Running; 0 when absent                             |
| `end-after`   | seconds from Running to the end; never when absent                                             |
| `exit`        | exit code at the end: 0, also when absent, is Succeeded, anything else Failed                  |
| `reason`      | the containers' `terminated.reason`, such as OOMKilled; else Completed or Error                |
| `end-now`     | an exit code: ends the pod at once, running or not (to control an existing pod)                |
| `waiting`     | a waiting reason such as ImagePullBackOff: the pod stays Pending with it until the annotation  |
|               | is removed or emptied; CrashLoopBackOff instead results in a Running pod whose containers      |
|               | crashed with code `exit` (1 when absent) and were restarted `restarts` times (1 when absent)   |
| `log`         | a file on this machine: the pod's log, see fake_logs.py; default.log when absent               |

A running pod that is deleted is killed after its grace period, at most a second; it becomes Failed with exit code 137
and is then removed. A pod that does not run is removed at once. `restartPolicy` is ignored: a container that has ended
does not restart. All containers of a pod run and end together; its init containers have Completed when it starts.

Annotations on an existing pod take effect at once: `end-after: "0"` or `end-now: "1"` ends a running pod.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import build
from tests.cluster.api import Object

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = ROOT / "profiles" / "hardware"
NODES_PER_SHAPE = 4
PLAIN_NODES = 2
DEFAULT_GPUS = 8  # of a node whose hardware file does not have a number
FAKE_LABEL = {"type": "kwok"}
PLUGIN_NAMESPACE = "nvidia-network-operator"  # the namespace of device plugins
# Large: tests that run at the same time must not wait for each other's nodes.
NODE_SIZE = {"cpu": "512", "memory": "2048Gi", "ephemeral-storage": "1000Gi", "pods": "110"}


def build_nodes() -> list[Object]:
    """Some nodes of each hardware file's shape and a few without any accelerator."""
    nodes: list[Object] = []
    for name, hardware in read_hardware_files().items():
        labels = hardware.get("match", {})
        resources = read_resources(hardware)
        for index in range(NODES_PER_SHAPE):
            nodes.append(build_node(f"{name}-{index}", labels, resources, len(nodes)))
    for index in range(PLAIN_NODES):
        nodes.append(build_node(f"cpu-{index}", {}, {}, len(nodes)))
    return nodes


@cache
def read_hardware_files() -> Mapping[str, Mapping[str, Any]]:
    """Every hardware file, by a name derived from its path, such as oke-bm-gpu-b4-8."""
    return {
        "-".join(path.relative_to(HARDWARE).with_suffix("").parts): yaml.safe_load(path.read_text())
        for path in sorted(HARDWARE.glob("**/*.yaml"))
    }


def read_resources(hardware: Mapping[str, Any]) -> dict[str, str]:
    """A node's resources beyond CPU and memory: its GPUs, and those that pods of any fabric mode request."""
    amounts = {}
    gpus = hardware.get("gpus")
    if gpus:
        amounts[gpus["resource"]] = str(gpus["per_node"] or DEFAULT_GPUS)
    for fabric in hardware.get("fabrics", {}).values():
        for name, count in fabric.get("pod", {}).get("resources", {}).items():
            amounts[name] = str(count)
    return {name: count for name, count in amounts.items() if name not in NODE_SIZE}


def build_node(name: str, labels: dict[str, str], resources: dict[str, str], number: int) -> Object:
    """A node of kwok; its InternalIP is made up, and logs are requested from this machine by InternalDNS name."""
    default_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    addresses = {
        "InternalIP": f"10.20.{number // 200}.{number % 200 + 1}",
        "InternalDNS": "localhost",
        "Hostname": name,
    }
    version = build.KUBERNETES
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": default_labels | labels | FAKE_LABEL},
        "status": {
            "capacity": NODE_SIZE | resources,
            "allocatable": NODE_SIZE | resources,
            "addresses": [{"type": kind, "address": address} for kind, address in addresses.items()],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "kwok",
                "kernelVersion": "kwok",
                "kubeProxyVersion": version,
                "kubeletVersion": version,
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "kwok",
                "systemUUID": "",
            },
        },
    }


def build_device_plugins() -> list[Object]:
    """The DaemonSet of every device plugin that a hardware file names by a label, on the fake nodes of those shapes."""
    matches_by_label: dict[str, list[dict[str, str]]] = {}
    for hardware in read_hardware_files().values():
        for fabric in hardware.get("fabrics", {}).values():
            label = fabric.get("device_plugin")
            if label:
                matches_by_label.setdefault(label, []).append(hardware.get("match", {}))
    return [build_device_plugin(label, matches) for label, matches in matches_by_label.items()]


def build_device_plugin(label: str, matches: list[dict[str, str]]) -> Object:
    """A DaemonSet with a `key=value` label, on the fake nodes that have the labels of one of the matches."""
    key, _, value = label.partition("=")
    selector_terms = []
    for match in matches:
        node_labels = match | FAKE_LABEL
        expressions = [{"key": name, "operator": "In", "values": [text]} for name, text in node_labels.items()]
        selector_terms.append({"matchExpressions": expressions})
    node_selector = {"nodeSelectorTerms": selector_terms}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": node_selector}}
    pod = {"affinity": affinity, "containers": [{"name": value, "image": f"registry.invalid/{value}:fake"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": value, "namespace": PLUGIN_NAMESPACE, "labels": {key: value}},
        "spec": {
            "selector": {"matchLabels": {key: value}},
            "template": {"metadata": {"labels": {key: value}}, "spec": pod},
        },
    }
