"""The status of a job, read from its pods: what the controllers report is incomplete, and partly wrong."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    REMOVALS_KEY,
    ROLE_LABEL,
    Pods,
    count_restarts,
    describe_exit,
    find_condition,
    find_object,
    find_own_failure,
    get_container_end,
    get_container_start,
    get_creation_time,
    get_deletion_time,
    get_mapping,
    get_mappings,
    get_pod_exit_code,
    get_pod_exit_codes,
    get_pod_phase,
    is_being_deleted,
    is_container_down,
    runs_only_companions,
    to_number,
    to_text,
)
from torchyard.diagnosis.pod_reasons import (
    PodProblem,
    build_failure,
    find_pod_failure,
    find_pod_problems,
    get_pod_reasons,
    get_reasons_by_pod,
)
from torchyard.diagnosis.queues import kueue
from torchyard.model.causes.pods import PodCause
from torchyard.model.run import Failure, Observation, State, Status

_DEADLINE_REASON = "DeadlineExceeded"  # of a Job's condition
_CREATION_DELAY_S = 5  # of a pod, after its Job has started
# In the message of the Training Operator, whose reason is general.
_OPERATOR_DEADLINE = "longer than specified deadline"


class Gang(NamedTuple):
    """How many pods a job has, and how many of them it needs at least: fewer if it is elastic. 0 if unknown."""

    pod_count: int
    min_pods: int


class JobKindTerms(NamedTuple):
    """The names that a scheduler uses: its job's kind, the condition of success, and the key that suspends the job."""

    kind: str
    success_condition: str
    suspend_key: str


class _FailedPod(NamedTuple):
    """A pod's own failure, in the order of time."""

    failed_at: float
    name: str
    exit_code: int


# --- the state of the job


def find_job_object(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job's object of this kind, as last seen; None if it does not exist."""
    return find_object(observed.states, kind)


def select_job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0, without the store's."""
    return {_get_node(key): pod for key, pod in observed.states.items() if _is_worker_pod(key, pod)}


def _is_worker_pod(key: str, obj: Mapping[str, Any]) -> bool:
    return key.startswith("Pod/") and ROLE_LABEL not in get_mapping(obj, "metadata", "labels")


def _get_node(key: str) -> str:
    """`worker-0` of `Pod/worker-0`."""
    return key.partition("/")[2]


def build_deleted_status(kind: str) -> Status:
    """The status of a deleted job. Its pods may still report Failed with 137: that is the deletion, not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by another user or controller")


def build_succeeded_status(observed: Observation, job: Mapping[str, Any], gang: Gang) -> Status:
    """The status of a job that its controller reports as done: succeeded once all pods have ended, unless one failed.

    Controllers report an elastic job as done as soon as one worker is, and may then remove the others: of those that
    are removed, the last state that was seen counts, or the controller's own number. They also report a job as done
    whose pods were asked to end, by a drain for example, and have saved their work and ended with 0: that one failed.
    If the job itself says how many or which pods have to succeed, the others may fail.
    """
    pods = select_job_pods(observed)
    exit_codes = get_pod_exit_codes(pods)
    failed_pods = [name for name, exit_code in exit_codes.items() if exit_code and not is_being_deleted(pods[name])]
    if failed_pods and not _has_own_success_rule(job):
        return build_failed_status(observed, "the job is reported as complete")
    unfinished_count = sum(_is_unfinished(pod) for pod in pods.values())
    if unfinished_count:
        return Status(state="running", reason=f"{len(pods) - unfinished_count} of {len(pods)} pods are done")

    disruption = _find_disruption(pods, gang) or _find_lasting_eviction(observed, job)
    if disruption:
        return Status(state="failed", reason=disruption.sentence, failure=disruption)
    succeeded = max(_count_observed_successes(observed, pods), _count_reported_successes(job))
    planned_pods = max(gang.pod_count, succeeded, len(pods))
    if not planned_pods:
        return Status(state="succeeded", reason="its controller reports success; its pods are gone")
    if failed_pods:
        reason = f"{succeeded} of {planned_pods} pods succeeded, as many as the job requires"
    elif succeeded >= planned_pods:
        reason = f"{planned_pods} of {planned_pods} pods succeeded"
    else:
        count = f"{succeeded} of {planned_pods}"
        reason = f"its controller reports success; {count} pods were seen to succeed, the others are gone"
    return Status(state="succeeded", reason=reason + _describe_survived_kills(pods))


def _has_own_success_rule(job: Mapping[str, Any]) -> bool:
    """Whether a job itself says which or how many of its pods have to succeed, so that the others may fail.

    By the successPolicy of a Job or of a JobSet, for which `All` of its Jobs is the default, or Volcano's minSuccess.
    """
    spec = get_mapping(job, "spec")
    policy = get_mapping(spec, "successPolicy")
    has_policy = policy.get("rules") or policy.get("targetReplicatedJobs") or policy.get("operator") == "Any"
    return bool(has_policy) or to_number(spec.get("minSuccess")) > 0


def _find_disruption(pods: Pods, gang: Gang) -> Failure | None:
    """The failure of a job whose pods have ended with 0, because the platform took them away; None if it was finished.

    An elastic job may be finished by its other pods, and one with an unknown number of them by any.
    """
    problems = []
    for problem in find_pod_problems(pods, get_reasons_by_pod(pods), math.inf):
        is_requested_end = problem.rule.requeue or problem.reason.is_disruption
        if is_requested_end and problem.reason.started_at < get_container_end(pods[problem.node]):
            problems.append(problem)
    return _find_fatal_failure(pods, problems, gang if gang.pod_count else Gang(len(pods), 1))


def _find_lasting_eviction(observed: Observation, job: Mapping[str, Any]) -> Failure | None:
    """The eviction of a job that Kueue has not admitted again, so that its pods were asked to end; None without one.

    The condition of the Workload is True from the eviction until the next admission.
    """
    workload = kueue.find_workload(observed.states)
    return kueue.find_eviction(job, workload, has_run=True) if workload else None


def _is_unfinished(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has not ended, or was killed by its deletion.

    A pod whose main container has ended with 0 has done its work, although a sidecar keeps it Running.
    """
    has_ended = get_pod_phase(pod) in ENDED_POD_PHASES or runs_only_companions(pod)
    return not has_ended or (is_being_deleted(pod) and bool(get_pod_exit_code(pod)))


def _count_observed_successes(observed: Observation, pods: Pods) -> int:
    """How many nodes of the job have a pod that succeeded, also if it was removed since."""
    removed_pods = {_get_node(key): pod for key, pod in _iter_removed_pods(observed)}
    all_pods = removed_pods | dict(pods)
    return sum(get_pod_exit_code(pod) == 0 or get_pod_phase(pod) == "Succeeded" for pod in all_pods.values())


def _count_reported_successes(job: Mapping[str, Any]) -> int:
    """How many pods succeeded by the controller's own count: Volcano's, and the Training Operator's for each role."""
    status = get_mapping(job, "status")
    roles = get_mapping(status, "replicaStatuses").values()
    return to_number(status.get("succeeded")) + sum(to_number(get_mapping(role).get("succeeded")) for role in roles)


def find_condition_status(observed: Observation, job_kind: JobKindTerms, gang: Gang) -> Status | None:
    """The status that the conditions of a job show, if they show its end or suspension; None while it continues.

    A job that had ended counts as ended also while it is being deleted, as it is after its TTL.
    """
    job = find_job_object(observed, job_kind.kind)
    if job is None:
        return build_deleted_status(job_kind.kind)
    failed_condition = find_condition(job, "Failed")
    if failed_condition:
        message = to_text(failed_condition.get("message")) or to_text(failed_condition.get("reason"))
        sentence = f"the {job_kind.kind} failed"
        if message:
            sentence += f": {message}"
        return build_failed_status(observed, sentence)
    if find_condition(job, job_kind.success_condition):
        return build_succeeded_status(observed, job, gang)
    if is_being_deleted(job):
        return build_deleted_status(job_kind.kind)
    if find_condition(job, "Suspended"):
        return build_suspended_status(observed, job, f"the {job_kind.kind} is suspended ({job_kind.suspend_key})")
    return None


def build_suspended_status(observed: Observation, job: Mapping[str, Any], reason: str) -> Status:
    """The status of a suspended job: it waits in its queue, or its queue has ended it or taken its machines away.

    In the last case the attempt is over, although Kueue would start the same job again: its pods would begin where this
    attempt began, and not at the checkpoint that they have saved since. `reason`: of one that waits.
    """
    workload = kueue.find_workload(observed.states)
    end = kueue.find_time_limit(workload) or kueue.find_eviction(job, workload, has_run=_has_run(observed))
    if end:
        return Status(state="failed", reason=end.sentence, failure=end)
    deactivation = kueue.describe_deactivation(workload)
    return Status(state="pending", reason=f"{reason}: {deactivation}" if deactivation else reason)


def _has_run(observed: Observation) -> bool:
    """Whether a pod of the job has started, also one that was removed since."""
    removed_pods = [pod for _, pod in _iter_removed_pods(observed)]
    return any(get_container_start(pod) for pod in (*select_job_pods(observed).values(), *removed_pods))


def build_condition_status(
    observed: Observation, job_kind: JobKindTerms, gang: Gang, *, first_pods: int | None = None
) -> Status:
    """The status of a job whose conditions report its end and suspension, but not that it has run: its pods do.

    `first_pods`: the number of pods with which the job starts, if others wait for their success.
    """
    status = find_condition_status(observed, job_kind, gang)
    if status:
        return status
    pods = select_job_pods(observed)
    has_started = any(name.startswith("Removed/") for name in observed.states)
    if first_pods:
        has_started = has_started or _count_started(pods) >= first_pods
    return build_unfinished_status(observed, pods, gang, has_started=has_started)


def _describe_survived_kills(pods: Pods) -> str:
    """A clause with the pods that ran out of memory and still exited with 0, which may have lost a child process.

    "" if there are none.
    """
    survivors = []
    for name, pod in pods.items():
        if any(reason.reason == "OOMKilled" for reason in get_pod_reasons(pod)):
            survivors.append(name)
    return f"; but {', '.join(survivors)} ran out of memory on the way" if survivors else ""


def build_failed_status(observed: Observation, fallback: str, *, given_up_at: float = math.inf) -> Status:
    """The status of a failed job, from the pod that failed first; a deleted pod is killed, which proves nothing.

    Pods that were removed count as well: a controller that restarts a job, or gives it up, removes those that failed.
    `fallback`: the reason if no pod shows one. `given_up_at`: when the controller decided to give up a job of which no
    pod had failed, in seconds since the epoch; the pods that were deleted from then on, it has deleted.
    """
    pods = select_job_pods(observed)
    first_failed = _find_first_failed_pod(observed, pods)
    retries = count_retries(observed)
    failure = _find_reported_failure(pods, first_failed)
    if failure is None and first_failed is None:
        failure = _find_job_deadline(observed)
    if failure is None:
        failed_at = first_failed.failed_at if first_failed else math.inf
        failure = _find_pod_deletion(observed, min(failed_at, given_up_at))
    if failure:
        return Status(state="failed", reason=failure.sentence, failure=failure, retries=retries)
    if first_failed:
        reason = f"{first_failed.name} {describe_exit(first_failed.exit_code)}"
        if retries:
            reason += f", after {describe_retries(retries)}"
        return Status(state="failed", reason=reason, retries=retries)
    being_removed = ", ".join(name for name, pod in pods.items() if is_being_deleted(pod))
    reason = f"{fallback}; being removed: {being_removed}" if being_removed else fallback
    return Status(state="failed", reason=reason, retries=retries)


def _find_reported_failure(pods: Pods, first_failed: _FailedPod | None) -> Failure | None:
    """The oldest cause in the pods of a failed job that only the controllers report; None if there is none.

    What a pod only waits for, such as its image, is not the cause if another pod has failed.
    """
    problems = []
    for problem in find_pod_problems(pods, get_reasons_by_pod(pods), math.inf):
        is_wait = problem.rule.patience_s > 0 and get_pod_phase(pods[problem.node]) not in ENDED_POD_PHASES
        if not is_wait or first_failed is None or first_failed.name == problem.node:
            problems.append(problem)
    return build_failure(pods, problems) if problems else None


def _find_job_deadline(observed: Observation) -> Failure | None:
    """The failure of a job that its controller ended after its activeDeadlineSeconds; None if it did not.

    The controller has deleted the pods then, which nobody else did.
    """
    for key, obj in observed.states.items():
        condition = None if _is_pod_key(key) else find_condition(obj, "Failed")
        message = to_text((condition or {}).get("message"))
        if condition and (condition.get("reason") == _DEADLINE_REASON or _OPERATOR_DEADLINE in message):
            sentence = f"the {key.partition('/')[0]} ended by its own activeDeadlineSeconds: {message}"
            return Failure(cause=PodCause.POD_DEADLINE, sentence=sentence)
        if condition and _has_reached_a_limit(observed, obj):
            sentence = "a Job of the JobSet ended by its own activeDeadlineSeconds: its pods were deleted at that age"
            return Failure(cause=PodCause.POD_DEADLINE, sentence=sentence)
    return None


def _has_reached_a_limit(observed: Observation, jobset: Mapping[str, Any]) -> bool:
    """Whether a removed pod had the age at which the Job that a JobSet made for it ends; the JobSet does not say so."""
    for replicated_job in get_mappings(jobset, "spec", "replicatedJobs"):
        limit_s = to_number(get_mapping(replicated_job, "template", "spec").get("activeDeadlineSeconds"))
        prefix = f"{to_text(replicated_job.get('name'))}-"
        for key, pod in _iter_removed_pods(observed):
            age_s = get_deletion_time(pod) - get_creation_time(pod)
            if limit_s and _get_node(key).startswith(prefix) and abs(age_s - limit_s) <= _CREATION_DELAY_S:
                return True
    return False


def _find_first_failed_pod(observed: Observation, pods: Pods) -> _FailedPod | None:
    """The pod that failed first, also if it was removed since; None if no pod failed by itself."""
    removed_pods = ((_get_node(key), pod) for key, pod in _iter_removed_pods(observed))
    failed_pods = []
    for name, pod in (*pods.items(), *removed_pods):
        pod_failure = find_own_failure(pod)
        if pod_failure:
            failed_pods.append(_FailedPod(pod_failure.failed_at, name, pod_failure.exit_code))
    return min(failed_pods, default=None)


def describe_retries(count: int) -> str:
    return f"{count} retry" if count == 1 else f"{count} retries"


def _iter_removed_pods(observed: Observation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The first pod of each node that was deleted or replaced, as it was before, by `Removed/worker-0`.

    The first one comes first.
    """
    return ((key, pod) for key, pod in observed.states.items() if key.startswith("Removed/"))


def count_retries(observed: Observation) -> int:
    """How often the job or its containers were started again, by the controllers' and the kubelets' own counts."""
    counts = [*_count_replacements(observed)]
    for key, obj in observed.states.items():
        counts.append(count_restarts(obj) if _is_pod_key(key) else _get_retry_count(obj))
    return max(counts, default=0)


def _count_replacements(observed: Observation) -> Iterator[int]:
    """How often the pod of each node was replaced by a new one; not every controller counts that."""
    pods = select_job_pods(observed)
    for key, first_removed in _iter_removed_pods(observed):
        current = pods.get(_get_node(key))
        is_replaced = current is not None and not is_being_deleted(current)
        removals = to_number(get_mapping(first_removed).get(REMOVALS_KEY))
        yield removals if is_replaced else removals - 1


def _get_retry_count(job: Mapping[str, Any]) -> int:
    """A controller's count; Volcano also counts the retry that its limit has forbidden."""
    status = get_mapping(job, "status")
    limit = to_number(get_mapping(job, "spec").get("maxRetry"))
    count = max(to_number(status.get(key)) for key in ("retryCount", "restarts", "resettingCount"))
    is_last_refused = 0 < limit <= count and get_mapping(status, "state").get("phase") == "Failed"
    return count - 1 if is_last_refused else count


def _is_pod_key(key: str) -> bool:
    return key.startswith(("Pod/", "Removed/"))


def _find_pod_deletion(observed: Observation, first_failure_at: float) -> Failure | None:
    """The failure of a pod that was deleted before any other failed, so that its peers blame the network; else None.

    A controller that preempts or drains, or gives up a node, records that in the pod. A pod that failed by itself was
    removed or replaced because of that.
    """
    removed = _find_first_removed_pod(observed)
    if removed is None:
        return None
    node, pod = removed
    if get_deletion_time(pod) >= first_failure_at:
        return None
    failure = find_pod_failure({node: pod}, math.inf)
    if failure:
        return failure
    if find_own_failure(pod):
        return None
    return Failure(
        cause=PodCause.POD_DELETED,
        sentence=f"{node}: its pod was deleted by another user or controller",
        node=node,
    )


def _find_first_removed_pod(observed: Observation) -> tuple[str, Mapping[str, Any]] | None:
    """The node and the pod whose deletion was requested first; None if no pod was removed.

    Of two in the same second, the one whose status has a cause: the controllers delete the others because of it. A list
    brings pods in any order, so the order in which they were observed counts only if a time is unknown.
    """
    first = None
    for key, pod in _iter_removed_pods(observed):
        node = _get_node(key)
        if first is None or _is_removed_before(pod, first[1]):
            first = (node, pod)
    return first


def _is_removed_before(pod: Mapping[str, Any], other_pod: Mapping[str, Any]) -> bool:
    """Whether the deletion of a pod that was observed later was requested before the other pod's."""
    deletion_time = get_deletion_time(pod)
    other_deletion_time = get_deletion_time(other_pod)
    if not deletion_time or not other_deletion_time:
        return False
    if deletion_time != other_deletion_time:
        return deletion_time < other_deletion_time
    return bool(get_pod_reasons(pod)) and not get_pod_reasons(other_pod)


def build_unfinished_status(observed: Observation, pods: Pods, gang: Gang, *, has_started: bool = False) -> Status:
    """The status before the job's end: running once enough pods run or ran, failed if they never can.

    `has_started`: the controller reports that the job has run.
    """
    reasons_by_pod = get_reasons_by_pod(pods)
    failure = _find_fatal_failure(pods, find_pod_problems(pods, reasons_by_pod, observed.observed_at), gang)
    if failure:
        return Status(state="failed", reason=failure.sentence, failure=failure)
    is_minimum_started = bool(gang.pod_count) and _count_started(pods) >= gang.min_pods
    have_joined = len(observed.joined) >= (gang.min_pods or 1)
    state: State = "running" if is_minimum_started or has_started or have_joined else "pending"
    return Status(state=state, reason=_describe_pods(pods, gang))


def _count_started(pods: Pods) -> int:
    """How many pods run or have ended."""
    return sum(get_pod_phase(pod) != "Pending" for pod in pods.values())


def _describe_pods(pods: Pods, gang: Gang) -> str:
    """`1 of 2 pods run, 1 has failed`: one that has ended, or whose container is down, does not run."""
    phases = [get_pod_phase(pod) for pod in pods.values()]
    succeeded_count = phases.count("Succeeded")
    failed_count = phases.count("Failed")
    down_count = sum(is_container_down(pod) for pod in pods.values())
    parts = [f"{phases.count('Running') - down_count} of {max(gang.pod_count, len(pods))} pods run"]
    if succeeded_count:
        parts.append(_format_count(succeeded_count, "has succeeded", "have succeeded"))
    if failed_count:
        parts.append(_format_count(failed_count, "has failed", "have failed"))
    if down_count:
        parts.append(_format_count(down_count, "is down", "are down"))
    return ", ".join(parts)


def _format_count(count: int, singular: str, plural: str) -> str:
    predicate = singular if count == 1 else plural
    return f"{count} {predicate}"


def _find_fatal_failure(pods: Pods, problems: Sequence[PodProblem], gang: Gang) -> Failure | None:
    """The failure that ends the job; None if there is no problem, or an elastic job can do without these pods."""
    affected_nodes = {problem.node for problem in problems}
    if not problems or len(affected_nodes) <= gang.pod_count - gang.min_pods:
        return None
    return build_failure(pods, problems)
