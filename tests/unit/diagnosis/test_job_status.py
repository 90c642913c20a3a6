"""The state of a job, from the pods that were seen: which pod failed first, and which ends prove nothing."""

import copy
from typing import Any

import pytest

from tests.conftest import Planned
from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.kueue import PREEMPTED, WAITING, build_workload
from tests.inputs.recording import EPOCH
from tests.inputs.stuck_pods import KINDS, NOW, PODS, READS, build_pod, build_stalled_job, format_time
from torchyard.diagnosis import job_status
from torchyard.launchers import registry
from torchyard.model.run import Observation, Status


def test_pod_that_was_killed_with_the_job_is_not_its_cause() -> None:
    """If two pods ended in the same second, the one that was not deleted is the cause."""
    killed = build_ended_pod("Failed", 137, 20, deletionTimestamp="2023-11-14T22:13:35Z")
    states = {"Pod/worker-0": killed, "Pod/worker-1": build_ended_pod("Failed", 7, 20)}
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert status.reason == "worker-1 ended with exit code 7"


def test_pod_that_was_deleted_before_the_others_failed_is_the_cause() -> None:
    """If a pod is deleted and its peers then fail, the deletion is the cause, and a retry is worthwhile."""
    removed = build_ended_pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:35Z", deletionGracePeriodSeconds=15)
    states = {"Pod/worker-1": build_ended_pod("Failed", 1, 21), "Removed/worker-0": removed}
    failure = job_status.build_failed_status(Observation(states, frozenset()), "").failure
    assert failure
    assert (failure.cause, failure.node, failure.retry) == ("pod-deleted", "worker-0", True)


@pytest.mark.parametrize(("drained_at", "node"), [(35, "worker-1"), (30, "worker-1"), (40, "worker-0")])
def test_first_deletion_counts_whatever_the_order_of_the_pods(drained_at: int, node: str) -> None:
    """A list after an outage brings the pods in any order: the first deletion is the cause, or that with a reason."""
    deleted = build_ended_pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:35Z")
    drained = build_ended_pod("Running", 0, 0, deletionTimestamp=f"2023-11-14T22:13:{drained_at}Z")
    drained["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    ]
    removed_pods = [("Removed/worker-0", deleted), ("Removed/worker-1", drained)]
    for pods in (removed_pods, removed_pods[::-1]):
        failure = job_status.build_failed_status(Observation(dict(pods), frozenset()), "").failure
        assert failure
        assert failure.node == node


def test_pod_that_failed_before_another_was_deleted_is_the_cause() -> None:
    """A pod that was deleted after the failure is not its cause."""
    removed = build_ended_pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:38Z", deletionGracePeriodSeconds=15)
    states = {"Pod/worker-1": build_ended_pod("Failed", 1, 21), "Removed/worker-0": removed}
    assert (
        job_status.build_failed_status(Observation(states, frozenset()), "").reason == "worker-1 ended with exit code 1"
    )


JOB_DEADLINE = {"reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}
OPERATOR_DEADLINE = {
    "reason": "PyTorchJobFailed",
    "message": "PyTorchJob x has failed because it was active longer than specified deadline",
}


@pytest.mark.parametrize(("kind", "condition"), [("Job", JOB_DEADLINE), ("PyTorchJob", OPERATOR_DEADLINE)])
def test_pods_that_a_deadline_has_deleted_are_not_the_cause(kind: str, condition: dict[str, str]) -> None:
    """A job that its own time limit has ended is not tried again, although its pods were deleted while they ran."""
    removed = build_ended_pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:35Z")
    job = {"status": {"conditions": [{"type": "Failed", "status": "True"} | condition]}}
    states = {f"{kind}/x": job, "Removed/worker-0": removed}
    failure = job_status.build_failed_status(Observation(states, frozenset()), "").failure
    assert failure
    assert (failure.cause, failure.retry) == ("pod-deadline", False)
    assert failure.sentence == f"the {kind} ended by its own activeDeadlineSeconds: {condition['message']}"
    states["Pod/worker-1"] = build_ended_pod("Failed", 7, 20)
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert status.reason == "worker-1 ended with exit code 7"


@pytest.mark.parametrize(
    ("limit_s", "node", "cause"),
    [
        (60, "worker-0-0", "pod-deadline"),
        (600, "worker-0-0", "pod-deleted"),
        (None, "worker-0-0", "pod-deleted"),
        (60, "head-0-0", "pod-deleted"),
    ],
)
def test_jobset_whose_pods_have_reached_the_age_limit_of_their_job(limit_s: int | None, node: str, cause: str) -> None:
    """A JobSet does not say that a Job of it ran too long, but the pods were deleted at exactly that age."""
    times = {"creationTimestamp": "2023-11-14T22:12:36Z", "deletionTimestamp": "2023-11-14T22:13:35Z"}
    removed = build_ended_pod("Running", 0, 0)
    removed["metadata"] = times
    worker = {"name": "worker", "template": {"spec": {"activeDeadlineSeconds": limit_s}}}
    conditions = [{"type": "Failed", "status": "True", "message": "one or more job failures"}]
    jobset = {"spec": {"replicatedJobs": [worker]}, "status": {"conditions": conditions}}
    states: dict[str, Any] = {"JobSet/x": jobset, f"Removed/{node}": removed}
    failure = job_status.build_failed_status(Observation(states, frozenset()), "").failure
    assert failure
    assert failure.cause == cause


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ({"message": "out of retries", "reason": "BackoffLimitExceeded"}, "the Job failed: out of retries"),
        ({"message": None, "reason": "BackoffLimitExceeded"}, "the Job failed: BackoffLimitExceeded"),
        ({"message": None}, "the Job failed"),
    ],
)
def test_failed_job_is_quoted_as_far_as_it_says_why(condition: dict[str, Any], reason: str) -> None:
    """The reason of a failed job is its controller's message, or else its word for it."""
    job = {"status": {"conditions": [{"type": "Failed", "status": "True"} | condition]}}
    terms = job_status.JobKindTerms("Job", "Complete", "spec.suspend")
    status = job_status.find_condition_status(Observation({"Job/x": job}, frozenset()), terms, job_status.Gang(1, 1))
    assert status
    assert (status.state, status.reason) == ("failed", reason)


SUCCESS_RULES: dict[str, dict[str, Any]] = {
    "Job": {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}},
    "JobSet, some Jobs": {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["head"]}},
    "JobSet, any Job": {"successPolicy": {"operator": "Any"}},
    "Volcano Job": {"minSuccess": 1},
}
NO_RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "JobSet, default": {"successPolicy": {"operator": "All"}},
    "JobSet, all Jobs": {"successPolicy": {"operator": "All", "targetReplicatedJobs": []}},
    "Volcano Job": {"minSuccess": None, "minAvailable": 1},
}


@pytest.mark.parametrize("spec", SUCCESS_RULES.values(), ids=SUCCESS_RULES)
def test_job_with_a_success_rule_may_have_failed_pods(spec: dict[str, Any]) -> None:
    """A job that says which or how many pods must succeed has succeeded when its controller says so."""
    states = {"Pod/worker-0": DONE, "Pod/worker-1": build_ended_pod("Failed", 1, 20)}
    status = job_status.build_succeeded_status(Observation(states, frozenset()), {"spec": spec}, job_status.Gang(2, 2))
    assert (status.state, status.reason) == ("succeeded", "1 of 2 pods succeeded, as many as the job requires")


@pytest.mark.parametrize("spec", NO_RULES.values(), ids=NO_RULES)
def test_job_without_a_success_rule_fails_with_a_pod(spec: dict[str, Any]) -> None:
    """A job that its controller reports as done has failed with a pod, unless the job itself says otherwise."""
    states = {"Pod/worker-0": DONE, "Pod/worker-1": build_ended_pod("Failed", 1, 20)}
    status = job_status.build_succeeded_status(Observation(states, frozenset()), {"spec": spec}, job_status.Gang(2, 1))
    assert (status.state, status.reason) == ("failed", "worker-1 ended with exit code 1")


@pytest.mark.parametrize(("min_pods", "is_failed"), [(1, False), (2, True)])
def test_elastic_job_continues_without_a_pod_that_cannot_start(min_pods: int, is_failed: bool) -> None:
    """A pod that cannot start ends only a job that needs it."""
    waiting = {"state": {"waiting": {"reason": "InvalidImageName"}}}
    pods: dict[str, dict[str, Any]]
    pods = {"worker-0": {"status": {"phase": "Running"}}, "worker-1": {"status": {"containerStatuses": [waiting]}}}
    status = job_status.build_unfinished_status(Observation({}, frozenset(), EPOCH), pods, job_status.Gang(2, min_pods))
    assert (status.state == "failed") is is_failed


@pytest.mark.parametrize(
    ("min_pods", "phase", "state"), [(1, "Pending", "running"), (2, "Pending", "pending"), (2, "Failed", "running")]
)
def test_job_runs_once_the_pods_that_it_needs_have_started(min_pods: int, phase: str, state: str) -> None:
    """A job runs once as many pods as it needs run or ran, whatever the others do."""
    pods = {"worker-0": {"status": {"phase": "Running"}}, "worker-1": {"status": {"phase": phase}}}
    gang = job_status.Gang(2, min_pods)
    assert job_status.build_unfinished_status(Observation({}, frozenset()), pods, gang).state == state


@pytest.mark.parametrize(
    ("gang", "joined", "state"),
    [
        (job_status.Gang(2, 2), {"worker-0"}, "pending"),
        (job_status.Gang(2, 2), {"worker-0", "worker-1"}, "running"),
        (job_status.Gang(2, 1), {"worker-0"}, "running"),
        (job_status.Gang(0, 0), set(), "pending"),
        (job_status.Gang(0, 0), {"worker-0"}, "running"),
    ],
)
def test_job_whose_nodes_have_joined_runs(gang: job_status.Gang, joined: set[str], state: str) -> None:
    """A job runs once the logs of enough nodes show that they joined, at least one, even if no pod is reported."""
    observed = Observation({}, frozenset(joined))
    assert job_status.build_unfinished_status(observed, {}, gang).state == state


@pytest.mark.parametrize(
    ("deleted_at", "reason"), [("10:00:00", "exit code 7"), ("09:59:58", "deleted by another user or controller")]
)
def test_exit_code_counts_before_a_deletion_in_the_same_second(deleted_at: str, reason: str) -> None:
    """The order of events within one second is unknown, so then the program's own exit code is reported."""
    day = "2026-11-22T"
    container_state = {"terminated": {"exitCode": 7, "finishedAt": f"{day}10:00:00Z", "reason": "Error"}}
    failed = {
        "metadata": {"name": "a"},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "w", "state": container_state}]},
    }
    metadata = {"name": "b", "deletionTimestamp": f"{day}{deleted_at}Z", "deletionGracePeriodSeconds": 0}
    removed = {"metadata": metadata, "status": {"phase": "Running"}}
    states = {"Pod/worker-0": failed, "Removed/worker-1": removed}
    assert reason in job_status.build_failed_status(Observation(states, frozenset(), 0.0), "it failed").reason


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}, "preempted"),
        ({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}, "node-lost"),
        ({"type": "Ready", "status": "False", "reason": "Evict", "message": "because of preempt"}, "preempted"),
    ],
)
def test_cause_of_a_removal_is_read_from_the_conditions(condition: dict[str, Any], cause: str) -> None:
    """The last conditions of a removed pod name the reason for its removal."""
    removed = build_pod("Running", **condition)
    removed["metadata"]["deletionTimestamp"] = format_time(20)
    failure = job_status.build_failed_status(Observation({"Removed/worker-0": removed}, frozenset(), NOW), "").failure
    assert failure
    assert (failure.cause, failure.retry) == (cause, True)


@pytest.mark.parametrize("launcher", KINDS)
def test_a_status_reads_each_pod_a_few_times(planned: Planned, launcher: str) -> None:
    """Reading a job's status reads each of its pods a bounded number of times."""
    plan = planned(nodes=PODS, launcher=launcher)
    observed, _, pods = build_stalled_job(plan, 1)
    job: Any = {f"{KINDS[launcher]}/{plan.job}": plan.main}
    registry.load_launcher(launcher).read_status(observed._replace(states=job | dict(observed.states)))
    assert max(pod.reads for pod in pods) <= READS


# --- pods that a controller has removed


def restarted(exit_code: int, second: int) -> dict[str, Any]:
    """A pod that runs, after its container ended with a code and the kubelet restarted it twice."""
    last_state = {"terminated": {"exitCode": exit_code, "finishedAt": f"2023-11-14T22:13:{second}Z"}}
    status = {"name": "worker", "restartCount": 2, "lastState": last_state, "state": {"running": {}}}
    return {"metadata": {}, "status": {"phase": "Running", "containerStatuses": [status]}}


def test_pod_that_failed_before_its_removal_is_reported_by_its_exit_code() -> None:
    """A controller that restarts a job removes the pod that failed: its exit code is the cause."""
    removed = build_ended_pod("Failed", 7, 20, deletionTimestamp="2023-11-14T22:13:20Z", deletionGracePeriodSeconds=0)
    peer = build_ended_pod("Running", 0, 30, deletionTimestamp="2023-11-14T22:13:20Z", deletionGracePeriodSeconds=0)
    states = {
        "Job/x": {"status": {"retryCount": 1}},
        "Removed/worker-1": peer,
        "Removed/worker-0": removed,
        "Pod/worker-0": build_ended_pod("Failed", 7, 40),
    }
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert (status.reason, status.failure) == ("worker-0 ended with exit code 7, after 1 retry", None)


def test_pod_that_was_replaced_is_reported_by_its_exit_code() -> None:
    """A controller that replaces a failed pod may leave it: no user has deleted it, and its exit code is the cause."""
    states = {
        "Removed/worker-1": build_ended_pod("Failed", 7, 20),
        "Pod/worker-1": build_ended_pod("Failed", 1, 40),
    }
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert (status.reason, status.failure) == ("worker-1 ended with exit code 7", None)


def test_container_that_was_restarted_has_failed_before_its_pod_was_removed() -> None:
    """A job whose backoff limit is reached loses its pods: the last end of the restarted container is the cause."""
    peer = build_ended_pod("Running", 0, 30, deletionTimestamp="2023-11-14T22:13:28Z", deletionGracePeriodSeconds=0)
    states = {"Removed/worker-0": peer, "Pod/worker-1": restarted(7, 27)}
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert (status.reason, status.failure) == ("worker-1 ended with exit code 7, after 2 retries", None)


# --- what is counted


def counted(job: dict[str, Any], *pods: dict[str, Any], planned_pods: int = 8, removed: int = 0) -> str:
    """The reason of a success with these pods, of which the first are gone by now."""
    names = [f"{'Removed' if index < removed else 'Pod'}/worker-{index}" for index in range(len(pods))]
    observed = Observation(dict(zip(names, pods, strict=True)), frozenset())
    gang = job_status.Gang(planned_pods, planned_pods)
    return job_status.build_succeeded_status(observed, {"status": job}, gang).reason


DONE = build_ended_pod("Succeeded", 0, 20)


@pytest.mark.parametrize(
    ("job", "count", "removed", "reason"),
    [
        ({}, 8, 0, "8 of 8 pods succeeded"),
        ({}, 8, 7, "8 of 8 pods succeeded"),
        ({"succeeded": 8}, 1, 0, "8 of 8 pods succeeded"),
        ({"replicaStatuses": {"Master": {"succeeded": 1}, "Worker": {"succeeded": 7}}}, 0, 0, "8 of 8 pods succeeded"),
        ({}, 1, 0, "its controller reports success; 1 of 8 pods were seen to succeed, the others are gone"),
        ({}, 0, 0, "its controller reports success; 0 of 8 pods were seen to succeed, the others are gone"),
    ],
)
def test_success_counts_the_planned_pods(job: dict[str, Any], count: int, removed: int, reason: str) -> None:
    """A success reports how many of the planned pods succeeded: seen, removed since, or counted by the controller."""
    assert counted(job, *[DONE] * count, removed=removed) == reason


def drain(pod: dict[str, Any], second: int) -> dict[str, Any]:
    """The pod, drained `second` seconds after 22:13:00."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition["lastTransitionTime"] = f"2023-11-14T22:13:{second}Z"
    return pod | {"status": pod["status"] | {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("pods", "gang", "state"),
    [
        ([drain(DONE, 15), DONE], job_status.Gang(2, 2), "failed"),
        ([drain(DONE, 25), DONE], job_status.Gang(2, 2), "succeeded"),  # it had ended before
        ([drain(DONE, 15), DONE], job_status.Gang(2, 1), "succeeded"),  # the other one has finished the work
        ([drain(DONE, 15), drain(DONE, 16)], job_status.Gang(2, 1), "failed"),
        ([drain(DONE, 15), DONE], job_status.Gang(0, 0), "succeeded"),
        ([drain(DONE, 15), drain(DONE, 16)], job_status.Gang(0, 0), "failed"),
    ],
)
def test_job_that_was_drained_and_has_saved_its_work_is_not_finished(
    pods: list[dict[str, Any]], gang: job_status.Gang, state: str
) -> None:
    """A program may save and end with 0 when it is asked to end: its controller then reports a success."""
    states = {f"Pod/worker-{index}": pod for index, pod in enumerate(pods)}
    status = job_status.build_succeeded_status(Observation(states, frozenset()), {}, gang)
    assert status.state == state
    assert (status.failure is not None and status.failure.requeue) is (state == "failed")


@pytest.mark.parametrize("reason", ["DeletionByTaintManager", "AReasonOfALaterVersion"])
def test_pod_that_the_cluster_asked_to_end_has_not_finished(reason: str) -> None:
    """A pod that ended with 0 after its node got a taint, or for any other disruption, has only saved its work."""
    pod = drain(DONE, 15)
    pod["status"]["conditions"][0]["reason"] = reason
    states = {"Pod/worker-0": pod, "Pod/worker-1": DONE}
    status = job_status.build_succeeded_status(Observation(states, frozenset()), {}, job_status.Gang(2, 2))
    assert status.state == "failed"


def test_pod_of_which_only_a_sidecar_runs_is_done() -> None:
    """The work of a pod is done once its main container has ended with 0, if another one still runs."""
    done = copy.deepcopy(DONE)
    done["status"]["phase"] = "Running"
    states = {"Pod/worker-0": DONE, "Pod/worker-1": done}
    gang = job_status.Gang(2, 2)
    assert job_status.build_succeeded_status(Observation(states, frozenset()), {}, gang).state == "running"
    done["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
    assert job_status.build_succeeded_status(Observation(states, frozenset()), {}, gang).state == "succeeded"


@pytest.mark.parametrize("reason", ["ErrImagePull", "CreateContainerConfigError", "RunContainerError"])
def test_obstacle_of_a_pod_that_waits_is_not_why_another_failed(reason: str) -> None:
    """A pod that still waits for its image did not end the job if another pod has failed; alone it did."""
    waiting = build_pod()
    waiting["status"]["containerStatuses"] = [{"name": "worker", "state": {"waiting": {"reason": reason}}}]
    states = {"Pod/worker-0": waiting, "Pod/worker-1": build_ended_pod("Failed", 7, 20)}
    status = job_status.build_failed_status(Observation(states, frozenset()), "")
    assert (status.reason, status.failure) == ("worker-1 ended with exit code 7", None)
    del states["Pod/worker-1"]
    failure = job_status.build_failed_status(Observation(states, frozenset()), "").failure
    assert failure
    assert failure.node == "worker-0"


def test_pod_that_has_failed_does_not_run() -> None:
    """Pods that have ended, or whose container is down, are not counted among those that run."""
    down = restarted(1, 20)
    down["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    pods = {"a": build_ended_pod("Failed", 1, 20), "b": DONE, "c": down, "d": restarted(1, 20)}
    status = job_status.build_unfinished_status(Observation({}, frozenset()), pods, job_status.Gang(4, 1))
    assert (status.state, status.reason) == ("running", "1 of 4 pods run, 1 has succeeded, 1 has failed, 1 is down")


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet"])
def test_job_that_its_ttl_deletes_has_ended(kind: str) -> None:
    """A finished job that is being deleted, as it is after its TTL, has the end that its conditions report."""
    job_kind = job_status.JobKindTerms(kind, "Done", "")
    metadata = {"name": "x", "deletionTimestamp": "2023-11-14T22:13:28Z"}
    finished_job = {"metadata": metadata, "status": {"conditions": [{"type": "Done", "status": "True"}]}}
    states = {f"{kind}/x": finished_job, "Pod/worker-0": DONE}
    status = job_status.find_condition_status(Observation(states, frozenset()), job_kind, job_status.Gang(1, 1))
    assert status
    assert status.state == "succeeded"
    states = {f"{kind}/x": {"metadata": metadata, "status": {}}, "Pod/worker-0": DONE}
    status = job_status.find_condition_status(Observation(states, frozenset()), job_kind, job_status.Gang(1, 1))
    assert status
    assert status.state == "gone"


# --- a queue of Kueue

TERMS = job_status.JobKindTerms("Job", "Complete", "spec.suspend")


def build_queued_job(*true: str) -> dict[str, Any]:
    """A job in a queue of Kueue, with these true conditions."""
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    conditions = [{"type": condition, "status": "True"} for condition in true]
    return {"metadata": {"name": "train", "labels": labels}, "status": {"conditions": conditions}}


def read_queued_job(job: dict[str, Any], workload: dict[str, Any] | None, *pods: dict[str, Any]) -> Status:
    """The status of a job with this Workload, and with pods that were removed."""
    states: dict[str, Any] = {"Job/train": job}
    states |= {f"Removed/worker-{index}": pod for index, pod in enumerate(pods)}
    if workload:
        states["Workload/job-train-1"] = workload
    status = job_status.find_condition_status(Observation(states, frozenset()), TERMS, job_status.Gang(2, 2))
    assert status
    return status


def test_evicted_job_has_failed() -> None:
    """A job that its queue has suspended again has failed, to be requeued; before, it only waits."""
    job = build_queued_job("Suspended")
    evicted = read_queued_job(job, build_workload(WAITING, PREEMPTED))
    assert evicted.failure
    assert (evicted.state, evicted.failure.requeue) == ("failed", True)
    assert read_queued_job(job, build_workload(WAITING)).state == "pending"


def test_started_job_that_is_suspended_was_evicted() -> None:
    """Without the right to read Workloads, a removed pod that had started shows that the job had been admitted."""
    started = {"status": {"containerStatuses": [{"state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}}}]}}
    job = build_queued_job("Suspended")
    assert (read_queued_job(job, None, started).state, read_queued_job(job, None).state) == ("failed", "pending")


def test_deactivated_job_waits_and_says_why() -> None:
    """A job whose Workload an administrator has deactivated waits, and its reason names that."""
    status = read_queued_job(build_queued_job("Suspended"), build_workload(PREEMPTED, active=False))
    expected = "the Job is suspended (spec.suspend): its Workload is deactivated: preempted to accommodate a workload"
    assert (status.state, status.reason.startswith(expected)) == ("pending", True)


@pytest.mark.parametrize("reason", ["DeactivatedDueToMaximumExecutionTimeExceeded", "Deactivated"])
def test_job_at_its_maximum_execution_time_has_failed(reason: str) -> None:
    """Kueue deactivates a job at its time limit: it does not wait for anything, and another attempt would end there."""
    message = "The workload is deactivated due to exceeding the maximum execution time"
    eviction = PREEMPTED | {"reason": reason, "message": message}
    status = read_queued_job(build_queued_job("Suspended"), build_workload(eviction, active=False))
    assert status.state == "failed"
    assert status.failure
    assert (status.failure.cause, status.failure.retry) == ("time-limit", False)
    assert status.reason.endswith("exceeding the maximum execution time")


def test_job_that_ended_with_0_after_its_eviction_has_failed() -> None:
    """Pods that save their work on SIGTERM and end with 0 make their job Complete, although it was not finished."""
    job = build_queued_job("Complete")
    assert read_queued_job(job, build_workload(PREEMPTED)).state == "failed"
    assert read_queued_job(job, build_workload()).state == "succeeded"
