"""Patches of pods and jobs: merged as Kubernetes would, and refused where the run relies on what was built."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.plan_parts import get_container, get_pod_spec, list_requirements
from tests.conftest import Planned, Write, load
from torchyard.common.project_root import ROOT
from torchyard.launchers.registry import list_launchers, make_plan
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.pod import Pod, Toleration
from torchyard.model.profile import Profile
from torchyard.model.requirements import Capacity, ReferencedObject
from torchyard.model.run import TRIAL_RUN
from torchyard.pods.patch import FIXED_CONTAINER_KEYS, FIXED_JOB_KEYS, FIXED_POD_KEYS

HOST_FABRIC = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host"}
TWO_NODES: dict[str, Any] = {"nodes": 2, "resources": {"gpus": 1}}
LAUNCHERS = [name for name in list_launchers() if name not in ("baremetal", "runai")]


def patch_spec(**spec: Any) -> dict[str, Any]:
    """The profile's keys for a patch of the pods' spec."""
    return {"pod": {"patch": {"spec": spec}}}


def patch_container(**fields: Any) -> dict[str, Any]:
    """The profile's keys for a patch of the job's container."""
    return patch_spec(containers=[fields])


def patch_job(**spec: Any) -> dict[str, Any]:
    """The profile's keys for a patch of the job's spec."""
    return {"job": {"patch": {"spec": spec}}}


def read_refusal(planned: Planned, **keys: Any) -> str:
    with pytest.raises(ProfileError) as refusal:
        planned(**keys)
    return str(refusal.value)


# --- merging


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_patch_of_pods_is_in_every_pod(planned: Planned, launcher: str) -> None:
    """Every launcher on Kubernetes builds its pods with the patch: the first one shows it, and each template."""
    plan = planned(launcher=launcher, **TWO_NODES, **patch_spec(runtimeClassName="nvidia"))
    assert get_pod_spec(plan)["runtimeClassName"] == "nvidia"
    main = json.dumps(plan.main)
    assert main.count('"runtimeClassName": "nvidia"') == main.count('"restartPolicy": "Never", "terminationGrace')


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_labels_and_patch_of_the_job_are_on_its_main_object(planned: Planned, launcher: str) -> None:
    """The profile's labels, annotations and patch are on the object that is created, beside torchyard's labels."""
    job = {"labels": {"team": "vision"}, "annotations": {"a": "b"}, "patch": {"metadata": {"annotations": {"c": "d"}}}}
    plan = planned(launcher=launcher, job=job)
    metadata = plan.main["metadata"]
    assert metadata["labels"] == {"team": "vision"} | planned(launcher=launcher).main["metadata"]["labels"]
    assert {"a": "b", "c": "d"}.items() <= metadata["annotations"].items()


def test_container_without_a_name_is_the_jobs_own(planned: Planned) -> None:
    """A patch need not know what the launcher calls the job's container."""
    for launcher in LAUNCHERS:
        plan = planned(launcher=launcher, **patch_container(tty=True))
        assert [container["tty"] for container in get_pod_spec(plan)["containers"]] == [True]


def test_items_of_named_lists_are_merged(planned: Planned) -> None:
    """A mount is found by its path, a variable by its name; what a patch does not name stays."""
    base = planned(mounts={"/data": {"claim": "coco"}}, env={"A": "1", "B": "2"})
    mount = {"mountPath": "/data", "subPath": "team"}
    patch = patch_container(volumeMounts=[mount], env=[{"name": "A", "value": "3"}])
    plan = planned(mounts={"/data": {"claim": "coco"}}, env={"A": "1", "B": "2"}, **patch)
    expected = json.loads(json.dumps(get_container(base)))
    expected["volumeMounts"][0]["subPath"] = "team"
    expected["env"][-2]["value"] = "3"
    assert get_container(plan) == expected


def test_null_removes_a_key_and_delete_an_item(planned: Planned) -> None:
    """Null removes what was built, and also a key that was not there; `$patch: delete` removes an item of a list."""
    aliases = [{"ip": "10.0.0.1", "hostnames": ["a"], "$patch": "delete"}]
    env = [{"name": "PYTHONUNBUFFERED", "$patch": "delete"}]
    patch = patch_spec(enableServiceLinks=None, priority=None, hostAliases=aliases, containers=[{"env": env}])
    pod_spec = get_pod_spec(planned(**patch))
    assert {"enableServiceLinks", "priority"}.isdisjoint(pod_spec)
    assert "PYTHONUNBUFFERED" not in [variable["name"] for variable in pod_spec["containers"][0]["env"]]


def test_other_source_replaces_a_volume_and_a_variable(planned: Planned) -> None:
    """A volume has one source and a variable one value: Kubernetes refuses two, so the patch's is used."""
    volumes = [{"name": "volume-0", "nfs": {"server": "nas", "path": "/a"}}]
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    patch = patch_spec(volumes=volumes, containers=[{"env": [{"name": "A", "valueFrom": field}]}])
    pod_spec = get_pod_spec(planned(mounts={"/data": {"scratch": "1Gi"}}, env={"A": "1"}, **patch))
    assert pod_spec["volumes"][0] == volumes[0]
    assert {"name": "A", "valueFrom": field} in pod_spec["containers"][0]["env"]


def test_conditions_are_added_to_torchyards_own(planned: Planned) -> None:
    """A patch with tolerations and affinity does not remove the toleration of GPUs, nor one pod per node."""
    zone = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "other"}}}
    toleration = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    patch = patch_spec(
        tolerations=[toleration],
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [zone]}},
    )
    base = get_pod_spec(planned(**TWO_NODES))
    plan = planned(**TWO_NODES, **patch)
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    anti_affinity = get_pod_spec(plan)["affinity"]["podAntiAffinity"][rule]
    assert anti_affinity == [*base["affinity"]["podAntiAffinity"][rule], zone]
    assert get_pod_spec(plan)["tolerations"] == [*base["tolerations"], toleration]
    (capacity,) = list_requirements(plan, Capacity)
    assert capacity.one_per_node
    assert capacity.tolerations == (
        "nvidia.com/gpu",
        Toleration(key="team", value="a", effect="NoSchedule", operator="Equal"),
    )


def test_nodes_match_the_profiles_conditions_and_one_term(planned: Planned) -> None:
    """The terms of a node affinity are alternatives: each one gets the conditions of pod.only and pod.avoid."""
    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": [disk]}]} for disk in ("ssd", "nvme")]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    keys = patch_spec(affinity={"nodeAffinity": rule})
    keys["pod"]["avoid"] = {"kubernetes.io/hostname": ["bad"]}
    affinity = get_pod_spec(planned(**keys))["affinity"]["nodeAffinity"]
    joined = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["bad"]}
    assert joined == [{"matchExpressions": [avoided, *term["matchExpressions"]]} for term in terms]


def test_patch_of_a_fabric_is_applied_before_the_profiles() -> None:
    """The patches of the hardware file and of the profile are both kept, in this order."""
    fabric_pod = Pod.model_validate({"patch": {"spec": {"a": 1}}})
    profile_pod = Pod.model_validate({"patch": {"spec": {"a": None}}})
    assert profile_pod.merge_over(fabric_pod).patch == ({"spec": {"a": 1}}, {"spec": {"a": None}})


def test_override_changes_a_part_of_a_patch(write: Write) -> None:
    """`--set pod.patch.spec.KEY=VALUE` changes one key of the profile's patch."""
    path = write(launcher="volcano", image="train:v1", **patch_spec(runtimeClassName="a", priority=1))
    profile = load(path, **{"pod.patch.spec.runtimeClassName": "b"})
    assert profile.pod.patch == ({"spec": {"runtimeClassName": "b", "priority": 1}},)


# --- what reads the plan


def test_preflight_checks_what_a_patch_names(planned: Planned) -> None:
    """Objects, resources and labels of a patch are checked like those of the profile; optional objects are not."""
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "none", "key": "token", "optional": True}}},
    ]
    volumes = [
        {"name": "a", "configMap": {"name": "topology", "items": [{"key": "a", "path": "b"}]}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "certificate"}}]}},
    ]
    container = {"env": env, "resources": {"limits": {"rdma/hca": 1}}}
    patch = patch_spec(
        containers=[container],
        volumes=volumes,
        nodeSelector={"pool": "a"},
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        serviceAccountName="trainer",
    )
    plan = planned(**patch)
    references = [(reference.object_kind, reference.name) for reference in list_requirements(plan, ReferencedObject)]
    assert references == [
        ("Secret", "hub"),
        ("ConfigMap", "topology"),
        ("Secret", "certificate"),
        ("ResourceClaimTemplate", "one-gpu"),
        ("ServiceAccount", "trainer"),
    ]
    (capacity,) = list_requirements(plan, Capacity)
    assert capacity.labels == {"pool": "a"}
    assert capacity.resources == {"rdma/hca": "1"}


def test_queue_label_of_a_profile_is_checked(planned: Planned) -> None:
    """A LocalQueue of Kueue that is named by a label of the job must exist, whatever the launcher."""
    plan = planned(launcher="jobset", job={"labels": {"kueue.x-k8s.io/queue-name": "team-a"}})
    assert ReferencedObject(object_kind="LocalQueue", name="team-a") in plan.requires


def test_label_that_an_option_sets_is_refused(planned: Planned) -> None:
    """A label of the profile that differs from an option's is an error: one of them would be dropped silently."""
    labels = {"kueue.x-k8s.io/queue-name": "team-b"}
    message = read_refusal(planned, launcher="jobset", options={"local_queue": "team-a"}, job={"labels": labels})
    assert "job.labels: kueue.x-k8s.io/queue-name is team-a by the options of the launcher" in message


# --- refusals


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pod": {"patch": {"kind": "Pod"}}}, "pod.patch.kind: is not a key of a pod template"),
        ({"pod": {"patch": {"metadata": {"name": "a"}}}}, "pod.patch.metadata.name: cannot be changed by a patch"),
        ({"pod": {"patch": {"metadata": {"namespace": "a"}}}}, "pod.patch.metadata.namespace: cannot be changed"),
        (
            {"pod": {"patch": {"metadata": {"labels": {"torchyard/run": "a"}}}}},
            "pod.patch.metadata.labels.torchyard/run",
        ),
        ({"pod": {"patch": {"metadata": {"labels": None}}}}, "pod.patch.metadata.labels.torchyard/attempt"),
        ({"pod": {"patch": {"metadata": {"labels": {"a": 1}}}}}, "labels.a: must be text, not 1; put it in quotes"),
        (patch_spec(restartPolicy="Always"), "pod.patch.spec.restartPolicy: cannot be changed"),
        (patch_spec(terminationGracePeriodSeconds=None), "terminationGracePeriodSeconds: .*; use deadlines.grace"),
        (patch_spec(restartPolicy={"a": 1}), "pod.patch.spec.restartPolicy: cannot be changed"),
        (patch_spec(restartPolicy=["a"]), "pod.patch.spec.restartPolicy: cannot be changed"),
        (patch_spec(activeDeadlineSeconds=5), "activeDeadlineSeconds: .*; use deadlines.run"),
        (patch_spec(hostNetwork=True), "pod.patch.spec.hostNetwork: .*; use pod.host_network"),
        (patch_spec(containers=None), "pod.patch.spec.containers.0.command: cannot be changed"),
        (patch_spec(containers={"tty": True}), "pod.patch.spec.containers: must be a list, or null"),
        (patch_spec(containers=["a"]), "pod.patch.spec.containers.0: must be a mapping with name"),
        (patch_spec(containers=[{"$patch": "delete"}]), "containers.0: is torchyard's own and cannot be deleted"),
        (patch_spec(containers=[{"name": "main", "tty": True}]), "there is no container called main, and the new one"),
        (patch_spec(initContainers=[{"name": "worker", "image": "a"}]), "a second container cannot be called worker"),
        (patch_spec(initContainers=[{"image": "a"}]), "initContainers.0: requires name"),
        (
            patch_spec(containers=[{"name": "pytorch", "image": "a"}]),
            "the run would follow the container pytorch instead",
        ),
        (patch_spec(volumes=[{"name": "torchyard", "emptyDir": {}}]), "choose another name for your volume"),
        (patch_spec(**{"$patch": "replace"}), r"pod.patch.spec.\$patch: is not supported"),
        (patch_spec(nodeSelector={"a": True}), "pod.patch.spec.nodeSelector.a: must be text"),
        (patch_container(command=["sleep"]), "containers.0.command: .*; use program, args and setup"),
        (patch_container(args=["sleep"]), "containers.0.args: cannot be changed"),
        (patch_container(image="a"), "containers.0.image: .*; use image"),
        (patch_container(env=[{"name": "TORCHYARD_NODE", "value": "1"}]), "containers.0.env.TORCHYARD_NODE"),
        (patch_container(env=[{"name": "RANK", "value": "1"}]), "containers.0.env.RANK: cannot be changed"),
        (patch_container(env=[{"name": "A", "value": 1}]), "env.A.value: must be text, not 1"),
        (patch_container(volumeMounts=[{"mountPath": "/run/torchyard", "name": "a"}]), "choose another path"),
        (patch_container(resources={"requests": {"cpu": "lots"}}), "cpu: 'lots': an amount is a number"),
    ],
)
def test_patch_of_pods_that_contradicts_the_run_is_refused(
    planned: Planned, keys: dict[str, Any], message: str
) -> None:
    """What a run relies on stays as it was built; the message has the key of the profile and what to use instead."""
    with pytest.raises(ProfileError, match=message):
        planned(**keys)


REPLICATED_JOB: dict[str, Any] = {"template": {"spec": {"parallelism": 5}}}
POD_OF_A_JOB: dict[str, Any] = {"template": {"spec": {"template": {"spec": {"priority": 5}}}}}


@pytest.mark.parametrize(
    ("launcher", "keys", "message"),
    [
        ("jobset", {"job": {"patch": {"metadata": {"name": "a"}}}}, "job.patch.metadata.name: cannot be changed"),
        ("jobset", {"job": {"patch": {"apiVersion": "a"}}}, "job.patch.apiVersion: .*; use launcher"),
        ("jobset", {"job": {"patch": {"metadata": {"labels": None}}}}, "job.patch.metadata.labels.torchyard/run"),
        ("jobset", patch_job(failurePolicy={"maxRestarts": 3}), "job.patch.spec.failurePolicy: .*attempts"),
        ("jobset", patch_job(network={"subdomain": "a"}), "job.patch.spec.network: cannot be changed"),
        ("jobset", patch_job(replicatedJobs=[REPLICATED_JOB]), "template.spec.parallelism: .*; use nodes"),
        ("jobset", patch_job(replicatedJobs=[POD_OF_A_JOB]), "template.spec.template: .*; use pod.patch"),
        ("jobset", patch_job(replicatedJobs=[{"name": "a"} | REPLICATED_JOB]), "replicatedJobs.1.name: cannot be"),
        ("volcano", patch_job(tasks=[{"replicas": 3}]), "job.patch.spec.tasks.0.replicas: .*; use nodes"),
        ("volcano", patch_job(queue="a"), "job.patch.spec.queue: .*; use options.queue"),
        ("volcano", patch_job(plugins={"svc": None}), "job.patch.spec.plugins: cannot be changed"),
        ("pytorchjob", patch_job(runPolicy={"cleanPodPolicy": "All"}), "job.patch.spec.runPolicy.cleanPodPolicy"),
        ("pytorchjob", patch_job(elasticPolicy=None), "job.patch.spec.elasticPolicy: cannot be changed"),
        (
            "appwrapper",
            patch_job(components=[{"template": {"spec": {"nprocPerNode": "2"}}}]),
            "job.patch.spec.components.0.template.spec.nprocPerNode: .*; use processes",
        ),
    ],
)
def test_patch_of_a_job_that_contradicts_the_run_is_refused(
    planned: Planned, launcher: str, keys: dict[str, Any], message: str
) -> None:
    """The number of pods, their names, their template and the job's own restarts belong to other keys."""
    with pytest.raises(ProfileError, match=message):
        planned(launcher=launcher, **keys)


def test_job_patch_reaches_what_has_no_key(planned: Planned) -> None:
    """A smaller gang of Volcano, the pod failure policy of a JobSet's Job, and the PyTorchJob in an AppWrapper.

    A list that is called as one of torchyard's, and names in it, belong to the patch.
    """
    assert planned(nodes=3, **patch_job(minAvailable=2)).main["spec"]["minAvailable"] == 2
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
    policy = {"template": {"spec": {"podFailurePolicy": {"rules": [rule]}}}}
    jobset = planned(launcher="jobset", **patch_job(replicatedJobs=[policy]))
    assert jobset.main["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"] == {"rules": [rule]}
    gang = {"targetReplicatedJobs": ["worker"], "job": {"resourceClaims": [{"name": "channel"}]}}
    jobset = planned(launcher="jobset", **patch_job(scheduling={"replicatedJobs": [gang]}))
    assert jobset.main["spec"]["scheduling"]["replicatedJobs"] == [gang]
    scheduling = {"template": {"spec": {"runPolicy": {"schedulingPolicy": {"priorityClass": "high"}}}}}
    wrapper = planned(launcher="appwrapper", **patch_job(components=[scheduling]))
    assert wrapper.wrapped
    assert wrapper.wrapped["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 1, "priorityClass": "high"}


def test_patches_of_the_page_work(planned: Planned) -> None:
    """The examples of docs/kubernetes.md give the plans that the page describes."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    section = page.partition("\n## What has no key\n")[2].partition("\n## ")[0]
    volume, affinity, policy = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL))
    assert {"name": "datasets", "mountPath": "/data", "subPath": "imagenet", "readOnly": True} in get_container(
        planned(**volume)
    )["volumeMounts"]
    plan = planned(**affinity)
    assert get_container(plan)["lifecycle"]["preStop"]["exec"]["command"] == ["/app/save-checkpoint"]
    (term,) = get_pod_spec(plan)["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["weight"] == 10
    job = planned(launcher="jobset", **policy).main["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [42]


def test_page_lists_what_a_patch_may_not_change() -> None:
    """docs/kubernetes.md names every key of a pod, a container and a job that a patch may not change."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    table = page.partition("A patch is refused if it changes")[2].partition("\n## ")[0]
    keys = FIXED_POD_KEYS | FIXED_CONTAINER_KEYS | FIXED_JOB_KEYS
    assert [key for key in keys if f"`{key}`" not in table] == []


def test_all_findings_of_a_patch_are_reported_together(planned: Planned) -> None:
    """Two mistakes in a patch are two findings, each with its line."""
    message = read_refusal(planned, **patch_spec(restartPolicy="Always", containers=[{"command": ["a"]}]))
    assert "spec.restartPolicy" in message
    assert "spec.containers.0.command" in message


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ([], "pod.patch: must be a mapping"),
        ({"spec": {1: "a"}}, "spec: the key 1 must be text"),
        ({"spec": {"a": [float("nan")]}}, "spec.a.0: nan is not a number of JSON"),
    ],
)
def test_patch_has_only_values_of_json(write: Write, patch: object, message: str) -> None:
    """A patch is sent as JSON: its keys are texts, and its numbers finite."""
    with pytest.raises(ProfileError, match=message):
        load(write(launcher="volcano", image="train:v1", pod={"patch": patch}))


def test_patch_is_not_endless(write: Write) -> None:
    """A patch that is too deep is one sentence."""
    patch: Any = {}
    for _ in range(40):
        patch = {"a": patch}
    with pytest.raises(ProfileError, match="more than 32 levels"):
        load(write(launcher="volcano", image="train:v1", pod={"patch": {"spec": patch}}))


FIELDS = (
    *(
        "name",
        "env",
        "envFrom",
        "valueFrom",
        "secretKeyRef",
        "secret",
        "secretName",
        "configMap",
        "ephemeral",
        "sources",
    ),
    *("resources", "limits", "requests", "claims", "example.com/nic", "volumeMounts", "mountPath", "projected"),
    *("key", "operator", "values", "matchExpressions", "nodeSelectorTerms", "nodeAffinity", "podAntiAffinity"),
    *("requiredDuringSchedulingIgnoredDuringExecution", "topologyKey", "labelSelector", "resourceClaimTemplateName"),
)
SPEC_FIELDS = (
    *("containers", "initContainers", "affinity", "volumes", "tolerations", "nodeSelector", "resourceClaims"),
    *("serviceAccountName", "imagePullSecrets", "hostNetwork", "restartPolicy"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "In", "Exists"]),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), values, max_size=3),
    max_leaves=14,
)


@given(st.dictionaries(st.sampled_from(SPEC_FIELDS), JSON, max_size=3), JSON)
def test_any_patch_is_merged_or_refused(spec: dict[str, Any], metadata: Any) -> None:
    """A patch of any shape gives a plan, or an error for the user."""
    document = {"name": "sample", "about": "a test", "launcher": "jobset", "image": "train:v1", "program": "/t.py"}
    patch = {"spec": spec, "metadata": metadata}
    profile = Profile.model_validate(document | {"nodes": 2, "pod": {"patch": patch}, "job": {"patch": {}}})
    try:
        plan = make_plan(profile, TRIAL_RUN)
    except ProfileError:
        return
    assert isinstance(plan, ManifestPlan)
