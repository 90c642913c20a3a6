"""The rendezvous store beside a job."""

import re
from typing import Any

import pytest

from tests.builders.plan_parts import get_torchrun_option
from tests.conftest import Planned
from torchyard.model.requirements import Permission
from torchyard.pods import etcd as _store

BOTH = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])


@BOTH
def test_nodes_meet_in_the_store(planned: Planned, launcher: str) -> None:
    """With etcd-v2 the endpoint is the Service of the run's own store."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2")
    assert get_torchrun_option(plan, "rdzv_endpoint") == f"{plan.store[0]['metadata']['name']}:2379"
    assert plan.probe == f"http://{get_torchrun_option(plan, 'rdzv_endpoint')}/v2/keys"


@BOTH
def test_only_the_store_needs_more_rights(planned: Planned, launcher: str) -> None:
    """The right to create pods and Services is required only if the run has a store of its own."""
    rights = []
    for rendezvous in ("c10d", "etcd-v2"):
        requirements = planned(launcher=launcher, rendezvous=rendezvous).requires
        rights.append(
            {
                requirement.resource
                for requirement in requirements
                if isinstance(requirement, Permission) and "create" in requirement.verbs
            }
        )
    assert rights[1] - rights[0] == {"pods", "services"}


@pytest.fixture
def store(planned: Planned) -> tuple[dict[str, Any], ...]:
    """The Service and the Pod of a run's etcd."""
    return planned(rendezvous="etcd-v2").store


def get_etcd_container(store: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    container: dict[str, Any] = store[-1]["spec"]["containers"][0]
    return container


def test_store_is_an_etcd_that_has_the_v2_api() -> None:
    """The image is of one version, before 3.6, which dropped the API that torchrun needs."""
    version = re.fullmatch(r".+/etcd:v(\d+)\.(\d+)\.\d+", _store.DEFAULT_IMAGE)
    assert version
    assert (3, 4) <= (int(version[1]), int(version[2])) < (3, 6)


def test_store_serves_the_v2_api(store: tuple[dict[str, Any], ...]) -> None:
    """etcd 3.5 serves the v2 API, and listens for other pods, only with these options."""
    assert {"--enable-v2", "--listen-client-urls=http://0.0.0.0:2379"} <= set(get_etcd_container(store)["command"])


def test_store_is_ready_when_the_v2_api_answers(store: tuple[dict[str, Any], ...]) -> None:
    """The readiness probe queries the v2 API: /health returns true even if that is off."""
    assert get_etcd_container(store)["readinessProbe"]["httpGet"] == {"path": "/v2/keys", "port": 2379}


def test_store_reads_no_settings_of_other_services(store: tuple[dict[str, Any], ...]) -> None:
    """Service links are off: a Service called etcd would set ETCD_PORT and the like, which etcd reads."""
    assert store[-1]["spec"]["enableServiceLinks"] is False


def test_store_is_not_restarted_empty(store: tuple[dict[str, Any], ...]) -> None:
    """The store is never restarted: an empty etcd would hide that the nodes have lost each other."""
    assert store[-1]["spec"]["restartPolicy"] == "Never"


def test_service_is_there_before_its_pod(store: tuple[dict[str, Any], ...]) -> None:
    """Service and policy come before the pod, share its name, and select it and no pod of the job."""
    service, policy, pod = store
    assert [obj["kind"] for obj in store] == ["Service", "NetworkPolicy", "Pod"]
    assert {obj["metadata"]["name"] for obj in store} == {"sample-a1b2c3d4-1-etcd"}
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["metadata"]["labels"]["torchyard/role"] == "store"


@BOTH
def test_only_pods_of_the_run_reach_its_store(planned: Planned, launcher: str) -> None:
    """The policy admits only pods with the run's labels: a client of the store can run code in every agent."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2")
    (rule,) = plan.store[1]["spec"]["ingress"]
    (allowed,) = rule["from"]
    assert allowed == {"podSelector": {"matchLabels": plan.labels}}
    assert plan.labels.items() <= plan.pod["metadata"]["labels"].items()
    assert plan.store[1]["spec"]["policyTypes"] == ["Ingress"]


@BOTH
def test_pods_in_their_nodes_network_are_not_kept_out(planned: Planned, launcher: str) -> None:
    """With the host network there is no policy: connections come from nodes, which no pod label matches."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2", pod={"host_network": True})
    assert [obj["kind"] for obj in plan.store] == ["Service", "Pod"]


@BOTH
def test_image_of_the_store_can_be_chosen(planned: Planned, launcher: str) -> None:
    """The store's image can come from another registry, for a cluster without Internet access."""
    image = "registry.example/etcd:v3.5.9"
    plan = planned(launcher=launcher, rendezvous="etcd-v2", options={"etcd_image": image})
    assert get_etcd_container(plan.store)["image"] == image


@BOTH
def test_other_backends_bring_no_store(planned: Planned, launcher: str) -> None:
    """With c10d and static the job is all that is created."""
    plans = [planned(launcher=launcher, rendezvous=rendezvous, on_hang="off") for rendezvous in ("c10d", "static")]
    assert [(plan.store, len(plan.objects)) for plan in plans] == [((), 1), ((), 1)]
