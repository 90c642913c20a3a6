"""The hardware files: what they promise is what their sources say, and what a job can be planned with."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import fake, objects
from tests.conftest import Planned, manifest_plan_of
from torchyard.loading.profile import ROOT, _list_hardware, _load_hardware, load_profile
from torchyard.model.hardware import Fabric, Hardware
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Object

SHAPES = {name: _load_hardware(name) for name in sorted(_list_hardware())}
FABRICS = {f"{name}:{each}": fabric for name, shape in SHAPES.items() for each, fabric in shape.fabrics.items()}
RDMA = {name: fabric for name, fabric in FABRICS.items() if fabric.expect.transport != "socket"}
NICS = re.compile(r"(\d+) x (\d+) Gb/s")
GB300 = {"hardware": "oke/bm-gpu-gb300-4", "fabric": "host"}
GDR = {"hardware": "vela/a100", "fabric": "gdr"}
over_all = pytest.mark.parametrize("name", FABRICS)


def container(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = plan.pod["spec"]["containers"][0]
    return found


# --- the files


def test_labels_tell_shapes_apart() -> None:
    """A node is of one shape at most."""
    labels = [str(shape.match) for shape in SHAPES.values() if shape.match]
    assert len(labels) == len(set(labels)) >= 15


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if NICS.search(shape.about)])
def test_line_rate_is_that_of_the_nics(name: str) -> None:
    """NICs times Gb/s, by eight, is the line rate; the log must show as many HCAs."""
    shape = SHAPES[name]
    nics, rate = (int(each) for each in NICS.findall(shape.about)[0])
    assert shape.line_rate == nics * rate / 8
    assert {fabric.expect.hcas for fabric in shape.fabrics.values()} == {nics, None}


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.line_rate is None])
def test_unknown_line_rate_has_a_reason(name: str) -> None:
    """A file without a line rate says beside it why."""
    assert re.search(r"^line_rate: null # \w+", _list_hardware()[name].read_text(), re.M)


@pytest.mark.parametrize("name", [name for name in FABRICS if name.endswith(":vf")])
def test_virtual_functions_are_as_many_as_hcas(name: str) -> None:
    """Each function is a device and a network of the pod: one for each HCA, offered by a device plugin."""
    fabric = FABRICS[name]
    assert fabric.pod.resources == {"nvidia.com/rdma-vf": str(fabric.expect.hcas)}
    assert fabric.pod.networks == {"default/rdma-vf": fabric.expect.hcas}
    assert fabric.device_plugin
    assert fabric.env["NCCL_IB_HCA"] == "mlx5"


@over_all
def test_only_the_collective_library_is_told(name: str) -> None:
    """What mpirun and UCX read is for other jobs, and how much NCCL says is the launchers' matter."""
    keys = set(FABRICS[name].env)
    assert [key for key in keys if not key.startswith(("NCCL_", "RCCL_")) or key.startswith("NCCL_DEBUG")] == []


@over_all
def test_privileges_are_for_rdma_on_oke(name: str) -> None:
    """Sockets need no device and no locked memory; only OCI's own manifests ask for privileged pods."""
    fabric = FABRICS[name]
    assert not fabric.pod.privileged or (name in RDMA and name.startswith("oke/"))
    assert name in RDMA or (not fabric.pod.devices and "IPC_LOCK" not in fabric.pod.capabilities)


@pytest.mark.parametrize("name", [name for name, fabric in RDMA.items() if fabric.pod.host_network])
def test_devices_of_the_node_are_chosen_one_by_one(name: str) -> None:
    """On the node's network a bare prefix would take the front-end NIC too, and mlx5_1 would mean mlx5_10."""
    fabric = FABRICS[name]
    chosen = fabric.env["NCCL_IB_HCA"]
    devices = re.findall(r"(?:mlx5|ionic)_(\d+)", chosen)
    assert len(set(devices)) == len(chosen.split(",")) == fabric.expect.hcas
    assert chosen.startswith("=") or max(map(int, devices)) < 9


@over_all
def test_accelerators_of_amd_have_their_memory(name: str) -> None:
    """RCCL's jobs get 128 GiB of shared memory and may trace each other; /dev/infiniband is not mounted for them."""
    amd = SHAPES[name.partition(":")[0]].gpus.resource == "amd.com/gpu"
    pod = FABRICS[name].pod
    assert (pod.shm == "128Gi" and "SYS_PTRACE" in pod.capabilities) == amd
    assert not (amd and pod.devices)


@over_all
def test_fabric_says_what_it_cannot_bring(name: str) -> None:
    """Objects that a fabric needs and that the user must create are named in its one line of description."""
    fabric = FABRICS[name]
    maps = [each.config_map for each in fabric.mounts.values()] + [each.config_map for each in fabric.pod.env_from]
    named = [*maps, fabric.compute_domain]
    assert [each for each in named if each and each not in fabric.about] == []


# --- the plans


@over_all
def test_job_can_be_planned(name: str, tmp_path: Path) -> None:
    """A shipped job runs on every shape and fabric: on its nodes, with its GPUs, told what the fabric says."""
    shape, fabric = name.split(":")
    plan = manifest_plan_of(load_profile("yolov5-volcano", {"hardware": shape, "fabric": fabric}), tmp_path)
    assert plan.pod["spec"].get("nodeSelector", {}) == SHAPES[shape].match
    assert container(plan)["resources"]["limits"][SHAPES[shape].gpus.resource] == "1"
    env = {each["name"]: each.get("value") for each in container(plan)["env"]}
    assert FABRICS[name].env.items() <= env.items()


def test_nodes_with_nvlink_between_them_claim_a_channel(planned: Planned) -> None:
    """The claim is the pod's and its container's, and preflight looks for the ComputeDomain that fills it."""
    plan = planned(**GB300)
    claim = {"name": "torchyard", "resourceClaimTemplateName": "torchyard"}
    assert plan.pod["spec"]["resourceClaims"] == [claim]
    assert container(plan)["resources"]["claims"] == [{"name": "torchyard"}]
    assert Object(what="ComputeDomain", name="torchyard") in plan.requires


def test_fabric_mounts_what_it_needs(planned: Planned) -> None:
    """Vela's topology is a ConfigMap's, which must be there before, as must that of its variables."""
    plan = planned(**GDR)
    paths = {each["mountPath"] for each in container(plan)["volumeMounts"]}
    assert "/var/run/nvidia-topologyd" in paths
    for name in ("topo-gdr-2vf-canary", "nccl-netwk-env-vars"):
        assert Object(what="ConfigMap", name=name) in plan.requires


def test_mount_of_the_profile_comes_first(planned: Planned) -> None:
    """A profile may bring a topology of its own."""
    plan = planned(**GDR, mounts={"/var/run/nvidia-topologyd": {"config_map": "ours"}})
    maps = [each["configMap"]["name"] for each in plan.pod["spec"]["volumes"] if "configMap" in each]
    assert maps == ["ours"]


@pytest.mark.parametrize("env", [{}, {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"}])
def test_index_is_found_or_fixed(env: dict[str, str]) -> None:
    """A GID index is looked for at known HCAs only, and not where the fabric fixes it."""
    with pytest.raises(ValueError, match="find_gid: needs env"):
        Fabric.model_validate({"about": "a", "find_gid": True, "env": env, "expect": {"transport": "roce"}})


# --- the fake nodes


@over_all
def test_fake_nodes_have_what_a_fabric_asks_for(name: str) -> None:
    """On the test cluster every shape has nodes with its labels, its GPUs and its fabrics' devices."""
    shape = SHAPES[name.partition(":")[0]]
    wanted = {shape.gpus.resource: str(shape.gpus.per_node), **FABRICS[name].pod.resources}
    label = name.partition(":")[0].replace("/", "-")
    nodes = [node for node in fake.nodes() if node["metadata"]["name"].startswith(f"{label}-")]
    fit = [node for node in nodes if wanted.items() <= node["status"]["allocatable"].items()]
    assert len(fit) == fake.PER_SHAPE
    assert all(shape.match.items() <= node["metadata"]["labels"].items() for node in fit)


def test_fake_networks_are_those_that_pods_name() -> None:
    """Every secondary network of a fabric is there, in its namespace."""
    found = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in objects.networks()]
    assert found == [("default", "rdma-vf"), ("kube-system", "roce"), ("default", "multi-nic-network")]


# --- the table


def shown(fabric: Fabric) -> str:
    """What the log must show, in words."""
    expect = fabric.expect
    words = [{"roce": "RoCE", "infiniband": "InfiniBand", "socket": "TCP"}[expect.transport]]
    words += [f"{expect.hcas} HCAs"] if expect.hcas else []
    return ", ".join([*words, *(["GPUDirect"] if expect.gdr else [])])


def row(name: str, shape: Hardware) -> str:
    fabrics = "; ".join(f"`{each}` {shown(fabric)}" for each, fabric in shape.fabrics.items())
    rate = f"{shape.line_rate:g}" if shape.line_rate else "unknown"
    return f"| `{name}` | {shape.about} | {shape.gpus.per_node} {shape.gpus.resource} | {rate} | {fabrics} |"


def test_table_of_the_documentation_is_true() -> None:
    """docs/hardware.md shows every shape as its file says it."""
    found = [line for line in (ROOT / "docs" / "hardware.md").read_text().splitlines() if line.startswith("| `")]
    wanted = [row(name, shape) for name, shape in SHAPES.items()]
    assert found == wanted, "the rows of docs/hardware.md should be:\n" + "\n".join(wanted)
