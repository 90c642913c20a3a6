"""The pods of a job: what the profile, the fabric and the run put into them."""

from typing import Any

import pytest

from tests.conftest import Planned, Write, load
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.hardware import Hardware
from torchyard.model.plan import ManifestPlan
from torchyard.model.pod import Pod
from torchyard.model.requirements import Advice, Capacity, Object
from torchyard.pods import template

B4_8 = {"hardware": "oke/bm-gpu-b4-8"}
HOST, VF, NO_RDMA = ({**B4_8, "fabric": fabric} for fabric in ("host", "vf", "no-rdma"))
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def spec(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = plan.pod["spec"]
    return found


def container(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = spec(plan)["containers"][0]
    return found


def env(plan: ManifestPlan) -> dict[str, Any]:
    """Each variable, or where it comes from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(plan)["env"]}


def mounted(plan: ManifestPlan) -> dict[str, Any]:
    """The volume at each path, without its name."""
    sources = {each["name"]: {**each} for each in spec(plan)["volumes"]}
    for name, source in sources.items():
        assert source.pop("name") == name
    return {each["mountPath"]: sources[each["name"]] for each in container(plan)["volumeMounts"]}


def needs(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [each for each in plan.requires if isinstance(each, kind)]


# --- fabrics


def test_host_fabric_uses_the_network_of_the_node(planned: Planned) -> None:
    """Under the host's network the cluster's DNS is still asked: the pods find each other by name."""
    pod = spec(planned(**HOST))
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_host_fabric_has_the_devices_and_shared_memory(planned: Planned) -> None:
    """The RDMA devices are the node's, and /dev/shm is 32 GiB of memory."""
    assert mounted(planned(**HOST)) == {
        "/dev/infiniband": {"hostPath": {"path": "/dev/infiniband"}},
        "/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
    }


def test_host_fabric_may_lock_memory(planned: Planned) -> None:
    """Verbs need IPC_LOCK and the devices; a name with CAP_ would be none."""
    assert container(planned(**HOST))["securityContext"] == {
        "privileged": True,
        "capabilities": {"add": ["IPC_LOCK"]},
    }


def test_host_fabric_asks_for_no_rdma_resource(planned: Planned) -> None:
    """The node's interfaces need no device plugin, so none is asked for them."""
    plan = planned(**HOST, resources={"gpus": 1})
    assert container(plan)["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert NETWORKS not in plan.pod["metadata"].get("annotations", {})


def test_vf_fabric_names_the_network_16_times(planned: Planned) -> None:
    """Each virtual function is one more mention of the network."""
    assert planned(**VF).pod["metadata"]["annotations"][NETWORKS].split(",") == ["default/rdma-vf"] * 16


def test_vf_fabric_asks_for_16_functions(planned: Planned) -> None:
    """The device plugin gives what requests and limits say alike."""
    resources = container(planned(**VF))["resources"]
    assert [resources[key]["nvidia.com/rdma-vf"] for key in ("requests", "limits")] == ["16", "16"]


def test_vf_fabric_keeps_the_network_of_the_pod(planned: Planned) -> None:
    """A pod with functions of its own is not in the node's network."""
    assert {"hostNetwork", "dnsPolicy"}.isdisjoint(spec(planned(**VF)))


def test_vf_fabric_needs_its_network_and_its_plugin(planned: Planned) -> None:
    """Preflight looks for the network where it is, and knows who offers the functions."""
    plan = planned(**VF)
    assert Object(what="NetworkAttachmentDefinition", name="rdma-vf", namespace="default") in plan.requires
    assert [room.device_plugin for room in needs(plan, Capacity)] == ["app=sriovdp"]


def test_no_rdma_fabric_has_no_privilege(planned: Planned) -> None:
    """TCP needs nothing of the node, and NCCL is told to leave InfiniBand alone."""
    plan = planned(**NO_RDMA)
    assert env(plan)["NCCL_IB_DISABLE"] == "1"
    assert "securityContext" not in container(plan)
    assert {"hostNetwork", "dnsPolicy"}.isdisjoint(spec(plan))


def test_network_without_a_namespace_is_of_the_job(planned: Planned) -> None:
    """A network's name alone means the namespace of the job."""
    plan = planned(pod={"networks": {"rdma": 1, "unused": 0}})
    assert needs(plan, Object) == [Object(what="NetworkAttachmentDefinition", name="rdma", namespace=None)]


# --- the fabric and the profile together


def test_mappings_of_two_pods_are_joined() -> None:
    """A label of the profile stands beside those of the fabric, and wins where both say it."""
    over = Pod(labels={"team": "vision", "tier": "gold"}).over(Pod(labels={"fabric": "host", "tier": "any"}))
    assert over.labels == {"fabric": "host", "tier": "gold", "team": "vision"}


def test_lists_of_two_pods_are_joined() -> None:
    """A capability of the profile does not take the fabric's away."""
    assert Pod(capabilities=("SYS_PTRACE", "IPC_LOCK")).over(Pod(capabilities=("IPC_LOCK",))).capabilities == (
        "IPC_LOCK",
        "SYS_PTRACE",
    )


def test_single_values_are_replaced() -> None:
    """What the profile says itself counts, also where it says no."""
    over = Pod(shm="64Gi", privileged=False).over(Pod(shm="32Gi", privileged=True))
    assert (over.shm, over.privileged) == ("64Gi", False)


def test_nothing_of_the_fabric_is_lost(planned: Planned) -> None:
    """A profile that adds to the pod leaves all that the fabric says."""
    fabric = load_profile("yolov5-volcano").network
    assert fabric
    added = Pod(labels={"a": "b"}, tolerations=("spot",), devices=("/dev/gdrdrv",), workdir="/w").over(fabric.pod)
    unchanged = {key: value for key, value in added if key not in ("labels", "tolerations", "devices", "workdir")}
    assert unchanged.items() <= dict(fabric.pod).items()
    assert added.devices == ("/dev/infiniband", "/dev/gdrdrv")


# --- environment


def test_profile_has_the_last_word_in_the_environment(planned: Planned) -> None:
    """A variable of the profile stands once, with its own value, whatever the fabric and the launcher say."""
    plan = planned(**HOST, env={"NCCL_IB_TC": 96, "LOGLEVEL": "DEBUG"})
    assert (env(plan)["NCCL_IB_TC"], env(plan)["LOGLEVEL"]) == ("96", "DEBUG")
    names = [each["name"] for each in container(plan)["env"]]
    assert len(names) == len(set(names))


def test_agents_tell_the_rendezvous(planned: Planned) -> None:
    """torchrun says at INFO only that a node has joined."""
    assert env(planned())["LOGLEVEL"] == "INFO"


@pytest.mark.parametrize("keys", [HOST, {"resources": {"gpus": 1}}, {"resources": {"nvidia.com/gpu": 1}}])
def test_nccl_tells_its_network(planned: Planned, keys: dict[str, Any]) -> None:
    """Without NET among NCCL's subsystems a log does not say whether GPUDirect is used."""
    found = env(planned(**keys))
    assert (found["NCCL_DEBUG"], "NET" in found["NCCL_DEBUG_SUBSYS"].split(",")) == ("INFO", True)


def test_job_without_gpus_has_no_nccl(planned: Planned) -> None:
    """A job on processors is not told how NCCL should log."""
    assert [name for name in env(planned()) if name.startswith("NCCL")] == []


def test_secret_stays_a_reference(planned: Planned) -> None:
    """Plans are shown and stored: they hold where a secret is, and it must be there."""
    plan = planned(env={"TOKEN": {"secret": "hub", "key": "token"}, "MODE": {"config_map": "site", "key": "mode"}})
    assert env(plan)["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env(plan)["MODE"] == {"configMapKeyRef": {"name": "site", "key": "mode"}}
    found = {(each.what, each.name, each.holds) for each in needs(plan, Object)}
    assert found == {("Secret", "hub", ("token",)), ("ConfigMap", "site", ("mode",))}


@pytest.mark.parametrize(
    ("launcher", "field"),
    [
        ("volcano", "metadata.annotations['volcano.sh/task-index']"),
        ("pytorchjob", "metadata.labels['training.kubeflow.org/replica-index']"),
    ],
)
def test_pod_knows_its_index_first(planned: Planned, launcher: str, field: str) -> None:
    """The pod's index comes from its controller, before whatever may refer to it."""
    first = container(planned(launcher=launcher))["env"][0]
    assert first == {"name": "TORCHYARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": field}}}


# --- resources


def test_processors_have_no_limit(planned: Planned) -> None:
    """A limit of processors only throttles, and of memory only kills; all else has no meaning without one."""
    asked = {"gpus": 8, "cpu": 64, "memory": "512Gi", "ephemeral-storage": "32Gi"}
    assert container(planned(**HOST, resources=asked))["resources"] == {
        "requests": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "ephemeral-storage": "32Gi"},
        "limits": {"nvidia.com/gpu": "8", "ephemeral-storage": "32Gi"},
    }


def test_limits_are_those_that_are_said(planned: Planned) -> None:
    """Processors and memory are limited where the profile says so, and devices as they are asked for."""
    plan = planned(resources={"gpus": 8, "cpu": 4}, pod={"limits": {"cpu": 8, "memory": "1Gi"}})
    assert container(plan)["resources"]["limits"] == {"nvidia.com/gpu": "8", "cpu": "8", "memory": "1Gi"}


def test_no_gpus_are_none(planned: Planned) -> None:
    """`gpus: 0` asks for nothing, and tolerates no GPU node's taint."""
    plan = planned(resources={"gpus": 0})
    assert "resources" not in container(plan)
    assert "tolerations" not in spec(plan)


def test_gpus_have_the_name_of_the_hardware() -> None:
    """On another vendor's nodes `gpus` is their resource, and its taint is tolerated."""
    profile = load_profile("yolov5-volcano")
    assert profile.hardware
    gpus = {**profile.hardware.model_dump(), "gpus": {"resource": "amd.com/gpu", "per_node": 8}}
    other = profile.model_copy(update={"hardware": Hardware.model_validate(gpus)})
    assert "amd.com/gpu" in template.resource_requests(other)
    assert template.list_tolerations(other) == ("amd.com/gpu",)


# --- where it runs


def test_pods_run_on_nodes_of_the_shape(planned: Planned) -> None:
    """The hardware's labels and the profile's own choose the nodes, and preflight counts those."""
    plan = planned(**HOST, pod={"node_selector": {"pool": "train"}})
    labels = {"node.kubernetes.io/instance-type": "BM.GPU.B4.8", "pool": "train"}
    assert spec(plan)["nodeSelector"] == labels
    assert [room.labels for room in needs(plan, Capacity)] == [labels]


def test_each_node_gets_one_pod(planned: Planned) -> None:
    """Pods of one attempt keep apart; the store's pod has a role, and keeps nobody away."""
    plan = planned(nodes=2, rendezvous="etcd-v2")
    (rule,) = spec(plan)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == plan.labels
    (other,) = rule["labelSelector"]["matchExpressions"]
    assert (other["key"] in plan.store[1]["metadata"]["labels"], other["operator"]) == (True, "DoesNotExist")
    assert other["key"] not in plan.pod["metadata"]["labels"]


def test_single_pod_keeps_apart_from_nobody(planned: Planned) -> None:
    """A job of one pod needs no rule for its peers."""
    assert "affinity" not in spec(planned(nodes=1))


@pytest.mark.parametrize("nodes", [1, 2])
def test_pods_keep_away_from_labels(planned: Planned, nodes: int) -> None:
    """Nodes with one of the values are left out, beside the rule that keeps pods of one job apart."""
    affinity = spec(planned(nodes=nodes, pod={"avoid": {"health": ["bad", "worse"], "none": []}}))["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "health", "operator": "NotIn", "values": ["bad", "worse"]}]}
    assert ("podAntiAffinity" in affinity) == (nodes > 1)


def test_scheduler_is_said_of_the_pod(planned: Planned) -> None:
    """Another scheduler than the cluster's own places the pods."""
    assert spec(planned(pod={"scheduler": "sakkara"}))["schedulerName"] == "sakkara"


def test_taints_are_tolerated_by_key(planned: Planned) -> None:
    """A toleration without a key would keep pods on dead nodes for ever."""
    plan = planned(resources={"gpus": 1}, pod={"tolerations": ["spot", "nvidia.com/gpu"]})
    assert spec(plan)["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Exists"},
    ]


def test_containers_begin_once(planned: Planned) -> None:
    """A container that ends is not started again in its pod: its log and its exit code stay."""
    assert spec(planned())["restartPolicy"] == "Never"


def test_services_of_others_stay_out_of_the_environment(planned: Planned) -> None:
    """A Service called `etcd` or `port` in the namespace sets no variables in the pods."""
    assert spec(planned())["enableServiceLinks"] is False


# --- mounts and identity


def test_mounts_become_volumes(planned: Planned) -> None:
    """Each kind of mount is the volume that Kubernetes has for it."""
    mounts = {
        "/data": {"claim": "coco"},
        "/etc/site": {"config_map": "site"},
        "/etc/keys": {"secret": "keys"},
        "/models": {"host": "/nvme/models"},
        "/scratch": {"scratch": "1Ti"},
        "/nvme": {"ephemeral": "800Gi", "storage_class": "local"},
    }
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "800Gi"}}}
    assert mounted(planned(mounts=mounts)) == {
        "/data": {"persistentVolumeClaim": {"claimName": "coco"}},
        "/etc/site": {"configMap": {"name": "site"}},
        "/etc/keys": {"secret": {"secretName": "keys"}},
        "/models": {"hostPath": {"path": "/nvme/models"}},
        "/scratch": {"emptyDir": {"sizeLimit": "1Ti"}},
        "/nvme": {"ephemeral": {"volumeClaimTemplate": {"spec": {**storage, "storageClassName": "local"}}}},
    }


def test_keys_of_a_bundle_are_variables(planned: Planned) -> None:
    """ConfigMaps and Secrets whose keys become variables must be there, whatever keys they have."""
    plan = planned(pod={"env_from": [{"config_map": "nccl"}, {"secret": "keys"}]})
    assert container(plan)["envFrom"] == [{"configMapRef": {"name": "nccl"}}, {"secretRef": {"name": "keys"}}]
    assert needs(plan, Object) == [Object(what="ConfigMap", name="nccl"), Object(what="Secret", name="keys")]


def test_containers_before_the_job(planned: Planned) -> None:
    """Init containers run before the job's, with the command as it is written."""
    plan = planned(
        pod={"init": [{"name": "a", "image": "b:1", "command": ["echo", "$(X)"]}, {"name": "c", "image": "d"}]}
    )
    made = [{"name": "a", "image": "b:1", "command": ["echo", "$$(X)"]}, {"name": "c", "image": "d"}]
    assert spec(plan)["initContainers"] == made


def empty(value: Any) -> bool:
    """Whether something in it is null, or an empty list or mapping."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or value in ([], {}) or any(map(empty, inner))


@pytest.mark.parametrize("keys", [{}, HOST, {"nodes": 2}, {"pod": {"avoid": {"health": []}, "limits": {"cpu": 0}}}])
def test_manifest_has_nothing_empty(planned: Planned, keys: dict[str, Any]) -> None:
    """What a profile does not say does not stand in the manifest."""
    assert not empty(planned(**keys).pod["spec"])


def test_read_only_is_said_of_the_mount(planned: Planned) -> None:
    """A mount that is read_only cannot be written in the pod."""
    plan = planned(mounts={"/data": {"claim": "coco", "read_only": True}, "/out": {"claim": "out"}})
    assert [each.get("readOnly", False) for each in container(plan)["volumeMounts"]] == [True, False]


def test_own_shared_memory_comes_first(planned: Planned) -> None:
    """A mount of the profile takes the fabric's place at the same path, and no path is mounted twice."""
    plan = planned(**HOST, mounts={"/dev/shm": {"scratch": "1Gi"}})
    assert mounted(plan)["/dev/shm"] == {"emptyDir": {"sizeLimit": "1Gi"}}
    assert len(container(plan)["volumeMounts"]) == 2


def test_what_is_named_must_be_there(planned: Planned) -> None:
    """Claims, pull secrets and accounts that the pods name are looked for before anything starts."""
    pod = {"pull_secrets": ["registry"], "service_account": "trainer", "priority_class": "high"}
    plan = planned(pod=pod, mounts={"/data": {"claim": "coco"}, "/more": {"claim": "coco"}})
    found = [(each.what, each.name) for each in needs(plan, Object)]
    others = [("PriorityClass", "high"), ("ServiceAccount", "trainer")]
    assert found == [("PersistentVolumeClaim", "coco"), ("Secret", "registry"), *others]
    assert spec(plan)["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec(plan)["serviceAccountName"], spec(plan)["priorityClassName"]) == ("trainer", "high")


@pytest.mark.parametrize("image", ["train", "train:latest", "registry.example:5000/train", "hub/train:latest"])
def test_image_without_a_fixed_tag_is_advised_against(planned: Planned, image: str) -> None:
    """An image that may be another one tomorrow is a warning."""
    assert [each.about for each in needs(planned(image=image), Advice)] == [f"image {image}"]


@pytest.mark.parametrize("image", ["train:v1", "registry.example:5000/train:v1", "train@sha256:0a1b"])
def test_fixed_image_is_not_spoken_of(planned: Planned, image: str) -> None:
    """A tag or a digest is enough."""
    assert needs(planned(image=image), Advice) == []


# --- names and refusals


@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_longest_names_are_host_names(planned: Planned, launcher: str) -> None:
    """The longest profile name, the last attempt and a thousand nodes make a host name of 63 characters."""
    plan = planned(20, "a" * 40, launcher=launcher, nodes=1000)
    last = f"{plan.job}-{list(plan.nodes)[-1]}"
    assert (last[-11:], len(last)) == ("-worker-999", 63)


@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"image": None}, "image: the pods need one"),
        ({"name": "7b-model"}, "name: 7b-model must begin with a letter"),
        ({"nodes": 1001}, "nodes: at most 1000"),
        ({"nodes": {"min": 2, "max": 4}, "rendezvous": "static"}, "nodes: static .* one number, not 2:4"),
    ],
)
def test_profile_that_no_pod_can_be_made_of_is_refused(
    planned: Planned, launcher: str, keys: dict[str, Any], said: str
) -> None:
    """What the profile as a whole gets wrong for pods is told before anything is asked of a cluster."""
    with pytest.raises(ProfileError, match=said):
        planned(launcher=launcher, **keys)


def test_program_of_an_image_is_left_alone(write: Write) -> None:
    """In pods the program is a path of the image, and not of this machine."""
    assert load(write(launcher="volcano", image="train:v1", program="train.py")).program == "train.py"
