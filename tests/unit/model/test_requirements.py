"""Requirements: how they are stored in a plan, and the plurals of their kinds."""

import pytest
from pydantic import TypeAdapter, ValidationError

from torchyard.model.requirements import (
    Capacity,
    ClusterRequirement,
    FreePort,
    HostRequirement,
    OpenQueue,
    WritableFolder,
    plural_kind,
)

OF_HOSTS: TypeAdapter[HostRequirement] = TypeAdapter(HostRequirement)
IN_CLUSTER: TypeAdapter[ClusterRequirement] = TypeAdapter(ClusterRequirement)
ROOM = Capacity(pods=2, labels={}, tolerations=("nvidia.com/gpu",), resources={"cpu": "500m"}, one_per_node=True)


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Job", "jobs"),
        ("PyTorchJob", "pytorchjobs"),
        ("NetworkPolicy", "networkpolicies"),
        ("PriorityClass", "priorityclasses"),
        ("NetworkAttachmentDefinition", "network-attachment-definitions"),
        ("Endpoints", "endpoints"),
        ("Gateway", "gateways"),
    ],
)
def test_kind_has_the_plural_of_the_api_server(kind: str, plural: str) -> None:
    """A kind's plural is the one in the API server's paths, also where English or the API is irregular."""
    assert plural_kind(kind) == plural


@pytest.mark.parametrize(
    "requirement", [ROOM, OpenQueue(name="research"), WritableFolder(host="localhost", path="/runs")]
)
def test_requirement_of_a_stored_plan_keeps_its_type(requirement: ClusterRequirement) -> None:
    """A requirement in JSON is read back as the same requirement of the same type."""
    assert IN_CLUSTER.validate_json(requirement.model_dump_json()) == requirement


def test_hosts_and_clusters_have_their_own_requirements() -> None:
    """A port requires a host and a queue a cluster, so a plan with the other one is refused."""
    port = FreePort(host="gpu1", port=29400, option="options.port")
    queue = OpenQueue(name="default")
    assert OF_HOSTS.validate_json(port.model_dump_json()) == port
    with pytest.raises(ValidationError, match="'queue' found using 'kind' does not match"):
        OF_HOSTS.validate_json(queue.model_dump_json())
    with pytest.raises(ValidationError, match="'port' found using 'kind' does not match"):
        IN_CLUSTER.validate_json(port.model_dump_json())
