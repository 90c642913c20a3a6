"""The pods of a job, built from the profile, the fabric and the run."""

from typing import Any

import pytest

from tests.builders.plan_parts import get_container, get_env, get_pod_spec, list_requirements
from tests.conftest import Planned
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.hardware import Hardware
from torchyard.model.requirements import Capacity, ReferencedObject
from torchyard.model.resolved import resolve
from torchyard.pods.template import parse_attempt_labels

B4_8 = {"hardware": "oke/bm-gpu-b4-8"}
HOST = B4_8 | {"fabric": "host"}
VF = B4_8 | {"fabric": "vf"}
NO_RDMA = B4_8 | {"fabric": "no-rdma"}
NETWORKS = "k8s.v1.cni.cncf.io/networks"


# --- fabrics


def test_host_fabric_uses_the_network_of_the_node(planned: Planned) -> None:
    """With the host network the cluster's DNS is still used, so that the pods find each other by name."""
    pod = get_pod_spec(planned(**HOST))
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_host_fabric_may_lock_memory(planned: Planned) -> None:
    """RDMA verbs need IPC_LOCK, whose name Kubernetes takes without CAP_, and the devices."""
    assert get_container(planned(**HOST))["securityContext"] == {
        "privileged": True,
        "capabilities": {"add": ["IPC_LOCK"]},
    }


def test_host_fabric_requests_no_rdma_resource(planned: Planned) -> None:
    """The node's own interfaces need no device plugin, so no RDMA resource is requested."""
    plan = planned(**HOST, resources={"gpus": 1})
    assert get_container(plan)["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert NETWORKS not in plan.pod["metadata"].get("annotations", {})


def test_vf_fabric_names_the_network_16_times(planned: Planned) -> None:
    """The annotation names the network once per virtual function."""
    assert planned(**VF).pod["metadata"]["annotations"][NETWORKS].split(",") == ["default/rdma-vf"] * 16


@pytest.mark.parametrize("networks", ["rail", None, '[{"name": "default/rdma-vf"}]'])
def test_networks_have_one_source(planned: Planned, networks: str | None) -> None:
    """An annotation or a patch that contradicts `pod.networks`, also of the fabric, is refused and names its key."""
    patch = {"metadata": {"annotations": {NETWORKS: networks}}}
    problem = f"{NETWORKS} cannot be combined with pod.networks, which sets it .default/rdma-vf.; remove it, or"
    with pytest.raises(ProfileError, match=f"pod.patch: {problem}"):
        planned(**VF, pod={"patch": patch})
    if networks:
        with pytest.raises(ProfileError, match=f"pod.annotations: {problem}"):
            planned(**VF, pod={"annotations": {NETWORKS: networks}})


def test_annotation_may_name_the_networks(planned: Planned) -> None:
    """Without networks of `pod.networks` the annotation of the profile stays as it is."""
    pod = {"networks": {"default/rdma-vf": 0}, "annotations": {NETWORKS: "rail"}}
    assert planned(**VF, pod=pod).pod["metadata"]["annotations"][NETWORKS] == "rail"


def test_vf_fabric_requests_16_functions(planned: Planned) -> None:
    """The pod requests 16 virtual functions, with limits equal to requests."""
    resources = get_container(planned(**VF))["resources"]
    assert [resources[key]["nvidia.com/rdma-vf"] for key in ("requests", "limits")] == ["16", "16"]


def test_vf_fabric_keeps_the_network_of_the_pod(planned: Planned) -> None:
    """A pod with virtual functions does not use the host network."""
    assert {"hostNetwork", "dnsPolicy"}.isdisjoint(get_pod_spec(planned(**VF)))


def test_no_rdma_fabric_has_no_privilege(planned: Planned) -> None:
    """TCP needs nothing from the node, and NCCL is configured not to use InfiniBand."""
    plan = planned(**NO_RDMA)
    assert get_env(plan)["NCCL_IB_DISABLE"] == "1"
    assert "securityContext" not in get_container(plan)
    assert {"hostNetwork", "dnsPolicy"}.isdisjoint(get_pod_spec(plan))


GB300 = {"hardware": "oke/bm-gpu-gb300-4", "fabric": "host"}


def test_nodes_with_nvlink_between_them_claim_a_channel(planned: Planned) -> None:
    """The pod and its container have the claim, and preflight checks for the ComputeDomain that fills it."""
    plan = planned(**GB300)
    claim = {"name": "torchyard", "resourceClaimTemplateName": "torchyard"}
    assert plan.pod["spec"]["resourceClaims"] == [claim]
    assert get_container(plan)["resources"]["claims"] == [{"name": "torchyard"}]
    assert ReferencedObject(object_kind="ComputeDomain", name="torchyard") in plan.requires


# --- environment


def test_profile_takes_precedence_in_the_environment(planned: Planned) -> None:
    """A variable of the profile appears once and overrides that of the fabric and the launcher."""
    plan = planned(**HOST, env={"NCCL_IB_TC": 96, "LOGLEVEL": "DEBUG"})
    assert (get_env(plan)["NCCL_IB_TC"], get_env(plan)["LOGLEVEL"]) == ("96", "DEBUG")
    names = [variable["name"] for variable in get_container(plan)["env"]]
    assert len(names) == len(set(names))


def test_agents_log_the_rendezvous(planned: Planned) -> None:
    """LOGLEVEL is INFO: only then torchrun logs that a node has joined."""
    assert get_env(planned())["LOGLEVEL"] == "INFO"


@pytest.mark.parametrize(("level", "ranks"), [("DEBUG", "teed"), ("WARNING", "placed")])
def test_rank_is_read_only_from_a_log_that_has_it(planned: Planned, level: str, ranks: str) -> None:
    """With a level of the profile at which torchrun does not log the ranks, the first node counts as rank 0's."""
    assert planned(env={"LOGLEVEL": level}).ranks == ranks


@pytest.mark.parametrize("keys", [HOST, {"resources": {"gpus": 1}}, {"resources": {"nvidia.com/gpu": 1}}])
def test_nccl_logs_its_network(planned: Planned, keys: dict[str, Any]) -> None:
    """NCCL logs its subsystem NET, without which a log does not show whether GPUDirect is used."""
    env = get_env(planned(**keys))
    assert (env["NCCL_DEBUG"], "NET" in env["NCCL_DEBUG_SUBSYS"].split(",")) == ("INFO", True)


def test_job_without_gpus_has_no_nccl(planned: Planned) -> None:
    """A job without GPUs gets no NCCL variables."""
    assert [name for name in get_env(planned()) if name.startswith("NCCL")] == []


def test_secret_stays_a_reference(planned: Planned) -> None:
    """A plan, which is shown and stored, only refers to a secret, and preflight checks that it exists."""
    plan = planned(env={"TOKEN": {"secret": "hub", "key": "token"}, "MODE": {"config_map": "site", "key": "mode"}})
    assert get_env(plan)["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert get_env(plan)["MODE"] == {"configMapKeyRef": {"name": "site", "key": "mode"}}
    references = {
        (reference.object_kind, reference.name, reference.required_entries)
        for reference in list_requirements(plan, ReferencedObject)
    }
    assert references == {("Secret", "hub", ("token",)), ("ConfigMap", "site", ("mode",))}


@pytest.mark.parametrize(
    ("launcher", "field"),
    [
        ("volcano", "metadata.annotations['volcano.sh/task-index']"),
        ("pytorchjob", "metadata.labels['training.kubeflow.org/replica-index']"),
    ],
)
def test_index_of_the_pod_comes_first(planned: Planned, launcher: str, field: str) -> None:
    """The pod's index, set by its controller, comes before all variables that may refer to it."""
    first = get_container(planned(launcher=launcher))["env"][0]
    assert first == {"name": "TORCHYARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": field}}}


def test_keys_of_a_bundle_are_variables(planned: Planned) -> None:
    """ConfigMaps and Secrets whose keys become variables must exist, whatever keys they have."""
    plan = planned(pod={"env_from": [{"config_map": "nccl"}, {"secret": "keys"}]})
    assert get_container(plan)["envFrom"] == [{"configMapRef": {"name": "nccl"}}, {"secretRef": {"name": "keys"}}]
    assert list_requirements(plan, ReferencedObject) == [
        ReferencedObject(object_kind="ConfigMap", name="nccl"),
        ReferencedObject(object_kind="Secret", name="keys"),
    ]


# --- resources


def test_processors_have_no_limit(planned: Planned) -> None:
    """CPU and memory get no limits, which would only throttle or kill; all other resources need them."""
    resources = {"gpus": 8, "cpu": 64, "memory": "512Gi", "ephemeral-storage": "32Gi"}
    assert get_container(planned(**HOST, resources=resources))["resources"] == {
        "requests": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "ephemeral-storage": "32Gi"},
        "limits": {"nvidia.com/gpu": "8", "ephemeral-storage": "32Gi"},
    }


def test_limits_are_those_of_the_profile(planned: Planned) -> None:
    """CPU and memory are limited only if the profile sets a limit; devices are limited to their requests."""
    plan = planned(resources={"gpus": 8, "cpu": 4}, pod={"limits": {"cpu": 8, "memory": "1Gi"}})
    assert get_container(plan)["resources"]["limits"] == {"nvidia.com/gpu": "8", "cpu": "8", "memory": "1Gi"}


def test_no_gpus_are_none(planned: Planned) -> None:
    """`gpus: 0` requests nothing, and does not tolerate the taint of GPU nodes."""
    plan = planned(resources={"gpus": 0})
    assert "resources" not in get_container(plan)
    assert "tolerations" not in get_pod_spec(plan)


def test_gpus_have_the_name_of_the_hardware() -> None:
    """On another vendor's nodes `gpus` is their resource, and its taint is tolerated."""
    profile = load_profile("yolov5-volcano")
    assert profile.hardware
    hardware = profile.hardware.model_dump() | {"gpus": {"resource": "amd.com/gpu", "per_node": 8}}
    amd_profile = profile.model_copy(update={"hardware": Hardware.model_validate(hardware)})
    resolved_profile = resolve(amd_profile)
    assert "amd.com/gpu" in resolved_profile.requests
    assert resolved_profile.tolerations == ("amd.com/gpu",)


# --- where it runs


def test_pods_run_on_nodes_of_the_shape(planned: Planned) -> None:
    """The labels of the hardware and of the profile select the nodes, and preflight counts those nodes."""
    plan = planned(**HOST, pod={"node_selector": {"pool": "train"}})
    labels = {"node.kubernetes.io/instance-type": "BM.GPU.B4.8", "pool": "train"}
    assert get_pod_spec(plan)["nodeSelector"] == labels
    assert [capacity.labels for capacity in list_requirements(plan, Capacity)] == [labels]


def test_each_node_gets_one_pod(planned: Planned) -> None:
    """Pods of one attempt run on separate nodes; the store's pod is exempt by its role label."""
    plan = planned(nodes=2, rendezvous="etcd-v2")
    (term,) = get_pod_spec(plan)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == plan.labels
    (expression,) = term["labelSelector"]["matchExpressions"]
    assert (expression["key"] in plan.store[1]["metadata"]["labels"], expression["operator"]) == (True, "DoesNotExist")
    assert expression["key"] not in plan.pod["metadata"]["labels"]


def test_single_pod_has_no_anti_affinity(planned: Planned) -> None:
    """A job of one pod has no anti-affinity."""
    assert "affinity" not in get_pod_spec(planned(nodes=1))


@pytest.mark.parametrize("nodes", [1, 2])
def test_pods_keep_away_from_labels(planned: Planned, nodes: int) -> None:
    """Nodes with one of the values are excluded, in addition to the rule that keeps pods of one job apart."""
    affinity = get_pod_spec(planned(nodes=nodes, pod={"avoid": {"health": ["bad", "worse"], "none": []}}))["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "health", "operator": "NotIn", "values": ["bad", "worse"]}]}
    assert ("podAntiAffinity" in affinity) == (nodes > 1)


def test_pods_keep_to_labels(planned: Planned) -> None:
    """With `only`, a node must have one of the values; an empty list allows every node."""
    pod = {"only": {"kubernetes.io/hostname": ["a", "b"], "none": []}, "avoid": {"health": ["bad"]}}
    plan = planned(nodes=1, pod=pod)
    (term,) = get_pod_spec(plan)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]},
        {"key": "health", "operator": "NotIn", "values": ["bad"]},
    ]


def test_scheduler_is_set_on_the_pod(planned: Planned) -> None:
    """A scheduler of the profile is set on the pods."""
    assert get_pod_spec(planned(pod={"scheduler": "sakkara"}))["schedulerName"] == "sakkara"


def test_taints_are_tolerated_by_key(planned: Planned) -> None:
    """Every toleration has a key: one without would keep pods on dead nodes forever."""
    plan = planned(resources={"gpus": 1}, pod={"tolerations": ["spot", "nvidia.com/gpu"]})
    assert get_pod_spec(plan)["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Exists"},
    ]


def test_toleration_may_have_every_field(planned: Planned) -> None:
    """A toleration with a value, an effect or a time has the fields of Kubernetes, also on the run's store."""
    eviction = {"key": "spot", "effect": "NoExecute", "toleration_seconds": 0}
    tolerations = [{"key": "team", "value": 1, "effect": "NoSchedule"}, eviction]
    plan = planned(rendezvous="etcd-v2", pod={"tolerations": tolerations})
    expected = [
        {"key": "team", "operator": "Equal", "value": "1", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    assert get_pod_spec(plan)["tolerations"] == expected
    (store,) = (obj for obj in plan.store if obj["kind"] == "Pod")
    assert store["spec"]["tolerations"] == expected


def test_variable_may_be_a_field_of_the_pod(planned: Planned) -> None:
    """The kubelet sets a variable from a field of the pod, or from an amount of its container."""
    env = {"POD_IP": {"field": "status.podIP"}, "MEMORY": {"resource": "limits.memory", "divisor": "1Mi"}}
    values = get_env(planned(env=env))
    assert values["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert values["MEMORY"] == {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}


def test_containers_start_once(planned: Planned) -> None:
    """A container that ends is not restarted in its pod, so that its log and exit code stay."""
    assert get_pod_spec(planned())["restartPolicy"] == "Never"


def test_services_of_others_stay_out_of_the_environment(planned: Planned) -> None:
    """A Service called `etcd` or `port` in the namespace sets no variables in the pods."""
    assert get_pod_spec(planned())["enableServiceLinks"] is False


def test_containers_before_the_job(planned: Planned) -> None:
    """Init containers run before the job's container, with their command unchanged."""
    plan = planned(
        pod={"init": [{"name": "a", "image": "b:1", "command": ["echo", "$(X)"]}, {"name": "c", "image": "d"}]}
    )
    init_containers = [{"name": "a", "image": "b:1", "command": ["echo", "$$(X)"]}, {"name": "c", "image": "d"}]
    assert get_pod_spec(plan)["initContainers"] == init_containers


def has_empty_value(value: Any) -> bool:
    """Whether a value is or contains null, or an empty list or mapping."""
    if isinstance(value, dict):
        return not value or any(map(has_empty_value, value.values()))
    if isinstance(value, list):
        return not value or any(map(has_empty_value, value))
    return value is None


@pytest.mark.parametrize("keys", [{}, HOST, {"nodes": 2}, {"pod": {"avoid": {"health": []}, "limits": {"cpu": 0}}}])
def test_manifest_has_nothing_empty(planned: Planned, keys: dict[str, Any]) -> None:
    """Keys that a profile does not set do not appear in the manifest."""
    assert not has_empty_value(planned(**keys).pod["spec"])


# --- names and refusals


BOTH = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])


@BOTH
def test_every_object_carries_the_run_and_the_attempt(planned: Planned, launcher: str) -> None:
    """Everything that a run creates, including its pods, can be found by its labels alone."""
    plan = planned(launcher=launcher, rendezvous="etcd-v2", attempt=2)
    assert plan.labels == {"torchyard/run": "sample-a1b2c3d4", "torchyard/attempt": "2"}
    for obj in (*plan.store, *plan.objects, plan.pod):
        assert plan.labels.items() <= obj["metadata"]["labels"].items()


@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_longest_names_are_host_names(planned: Planned, launcher: str) -> None:
    """The longest profile name, the last attempt and a thousand nodes make a host name of 63 characters."""
    plan = planned(20, "a" * 40, launcher=launcher, nodes=1000)
    last_host_name = f"{plan.job}-{list(plan.nodes)[-1]}"
    assert (last_host_name[-11:], len(last_host_name)) == ("-worker-999", 63)


@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": None}, "image: the pods need one"),
        ({"name": "7b-model"}, "name: 7b-model must begin with a letter"),
        ({"program": "~/train.py"}, "program: is a file of the image, and in a pod no shell expands ~"),
        ({"nodes": 1001}, "nodes: at most 1000"),
        ({"mounts": {"/run/torchyard": {"claim": "tools"}}}, "mounts./run/torchyard: torchyard mounts its own files"),
        (
            {"nodes": {"min": 2, "max": 4}, "rendezvous": "static"},
            "nodes: must be one number with rendezvous: static, not 2:4",
        ),
    ],
)
def test_profile_without_a_valid_pod_is_refused(
    planned: Planned, launcher: str, keys: dict[str, Any], message: str
) -> None:
    """A profile from which no pod can be built is refused before any request to a cluster."""
    with pytest.raises(ProfileError, match=message):
        planned(launcher=launcher, **keys)


def test_labels_of_an_attempt_are_in_its_name(planned: Planned) -> None:
    """The name of an attempt's objects contains the values of its labels."""
    plan = planned()
    assert parse_attempt_labels(plan.job) == plan.labels
