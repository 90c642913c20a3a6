"""The status of a job, read from its pods: what the controllers report is less, and partly wrong."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    REMOVALS_KEY,
    ROLE_LABEL,
    PodReason,
    Pods,
    count_restarts,
    describe_exit,
    find_condition,
    find_own_failure,
    find_unscheduled_reason,
    get_deletion_time,
    get_mapping,
    get_mappings,
    get_pod_exit_code,
    get_pod_exit_codes,
    get_pod_phase,
    is_being_deleted,
    is_container_down,
    to_number,
)
from torchyard.diagnosis.pod_reasons import (
    PodProblem,
    build_failure,
    find_pod_failure,
    find_pod_problems,
    get_pod_reasons,
    get_reasons_by_pod,
)
from torchyard.model.run import Failure, Observation, State, Status


class Gang(NamedTuple):
    """How many pods a job has, and how many of them it needs: fewer where it is elastic."""

    pod_count: int
    min_pods: int


class JobKindTerms(NamedTuple):
    """What a scheduler calls its job, the condition of its success, and the key that suspends it."""

    kind: str
    success_condition: str
    suspend_key: str


# --- the state of the job


def find_job_object(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job itself, as last seen; None if it does not exist."""
    return next((obj for name, obj in observed.states.items() if name.startswith(f"{kind}/")), None)


def select_job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0, without the store's."""
    return {name.partition("/")[2]: pod for name, pod in observed.states.items() if _is_worker_pod(name, pod)}


def _is_worker_pod(name: str, obj: Mapping[str, Any]) -> bool:
    return name.startswith("Pod/") and ROLE_LABEL not in get_mapping(obj, "metadata", "labels")


def build_deleted_status(kind: str) -> Status:
    """The status of a deleted job. Its pods may still report Failed with 137: that is the deletion, not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by somebody else")


def build_succeeded_status(observed: Observation, job: Mapping[str, Any], planned_pods: int) -> Status:
    """The status of a job that its controller reports as done: succeeded once all pods have ended, unless one failed.

    Controllers report an elastic job as done as soon as one worker is, and may then remove the others. `planned` is the
    number of its pods, 0 if unknown: of those that are gone, the last state that was seen counts, or the controller's
    own number.
    """
    pods = select_job_pods(observed)
    failed = [
        name for name, exit_code in get_pod_exit_codes(pods).items() if exit_code and not is_being_deleted(pods[name])
    ]
    if failed:
        return build_failed_status(observed, "the job is reported as complete")
    unfinished = [
        name
        for name, pod in pods.items()
        if get_pod_phase(pod) not in ENDED_POD_PHASES or (is_being_deleted(pod) and get_pod_exit_code(pod))
    ]
    if unfinished:
        return Status(state="running", reason=f"{len(pods) - len(unfinished)} of {len(pods)} pods are done")
    succeeded = max(_count_observed_successes(observed, pods), _count_reported_successes(job))
    planned_pods = max(planned_pods, succeeded, len(pods))
    if not planned_pods:
        return Status(state="succeeded", reason="its controller says so; its pods are gone")
    if succeeded >= planned_pods:
        reason = f"{planned_pods} of {planned_pods} pods succeeded"
    else:
        reason = f"its controller reports success; {succeeded} of {planned_pods} pods were seen to succeed, the others are gone"
    return Status(state="succeeded", reason=reason + _describe_survived_kills(pods))


def _count_observed_successes(observed: Observation, pods: Pods) -> int:
    """How many nodes of the job have a pod that succeeded, also if it is gone by now."""
    removed_pods = {name.partition("/")[2]: pod for name, pod in _iter_removed_pods(observed)}
    exit_codes = get_pod_exit_codes({**removed_pods, **pods})
    return sum(
        exit_code == 0 or get_pod_phase({**removed_pods, **pods}[name]) == "Succeeded"
        for name, exit_code in exit_codes.items()
    )


def _count_reported_successes(job: Mapping[str, Any]) -> int:
    """How many pods succeeded by the controller's own count: Volcano's, and the Training Operator's for each role."""
    status = get_mapping(job, "status")
    roles = get_mapping(status, "replicaStatuses").values()
    return to_number(status.get("succeeded")) + sum(to_number(get_mapping(role).get("succeeded")) for role in roles)


def find_condition_status(observed: Observation, terms: JobKindTerms, gang: Gang) -> Status | None:
    """What the conditions of a job say about its end or suspension; None while it goes on.

    A job that had ended counts as ended also while it is being deleted, as it is after its TTL.
    """
    job = find_job_object(observed, terms.kind)
    if job is None:
        return build_deleted_status(terms.kind)
    if failed_condition := find_condition(job, "Failed"):
        return build_failed_status(observed, f"the {terms.kind} failed: {failed_condition.get('message', '')}")
    if find_condition(job, terms.success_condition):
        return build_succeeded_status(observed, job, gang.pod_count)
    if is_being_deleted(job):
        return build_deleted_status(terms.kind)
    if find_condition(job, "Suspended"):
        return Status(state="pending", reason=f"the {terms.kind} is suspended ({terms.suspend_key})")
    return None


def _describe_survived_kills(pods: Pods) -> str:
    """Names pods that ran out of memory and still exited with 0: the training may have lost a child process there."""
    survivors = [
        name for name, pod in pods.items() if any(reason.reason == "OOMKilled" for reason in get_pod_reasons(pod))
    ]
    return f"; but {', '.join(survivors)} ran out of memory on the way" if survivors else ""


def build_failed_status(observed: Observation, fallback: str) -> Status:
    """The status of a failed job, from the pod that failed first; a deleted pod is killed, which proves nothing.

    Pods that are gone count as well: a controller that restarts a job, or gives it up, removes those that failed.
    """
    pods = select_job_pods(observed)
    all_pods = [*pods.items(), *((name.partition("/")[2], pod) for name, pod in _iter_removed_pods(observed))]
    failures = [
        (pod_failure.failed_at, name, pod_failure.exit_code)
        for name, pod in all_pods
        if (pod_failure := find_own_failure(pod))
    ]
    failed_at, first_failed, exit_code = min(failures, default=(float("inf"), "", 0))
    known_failure, retries = (
        find_pod_failure(pods, float("inf")) or _find_pod_deletion(observed, failed_at),
        count_retries(observed),
    )
    if known_failure:
        return Status(state="failed", reason=known_failure.sentence, failure=known_failure, retries=retries)
    if first_failed:
        reason = f"{first_failed} {describe_exit(exit_code)}" + (
            f", after {describe_retries(retries)}" if retries else ""
        )
        return Status(state="failed", reason=reason, retries=retries)
    removed = ", ".join(name for name, pod in pods.items() if is_being_deleted(pod))
    reason = fallback + (f"; being removed: {removed}" if removed else "")
    return Status(state="failed", reason=reason, retries=retries)


def describe_retries(count: int) -> str:
    return f"{count} {'retry' if count == 1 else 'retries'}"


def _iter_removed_pods(observed: Observation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The first pod of each node that was deleted, as `Removed/worker-0`, as it was before; the first deleted first."""
    return (entry for entry in observed.states.items() if entry[0].startswith("Removed/"))


def count_retries(observed: Observation) -> int:
    """How often the job or its containers were started again, by the controllers' and the kubelets' own counts."""
    jobs = [obj for name, obj in observed.states.items() if not _is_pod_key(name)]
    container_restarts = [count_restarts(obj) for name, obj in observed.states.items() if _is_pod_key(name)]
    return max([*map(_get_retry_count, jobs), *container_restarts, *_count_replacements(observed)], default=0)


def _count_replacements(observed: Observation) -> Iterator[int]:
    """How often the pod of each node was made anew; not every controller counts that."""
    pods = select_job_pods(observed)
    for name, first_removed in _iter_removed_pods(observed):
        current = pods.get(name.partition("/")[2])
        yield to_number(get_mapping(first_removed).get(REMOVALS_KEY)) - (current is None or is_being_deleted(current))


def _get_retry_count(job: Mapping[str, Any]) -> int:
    """A controller's count; Volcano also counts the retry that its limit has forbidden."""
    status, limit = get_mapping(job, "status"), to_number(get_mapping(job, "spec").get("maxRetry"))
    count = max(to_number(status.get(key)) for key in ("retryCount", "restarts", "resettingCount"))
    is_last_refused = 0 < limit <= count and get_mapping(status, "state").get("phase") == "Failed"
    return count - is_last_refused


def _is_pod_key(name: str) -> bool:
    return name.startswith(("Pod/", "Removed/"))


def _find_pod_deletion(observed: Observation, first_failure_at: float) -> Failure | None:
    """The failure of a pod that was deleted at least a second before any other failed: its peers blame the network.

    A controller that preempts or drains, or gives up a node, records that in the pod.
    """
    name, pod = next(_iter_removed_pods(observed), ("", {}))
    if not name or get_deletion_time(pod) >= first_failure_at:
        return None
    node = name.partition("/")[2]
    if failure := find_pod_failure({node: pod}, float("inf")):
        return failure
    return Failure(cause="pod-deleted", sentence=f"{node}: its pod was deleted by somebody else", node=node, retry=True)


def build_unfinished_status(observed: Observation, pods: Pods, gang: Gang, has_started: bool = False) -> Status:
    """The status before the job's end: running once enough pods run or ran (`started`), failed if they never can."""
    reasons_by_pod = get_reasons_by_pod(pods)
    if failure := _find_fatal_problem(pods, find_pod_problems(pods, reasons_by_pod, observed.observed_at), gang):
        return Status(state="failed", reason=failure.sentence, failure=failure)
    started_pods = sum(get_pod_phase(pod) != "Pending" for pod in pods.values())
    reason = _describe_pods(pods, gang)
    if gang.pod_count and started_pods >= gang.pod_count:
        return Status(state="running", reason=reason)
    is_minimum_started = gang.pod_count and started_pods >= gang.min_pods
    state: State = (
        "running" if is_minimum_started or has_started or len(observed.joined) >= (gang.min_pods or 1) else "pending"
    )
    return Status(state=state, reason=f"{reason}{_describe_waiting(observed, pods, reasons_by_pod)}")


def _describe_pods(pods: Pods, gang: Gang) -> str:
    """`1 of 2 pods run, 1 has failed`: one that has ended, or whose container is down, does not run."""
    phases = [get_pod_phase(pod) for pod in pods.values()]
    down = sum(is_container_down(pod) for pod in pods.values())
    ended_counts = [(phases.count("Succeeded"), "succeeded"), (phases.count("Failed"), "failed")]
    details = [f"{count} {'has' if count == 1 else 'have'} {outcome}" for count, outcome in ended_counts if count]
    details += [f"{down} {'is' if down == 1 else 'are'} down"] if down else []
    return ", ".join([f"{phases.count('Running') - down} of {max(gang.pod_count, len(pods))} pods run", *details])


def _find_fatal_problem(pods: Pods, problems: Sequence[PodProblem], gang: Gang) -> Failure | None:
    """The cause that ends the job, if there is one; an elastic job goes on without some of its pods."""
    is_spared = len({problem.node for problem in problems}) <= gang.pod_count - gang.min_pods
    return None if is_spared or not problems else build_failure(pods, problems)


def _describe_waiting(observed: Observation, pods: Pods, reasons_by_pod: Mapping[str, Sequence[PodReason]]) -> str:
    """What the job waits for: an image, what the scheduler reports, or the queue."""
    for name, reasons in reasons_by_pod.items():
        return f"; {name}: {reasons[-1].reason}: {reasons[-1].message}"
    unscheduled = [(name, reason) for name, pod in pods.items() if (reason := find_unscheduled_reason(pod))]
    if unscheduled:
        name, reason = min(unscheduled, key=lambda pair: pair[1].reason == "Schedulable")
        return f"; {name} is not scheduled: {reason.message}"
    group = next((obj for name, obj in observed.states.items() if name.startswith("PodGroup/")), None)
    return f"; {_describe_pod_group(group)}" if group and not pods else ""


def _describe_pod_group(group: Mapping[str, Any]) -> str:
    """The state of the PodGroup: before the queue admits the gang, there are no pods to read."""
    phase = get_mapping(group, "status").get("phase") or "new"
    true_conditions = [
        condition for condition in get_mappings(group, "status", "conditions") if condition.get("status") == "True"
    ]
    newest: Mapping[str, Any] = max(
        true_conditions, key=lambda condition: str(condition.get("lastTransitionTime")), default={}
    )
    queue = f"queue {get_mapping(group, 'spec').get('queue')} is full or closed, or the cluster too small for it"
    return f"its PodGroup is {phase}: {newest.get('message') or (queue if phase == 'Pending' else '')}".removesuffix(
        ": "
    )
