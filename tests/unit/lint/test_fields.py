"""Fields that a strict create refuses."""

import pytest
import yaml

from tests.inputs.sound_manifests import (
    INDEXED_JOB,
    JOBSET,
    MASTER,
    POD,
    PYTORCHJOB,
    TRAIN,
    VOLCANO,
    Trap,
    find_trap,
    parse,
)
from torchyard.lint.manifest import lint_manifest

JOB_SPEC = "spec.replicatedJobs[0].template.spec"
TRAPS: list[Trap] = [
    (VOLCANO, "kind: Job\n", "kind: Job\nqueue: research\n", "queue", "queue is not a field of this mapping"),
    (JOBSET, "kind: JobSet\n", "x-pod: &pod {}\nkind: JobSet\n", "x-pod", "remove it, or write one of apiVersion"),
    (MASTER, "containers: [{", "containers: [{args: --steps=5, ", f"{TRAIN}.containers[0].args", "write each word"),
    (MASTER, "containers: [{", "containers: [{ports: {a: 1}, ", f"{TRAIN}.containers[0].ports", "must be a list"),
    (
        MASTER,
        "containers: [{",
        "containers: [{resources: [gpu], ",
        f"{TRAIN}.containers[0].resources",
        "must be a mapping",
    ),
    (VOLCANO, "hostNetwork: true", "affinity: []\n        hostNetwork: true", f"{POD}.affinity", "must be a mapping"),
    (MASTER, "spec:\n", "spec:\n  cleanPodPolicy: None\n", "spec.cleanPodPolicy", "write it in runPolicy"),
    (
        MASTER,
        "containers: [{",
        "containers: [{nodeSelector: {}, ",
        f"{TRAIN}.containers[0].nodeSelector",
        f"in {TRAIN}",
    ),
    (PYTORCHJOB, "replicas: 1", "replicas: 1\n      env: []", "spec.pytorchReplicaSpecs.Worker.env", "containers[0]"),
    (
        PYTORCHJOB,
        "elasticPolicy: {",
        "elasticPolicy: {rdzvEndpoint: etcd:2379, ",
        "spec.elasticPolicy.rdzvEndpoint",
        "remove it, or write one of maxReplicas",
    ),
    (PYTORCHJOB, "elasticPolicy: {", "elasticPolicy: {rdzvID: '1', ", "spec.elasticPolicy.rdzvID", "write rdzvId"),
    (
        VOLCANO,
        "minAvailable: 2",
        "minAvailable: 2\n  restartPolicy: Never",
        "spec.restartPolicy",
        "write it in tasks[0]",
    ),
    (
        VOLCANO,
        "hostNetwork: true",
        "toleration: []\n        hostNetwork: true",
        f"{POD}.toleration",
        "write tolerations",
    ),
    (VOLCANO, "action: Re", "exitCodes: [1], action: Re", "spec.policies[0].exitCodes", "write exitCode"),
    (VOLCANO, "replicas: 2", "replica: 2", "spec.tasks[0].replica", "write replicas"),
    (
        JOBSET,
        "failurePolicy:",
        "backoffLimit: 0\n  failurePolicy:",
        "spec.backoffLimit",
        "replicatedJobs[0].template.spec",
    ),
    (
        JOBSET,
        "restartPolicy: Never",
        "restartPolicy: Never\n            parallelism: 2",
        f"{JOB_SPEC}.template.spec.parallelism",
        f"in {JOB_SPEC}",
    ),
    (
        JOBSET,
        "        template:\n",
        "        template:\n          metadata: {creationTimestamp: null}\n",
        f"{JOB_SPEC}.template.metadata.creationTimestamp",
        "remove it",
    ),
    (INDEXED_JOB, "parallelism: 2", "paralellism: 2", "spec.paralellism", "write parallelism"),
    (MASTER, "spec:\n", "spec:\n  nprocPerNode: 8\n", "spec.nprocPerNode", "in quotes"),
    (VOLCANO, "value: /dev/stdout", "value: 1", f"{POD}.containers[0].env[0].value", "in quotes"),
    (
        VOLCANO,
        "metadata: {name: train}",
        "metadata: {name: train, labels: {tier: 1}}",
        "metadata.labels.tier",
        "in quotes",
    ),
    (
        VOLCANO,
        "hostNetwork: true",
        "nodeSelector: {gpu: true}\n        hostNetwork: true",
        f"{POD}.nodeSelector.gpu",
        "in quotes",
    ),
    (VOLCANO, "operator: Exists", "value: true", f"{POD}.tolerations[0].value", "in quotes"),
    (PYTORCHJOB, '"2", train.py', "2, train.py", f"{TRAIN}.containers[0].command[2]", "in quotes"),
    (PYTORCHJOB, "rdzvId: train-1", "rdzvId: 17", "spec.elasticPolicy.rdzvId", "in quotes"),
    (PYTORCHJOB, "labels: {app: etcd}", "annotations: {ready: false}", "metadata.annotations.ready", "in quotes"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-2])
def test_refused_field_is_reported(case: Trap) -> None:
    """Each field that a strict create refuses is reported once, with the place where it belongs."""
    assert len(find_trap(case)) == 1


def test_number_in_a_configmap_is_reported() -> None:
    """The values in a ConfigMap are strings."""
    config_map = yaml.safe_load("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {NODES: 2}}")
    (warning,) = lint_manifest([config_map])
    assert warning.where == "ConfigMap settings, data.NODES"


def test_unknown_field_may_be_a_newer_one() -> None:
    """A field that no place has is not reported: a newer release of the controller may have it."""
    assert lint_manifest(parse(JOBSET.replace("failurePolicy:", "rollout: {}\n  failurePolicy:"))) == ()


def test_wrapped_job_loses_the_field() -> None:
    """The controller of an AppWrapper creates its job without strict validation, and the API server drops the field."""
    job = parse(MASTER)[0]
    job["spec"]["cleanPodPolicy"] = "None"
    wrapper = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "outer"},
        "spec": {"components": [{"template": job}]},
    }
    (warning,) = [finding for finding in lint_manifest([wrapper]) if "cleanPodPolicy" in finding.what]
    assert warning.where == "AppWrapper outer, PyTorchJob train, spec.cleanPodPolicy"
    assert "drops it" in warning.what
