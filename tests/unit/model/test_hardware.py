"""The hardware files agree with their sources, and a job can be planned with each of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.plan_parts import list_requirements
from tests.cluster import fake, objects
from tests.conftest import manifest_plan_of
from torchyard.agents.process_env import escape_dollars
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import list_hardware, load_hardware, load_profile
from torchyard.model.hardware import Expect, Fabric, Hardware
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice

SHAPES = {name: load_hardware(name) for name in sorted(list_hardware())}
FABRICS = {
    f"{name}:{fabric_name}": fabric for name, shape in SHAPES.items() for fabric_name, fabric in shape.fabrics.items()
}
RDMA = {name: fabric for name, fabric in FABRICS.items() if fabric.expect.transport != "socket"}
NICS = re.compile(r"(\d+) x (\d+) Gb/s")
over_all = pytest.mark.parametrize("name", FABRICS)


def container(plan: ManifestPlan) -> dict[str, Any]:
    spec: dict[str, Any] = plan.pod["spec"]["containers"][0]
    return spec


# --- the files


def test_labels_distinguish_shapes() -> None:
    """The labels of all shapes differ, so that a node matches at most one shape."""
    labels = [str(shape.match) for shape in SHAPES.values() if shape.match]
    assert len(labels) == len(set(labels)) >= 37


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if NICS.search(shape.about)])
def test_line_rate_is_that_of_the_nics(name: str) -> None:
    """The line rate is NICs times Gb/s divided by eight, and a log with HCAs must list as many as NICs."""
    shape = SHAPES[name]
    nics, rate = (int(number) for number in NICS.findall(shape.about)[0])
    assert shape.line_rate == nics * rate / 8
    assert {fabric.expect.hcas for fabric in shape.fabrics.values()} <= {nics, None}
    verbs = [fabric for fabric in shape.fabrics.values() if fabric.expect.transport in ("roce", "infiniband")]
    assert {fabric.expect.hcas for fabric in verbs} <= {nics}


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.line_rate is None])
def test_unknown_line_rate_has_a_reason(name: str) -> None:
    """A file without a line rate gives the reason in a comment on that line."""
    assert re.search(r"^line_rate: null # \w+", list_hardware()[name].read_text(), re.M)


@pytest.mark.parametrize("name", [name for name, fabric in RDMA.items() if fabric.expect.min_busbw])
def test_floor_is_below_the_line_rate(name: str) -> None:
    """No floor exceeds the line rate, of which all_reduce over two nodes uses GPUs / (2 GPUs - 1)."""
    shape = SHAPES[name.partition(":")[0]]
    gpus = shape.gpus.per_node or 1
    floor = FABRICS[name].expect.min_busbw or 0
    assert floor * gpus / (2 * gpus - 1) < (shape.line_rate or floor)


@pytest.mark.parametrize("name", SHAPES)
def test_source_has_a_date(name: str) -> None:
    """Each file names its source with a commit or a version, and a date."""
    assert re.search(r"\d{4}-\d{2}", SHAPES[name].source)
    assert re.search(r"@[0-9a-f]{7} |c067b9e|\d\.\d", SHAPES[name].source + " ")


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_has_a_tcp_fabric(name: str) -> None:
    """Each shape has a TCP fabric to compare with, which requires no device, claim or daemon."""
    fabrics = [fabric for fabric in SHAPES[name].fabrics.values() if fabric.expect.transport == "socket"]
    assert fabrics
    for fabric in fabrics:
        assert (fabric.pod.resources, fabric.pod.init, fabric.setup) == ({}, (), ())
        assert (fabric.compute_domain, fabric.claim_templates) == (None, ())


@pytest.mark.parametrize("name", [name for name in FABRICS if name.endswith(":vf")])
def test_virtual_functions_are_as_many_as_hcas(name: str) -> None:
    """The pod gets a virtual function, as a device and a network, for each HCA; a device plugin provides them."""
    fabric = FABRICS[name]
    assert fabric.pod.resources == {"nvidia.com/rdma-vf": str(fabric.expect.hcas)}
    assert fabric.pod.networks == {"default/rdma-vf": fabric.expect.hcas}
    assert fabric.device_plugin
    assert fabric.env["NCCL_IB_HCA"] == "mlx5"


@over_all
def test_fabric_sets_variables_of_the_collective_library_only(name: str) -> None:
    """A fabric sets variables of NCCL, its plugins and CUDA, but none of mpirun or UCX and not NCCL's log level."""
    keys = set(FABRICS[name].env) - {"LD_LIBRARY_PATH", "CUDA_DEVICE_ORDER", "NVIDIA_IMEX_CHANNELS"}
    prefixes = ("NCCL_", "RCCL_", "FI_", "SHARP_COLL_")
    assert [key for key in keys if not key.startswith(prefixes) or key.startswith("NCCL_DEBUG")] == []


@over_all
def test_privileges_are_for_rdma(name: str) -> None:
    """TCP needs no device and no locked memory, and only OCI's and Nebius's own manifests require privileged pods."""
    fabric = FABRICS[name]
    assert not fabric.pod.privileged or (name in RDMA and name.startswith(("oke/", "nebius/")))
    assert name in RDMA or (not fabric.pod.devices and "IPC_LOCK" not in fabric.pod.capabilities)


@pytest.mark.parametrize("name", [name for name, fabric in RDMA.items() if fabric.pod.host_network])
def test_devices_on_the_host_network_are_named_exactly(name: str) -> None:
    """On the host network devices are named exactly, because mlx5_1 as a prefix would match mlx5_10."""
    fabric = FABRICS[name]
    hcas = fabric.env["NCCL_IB_HCA"]
    devices = re.findall(r"(?:mlx5|ionic)_(\d+)", hcas)
    assert len(set(devices)) == len(hcas.split(",")) == fabric.expect.hcas
    assert hcas.startswith("=") or max(map(int, devices)) < 9


@over_all
def test_accelerators_of_amd_have_their_memory(name: str) -> None:
    """RCCL's jobs get 128 GiB of shared memory and may trace each other, without a mount of /dev/infiniband."""
    amd = SHAPES[name.partition(":")[0]].gpus.resource == "amd.com/gpu"
    pod = FABRICS[name].pod
    assert (pod.shm == "128Gi" and "SYS_PTRACE" in pod.capabilities) == amd
    assert not (amd and pod.devices)


@over_all
def test_fabric_lists_the_objects_that_users_create(name: str) -> None:
    """A fabric's description names the objects that the user must create for it."""
    fabric = FABRICS[name]
    maps = [reference.config_map for reference in fabric.mounts.values()] + [
        reference.config_map for reference in fabric.pod.env_from
    ]
    names = [*maps, fabric.compute_domain, *fabric.claim_templates]
    assert [name for name in names if name and name not in fabric.about] == []


# --- the plans


@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
@over_all
def test_job_can_be_planned(name: str, launcher: str, tmp_path: Path) -> None:
    """A shipped job can be planned for every shape and fabric, with all settings of the fabric."""
    shape, fabric = name.split(":")
    plan = manifest_plan_of(load_profile(f"yolov5-{launcher}", {"hardware": shape, "fabric": fabric}), tmp_path)
    expected = FABRICS[name]
    pod = plan.pod["spec"]
    assert plan.expect == expected.expect
    assert pod.get("nodeSelector", {}) == SHAPES[shape].match
    assert container(plan)["resources"]["limits"][SHAPES[shape].gpus.resource] == "1"
    env = {variable["name"]: variable.get("value") for variable in container(plan)["env"]}
    assert expected.env.items() <= env.items()
    assert [container["name"] for container in pod.get("initContainers", [])] == [
        container.name for container in expected.pod.init
    ]
    claims = [claim["resourceClaimTemplateName"] for claim in pod.get("resourceClaims", [])]
    assert claims == [*filter(None, [expected.compute_domain]), *expected.claim_templates]
    assert all(escape_dollars(line) in container(plan)["command"][2] for line in expected.setup)
    names = [volume["name"] for volume in pod.get("volumes", [])]
    assert len(names) == len(set(names))
    assert list_requirements(plan, Advice) == []


@pytest.mark.parametrize("env", [{}, {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"}])
def test_gid_index_is_detected_or_fixed(env: dict[str, str]) -> None:
    """A GID index is detected on known HCAs only, and not if the fabric fixes it."""
    with pytest.raises(ValueError, match="find_gid: requires env"):
        Fabric.model_validate({"about": "a", "find_gid": True, "env": env, "expect": {"transport": "roce"}})


@pytest.mark.parametrize(
    "expected",
    [
        {"transport": "plugin"},
        {"transport": "socket", "plugins": ["gIB"]},
        {"transport": "socket", "min_busbw": 1},
        {"transport": "roce", "min_busbw": 0},
    ],
)
def test_expected_network_is_consistent(expected: dict[str, Any]) -> None:
    """A plugin has a name, TCP has neither a plugin nor a floor, and a floor is above 0."""
    with pytest.raises(ValueError, match=r"plugins|min_busbw"):
        Expect.model_validate(expected)


# --- the fake nodes


@over_all
def test_fake_nodes_have_the_resources_of_every_fabric(name: str) -> None:
    """The test cluster has nodes for every shape, with its labels, its GPUs and its fabrics' devices."""
    shape = SHAPES[name.partition(":")[0]]
    requests = {key: value for key, value in FABRICS[name].pod.resources.items() if key not in fake.NODE_SIZE}
    expected = {shape.gpus.resource: str(shape.gpus.per_node or fake.DEFAULT_GPUS)} | requests
    label = name.partition(":")[0].replace("/", "-")
    nodes = [node for node in fake.build_nodes() if node["metadata"]["name"].startswith(f"{label}-")]
    fit = [node for node in nodes if expected.items() <= node["status"]["allocatable"].items()]
    assert len(fit) == fake.NODES_PER_SHAPE
    assert all(shape.match.items() <= node["metadata"]["labels"].items() for node in fit)


def test_test_cluster_has_every_network() -> None:
    """The test cluster has every secondary network of a fabric, in its namespace."""
    existing = {f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in objects.build_networks()}
    networks = [
        name if "/" in name else f"default/{name}" for fabric in FABRICS.values() for name in fabric.pod.networks
    ]
    assert existing == set(networks) > {"default/rdma-vf", "kube-system/roce", "default/multi-nic-network"}


# --- the table


def describe_expected(fabric: Fabric) -> str:
    """The expected network, as docs/hardware.md describes it."""
    expect = fabric.expect
    parts = [{"roce": "RoCE", "infiniband": "InfiniBand", "rdma": "RDMA", "socket": "TCP"}.get(expect.transport, "")]
    parts = [expect.plugins[0]] if expect.transport == "plugin" else parts
    parts += [f"{expect.hcas} HCAs"] if expect.hcas else []
    return ", ".join([*parts, *(["GPUDirect"] if expect.gdr else [])])


def row(name: str, shape: Hardware) -> str:
    fabrics = "; ".join(f"`{fabric_name}` {describe_expected(fabric)}" for fabric_name, fabric in shape.fabrics.items())
    rate = f"{shape.line_rate:g}" if shape.line_rate else "unknown"
    floor = next((f"{fabric.expect.min_busbw:g}" for fabric in shape.fabrics.values() if fabric.expect.min_busbw), "")
    gpus = f"{shape.gpus.per_node or 'any'} {shape.gpus.resource}"
    return f"| `{name}` | {shape.about} | {gpus} | {rate} | {floor} | {fabrics} |"


def test_table_of_the_documentation_is_current() -> None:
    """docs/hardware.md lists every shape with the values of its file."""
    rows = [line for line in (ROOT / "docs" / "hardware.md").read_text().splitlines() if line.startswith("| `")]
    rows = [line for line in rows if line.split("`")[1] in SHAPES]
    expected = [row(name, shape) for name, shape in SHAPES.items()]
    assert rows == expected, "the rows of docs/hardware.md should be:\n" + "\n".join(expected)
