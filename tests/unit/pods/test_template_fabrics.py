"""What fabrics with a plugin need of the pods: a daemon beside the program, devices by claims, lines before it."""

from typing import Any

import pytest

from tests.builders.plan_parts import get_command, get_container, get_mounts, get_pod_spec, list_requirements
from tests.conftest import Planned
from torchyard.model.requirements import ReferencedObject

BOTH = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob", "jobset", "job", "appwrapper"])
TCPX = {"hardware": "gke/a3-high", "fabric": "tcpx"}
A4X_MAX = {"hardware": "gke/a4x-max", "fabric": "gib-dra"}
DAEMON = {
    "name": "d",
    "image": "d:1",
    "sidecar": True,
    "command": ["d", "$(X)"],
    "capabilities": ["NET_ADMIN"],
    "env": {"A": "$(B)"},
    "mounts": {"/conf": {"config_map": "conf", "read_only": True}, "/run/d": {"host": "/run/d"}},
}


@BOTH
def test_daemon_runs_beside_the_program(planned: Planned, launcher: str) -> None:
    """A sidecar is an init container that restarts: Kubernetes starts it first, and ends it after the program."""
    (init_container,) = get_pod_spec(planned(launcher=launcher, pod={"init": [DAEMON]}))["initContainers"]
    assert init_container == {
        "name": "d",
        "image": "d:1",
        "command": ["d", "$$(X)"],
        "restartPolicy": "Always",
        "env": [{"name": "A", "value": "$$(B)"}],
        "volumeMounts": [
            {"name": "init-0-0", "mountPath": "/conf", "readOnly": True},
            {"name": "init-0-1", "mountPath": "/run/d"},
        ],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }


def test_daemon_has_volumes_of_its_own(planned: Planned) -> None:
    """Its volumes are the pod's, but not the program's; preflight checks the objects that they name."""
    plan = planned(pod={"init": [DAEMON], "shm": "1Gi"}, on_hang="off")
    assert {
        volume["name"]: volume.get("hostPath", volume.get("configMap")) for volume in get_pod_spec(plan)["volumes"]
    } == {
        "volume-0": None,
        "init-0-0": {"name": "conf"},
        "init-0-1": {"path": "/run/d"},
    }
    assert [mount["mountPath"] for mount in get_container(plan)["volumeMounts"]] == ["/dev/shm"]
    assert ReferencedObject(object_kind="ConfigMap", name="conf") in plan.requires


def test_profile_adds_to_the_daemons_of_the_fabric(planned: Planned) -> None:
    """A fabric's daemon and a profile's init container are both started, and the program shares the daemon's socket."""
    plan = planned(**TCPX, pod={"init": [{"name": "fetch", "image": "f:1"}]})
    assert [container["name"] for container in get_pod_spec(plan)["initContainers"]] == ["tcpx-daemon", "fetch"]
    sources = {volume["name"]: volume["hostPath"] for volume in get_pod_spec(plan)["volumes"] if "hostPath" in volume}
    daemon_volume = {
        mount["mountPath"]: mount["name"] for mount in get_pod_spec(plan)["initContainers"][0]["volumeMounts"]
    }["/run/tcpx"]
    program_volume = {mount["mountPath"]: mount["name"] for mount in get_container(plan)["volumeMounts"]}["/tmp"]
    assert sources[daemon_volume] == sources[program_volume] == {"path": "/run/tcpx"}
    assert get_mounts(planned(**TCPX | {"fabric": "no-rdma", "on_hang": "off"})).keys() == {"/dev/shm"}


@BOTH
def test_devices_are_claimed_beside_the_channel(planned: Planned, launcher: str) -> None:
    """The pod claims by each template, its container has all claims, and preflight checks what provides them."""
    plan = planned(launcher=launcher, **A4X_MAX)
    names = ["torchyard", "torchyard-mrdma"]
    assert get_pod_spec(plan)["resourceClaims"] == [{"name": name, "resourceClaimTemplateName": name} for name in names]
    assert get_container(plan)["resources"]["claims"] == [{"name": name} for name in names]
    references = {(reference.object_kind, reference.name) for reference in list_requirements(plan, ReferencedObject)}
    assert {("ComputeDomain", "torchyard"), ("ResourceClaimTemplate", "torchyard-mrdma")} <= references


@BOTH
def test_setup_of_the_fabric_comes_first(planned: Planned, launcher: str) -> None:
    """A line of the profile can still change what the fabric's script has set."""
    text = get_command(planned(launcher=launcher, **A4X_MAX, setup=["export NCCL_X=1"]))[2]
    script_index, setup_index, program_index = (
        text.index(needle) for needle in ("set_nccl_env.sh", "export NCCL_X=1", 'exec "$@"')
    )
    assert script_index < setup_index < program_index


@pytest.mark.parametrize("keys", [{}, {"resources": {"gpus": 4}}])
def test_nodes_without_a_number_of_gpus_have_their_resource(planned: Planned, keys: dict[str, Any]) -> None:
    """Where GPUs differ from node to node, the profile's number is requested, by the shape's name for them."""
    plan = planned(hardware="network-operator/examples", fabric="hostdev", **keys)
    requests = get_container(plan)["resources"]["requests"]
    assert requests.get("nvidia.com/gpu") == (str(keys["resources"]["gpus"]) if keys else None)
    assert requests["nvidia.com/hostdev"] == "1"
