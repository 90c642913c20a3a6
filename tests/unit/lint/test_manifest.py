"""The traps of a manifest that another user wrote."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Planned, manifest_plan_of
from tests.inputs.sound_manifests import (
    INDEXED_JOB,
    JOBSET,
    MASTER,
    POD,
    PYTORCHJOB,
    REPLICAS,
    TRAIN,
    VOLCANO,
    Trap,
    find_trap,
    list_traps,
    parse,
)
from tests.inputs.user_manifests import MANIFESTS
from torchyard.lint.manifest import lint_manifest
from torchyard.loading.profile import load_profile
from torchyard.model.finding import Finding


def load_guide_manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


GUIDE_WARNINGS = {
    "volcano-c10d": [
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.tolerations[0]",
        f"Job yolov5-job, {POD}.containers[0].securityContext.capabilities.add",
        f"Job yolov5-job, {POD}.containers[0].ports",
        "Job yolov5-job, spec.minAvailable",
        "Job yolov5-job, spec.policies",
        f"Job yolov5-job, {POD}.restartPolicy",
    ],
    "volcano-etcd": [
        "Pod etcd-server, spec.containers[0].image",
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.tolerations[0]",
        f"Job yolov5-job, {POD}.containers[0].securityContext.capabilities.add",
        f"Job yolov5-job, {POD}.containers[0].ports",
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.restartPolicy",
        "Job yolov5-job, spec.minAvailable",
        "Job yolov5-job, spec.policies",
        f"Job yolov5-job, {POD}.restartPolicy",
    ],
    "pytorchjob-c10d": [
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.volumes[0].emptyDir",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].securityContext.capabilities.add",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].ports",
        f"PyTorchJob yolov5-training, {REPLICAS}.restartPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.minReplicas",
        "PyTorchJob yolov5-training, spec.elasticPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.maxRestarts",
    ],
    "pytorchjob-etcd": [
        "Pod etcd-server, spec.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.volumes[0].emptyDir",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].securityContext.capabilities.add",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].args",
        f"PyTorchJob yolov5-training, {REPLICAS}.replicas",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        f"PyTorchJob yolov5-training, {REPLICAS}.restartPolicy",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].ports",
        f"PyTorchJob yolov5-training, {REPLICAS}.restartPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.minReplicas",
        "PyTorchJob yolov5-training, spec.elasticPolicy.maxRestarts",
    ],
}


@pytest.mark.parametrize("name", GUIDE_WARNINGS)
def test_guide_shows_its_traps(name: str) -> None:
    """The guide's manifests, as users have them, have exactly these traps."""
    assert list_traps(load_guide_manifest(name)) == GUIDE_WARNINGS[name]


@pytest.mark.parametrize("fabric", ["host", "vf", "no-rdma"])
@pytest.mark.parametrize("name", GUIDE_WARNINGS)
def test_own_profile_of_the_row_shows_none(name: str, fabric: str, tmp_path: Path) -> None:
    """The profile that replaces a manifest of the guide has no trap, on any fabric."""
    launcher, _, backend = name.partition("-")
    profile_name = f"yolov5-{launcher}" + ("-etcd" if backend == "etcd" else "")
    plan = manifest_plan_of(load_profile(profile_name, {"fabric": fabric}), tmp_path)
    assert lint_manifest([*plan.store, *plan.objects], is_adopted=False) == ()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("rendezvous", ["c10d", "etcd-v2", "static"])
@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_own_plans_show_none(planned: Planned, launcher: str, rendezvous: str, nodes: int) -> None:
    """Our own plans have no trap, with any rendezvous."""
    plan = planned(launcher=launcher, rendezvous=rendezvous, nodes=nodes, hardware="oke/bm-gpu-b4-8", fabric="host")
    assert lint_manifest([*plan.store, *plan.objects], is_adopted=False) == ()


@pytest.mark.parametrize("manifest", [VOLCANO, PYTORCHJOB, MASTER, JOBSET, INDEXED_JOB])
def test_sound_manifest_shows_none(manifest: str) -> None:
    """A manifest that does what its author means gets no warning."""
    assert lint_manifest(parse(manifest)) == ()


RESTARTED_JOBSET = JOBSET.replace("backoffLimit: 0", "backoffLimit: 3")
JOBSET_JOB = "spec.replicatedJobs[0].template.spec"
TRAPS: list[Trap] = [
    (VOLCANO, "minAvailable: 2", "minAvailable: 0", "spec.minAvailable", "replaces 0 by 2"),
    (VOLCANO, "[PodFailed, PodEvicted]", "[PodEvicted]", "spec.policies", "its peers hang"),
    (VOLCANO, "Policy: Never", "Policy: Always", f"{POD}.restartPolicy", "forever"),
    (VOLCANO, '["--publish-not-ready-addresses=true"]', "[]", "spec.plugins.svc", "once the pod is ready"),
    (VOLCANO, 'svc: ["--publish-not-ready-addresses=true"]', "", "spec.plugins.svc", "VC_WORKER_HOSTS is not set"),
    (VOLCANO, "env: [], ", "", "spec.plugins.env", "VC_TASK_INDEX is not set"),
    (
        PYTORCHJOB,
        "minReplicas: 1",
        "metrics: [{type: Resource}]",
        "spec.elasticPolicy.metrics",
        "changes the number of pods while they train",
    ),
    (VOLCANO, "$VC_WORKER_NUM", "$VC_TASK_NUM", f"{POD}.containers[0].command", "Volcano does not set VC_TASK_NUM"),
    (
        VOLCANO,
        "$VC_TASK_INDEX",
        "${VC_worker_0_HOSTS}",
        f"{POD}.containers[0].command",
        "set VC_worker_0_HOSTS; write one of VC_TASK_INDEX",
    ),
    (PYTORCHJOB, "29417", "23456", f"{TRAIN}.containers[0].ports", "cannot share a node"),
    (PYTORCHJOB, "ports: [{name: pytorchjob-port, containerPort: 29417}]", "", f"{TRAIN}.containers[0].ports", "23456"),
    (PYTORCHJOB, "minReplicas: 1", "standalone: true", "spec.elasticPolicy.standalone", "crashes"),
    (PYTORCHJOB, "minReplicas: 1", "maxRestarts: 100", "spec.elasticPolicy.maxRestarts", "100 times"),
    (PYTORCHJOB, " replicas: 1", " replicas: 2", "spec.elasticPolicy", "Succeeded as soon as"),
    (
        PYTORCHJOB,
        "name: etcd, labels",
        "name: train-worker-0, labels",
        "metadata.name",
        "creates the pod train-worker-0 too",
    ),
    (MASTER, "{backoffLimit: 3}", "{}", "spec.pytorchReplicaSpecs.Master.restartPolicy", "forever"),
    (
        MASTER.replace("{spec: {containers", "{spec: {restartPolicy: Never, containers"),
        "{backoffLimit: 3}",
        "{}",
        "spec.pytorchReplicaSpecs.Master.restartPolicy",
        "the operator replaces the pod's restartPolicy by OnFailure, which restarts",
    ),
    (
        MASTER,
        "name: pytorch",
        "name: train",
        "spec.pytorchReplicaSpecs.Master.template.spec.containers",
        "named pytorch",
    ),
    (PYTORCHJOB, "    Worker:", "    Chief:", "spec.elasticPolicy", "rejects an elasticPolicy without a Worker"),
    (
        RESTARTED_JOBSET,
        "restartPolicy: Never",
        "",
        f"{JOBSET_JOB}.template.spec.restartPolicy",
        "the default of a JobSet",
    ),
    (
        RESTARTED_JOBSET,
        "Policy: Never",
        "Policy: OnFailure",
        f"{JOBSET_JOB}.template.spec.restartPolicy",
        "OnFailure restarts",
    ),
    (JOBSET, "backoffLimit: 0", "", f"{JOBSET_JOB}.backoffLimit", "replaced 6 times (the default of backoffLimit)"),
    (JOBSET, "backoffLimit: 0", "backoffLimit: 3", f"{JOBSET_JOB}.backoffLimit", "replaced 3 times"),
    (
        INDEXED_JOB.replace("backoffLimit: 0", "backoffLimit: 0\n  podFailurePolicy: {rules: []}"),
        "restartPolicy: Never",
        "restartPolicy: OnFailure",
        "spec.template.spec.restartPolicy",
        "rejects a Job with a podFailurePolicy unless",
    ),
    (INDEXED_JOB, "backoffLimit: 0", "", "spec.backoffLimit", "replaced 6 times (the default of backoffLimit)"),
    (
        INDEXED_JOB,
        "restartPolicy: Never",
        "",
        "spec.template.spec.restartPolicy",
        "rejects a Job without restartPolicy",
    ),
    (INDEXED_JOB, "completionMode: Indexed", "", "spec.completionMode", "JOB_COMPLETION_INDEX is not set"),
    (MASTER, "replicas: 1", "restartPolicy: Never", "spec.pytorchReplicaSpecs.Master.replicas", "without replicas: 1"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_trap_is_reported(case: Trap) -> None:
    """Each trap is reported once, at the key that causes it."""
    assert len(find_trap(case)) == 1


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("torchrun\n", "python\n"),
        ("parallelism: 2\n        completions: 2", "parallelism: 1\n        completions: 1"),
        (
            "backoffLimit: 0",
            "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: NotIn, values: [0]}}]}",
        ),
        ("backoffLimit: 0", "backoffLimitPerIndex: 0"),
    ],
)
def test_restart_without_peers_gets_no_warning(old_text: str, new_text: str) -> None:
    """A pod's restart is a trap only in a training of several pods, whose Job has no other policy for it."""
    manifest = JOBSET.replace("--nnodes=2", "--nnodes=1").replace(old_text, new_text).replace("backoffLimit: 0", "")
    assert lint_manifest(parse(manifest)) == ()


@pytest.mark.parametrize(("strategy", "is_reported"), [("InPlaceRestart", False), ("Recreate", True)])
def test_restart_of_all_containers_in_place_gets_no_warning(strategy: str, is_reported: bool) -> None:
    """A JobSet that restarts its containers in their pods, all together, needs the backoffLimit that allows it."""
    manifest = RESTARTED_JOBSET.replace("backoffLimit: 3", "backoffLimit: 2147483647")
    manifest = manifest.replace("Policy: Never", "Policy: OnFailure")
    manifest = manifest.replace("{maxRestarts: 2}", f"{{maxRestarts: 2, restartStrategy: {strategy}}}")
    problems = [finding.what for finding in lint_manifest(parse(manifest))]
    assert any("its peers hang" in problem for problem in problems) is is_reported


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("$VC_WORKER_NUM", "${VC_TASK_NUM:-2}"),
        ("$VC_WORKER_NUM", "$VC_TASK_NUM"),
        ("first=", "VC_TASK_NUM=2; echo $VC_TASK_NUM; first="),
    ],
)
def test_variable_of_the_manifest_gets_no_warning(old_text: str, new_text: str) -> None:
    """A variable with Volcano's prefix that the manifest sets, or for which the script has a default, is not a trap."""
    manifest = VOLCANO.replace(old_text, new_text)
    if "=" not in new_text and ":-" not in new_text:
        manifest = manifest.replace("env:\n", "env:\n          - {name: VC_TASK_NUM, value: '2'}\n")
    assert lint_manifest(parse(manifest)) == ()


def test_names_of_pods_need_a_plugin() -> None:
    """Without a plugin that creates the Service, an address of one of the pods does not resolve."""
    job = parse(VOLCANO)[0]
    (task,) = job["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    container["command"] = ["torchrun", "--nnodes=2", "--master-addr=train-worker-0.train", "train.py"]
    problem = "without this plugin the names of the pods, such as train-worker-0.train, do not resolve"
    assert not [finding for finding in lint_manifest([job]) if problem in str(finding)]
    job["spec"]["plugins"] = {"ssh": []}
    assert [finding.where for finding in lint_manifest([job]) if problem in str(finding)] == [
        "Job train, spec.plugins.svc"
    ]


def test_pods_without_peers_may_fail_alone() -> None:
    """A failed pod is not a trap in a Volcano Job whose pods do not train together."""
    spec = "{containers: [{name: main, image: 'busybox:1.36', command: [sleep, '1']}], restartPolicy: Never}"
    task = f"{{name: main, replicas: 2, template: {{spec: {spec}}}}}"
    job = f"{{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {{name: many}}, spec: {{tasks: [{task}]}}}}"
    assert lint_manifest(parse(job)) == ()
    (warning,) = lint_manifest(
        parse(
            job.replace(
                "command: [sleep, '1']", "env: [{name: MASTER_ADDR, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"
            )
        )
    )
    assert "its peers hang" in warning.what


def test_warning_has_three_parts() -> None:
    """A warning states where the trap is, what will happen, and what to write instead."""
    objects = parse(VOLCANO.replace("minAvailable: 2", "minAvailable: 0"))
    problem = "the webhook replaces 0 by 2, the sum of the replicas: no pod starts until all of them fit"
    remedy = "write 2 if all pods must start together, and 1 if not"
    assert lint_manifest(objects) == (Finding("Job train, spec.minAvailable", problem, remedy, "warning"),)


def test_trap_of_several_roles_is_one_warning() -> None:
    """A trap that several roles of a job have is reported once, with the keys of all of them."""
    unnamed = MASTER.replace('image: "train:v1"', "image: train")
    (warning,) = lint_manifest(parse(unnamed))
    master_path = "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].image"
    assert warning.where == f"PyTorchJob train, {master_path}, {TRAIN}.containers[0].image"


def test_many_keys_of_one_trap_are_counted() -> None:
    """A warning names three keys, and the number of the others."""
    objects = parse(VOLCANO)
    (task,) = objects[0]["spec"]["tasks"]
    task["template"]["spec"]["restartPolicy"] = "Always"
    objects[0]["spec"]["tasks"] = [task] * 5
    (warning,) = [finding for finding in lint_manifest(objects) if "forever" in finding.what]
    assert warning.where.endswith(", spec.tasks[2].template.spec.restartPolicy and 2 more")


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ODD = st.recursive(
    PLAIN, lambda children: st.lists(children, max_size=2) | st.dictionaries(st.text(), children, max_size=2)
)
READABLE_MANIFESTS = [load_guide_manifest(row) for row in GUIDE_WARNINGS] + [
    parse(VOLCANO),
    parse(PYTORCHJOB),
    parse(MASTER),
    parse(JOBSET),
    parse(INDEXED_JOB),
]


def list_paths(value: Any, parent_path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of a value, and those of every value inside."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    paths = [parent_path]
    for key, child in items:
        paths += list_paths(child, (*parent_path, key))
    return paths


@given(st.data())
def test_odd_shapes_are_read(data: st.DataObject) -> None:
    """Whatever replaces any value, nothing is raised and every trap has a place and a remedy."""
    objects = copy.deepcopy(data.draw(st.sampled_from(READABLE_MANIFESTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        *parent_keys, last_key = data.draw(st.sampled_from([path for path in list_paths(objects) if path]))
        container: Any = objects
        for key in parent_keys:
            container = container[key]
        container[last_key] = data.draw(ODD)
    assert all(finding.where and finding.what and finding.remedy for finding in lint_manifest(objects))


@given(st.lists(ODD, max_size=3))
def test_anything_is_read(objects: list[Any]) -> None:
    """Documents that are not a manifest have no trap."""
    assert lint_manifest(objects) == ()


@given(st.text(alphabet="$(){}[]<>'\"`#\\\n;&|= -rdzvtorchunx_", max_size=60))
def test_any_script_is_read(script: str) -> None:
    """Even a script that no shell would accept can be read."""
    objects = parse(VOLCANO)
    objects[0]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    assert isinstance(lint_manifest(objects), tuple)


@pytest.mark.parametrize(
    ("manifest", "key_path"),
    [(JOBSET, f"{JOBSET_JOB}.parallelism"), (INDEXED_JOB, "spec.parallelism")],
)
def test_pods_that_never_meet_are_reported(manifest: str, key_path: str) -> None:
    """Pods that run one after the other are a trap in a Job as in a JobSet, which both default to one at a time."""
    text = manifest.replace("parallelism: 2", "")
    findings = [finding for finding in lint_manifest(parse(text)) if "run at a time" in finding.what]
    assert [finding.where.rpartition(", ")[2] for finding in findings] == [key_path]
    assert findings[0].remedy == "write 2 if they train together"
