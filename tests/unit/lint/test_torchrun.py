"""Traps of torchrun and its rendezvous in a manifest."""

import pytest

from tests.inputs.sound_manifests import (
    JOBSET,
    MASTER,
    POD,
    PYTORCHJOB,
    REPLICAS,
    TRAIN,
    VOLCANO,
    Trap,
    find_trap,
    parse,
)
from torchyard.lint.manifest import lint_manifest

C10D_MANIFEST = VOLCANO.replace("--rdzv-backend=etcd-v2", "--rdzv-backend=c10d")
STATIC_MANIFEST = C10D_MANIFEST.replace("--rdzv-backend=c10d", "").replace(
    '--rdzv-endpoint="$first:2379"', "--master-addr=$first"
)
SECOND_TASK_COMMAND = "spec.tasks[1].template.spec.containers[0].command"
VOLCANO_COMMAND_PATH = f"{POD}.containers[0].command"
TRAPS: list[Trap] = [
    (VOLCANO, "registry.example:5000/train:v1", "pytorch/pytorch:2.8.0", f"{POD}.containers[0].image", "python-etcd"),
    (VOLCANO, "$JOB_ID-$TRY", "${JOB_ID}", "spec.policies", "RestartJob starts again with the same rendezvous id"),
    (VOLCANO, "$JOB_ID-$TRY", "fixed", "spec.policies", "every further attempt fails with RendezvousClosedError"),
    (VOLCANO, "$JOB_ID-$TRY", "fixed", f"{POD}.containers[0].command", "the id fixed is the same in every run"),
    (VOLCANO, '--rdzv_id="$JOB_ID-$TRY"', "", f"{POD}.containers[0].command", "every job has the id `none`"),
    (VOLCANO, "--nnodes=$VC", "--nnodes 3 --nnodes=$VC", f"{POD}.containers[0].command", "--nnodes is given 2"),
    (VOLCANO, "=$VC_WORKER_NUM", "=4:8", f"{POD}.containers[0].command", "waits for 4 nodes"),
    (C10D_MANIFEST, "--nnodes=$VC_WORKER_NUM", "", VOLCANO_COMMAND_PATH, "a training of its own in each of the 2 pods"),
    (
        C10D_MANIFEST,
        '--rdzv-endpoint="$first:2379"',
        "",
        VOLCANO_COMMAND_PATH,
        "waits for the others at its own 127.0.0.1",
    ),
    (
        STATIC_MANIFEST,
        "--node-rank=$VC_TASK_INDEX ",
        "",
        VOLCANO_COMMAND_PATH,
        "each of the 2 pods has the node rank 0",
    ),
    (STATIC_MANIFEST, "=$VC_TASK_INDEX", "=1", VOLCANO_COMMAND_PATH, "each of the 2 pods has the node rank 1"),
    (STATIC_MANIFEST, "--nnodes=$VC_WORKER_NUM", "", VOLCANO_COMMAND_PATH, "write --nnodes=2"),
    (
        MASTER,
        "Master: &replica\n      replicas: 1",
        "Worker: &replica\n      replicas: 2",
        f"{TRAIN}.containers[0].command",
        "an elasticPolicy",
    ),
    (PYTORCHJOB, ", --enable-v2", "", "spec.containers[0]", "404"),
    (PYTORCHJOB, "quay.io/coreos/etcd:", "mirror/keys:", "spec.elasticPolicy.rdzvId", "the id train-1 is the same"),
    (PYTORCHJOB, "minReplicas: 1", "minReplicas: 2", "spec.elasticPolicy.minReplicas", "waits for 2 nodes"),
    (PYTORCHJOB, "minReplicas: 1", "maxReplicas: 2", f"{REPLICAS}.replicas", "one pod"),
    (PYTORCHJOB, "[torchrun,", "[torchrun, --nproc_per_node=2,", f"{TRAIN}.containers[0].command", "2 times"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_trap_is_reported(case: Trap) -> None:
    """Each trap is reported once, at the key that causes it."""
    assert len(find_trap(case)) == 1


@pytest.mark.parametrize(
    ("jobs", "pods", "is_reported"), [(1, 3, True), (3, 1, True), (3, 2, False), (2, 1, False), (1, 2, False)]
)
def test_more_pods_than_nodes_are_reported(jobs: int, pods: int, is_reported: bool) -> None:
    """Pods find no place in a rendezvous of two nodes, unless each Job of two pods is a training of its own."""
    manifest = JOBSET.replace("- name: worker\n    template", f"- name: worker\n    replicas: {jobs}\n    template")
    for key in ("parallelism", "completions"):
        manifest = manifest.replace(f"{key}: 2", f"{key}: {pods}")
    problems = [finding.what for finding in lint_manifest(parse(manifest)) if "find no place" in finding.what]
    expected = f"the rendezvous takes 2 nodes, and {jobs * pods} pods start torchrun: the others find no place"
    assert problems == ([expected] if is_reported else [])


@pytest.mark.parametrize(
    ("old_text", "new_text", "is_reported"),
    [
        ("", "", True),
        ("=$VC_TASK_INDEX", "=$(VC_TASK_INDEX)", False),  # in a script it is a substitution, whose value is not known
        ("=$VC_TASK_INDEX", "=$RANK", False),
        ("--nnodes=4", "--nnodes=2", False),
        ("--nnodes=4", "--nnodes=$NODES", False),
        ("--master-addr", "--rdzv-backend=c10d --master-addr", False),
    ],
)
def test_index_in_a_task_is_no_rank_of_several_tasks(old_text: str, new_text: str, is_reported: bool) -> None:
    """The pods of two tasks have the same node ranks if each takes its number in its own task."""
    manifest = STATIC_MANIFEST.replace("--nnodes=$VC_WORKER_NUM", "--nnodes=4").replace(old_text, new_text)
    manifest = manifest.replace("  - name: worker\n    replicas", "  - &task\n    name: worker\n    replicas", 1)
    manifest += "  - {<<: *task, name: server}\n"
    warnings = [finding for finding in lint_manifest(parse(manifest)) if "the same node rank" in finding.what]
    assert [finding.where for finding in warnings] == [f"Job train, {SECOND_TASK_COMMAND}"] * is_reported


@pytest.mark.parametrize(("nodes", "is_reported"), [(4, True), (2, False)])
def test_completion_index_is_no_rank_of_several_jobs(nodes: int, is_reported: bool) -> None:
    """The pods of two Jobs of a JobSet count from 0 each, which is their rank only if each Job trains alone."""
    address = (
        f"--nnodes={nodes}\n              - --node-rank=$(JOB_COMPLETION_INDEX)\n              - --master-addr=$(HEAD)"
    )
    manifest = JOBSET.replace("--nnodes=2", address).replace("- name: worker\n", "- name: worker\n    replicas: 2\n", 1)
    manifest = manifest.replace("              - --rdzv-backend=c10d\n", "")
    manifest = manifest.replace("              - --rdzv-endpoint=$(HEAD)-worker-0-0.$(HEAD):29417\n", "")
    problems = [finding.what for finding in lint_manifest(parse(manifest)) if "the same node rank" in finding.what]
    expected = (
        "$(JOB_COMPLETION_INDEX) counts the pods of each Job from 0: the first pods of all have the same node rank"
    )
    assert problems == [expected] * is_reported


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("--nnodes=$VC_WORKER_NUM", "--nnodes=1"),
        ("--nnodes=$VC_WORKER_NUM", "--standalone"),
        ("--nnodes=$VC_WORKER_NUM", "$OPTIONS"),
        ("--nnodes=$VC_WORKER_NUM", "$(cat /etc/options)"),
        ('--rdzv-endpoint="$first:2379"', "--master-addr=$first"),
        ("torchrun --nnodes=$VC_WORKER_NUM", "export PET_NNODES=2; torchrun"),
        ("torchrun --nnodes=$VC_WORKER_NUM", "which torchrun; train"),
        ("--node-rank=$VC_TASK_INDEX", ""),
        ("replicas: 2", "replicas: 1"),
    ],
)
def test_torchrun_that_may_find_its_peers_gets_no_warning(old_text: str, new_text: str) -> None:
    """A missing option is a trap only if it is certainly missing, and the pods are to train together."""
    manifest = C10D_MANIFEST.replace(old_text, new_text).replace("minAvailable: 2", "minAvailable: 1")
    if old_text == "replicas: 2":
        manifest = manifest.replace("--nnodes=$VC_WORKER_NUM", "")
    assert not [finding for finding in lint_manifest(parse(manifest)) if "torchrun" in finding.what]


ETCD_POD = PYTORCHJOB[PYTORCHJOB.index("apiVersion: v1\nkind: Pod") :]
ETCD_DEPLOYMENT = (
    ETCD_POD.replace("v1\nkind: Pod", "apps/v1\nkind: Deployment")
    .replace("spec:\n  containers:", "spec:\n  template:\n   spec:\n    containers:")
    .replace("  - {name: etcd", "    - {name: etcd")
)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("command_text", ["[etcd, --enable-v2]", "[sh, -c, exec etcd --enable-v2=true]"])
def test_etcd_of_a_deployment_is_read_too(kind: str, command_text: str) -> None:
    """An etcd in a Deployment or a StatefulSet has the traps of one in a Pod, also if a script starts it."""
    manifest = PYTORCHJOB.replace(ETCD_POD, ETCD_DEPLOYMENT.replace("Deployment", kind))
    manifest = manifest.replace("[etcd, --enable-v2]", command_text)
    container_path = f"{kind} etcd, spec.template.spec.containers[0]"
    assert lint_manifest(parse(manifest)) == ()
    (warning,) = lint_manifest(parse(manifest.replace("--enable-v2", "--debug")))
    assert (warning.where, "404" in warning.what) == (container_path, True)
    (warning,) = lint_manifest(parse(manifest.replace("v3.5.30", "latest")))
    assert (warning.where, "crash-loops" in warning.what) == (f"{container_path}.image", True)


def test_restart_in_place_keeps_the_rendezvous_id() -> None:
    """A container that the kubelet restarts finds its own closed rendezvous, whatever id the manifest has."""
    restarted = PYTORCHJOB.replace("restartPolicy: Never", "restartPolicy: OnFailure")
    for manifest in (restarted, restarted.replace("rdzvId: train-1, ", "")):
        assert [finding for finding in lint_manifest(parse(manifest)) if "RendezvousClosedError" in finding.what]


def test_id_of_a_manifests_own_etcd_may_be_the_same() -> None:
    """An etcd in the manifest is new for every run, so its id may be fixed, or missing."""
    assert lint_manifest(parse(PYTORCHJOB)) == ()
    assert lint_manifest(parse(PYTORCHJOB.replace("rdzvId: train-1, ", ""))) == ()


OTHER_ETCD = PYTORCHJOB.replace("quay.io/coreos/etcd:", "mirror/keys:")


def test_id_from_the_name_of_the_job_is_new() -> None:
    """With an etcd that outlives the run, the id can come from the job's name, which is new for every run."""
    manifest = OTHER_ETCD.replace("rdzvId: train-1, ", "")
    (warning,) = lint_manifest(parse(manifest), is_adopted=False)
    assert "every job has the id `none`" in warning.what
    assert warning.remedy.endswith("PET_RDZV_ID from the pod's label training.kubeflow.org/job-name")
    source = "{fieldRef: {fieldPath: \"metadata.labels['training.kubeflow.org/job-name']\"}}"
    ports_with_env = f"env: [{{name: PET_RDZV_ID, valueFrom: {source}}}]\n            ports: [{{name: pytorchjob-port"
    manifest = manifest.replace("ports: [{name: pytorchjob-port", ports_with_env)
    assert lint_manifest(parse(manifest), is_adopted=False) == ()


def test_id_that_a_config_map_may_set_gets_no_warning() -> None:
    """What `envFrom` sets is not known here, such as PET_RDZV_ID."""
    manifest = OTHER_ETCD.replace("rdzvId: train-1, ", "")
    manifest = manifest.replace(
        "ports: [{name: py", "envFrom: [{configMapRef: {name: a}}]\n            ports: [{name: py"
    )
    assert lint_manifest(parse(manifest), is_adopted=False) == ()


def test_run_adds_the_id_of_an_elastic_policy() -> None:
    """A run gives an elasticPolicy without an id its own, so the missing id is not a trap, and a fixed one can go."""
    assert lint_manifest(parse(OTHER_ETCD.replace("rdzvId: train-1, ", ""))) == ()
    (warning,) = lint_manifest(parse(OTHER_ETCD))
    assert warning.remedy == "remove it: each run adds an id of its own"


@pytest.mark.parametrize("command_text", ["[python, train.py]", "[]", "[torchrun, $OPTIONS, train.py]"])
@pytest.mark.parametrize("policy_text", ["minReplicas: 1, maxReplicas: 4", "minReplicas: 4"])
def test_other_program_may_not_wait_for_nodes(policy_text: str, command_text: str) -> None:
    """torchrun's use of an elasticPolicy is reported only if a container certainly starts it, with known options."""
    manifest = PYTORCHJOB.replace("minReplicas: 1", policy_text)
    assert [finding for finding in lint_manifest(parse(manifest)) if "torchrun waits" in finding.what]
    manifest = manifest.replace('[torchrun, --nproc-per-node, "2", train.py]', command_text)
    assert not [finding for finding in lint_manifest(parse(manifest)) if "torchrun" in finding.what]
