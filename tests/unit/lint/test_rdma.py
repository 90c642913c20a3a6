"""The HCAs that a pod is meant to use, compared with its networks and RDMA resources."""

import json
from typing import Any

import pytest

from tests.inputs.sound_manifests import JOBSET, parse
from torchyard.lint.manifest import lint_manifest
from torchyard.lint.rdma import ExpectedHcas, count_listed_hcas, list_hca_shortages

HCA_LIST = "=" + ",".join(f"mlx5_{index}" for index in range(8))
TEMPLATE = "spec.replicatedJobs[0].template.spec.template"
NETWORKS_KEY = f"{TEMPLATE}.metadata.annotations, k8s.v1.cni.cncf.io/networks"
RESOURCES_KEY = f"{TEMPLATE}.spec.containers[0].resources"
SHARED = {"rdma/rdma_shared_device_a": "1"}
RAILS = ",".join(f"rails/rail-{index}" for index in range(8))


def build_template(networks: str | None = None, **spec: Any) -> dict[str, Any]:
    annotations = {"k8s.v1.cni.cncf.io/networks": networks} if networks else {}
    return {"metadata": {"annotations": annotations}, "spec": spec}


@pytest.mark.parametrize(
    ("networks", "resources", "settings"),
    [
        ("rail-0", SHARED, ["networks"]),
        ("rail-0,rail-1", {}, ["networks"]),
        (json.dumps([{"name": "rail-0", "namespace": "rails"}]), {"rdma/ib": "1"}, ["networks"]),
        (",".join(["default/rdma-vf"] * 4), {"nvidia.com/rdma-vf": "4"}, ["networks", "resources"]),
        ("rdma-vf", {"nvidia.com/rdma-vf": "8"}, ["networks"]),
        (None, {"nvidia.com/sriovlegacy": "1"}, ["resources"]),
        (None, {"openshift.io/sriov_rail0": "1", "openshift.io/sriov_rail1": "1"}, ["resources"]),
        (RAILS, SHARED, []),
        (json.dumps([{"name": "rail"}] * 8), {"rdma/ib": "1"}, []),
        ("storage," + RAILS, {"nvidia.com/rdma-vf": "8"}, []),
        (None, SHARED, []),
        (None, {"rdma/ib": "1", "nvidia.com/gpu": "8", "hugepages-2Mi": "1Gi"}, []),
        ("multi-nic-network", {"nvidia.com/roce_gdr": "8"}, []),
        ("[not JSON", SHARED, []),
        (None, {"nvidia.com/rdma-vf": "2", "rdma/rdma_shared_device_a": "1"}, []),
    ],
)
def test_pod_gets_fewer_hcas_than_expected(
    networks: str | None, resources: dict[str, str], settings: list[str]
) -> None:
    """Too few RoCE networks or single devices are reported; what may give all HCAs is not."""
    shortages = list_hca_shortages(build_template(networks), resources, ExpectedHcas(8, "8 are promised", True))
    assert [shortage.setting for shortage in shortages] == settings


def test_infiniband_needs_no_network_for_each_hca() -> None:
    """One network of IP over InfiniBand is enough for all HCAs; single devices are counted as with RoCE."""
    expected = ExpectedHcas(8, "8 are promised", False)
    assert list_hca_shortages(build_template("ipoib"), SHARED, expected) == []
    (shortage,) = list_hca_shortages(build_template("ipoib"), {"rdma/ib": "4"}, expected)
    assert shortage.problem == "the pod requests rdma/ib: 4, and each unit is one HCA, but 8 are promised"


@pytest.mark.parametrize("spec", [{"hostNetwork": True}, {"resourceClaims": [{"name": "nics"}]}])
def test_node_network_and_claims_are_not_counted(spec: dict[str, Any]) -> None:
    """The node's own network has all HCAs, and a claim any number of them."""
    template = build_template("rail-0", **spec)
    assert list_hca_shortages(template, {"nvidia.com/rdma-vf": "1"}, ExpectedHcas(8, "8 are promised", True)) == []


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        (HCA_LIST, 8),
        ("mlx5_0,mlx5_1:1", 2),
        ("=ibp24s0,ibp64s0", 2),
        ("=mlx5_0", 1),
        ("mlx5", None),
        ("ibp,mlx5", None),
        ("^mlx5_bond_0", None),
        ("^=mlx5_bond_0,mlx5_0", None),
        ("", None),
        ("=", None),
    ],
)
def test_listed_hcas(rule: str, count: int | None) -> None:
    """A list of names has a number; a prefix and an exclusion have none."""
    assert count_listed_hcas(rule) == count


def build_manifest(networks: str, resources: dict[str, str], **env: str) -> list[dict[str, Any]]:
    objects = parse(JOBSET)
    template = objects[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["metadata"] = {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}}
    container = template["spec"]["containers"][0]
    container["resources"] = {"limits": resources}
    container["env"] += [{"name": name, "value": value} for name, value in env.items()]
    return objects


def test_manifest_lists_more_hcas_than_its_pods_get() -> None:
    """A manifest's NCCL_IB_HCA is compared with the pods' annotation and resources, each at its own key."""
    objects = build_manifest("rdma-vf", {"nvidia.com/rdma-vf": "2"}, NCCL_IB_HCA=HCA_LIST, NCCL_IB_GID_INDEX="3")
    networks, resources = lint_manifest(objects)
    assert networks.where == f"JobSet train, {NETWORKS_KEY}"
    assert networks.what.startswith("1 network is attached, but NCCL_IB_HCA lists 8 HCAs")
    assert resources.where == f"JobSet train, {RESOURCES_KEY}"


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"},
        {"NCCL_IB_HCA": HCA_LIST},
        {"NCCL_IB_HCA": HCA_LIST, "NCCL_IB_GID_INDEX": "3", "NCCL_IB_DISABLE": "1"},
    ],
)
def test_manifest_without_a_list_for_roce_is_not_compared(env: dict[str, str]) -> None:
    """A prefix, a list that may be for InfiniBand, and disabled RDMA promise nothing about the networks."""
    assert lint_manifest(build_manifest("rdma-net", SHARED, **env)) == ()
