"""The jobs of the launchers on Kubernetes, and the rendezvous store beside them."""

import re
from typing import Any

import pytest

from tests.conftest import Planned
from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity, Controller, OpenQueue, Permission
from torchyard.pods import etcd as _store

HOST = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host"}
ELASTIC = {"nodes": {"min": 2, "max": 8}}
BOTH = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])


def said(plan: ManifestPlan, option: str) -> str:
    """An option of torchrun in the pods' command."""
    command = plan.pod["spec"]["containers"][0]["command"]
    return next((word.partition("=")[2] for word in command if word.startswith(f"--{option}=")), "")


def own_address(plan: ManifestPlan) -> str:
    """The address that a pod's agent is told to be its own."""
    env: list[dict[str, Any]] = plan.pod["spec"]["containers"][0]["env"]
    return next((str(each["value"]) for each in env if each["name"] == LOCAL_ADDR_VARIABLE), "")


def volcano(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = plan.main["spec"]
    return found


def elastic(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = plan.main["spec"]["elasticPolicy"]
    return found


# --- both


@BOTH
def test_every_object_carries_the_run_and_the_attempt(planned: Planned, launcher: str) -> None:
    """What a run makes is found again by its labels alone, its pods among it."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2", attempt=2)
    assert plan.labels == {"torchyard/run": "sample-a1b2c3d4", "torchyard/attempt": "2"}
    for thing in (*plan.store, *plan.objects, plan.pod):
        assert plan.labels.items() <= thing["metadata"]["labels"].items()


@BOTH
def test_each_attempt_meets_apart(planned: Planned, launcher: str) -> None:
    """A second attempt shares no name, rendezvous id or endpoint with the first."""
    first, second = (planned(launcher=launcher, attempt=attempt) for attempt in (1, 2))
    for option in ("rdzv_id", "rdzv_endpoint"):
        assert said(first, option) != said(second, option)
    assert own_address(first) != own_address(second)
    assert first.job != second.job


@BOTH
def test_nodes_meet_at_the_first_pod(planned: Planned, launcher: str) -> None:
    """With c10d the endpoint is the address of pod 0, on the run's own port."""
    plan = planned(launcher=launcher, nodes=2)
    address, _, port = said(plan, "rdzv_endpoint").partition(":")
    assert own_address(plan).replace("$(TORCHYARD_NODE)", "0") == address
    assert 20000 <= int(port) < 30000


@BOTH
def test_nodes_meet_in_the_store(planned: Planned, launcher: str) -> None:
    """With etcd-v2 the endpoint is the Service of the run's own store."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2")
    assert said(plan, "rdzv_endpoint") == f"{plan.store[0]['metadata']['name']}:2379"
    assert plan.probe == f"http://{said(plan, 'rdzv_endpoint')}/v2/keys"


@pytest.mark.parametrize(
    ("launcher", "rank", "first"),
    [("volcano", "$(TORCHYARD_NODE)", "worker-0.sample-a1b2c3d4-1"), ("pytorchjob", "$(RANK)", "master-0")],
)
def test_static_ranks_by_the_index_of_the_pod(planned: Planned, launcher: str, rank: str, first: str) -> None:
    """With static the node rank is the pod's own, and the master is the first pod."""
    plan = planned(launcher=launcher, nodes=2, rendezvous="static")
    assert said(plan, "node_rank") == rank
    assert said(plan, "master_addr") == f"sample-a1b2c3d4-1-{first}"
    assert (said(plan, "rdzv_id"), plan.probe) == ("", None)


@BOTH
def test_agents_are_told_the_range(planned: Planned, launcher: str) -> None:
    """An elastic job begins with the fewest nodes, and its room is theirs."""
    plan = planned(launcher=launcher, **ELASTIC)
    assert said(plan, "nnodes") == "2:8"
    assert [need.pods for need in plan.requires if isinstance(need, Capacity)] == [2]


@BOTH
def test_only_the_store_needs_more_rights(planned: Planned, launcher: str) -> None:
    """Creating pods and Services is asked for where the run brings a store, and only there."""
    rights = []
    for rendezvous in ("c10d", "etcd-v2"):
        needs = planned(launcher=launcher, rendezvous=rendezvous).requires
        rights.append({need.resource for need in needs if isinstance(need, Permission) and "create" in need.verbs})
    assert rights[1] - rights[0] == {"pods", "services"}


# --- Volcano


def test_gang_is_written_down(planned: Planned) -> None:
    """minAvailable is the fewest nodes and replicas the most, for the job and its task: no webhook need fill it in."""
    spec = volcano(planned(**ELASTIC))
    (task,) = spec["tasks"]
    assert (spec["minAvailable"], task["minAvailable"], task["replicas"]) == (2, 2, 8)


def test_pod_that_fails_or_is_deleted_ends_the_job(planned: Planned) -> None:
    """Its peers do not hold their GPUs for ever."""
    found = {each["event"]: each["action"] for each in volcano(planned(nodes=2))["policies"]}
    assert found == {"PodFailed": "TerminateJob", "PodEvicted": "TerminateJob"}


def test_elastic_job_goes_on_without_a_deleted_pod(planned: Planned) -> None:
    """Volcano makes a deleted pod anew, and the others go on: it counts as failed, so no policy may answer that."""
    assert "policies" not in volcano(planned(**ELASTIC))


def test_volcano_gives_pods_an_index_and_a_name(planned: Planned) -> None:
    """The plugin env knows the index, and svc gives a name before a pod is ready."""
    assert volcano(planned())["plugins"] == {"env": [], "svc": ["--publish-not-ready-addresses=true"]}


def test_names_are_those_of_the_svc_plugin(planned: Planned) -> None:
    """A pod of Volcano is <job>-<task>-<i>.<job>."""
    plan = planned(nodes=2)
    assert own_address(plan) == f"{plan.job}-worker-$(TORCHYARD_NODE).{plan.job}"
    assert (plan.tasks, plan.container) == ({"worker": 2}, volcano(plan)["tasks"][0]["name"])


def test_volcano_pods_have_no_ports(planned: Planned) -> None:
    """Under the host's network a port would be the node's, and two jobs could not share one."""
    assert "ports" not in planned(**HOST, nodes=2).pod["spec"]["containers"][0]


def test_volcano_does_not_try_again_itself(planned: Planned) -> None:
    """A retry of Volcano's deletes the logs and meets under a closed id; a try is the launcher's to make."""
    assert volcano(planned())["maxRetry"] == 1


def test_queue_is_used_and_looked_at(planned: Planned) -> None:
    """The queue of the options takes the job, and preflight asks whether it is open."""
    plan = planned(options={"queue": "research"})
    assert volcano(plan)["queue"] == "research"
    assert OpenQueue(name="research") in plan.requires


# --- PyTorchJob


def test_container_has_the_name_that_the_operator_looks_for(planned: Planned) -> None:
    """The operator refuses a job without a container called pytorch."""
    plan = planned(launcher="pytorchjob")
    assert (plan.pod["spec"]["containers"][0]["name"], plan.container) == ("pytorch", "pytorch")


def test_job_has_a_port_of_its_own(planned: Planned) -> None:
    """The port is named so that the operator adds no 23456, and is the one at which the nodes meet."""
    plan = planned(launcher="pytorchjob", nodes=2, **HOST)
    (port,) = plan.pod["spec"]["containers"][0]["ports"]
    assert port == {"name": "pytorchjob-port", "containerPort": elastic(plan)["rdzvPort"]}
    assert said(plan, "rdzv_endpoint").endswith(f":{port['containerPort']}")


def test_operator_knows_the_same_rendezvous_as_torchrun(planned: Planned) -> None:
    """What stands in the elasticPolicy is what the command says."""
    plan = planned(launcher="pytorchjob", nodes=2, rendezvous="etcd-v2")
    policy = elastic(plan)
    assert (policy["rdzvBackend"], policy["rdzvId"]) == ("etcd-v2", said(plan, "rdzv_id"))
    assert f"{policy['rdzvHost']}:{policy['rdzvPort']}" == said(plan, "rdzv_endpoint")


def test_operator_id_is_new_for_each_attempt(planned: Planned) -> None:
    """A store refuses an id that the attempt before has closed."""
    ids = [elastic(planned(launcher="pytorchjob", attempt=attempt))["rdzvId"] for attempt in (1, 2)]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(("nodes", "least", "most"), [(4, 4, 4), ({"min": 2, "max": 8}, 2, 8)])
def test_operator_knows_the_range(planned: Planned, nodes: Any, least: int, most: int) -> None:
    """A fixed number is least and most; the replicas are the most, and the gang is the least."""
    plan = planned(launcher="pytorchjob", nodes=nodes)
    worker = plan.main["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (elastic(plan)["minReplicas"], elastic(plan)["maxReplicas"], worker["replicas"]) == (least, most, most)
    assert plan.main["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": least}


def test_operator_has_no_word_for_static(planned: Planned) -> None:
    """With static there is no elasticPolicy: the agents' own options say all."""
    assert "elasticPolicy" not in planned(launcher="pytorchjob", nodes=2, rendezvous="static").main["spec"]


def test_operator_keeps_failed_pods(planned: Planned) -> None:
    """A failed pod stays with its log; nothing is started again by the operator."""
    spec = planned(launcher="pytorchjob").main["spec"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
    assert (spec["runPolicy"]["cleanPodPolicy"], spec["elasticPolicy"]["maxRestarts"]) == ("None", 0)


def test_names_are_those_of_the_operator(planned: Planned) -> None:
    """The operator's Service of a pod is called <job>-worker-<i>."""
    plan = planned(launcher="pytorchjob")
    assert own_address(plan) == f"{plan.job}-worker-$(TORCHYARD_NODE)"


def test_gang_needs_a_flag_of_the_operator(planned: Planned) -> None:
    """Whether pods start together is the operator's own setting, which preflight looks at."""
    plan = planned(launcher="pytorchjob", options={"queue": "research"})
    assert [need.gang for need in plan.requires if isinstance(need, Controller)] == ["--gang-scheduler-name"]
    assert plan.main["spec"]["runPolicy"]["schedulingPolicy"]["queue"] == "research"


# --- the store


@pytest.fixture
def store(planned: Planned) -> tuple[dict[str, Any], ...]:
    """The Service and the Pod of a run's etcd."""
    return planned(rendezvous="etcd-v2").store


def etcd(store: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    found: dict[str, Any] = store[-1]["spec"]["containers"][0]
    return found


def test_store_is_an_etcd_that_has_the_v2_api() -> None:
    """The image is of one version, before 3.6, which dropped the API that torchrun needs."""
    version = re.fullmatch(r".+/etcd:v(\d+)\.(\d+)\.\d+", _store.DEFAULT_IMAGE)
    assert version
    assert (3, 4) <= (int(version[1]), int(version[2])) < (3, 6)


def test_store_serves_the_v2_api(store: tuple[dict[str, Any], ...]) -> None:
    """etcd 3.5 has the v2 API only when it is asked for, and listens for other pods only when told."""
    assert {"--enable-v2", "--listen-client-urls=http://0.0.0.0:2379"} <= set(etcd(store)["command"])


def test_store_is_ready_when_the_v2_api_answers(store: tuple[dict[str, Any], ...]) -> None:
    """/health says true also where the v2 API is off."""
    assert etcd(store)["readinessProbe"]["httpGet"] == {"path": "/v2/keys", "port": 2379}


def test_store_reads_no_settings_of_other_services(store: tuple[dict[str, Any], ...]) -> None:
    """A Service called etcd would set ETCD_PORT, and the like, in the pod: etcd reads such variables."""
    assert store[-1]["spec"]["enableServiceLinks"] is False


def test_store_does_not_come_back_empty(store: tuple[dict[str, Any], ...]) -> None:
    """An etcd that lost its keys would hide that the nodes lost each other."""
    assert store[-1]["spec"]["restartPolicy"] == "Never"


def test_service_is_there_before_its_pod(store: tuple[dict[str, Any], ...]) -> None:
    """They have one name, and the Service leads to this pod and to none of the job; the policy is there before too."""
    service, policy, pod = store
    assert [each["kind"] for each in store] == ["Service", "NetworkPolicy", "Pod"]
    assert {each["metadata"]["name"] for each in store} == {"sample-a1b2c3d4-1-etcd"}
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["metadata"]["labels"]["torchyard/role"] == "store"


@BOTH
def test_only_pods_of_the_run_reach_its_store(planned: Planned, launcher: str) -> None:
    """Who writes to it can run code in every agent; the pods of the job carry what the policy lets in."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2")
    (rule,) = plan.store[1]["spec"]["ingress"]
    (allowed,) = rule["from"]
    assert allowed == {"podSelector": {"matchLabels": plan.labels}}
    assert plan.labels.items() <= plan.pod["metadata"]["labels"].items()
    assert plan.store[1]["spec"]["policyTypes"] == ["Ingress"]


@BOTH
def test_pods_in_their_nodes_network_are_not_kept_out(planned: Planned, launcher: str) -> None:
    """Their connections come from a node, which no label of a pod names: a policy would end the run."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2", pod={"host_network": True})
    assert [each["kind"] for each in plan.store] == ["Service", "Pod"]


@BOTH
def test_image_of_the_store_can_be_chosen(planned: Planned, launcher: str) -> None:
    """A cluster without a way out names its own registry."""
    image = "registry.example/etcd:v3.5.9"
    plan = planned(launcher=launcher, rendezvous="etcd-v2", options={"etcd_image": image})
    assert etcd(plan.store)["image"] == image


@BOTH
def test_other_backends_bring_no_store(planned: Planned, launcher: str) -> None:
    """With c10d and static the job is all that is created."""
    plans = [planned(launcher=launcher, rendezvous=each) for each in ("c10d", "static")]
    assert [(plan.store, len(plan.objects)) for plan in plans] == [((), 1), ((), 1)]
