"""What preflight must check for the pods of a job."""

from typing import Any

import pytest
from hypothesis import given

from tests.builders.generated_plans import POD_PROFILES, plan_pods
from tests.builders.generated_profiles import RUNS
from tests.builders.plan_parts import get_pod_spec, list_requirements
from tests.conftest import Planned
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice, Capacity, ReferencedObject
from torchyard.model.run import Run

VF = {"hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}


def test_vf_fabric_needs_its_network_and_its_plugin(planned: Planned) -> None:
    """Preflight checks for the network in its namespace and for the device plugin of the functions."""
    plan = planned(**VF)
    assert (
        ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma-vf", namespace="default")
        in plan.requires
    )
    assert [capacity.device_plugin for capacity in list_requirements(plan, Capacity)] == ["app=sriovdp"]


def test_network_without_a_namespace_is_of_the_job(planned: Planned) -> None:
    """A network without a namespace is looked up in the job's namespace."""
    plan = planned(pod={"networks": {"rdma": 1, "unused": 0}})
    assert list_requirements(plan, ReferencedObject) == [
        ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma", namespace=None)
    ]


def test_named_objects_must_exist(planned: Planned) -> None:
    """Preflight checks that claims, pull secrets, priority classes and accounts that the pods name exist."""
    pod = {"pull_secrets": ["registry"], "service_account": "trainer", "priority_class": "high"}
    plan = planned(pod=pod, mounts={"/data": {"claim": "coco"}, "/more": {"claim": "coco"}})
    references = [(reference.object_kind, reference.name) for reference in list_requirements(plan, ReferencedObject)]
    other_references = [("PriorityClass", "high"), ("ServiceAccount", "trainer"), ("Secret", "registry")]
    assert references == [("PersistentVolumeClaim", "coco"), *other_references]
    assert get_pod_spec(plan)["imagePullSecrets"] == [{"name": "registry"}]
    assert (get_pod_spec(plan)["serviceAccountName"], get_pod_spec(plan)["priorityClassName"]) == ("trainer", "high")


@pytest.mark.parametrize("image", ["train", "train:latest", "registry.example:5000/train", "hub/train:latest"])
def test_image_without_a_fixed_tag_gets_a_warning(planned: Planned, image: str) -> None:
    """An image without a fixed tag gives a warning: it may be another image tomorrow."""
    assert [advice.finding.where for advice in list_requirements(planned(image=image), Advice)] == [f"image {image}"]


@pytest.mark.parametrize("image", ["train:v1", "registry.example:5000/train:v1", "train@sha256:0a1b"])
def test_fixed_image_gets_no_warning(planned: Planned, image: str) -> None:
    """An image with a tag or a digest gives no warning."""
    assert list_requirements(planned(image=image), Advice) == []


NETWORKS = "k8s.v1.cni.cncf.io/networks"
NO_NETWORKS: dict[str, Any] = {"networks": {"default/rdma-vf": 0}}


@pytest.mark.parametrize(
    ("keys", "locations"),
    [
        ({"pod": {"networks": {"default/rdma-vf": 8}}}, ["pod.networks"]),
        ({"pod": {"networks": {"default/rdma-vf": 0, "rail": 1}}}, ["pod.networks"]),
        ({"pod": NO_NETWORKS | {"annotations": {NETWORKS: "rail"}}}, ["pod.networks"]),
        ({"pod": NO_NETWORKS | {"patch": {"metadata": {"annotations": {NETWORKS: "a,b"}}}}}, ["pod.networks"]),
        ({"pod": {"resources": {"nvidia.com/rdma-vf": 4}}}, ["pod.resources"]),
        ({"env": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}}, ["env.NCCL_IB_HCA"]),
        ({"nodes": 1, "pod": {"networks": {"default/rdma-vf": 8}}}, []),
        ({"fabric": "host", "pod": {"networks": {"rail": 1}}}, []),
        ({"fabric": "no-rdma", "pod": {"networks": {"rail": 1}}}, []),
        ({"hardware": "epfl/rcp", "fabric": "roce"}, []),
        ({"hardware": "epfl/rcp", "fabric": "roce", "env": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}}, ["pod.networks"]),
    ],
)
def test_promised_hcas_are_compared_with_the_pods(planned: Planned, keys: dict[str, Any], locations: list[str]) -> None:
    """Networks, devices and NCCL_IB_HCA of the pods must be enough for the HCAs that the fabric promises."""
    plan = planned(**VF | {"nodes": 2} | keys)
    assert [advice.finding.where for advice in list_requirements(plan, Advice)] == locations


def test_pods_may_share_nodes(planned: Planned) -> None:
    """Pods that may share nodes have no anti-affinity, and preflight counts them accordingly."""
    keys = {"launcher": "pytorchjob", "nodes": 4, "rendezvous": "env", "pod": {"spread": False}}
    plan = planned(**keys)
    assert "affinity" not in plan.pod["spec"]
    assert [requirement.one_per_node for requirement in plan.requires if isinstance(requirement, Capacity)] == [False]


def test_port_of_the_host_keeps_pods_apart(planned: Planned) -> None:
    """With the host network the operator's port is the node's, so that two pods cannot share a node."""
    pod = {"spread": False, "host_network": True}
    plan = planned(launcher="pytorchjob", nodes=4, rendezvous="env", pod=pod)
    (capacity,) = [requirement for requirement in plan.requires if isinstance(requirement, Capacity)]
    assert (capacity.one_per_node, capacity.uses_host_ports) == (True, True)


@given(POD_PROFILES, RUNS)
def test_pods_of_one_node_share_no_port(profile: Profile, run: Run) -> None:
    """With the host network, pods that declare a port need a node each, and preflight counts them so."""
    host_pod = profile.pod.model_copy(update={"host_network": True})
    plan = plan_pods(profile.model_copy(update={"pod": host_pod}), run)
    ports = [port for container in plan.pod["spec"]["containers"] for port in container.get("ports", [])]
    capacity = next(requirement for requirement in plan.requires if isinstance(requirement, Capacity))
    assert plan.pod["spec"]["hostNetwork"]
    assert capacity.one_per_node or not ports
    assert all("hostNetwork" not in obj["spec"] for obj in plan.store)
