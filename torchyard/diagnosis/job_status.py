"""The status of a job, read from its pods: what the controllers report is less, and partly wrong."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    REMOVALS,
    ROLE_LABEL,
    PodReason,
    Pods,
    count_restarts,
    describe_exit,
    find_condition,
    find_unscheduled_reason,
    get_mapping,
    get_mappings,
    is_being_deleted,
    is_container_down,
    read_deletion_time,
    read_own_failure,
    read_pod_exit_code,
    read_pod_exit_codes,
    read_pod_phase,
    to_number,
)
from torchyard.diagnosis.pod_reasons import (
    PodProblem,
    explain_first_problem,
    find_pod_failure,
    find_pod_problems,
    read_pod_reasons,
    read_reasons_by_pod,
)
from torchyard.model.run import Failure, Observation, State, Status


class Gang(NamedTuple):
    """How many pods a job has, and how many of them it needs: fewer where it is elastic."""

    pods: int
    least: int


class JobKindTerms(NamedTuple):
    """What a scheduler calls its job, the condition of its success, and the key that suspends it."""

    kind: str
    done: str
    suspend: str


# --- the state of the job


def find_job_object(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job itself, as last seen; None if it does not exist."""
    return next((thing for name, thing in observed.states.items() if name.startswith(f"{kind}/")), None)


def select_job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0, without the store's."""
    return {name.partition("/")[2]: pod for name, pod in observed.states.items() if _is_worker_pod(name, pod)}


def _is_worker_pod(name: str, thing: Mapping[str, Any]) -> bool:
    return name.startswith("Pod/") and ROLE_LABEL not in get_mapping(thing, "metadata", "labels")


def deleted_status(kind: str) -> Status:
    """The status of a deleted job. Its pods may still report Failed with 137: that is the deletion, not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by somebody else")


def succeeded_status(observed: Observation, job: Mapping[str, Any], planned: int) -> Status:
    """The status of a job that its controller reports as done: succeeded once all pods have ended, unless one failed.

    Controllers report an elastic job as done as soon as one worker is, and may then remove the others. `planned` is the
    number of its pods, 0 if unknown: of those that are gone, the last state that was seen counts, or the controller's
    own number.
    """
    pods = select_job_pods(observed)
    bad = [name for name, code in read_pod_exit_codes(pods).items() if code and not is_being_deleted(pods[name])]
    if bad:
        return failed_status(observed, "the job is reported as complete")
    busy = [
        name
        for name, pod in pods.items()
        if read_pod_phase(pod) not in ENDED_POD_PHASES or (is_being_deleted(pod) and read_pod_exit_code(pod))
    ]
    if busy:
        return Status(state="running", reason=f"{len(pods) - len(busy)} of {len(pods)} pods are done")
    done = max(_count_seen_successes(observed, pods), _count_reported_successes(job))
    planned = max(planned, done, len(pods))
    if not planned:
        return Status(state="succeeded", reason="its controller says so; its pods are gone")
    if done >= planned:
        counted = f"{planned} of {planned} pods succeeded"
    else:
        counted = f"its controller reports success; {done} of {planned} pods were seen to succeed, the others are gone"
    return Status(state="succeeded", reason=counted + _describe_survived_kills(pods))


def _count_seen_successes(observed: Observation, pods: Pods) -> int:
    """How many nodes of the job have a pod that succeeded, also if it is gone by now."""
    gone = {name.partition("/")[2]: pod for name, pod in _select_removed(observed)}
    codes = read_pod_exit_codes({**gone, **pods})
    return sum(code == 0 or read_pod_phase({**gone, **pods}[name]) == "Succeeded" for name, code in codes.items())


def _count_reported_successes(job: Mapping[str, Any]) -> int:
    """How many pods succeeded by the controller's own count: Volcano's, and the Training Operator's for each role."""
    status = get_mapping(job, "status")
    roles = get_mapping(status, "replicaStatuses").values()
    return to_number(status.get("succeeded")) + sum(to_number(get_mapping(role).get("succeeded")) for role in roles)


def read_job_conditions(observed: Observation, words: JobKindTerms, gang: Gang) -> Status | None:
    """What the conditions of a job say about its end or suspension; None while it goes on.

    A job that had ended counts as ended also while it is being deleted, as it is after its TTL.
    """
    job = find_job_object(observed, words.kind)
    if job is None:
        return deleted_status(words.kind)
    if end := find_condition(job, "Failed"):
        return failed_status(observed, f"the {words.kind} failed: {end.get('message', '')}")
    if find_condition(job, words.done):
        return succeeded_status(observed, job, gang.pods)
    if is_being_deleted(job):
        return deleted_status(words.kind)
    if find_condition(job, "Suspended"):
        return Status(state="pending", reason=f"the {words.kind} is suspended ({words.suspend})")
    return None


def _describe_survived_kills(pods: Pods) -> str:
    """Names pods that ran out of memory and still exited with 0: the training may have lost a child process there."""
    killed = [name for name, pod in pods.items() if any(word.reason == "OOMKilled" for word in read_pod_reasons(pod))]
    return f"; but {', '.join(killed)} ran out of memory on the way" if killed else ""


def failed_status(observed: Observation, otherwise: str) -> Status:
    """The status of a failed job, from the pod that failed first; a deleted pod is killed, which proves nothing.

    Pods that are gone count as well: a controller that restarts a job, or gives it up, removes those that failed.
    """
    pods = select_job_pods(observed)
    every = [*pods.items(), *((name.partition("/")[2], pod) for name, pod in _select_removed(observed))]
    found = [(failure.at, name, failure.code) for name, pod in every if (failure := read_own_failure(pod))]
    at, first, code = min(found, default=(float("inf"), "", 0))
    known, retries = (
        find_pod_failure(pods, float("inf")) or _explain_deleted_pod(observed, at),
        count_retries(observed),
    )
    if known:
        return Status(state="failed", reason=known.sentence, failure=known, retries=retries)
    if first:
        reason = f"{first} {describe_exit(code)}" + (f", after {describe_retries(retries)}" if retries else "")
        return Status(state="failed", reason=reason, retries=retries)
    removed = ", ".join(name for name, pod in pods.items() if is_being_deleted(pod))
    reason = otherwise + (f"; being removed: {removed}" if removed else "")
    return Status(state="failed", reason=reason, retries=retries)


def describe_retries(count: int) -> str:
    return f"{count} {'retry' if count == 1 else 'retries'}"


def _select_removed(observed: Observation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The first pod of each node that was deleted, as `Removed/worker-0`, as it was before; the first deleted first."""
    return (each for each in observed.states.items() if each[0].startswith("Removed/"))


def count_retries(observed: Observation) -> int:
    """How often the job or its containers were started again, by the controllers' and the kubelets' own counts."""
    jobs = [thing for name, thing in observed.states.items() if not _is_pod(name)]
    inside = [count_restarts(thing) for name, thing in observed.states.items() if _is_pod(name)]
    return max([*map(_read_retries, jobs), *inside, *_count_replacements(observed)], default=0)


def _count_replacements(observed: Observation) -> Iterator[int]:
    """How often the pod of each node was made anew; not every controller counts that."""
    pods = select_job_pods(observed)
    for name, first in _select_removed(observed):
        now = pods.get(name.partition("/")[2])
        yield to_number(get_mapping(first).get(REMOVALS)) - (now is None or is_being_deleted(now))


def _read_retries(job: Mapping[str, Any]) -> int:
    """A controller's count; Volcano also counts the retry that its limit has forbidden."""
    status, limit = get_mapping(job, "status"), to_number(get_mapping(job, "spec").get("maxRetry"))
    count = max(to_number(status.get(key)) for key in ("retryCount", "restarts", "resettingCount"))
    refused = 0 < limit <= count and get_mapping(status, "state").get("phase") == "Failed"
    return count - refused


def _is_pod(name: str) -> bool:
    return name.startswith(("Pod/", "Removed/"))


def _explain_deleted_pod(observed: Observation, before: float) -> Failure | None:
    """The failure of a pod that was deleted at least a second before any other failed: its peers blame the network.

    A controller that preempts or drains, or gives up a node, records that in the pod.
    """
    name, pod = next(_select_removed(observed), ("", {}))
    if not name or read_deletion_time(pod) >= before:
        return None
    node = name.partition("/")[2]
    if known := find_pod_failure({node: pod}, float("inf")):
        return known
    return Failure(cause="pod-deleted", sentence=f"{node}: its pod was deleted by somebody else", node=node, retry=True)


def unfinished_status(observed: Observation, pods: Pods, gang: Gang, started: bool = False) -> Status:
    """The status before the job's end: running once enough pods run or ran (`started`), failed if they never can."""
    said = read_reasons_by_pod(pods)
    if known := _explain_hopeless(pods, find_pod_problems(pods, said, observed.observed_at), gang):
        return Status(state="failed", reason=known.sentence, failure=known)
    begun = sum(read_pod_phase(pod) != "Pending" for pod in pods.values())
    reason = _describe_pods(pods, gang)
    if gang.pods and begun >= gang.pods:
        return Status(state="running", reason=reason)
    enough = gang.pods and begun >= gang.least
    state: State = "running" if enough or started or len(observed.joined) >= (gang.least or 1) else "pending"
    return Status(state=state, reason=f"{reason}{_describe_waiting(observed, pods, said)}")


def _describe_pods(pods: Pods, gang: Gang) -> str:
    """`1 of 2 pods run, 1 has failed`: one that has ended, or whose container is down, does not run."""
    phases = [read_pod_phase(pod) for pod in pods.values()]
    down = sum(is_container_down(pod) for pod in pods.values())
    ended = [(phases.count("Succeeded"), "succeeded"), (phases.count("Failed"), "failed")]
    more = [f"{count} {'has' if count == 1 else 'have'} {word}" for count, word in ended if count]
    more += [f"{down} {'is' if down == 1 else 'are'} down"] if down else []
    return ", ".join([f"{phases.count('Running') - down} of {max(gang.pods, len(pods))} pods run", *more])


def _explain_hopeless(pods: Pods, found: Sequence[PodProblem], gang: Gang) -> Failure | None:
    """The cause that ends the job, if there is one; an elastic job goes on without some of its pods."""
    spared = len({each.node for each in found}) <= gang.pods - gang.least
    return None if spared or not found else explain_first_problem(pods, found)


def _describe_waiting(observed: Observation, pods: Pods, said: Mapping[str, Sequence[PodReason]]) -> str:
    """What the job waits for: an image, what the scheduler reports, or the queue."""
    for name, found in said.items():
        return f"; {name}: {found[-1].reason}: {found[-1].message}"
    unfit = [(name, word) for name, pod in pods.items() if (word := find_unscheduled_reason(pod))]
    if unfit:
        name, word = min(unfit, key=lambda pair: pair[1].reason == "Schedulable")
        return f"; {name} is not scheduled: {word.message}"
    group = next((thing for name, thing in observed.states.items() if name.startswith("PodGroup/")), None)
    return f"; {_describe_pod_group(group)}" if group and not pods else ""


def _describe_pod_group(group: Mapping[str, Any]) -> str:
    """The state of the PodGroup: before the queue admits the gang, there are no pods to read."""
    phase = get_mapping(group, "status").get("phase") or "new"
    true = [each for each in get_mappings(group, "status", "conditions") if each.get("status") == "True"]
    newest: Mapping[str, Any] = max(true, key=lambda each: str(each.get("lastTransitionTime")), default={})
    queue = f"queue {get_mapping(group, 'spec').get('queue')} is full or closed, or the cluster too small for it"
    return f"its PodGroup is {phase}: {newest.get('message') or (queue if phase == 'Pending' else '')}".removesuffix(
        ": "
    )
