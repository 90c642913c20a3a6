"""Jobs that an admission webhook or the API server rejects, by what their parts say about each other.

The rules follow the sources of Volcano 1.14, training-operator 1.9, JobSet 0.11 and Kubernetes 1.34.
"""

from collections.abc import Iterable, Iterator, Mapping

from torchyard.lint.workload import (
    Workload,
    YamlNode,
    yaml_entries,
    yaml_list,
    yaml_mapping,
    yaml_number,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

_PYTORCHJOB_ROLES = ("Master", "Worker")
_ANY_EVENT = "*"
_VOLCANO_EVENTS = (
    _ANY_EVENT,
    "PodFailed",
    "PodEvicted",
    "PodPending",
    "Unknown",
    "TaskCompleted",
    "TaskFailed",
    "JobUpdated",
)
_VOLCANO_ACTIONS = (
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPod",
    "RestartPartition",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
)


# --- names


def _list_named_parts(job: Workload) -> list[tuple[str, YamlNode]]:
    """The tasks of a Volcano Job or the replicatedJobs of a JobSet, each with its path; empty for other kinds."""
    key = {"volcano": "tasks", "jobset": "replicatedJobs"}.get(job.kind)
    return list(yaml_entries(f"spec.{key}", job.spec.get(key))) if key else []


def _find_repeated_names(job: Workload) -> Iterator[Finding]:
    names = set()
    for key_path, part in _list_named_parts(job):
        name = yaml_text(part.get("name"))
        if name and name in names:
            problem = f"another one before it is called {name} too: the job is rejected"
            yield Finding(f"{key_path}.name", problem, "give each its own name")
        names.add(name)


def _find_unknown_names(job: Workload) -> Iterator[Finding]:
    """Yield references to parts of the job that it does not have, or that are not before the part that needs them."""
    parts = _list_named_parts(job)
    if not all(yaml_text(part.get("name")) for _, part in parts):  # Volcano gives a task without a name its own
        return
    all_names = [yaml_text(part.get("name")) for _, part in parts]
    references = list(_list_policy_references(job)) if job.kind == "jobset" else []
    for key_path, name in references:
        if name not in all_names:
            yield _build_unknown_name(key_path, name, all_names)
    for position, (key_path, part) in enumerate(parts):
        # A JobSet creates its Jobs in their order; Volcano sorts the tasks itself.
        known_names = all_names[:position] if job.kind == "jobset" else all_names
        for reference_path, name in _list_dependencies(key_path, part):
            if name not in known_names:
                yield _build_unknown_name(reference_path, name, known_names)


def _list_policy_references(job: Workload) -> Iterator[tuple[str, str]]:
    """Yield the names of replicatedJobs that a JobSet's policies and coordinator contain, each with its path."""
    coordinator = yaml_text(yaml_value(job.spec, "coordinator", "replicatedJob"))
    if coordinator:
        yield "spec.coordinator.replicatedJob", coordinator
    policies = [("spec.successPolicy", yaml_mapping(job.spec.get("successPolicy")))]
    policies += yaml_entries("spec.failurePolicy.rules", yaml_value(job.spec, "failurePolicy", "rules"))
    for key_path, policy in policies:
        for index, name in enumerate(yaml_list(policy.get("targetReplicatedJobs"))):
            yield f"{key_path}.targetReplicatedJobs[{index}]", str(name)


def _list_dependencies(key_path: str, part: YamlNode) -> Iterator[tuple[str, str]]:
    """Yield the names of the parts for which a part waits, each with its path."""
    depends_on = part.get("dependsOn")
    for entry_path, entry in yaml_entries(f"{key_path}.dependsOn", depends_on):  # of a JobSet
        yield f"{entry_path}.name", yaml_text(entry.get("name"))
    for index, name in enumerate(yaml_list(yaml_value(depends_on, "name"))):  # of a Volcano Job
        yield f"{key_path}.dependsOn.name[{index}]", str(name)


def _build_unknown_name(key_path: str, name: str, known_names: list[str]) -> Finding:
    fix = f"write {' or '.join(known_names)}" if known_names else "remove it: this is the first one"
    return Finding(key_path, f"there is no {name}: the webhook rejects the job", fix)


# --- pods


def _find_repeated_pod_parts(job: Workload) -> Iterator[Finding]:
    """Yield containers and volumes of a pod, and ports and mounts of a container, that are there twice."""
    for group in job.groups:
        yield from _find_repetitions([(container.key_path, container.spec) for container in group.all_containers])
        yield from _find_repetitions(yaml_entries(f"{group.pod_path}.volumes", group.pod.get("volumes")))
        for container in group.all_containers:
            for list_key, key in (("ports", "name"), ("volumeMounts", "mountPath")):
                entries = yaml_entries(f"{container.key_path}.{list_key}", container.spec.get(list_key))
                yield from _find_repetitions(entries, key)


def _find_repetitions(entries: Iterable[tuple[str, YamlNode]], key: str = "name") -> Iterator[Finding]:
    values = set()
    for key_path, entry in entries:
        value = yaml_text(entry.get(key))
        if value and value in values:
            problem = f"another one before it has the {key} {value} too: the API server rejects the pod"
            yield Finding(f"{key_path}.{key}", problem, "give each its own, or remove one")
        values.add(value)


def _find_unknown_volumes(job: Workload) -> Iterator[Finding]:
    """Yield mounts of volumes that the pod does not have. A controller adds the volumes of a template for claims."""
    if job.kind == "server":
        return
    claim_names = _list_claim_templates(job)
    for group in job.groups:
        volume_names = [yaml_text(volume.get("name")) for _, volume in yaml_entries("", group.pod.get("volumes"))]
        for container in group.all_containers:
            for key_path, mount in yaml_entries(
                f"{container.key_path}.volumeMounts", container.spec.get("volumeMounts")
            ):
                name = yaml_text(mount.get("name"))
                if name and name not in volume_names and name not in claim_names:
                    problem = f"the pod has no volume {name}: the API server rejects it"
                    fix = f"write {' or '.join(volume_names)}, or add it to" if volume_names else "add it to"
                    yield Finding(f"{key_path}.name", problem, f"{fix} {group.pod_path}.volumes")


def _list_claim_templates(job: Workload) -> list[str]:
    """The names of a JobSet's claims, each of which is a volume of its pods."""
    names: list[str] = []
    for _, policy in yaml_entries("", job.spec.get("volumeClaimPolicies")):
        for _, claim in yaml_entries("", policy.get("templates")):
            names.append(yaml_text(yaml_value(claim, "metadata", "name")))
    return names


# --- Volcano


def _find_too_large_minimum(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano" or not job.groups:
        return
    minimums = [("spec.minAvailable", job.spec.get("minAvailable"), job.pod_count)]
    for group in job.groups:
        minimums.append((f"{group.key_path}.minAvailable", group.spec.get("minAvailable"), group.replicas))
    for key_path, minimum, pod_count in minimums:
        number = yaml_number(minimum)
        if number is not None and number > pod_count:
            problem = f"{number} is more than the {pod_count} replicas: the webhook rejects the job"
            yield Finding(key_path, problem, f"write {pod_count}, or more replicas")


def _find_repeated_events(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano":
        return
    policy_lists = [("spec.policies", job.spec.get("policies"))]
    policy_lists += [(f"{group.key_path}.policies", group.spec.get("policies")) for group in job.groups]
    for list_path, policies in policy_lists:
        events: list[str] = []
        for key_path, policy in yaml_entries(list_path, policies):
            names = [yaml_text(name) for name in [policy.get("event"), *yaml_list(policy.get("events"))] if name]
            repeated = [name for name in dict.fromkeys(names) if name in events]
            if repeated:
                problem = f"a policy before it is for {' and '.join(repeated)} too: the webhook rejects the job"
                yield Finding(key_path, problem, "write one policy for each event")
            events += names
        if _ANY_EVENT in events and set(events) != {_ANY_EVENT}:
            problem = f"`{_ANY_EVENT}` is for every event: the webhook rejects a job with other policies beside it"
            yield Finding(list_path, problem, f"remove the others, or `{_ANY_EVENT}`")


def _find_rejected_policies(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano":
        return
    policy_lists = [("spec.policies", job.spec.get("policies"))]
    policy_lists += [(f"{group.key_path}.policies", group.spec.get("policies")) for group in job.groups]
    for list_path, policies in policy_lists:
        for key_path, policy in yaml_entries(list_path, policies):
            yield from _check_policy(key_path, policy)


def _check_policy(key_path: str, policy: YamlNode) -> Iterator[Finding]:
    events = [yaml_text(name) for name in [policy.get("event"), *yaml_list(policy.get("events"))] if name]
    action = yaml_text(policy.get("action"))
    exit_code = yaml_number(policy.get("exitCode"))
    for event in events:
        if event not in _VOLCANO_EVENTS:
            problem = f"the webhook rejects the event {event}"
            yield Finding(key_path, problem, f"write one of {', '.join(_VOLCANO_EVENTS)}")
    if action and action not in _VOLCANO_ACTIONS:
        problem = f"the webhook rejects the action {action}"
        yield Finding(f"{key_path}.action", problem, f"write one of {', '.join(_VOLCANO_ACTIONS)}")
    if exit_code is not None and events:
        problem = "the webhook rejects a policy for an event and an exit code"
        yield Finding(f"{key_path}.exitCode", problem, "write two policies")
    if exit_code == 0:
        problem = "the webhook rejects a policy for the exit code 0"
        yield Finding(f"{key_path}.exitCode", problem, "write the event TaskCompleted")
    if "PodPending" in events and not policy.get("timeout"):
        problem = "the webhook rejects the event PodPending without a timeout"
        yield Finding(f"{key_path}.timeout", problem, "write how long a pod may be pending, such as 10m")


# --- PyTorchJob


def _find_unwritten_master(job: Workload) -> Iterator[Finding]:
    master = yaml_value(job.spec, "pytorchReplicaSpecs", "Master")
    if job.kind == "pytorchjob" and isinstance(master, Mapping) and yaml_number(master.get("replicas")) != 1:
        problem = "the webhook rejects a Master without replicas: 1"
        yield Finding("spec.pytorchReplicaSpecs.Master.replicas", problem, "write 1")


def _find_rejected_roles(job: Workload) -> Iterator[Finding]:
    if job.kind != "pytorchjob":
        return
    for group in job.groups:
        if group.name not in _PYTORCHJOB_ROLES:
            problem = f"the webhook rejects the role {group.name}"
            yield Finding(group.key_path, problem, f"write {' or '.join(_PYTORCHJOB_ROLES)}")
        if group.name == "Worker" and group.replicas < 1:
            problem = "the webhook rejects a Worker with 0 replicas"
            yield Finding(f"{group.key_path}.replicas", problem, "remove the Worker, or write 1 or more")
        names = [container.spec.get("name") for container in group.containers]
        if names and "pytorch" not in names:
            problem = "the webhook rejects a role without a container named pytorch"
            yield Finding(f"{group.pod_path}.containers", problem, "give this name to the container that trains")
    has_worker = any(group.name == "Worker" for group in job.groups)
    if job.elastic_policy is not None and job.groups and not has_worker:
        problem = "the webhook rejects an elasticPolicy without a Worker"
        yield Finding("spec.elasticPolicy", problem, "remove it, or write a Worker")


# --- Job


def _find_rejected_job(job: Workload) -> Iterator[Finding]:
    for group in job.groups if job.kind in ("job", "jobset") else ():
        policy = group.pod.get("restartPolicy")
        key_path = f"{group.pod_path}.restartPolicy"
        if job.kind == "job" and group.pod and policy not in ("Never", "OnFailure"):
            problem = "the API server rejects a Job without restartPolicy Never or OnFailure"
            yield Finding(key_path, problem, "write Never")
        elif group.spec.get("podFailurePolicy") and policy != "Never":
            problem = "the API server rejects a Job with a podFailurePolicy unless its restartPolicy is Never"
            yield Finding(key_path, problem, "write Never")


REJECTION_RULES = (
    _find_repeated_names,
    _find_unknown_names,
    _find_too_large_minimum,
    _find_repeated_events,
    _find_rejected_policies,
    _find_unwritten_master,
    _find_rejected_roles,
    _find_rejected_job,
    _find_repeated_pod_parts,
    _find_unknown_volumes,
)
