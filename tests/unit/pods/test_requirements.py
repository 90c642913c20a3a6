"""What preflight must check for the pods of a job."""

import pytest
from hypothesis import given

from tests.conftest import Planned
from tests.drawn import RUNS
from tests.drawn_plans import IN_PODS, plan_pods
from tests.plan_parts import needs, spec
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
    assert [room.device_plugin for room in needs(plan, Capacity)] == ["app=sriovdp"]


def test_network_without_a_namespace_is_of_the_job(planned: Planned) -> None:
    """A network without a namespace is looked up in the job's namespace."""
    plan = planned(pod={"networks": {"rdma": 1, "unused": 0}})
    assert needs(plan, ReferencedObject) == [
        ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma", namespace=None)
    ]


def test_what_is_named_must_be_there(planned: Planned) -> None:
    """Preflight checks that claims, pull secrets, priority classes and accounts that the pods name exist."""
    pod = {"pull_secrets": ["registry"], "service_account": "trainer", "priority_class": "high"}
    plan = planned(pod=pod, mounts={"/data": {"claim": "coco"}, "/more": {"claim": "coco"}})
    found = [(each.object_kind, each.name) for each in needs(plan, ReferencedObject)]
    others = [("PriorityClass", "high"), ("ServiceAccount", "trainer")]
    assert found == [("PersistentVolumeClaim", "coco"), ("Secret", "registry"), *others]
    assert spec(plan)["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec(plan)["serviceAccountName"], spec(plan)["priorityClassName"]) == ("trainer", "high")


@pytest.mark.parametrize("image", ["train", "train:latest", "registry.example:5000/train", "hub/train:latest"])
def test_image_without_a_fixed_tag_is_advised_against(planned: Planned, image: str) -> None:
    """An image without a fixed tag gives a warning: it may be another image tomorrow."""
    assert [each.topic for each in needs(planned(image=image), Advice)] == [f"image {image}"]


@pytest.mark.parametrize("image", ["train:v1", "registry.example:5000/train:v1", "train@sha256:0a1b"])
def test_fixed_image_is_not_spoken_of(planned: Planned, image: str) -> None:
    """An image with a tag or a digest gives no warning."""
    assert needs(planned(image=image), Advice) == []


def test_pods_may_share_nodes(planned: Planned) -> None:
    """Pods that may share nodes have no anti-affinity, and preflight counts them accordingly."""
    keys = {"launcher": "pytorchjob", "nodes": 4, "rendezvous": "env", "pod": {"spread": False}}
    plan = planned(**keys)
    assert "affinity" not in plan.pod["spec"]
    assert [need.one_per_node for need in plan.requires if isinstance(need, Capacity)] == [False]


def test_port_of_the_host_keeps_pods_apart(planned: Planned) -> None:
    """With the host network the operator's port is the node's, so that two pods cannot share a node."""
    pod = {"spread": False, "host_network": True}
    plan = planned(launcher="pytorchjob", nodes=4, rendezvous="env", pod=pod)
    (room,) = [need for need in plan.requires if isinstance(need, Capacity)]
    assert (room.one_per_node, room.uses_host_ports) == (True, True)


@given(IN_PODS, RUNS)
def test_pods_of_one_node_share_no_port(profile: Profile, run: Run) -> None:
    """With the host network, pods that declare a port need a node each, and preflight counts them so."""
    host = profile.pod.model_copy(update={"host_network": True})
    made = plan_pods(profile.model_copy(update={"pod": host}), run)
    ports = [port for each in made.pod["spec"]["containers"] for port in each.get("ports", [])]
    room = next(each for each in made.requires if isinstance(each, Capacity))
    assert made.pod["spec"]["hostNetwork"]
    assert room.one_per_node or not ports
    assert all("hostNetwork" not in each["spec"] for each in made.store)
