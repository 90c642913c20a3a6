"""Jobs that a webhook or the API server rejects."""

import pytest

from tests.inputs.sound_manifests import JOBSET, MASTER, VOLCANO, Trap, find_trap, list_traps, parse
from torchyard.lint.manifest import lint_manifest

ROLES = "spec.pytorchReplicaSpecs"
TWO_TASKS = VOLCANO.replace("  - name: worker\n    replicas: 2\n", "  - &task\n    name: worker\n    replicas: 2\n") + (
    "  - {<<: *task, name: server, dependsOn: {name: [worker]}}\n"
)
TWO_JOBS = JOBSET.replace("  - name: worker\n    template", "  - &job\n    name: worker\n    template") + (
    "  - {<<: *job, name: server, dependsOn: [{name: worker, status: Ready}]}\n"
)
POLICY = "{events: [PodFailed, PodEvicted], action: RestartJob}"
POD = "spec.tasks[0].template.spec"
TRAPS: list[Trap] = [
    (
        VOLCANO,
        "          env:\n",
        "          ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]\n          env:\n",
        f"{POD}.containers[0].ports[1].name",
        "another one before it has the name a too: the API server rejects the pod",
    ),
    (
        VOLCANO,
        "          env:\n",
        "          volumeMounts: [{name: shm, mountPath: /a}, {name: shm, mountPath: /a}]\n          env:\n",
        f"{POD}.containers[0].volumeMounts[1].mountPath",
        "has the mountPath /a too",
    ),
    (
        VOLCANO,
        "        containers:\n",
        "        initContainers: [{name: worker, image: a:1}]\n        containers:\n",
        f"{POD}.containers[0].name",
        "has the name worker too",
    ),
    (VOLCANO, "volumes: [", "volumes: [{name: shm, emptyDir: {}}, ", f"{POD}.volumes[1].name", "has the name shm too"),
    (
        VOLCANO,
        "          env:\n",
        "          volumeMounts: [{name: data, mountPath: /a}]\n          env:\n",
        f"{POD}.containers[0].volumeMounts[0].name",
        f"the pod has no volume data: the API server rejects it; write shm, or add it to {POD}.volumes",
    ),
    (TWO_TASKS, "name: server", "name: worker", "spec.tasks[1].name", "before it is called worker too"),
    (TWO_TASKS, "[worker]", "[loader]", "spec.tasks[1].dependsOn.name[0]", "there is no loader"),
    (TWO_JOBS, "name: server", "name: worker", "spec.replicatedJobs[1].name", "before it is called worker too"),
    (TWO_JOBS, "[{name: worker,", "[{name: server,", "spec.replicatedJobs[1].dependsOn[0].name", "write worker"),
    (
        TWO_JOBS,
        "  - &job\n",
        "  - &job\n    dependsOn: [{name: server, status: Ready}]\n",
        "spec.replicatedJobs[0].dependsOn[0].name",
        "this is the first one",
    ),
    (
        JOBSET,
        "{maxRestarts: 2}",
        "{rules: [{action: FailJobSet, targetReplicatedJobs: [worker, driver]}]}",
        "spec.failurePolicy.rules[0].targetReplicatedJobs[1]",
        "there is no driver: the webhook rejects the job; write worker",
    ),
    (
        JOBSET,
        "failurePolicy: {maxRestarts: 2}",
        "successPolicy: {operator: All, targetReplicatedJobs: [driver]}",
        "spec.successPolicy.targetReplicatedJobs[0]",
        "there is no driver",
    ),
    (
        JOBSET,
        "failurePolicy: {maxRestarts: 2}",
        "coordinator: {replicatedJob: driver}",
        "spec.coordinator.replicatedJob",
        "there is no driver",
    ),
    (VOLCANO, "minAvailable: 2", "minAvailable: 3", "spec.minAvailable", "3 is more than the 2 replicas"),
    (
        VOLCANO,
        "    replicas: 2",
        "    replicas: 2\n    minAvailable: 3",
        "spec.tasks[0].minAvailable",
        "more than the 2",
    ),
    (
        VOLCANO,
        POLICY,
        f"{POLICY}, {{event: PodFailed, action: AbortJob}}",
        "spec.policies[1]",
        "a policy before it is for PodFailed too",
    ),
    (VOLCANO, POLICY, f"{POLICY}, {{event: '*', action: AbortJob}}", "spec.policies", "`*` is for every event"),
    (VOLCANO, POLICY, "{event: OutOfSync, action: AbortJob}", "spec.policies[0]", "rejects the event OutOfSync"),
    (VOLCANO, POLICY, "{event: PodFailed, action: EnqueueJob}", "spec.policies[0].action", "the action EnqueueJob"),
    (VOLCANO, POLICY, "{exitCode: 0, action: AbortJob}", "spec.policies[0].exitCode", "for the exit code 0"),
    (
        VOLCANO,
        POLICY,
        "{event: PodFailed, exitCode: 3, action: AbortJob}",
        "spec.policies[0].exitCode",
        "for an event and an exit code",
    ),
    (
        VOLCANO,
        POLICY,
        f"{POLICY}, {{event: PodPending, action: AbortJob}}",
        "spec.policies[1].timeout",
        "the event PodPending without a timeout",
    ),
    (MASTER, "Master:", "Chief:", f"{ROLES}.Chief", "rejects the role Chief; write Master or Worker"),
    (MASTER, "replicas: 3", "replicas: 0", f"{ROLES}.Worker.replicas", "rejects a Worker with 0 replicas"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_rejected_part_is_reported(case: Trap) -> None:
    """What the webhook rejects is reported once, at the key that it names."""
    assert len(find_trap(case)) == 1


@pytest.mark.parametrize("manifest", [TWO_TASKS, TWO_JOBS])
def test_parts_that_depend_on_earlier_ones_are_accepted(manifest: str) -> None:
    """A part of a job may wait for one that the job has, and a JobSet's for one before it."""
    assert not [trap for trap in list_traps(parse(manifest)) if "name" in trap.rpartition(".")[2] or "depends" in trap]


def test_volcano_sorts_its_tasks() -> None:
    """A task may wait for one after it: only a JobSet creates its Jobs in their order."""
    manifest = TWO_TASKS.replace("  - &task\n", "  - &task\n    dependsOn: {name: [server]}\n")
    manifest = manifest.replace(", dependsOn: {name: [worker]}", ", dependsOn: null")
    assert not [trap for trap in list_traps(parse(manifest)) if "dependsOn" in trap]


def test_two_tasks_of_one_name_are_one_trap() -> None:
    """Two tasks of one name are not reported as two jobs that create the same pod, too."""
    manifest = TWO_TASKS.replace("name: server", "name: worker")
    assert "Job train, metadata.name" not in list_traps(parse(manifest))


def test_task_without_a_name_is_not_compared() -> None:
    """Volcano names a task that has no name, so a reference to it is not reported."""
    manifest = TWO_TASKS.replace("    name: worker\n    replicas", "    replicas").replace("[worker]", "[default0]")
    assert not [trap for trap in list_traps(parse(manifest)) if "dependsOn" in trap]


def test_claim_of_a_jobset_is_a_volume_of_its_pods() -> None:
    """The webhook of JobSets adds a volume for each template of a claim."""
    manifest, *_ = parse(JOBSET)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    assert any("has no volume data" in str(finding) for finding in lint_manifest([manifest]))
    manifest["spec"]["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": "data"}}]}]
    assert not any("has no volume data" in str(finding) for finding in lint_manifest([manifest]))
