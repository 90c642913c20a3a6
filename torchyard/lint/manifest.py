"""Traps in a manifest: what it will do that its author does not expect.

The rules follow the sources of Volcano 1.15, training-operator 1.9 and JobSet 0.10.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard.lint.address import find_address_traps, find_own_host
from torchyard.lint.appwrapper import lint_appwrappers
from torchyard.lint.fields import (
    find_refused_fields,
    find_refused_metadata,
    find_refused_numbers,
    find_refused_types,
)
from torchyard.lint.pod import POD_RULES
from torchyard.lint.rdma import find_missing_hcas
from torchyard.lint.rejected import REJECTION_RULES
from torchyard.lint.torchrun import TORCHRUN_RULES, find_etcd_without_v2, find_shared_rendezvous_ids
from torchyard.lint.workload import (
    ManifestContainer,
    ReplicaGroup,
    Workload,
    YamlNode,
    is_indexed_job,
    list_workloads,
    read_job_pods,
    yaml_list,
    yaml_mapping,
    yaml_number,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

_LintRule = Callable[[Workload], Iterator[Finding]]

_VARIABLE_PATTERN = re.compile(r"\$(?:[({]#?)?(V[CK]_\w+)(?!\w|:?[-=?+])")  # without a default
_INDEX_VARIABLES = ("VC_TASK_INDEX", "VK_TASK_INDEX")  # of the plugin env
_MAX_VARIABLES = 4  # of one warning
_PUBLISH_FLAG_PATTERN = re.compile(r"--?publish-not-ready-addresses(?:=(?:[tT]|[tT]rue|TRUE|1))?")
_SERVICE_PLUGINS = ("svc", "pytorch", "tensorflow", "mpi", "ray")  # svc, and the plugins that include it
_FAILURE_EVENTS = ("PodFailed", "TaskFailed", "*")
_RESTARTING_POLICIES = ("Always", "OnFailure")
_DEFAULT_JOB_PORT = 23456  # training-operator's own choice
_COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
_DEFAULT_BACKOFF_LIMIT = 6  # of a Job
_MAX_RESTARTS = 10
_IN_PLACE_RESTART = "InPlaceRestart"  # of a JobSet, which requires the largest backoffLimit
_MAX_KEY_PATHS = 3  # of one finding, so that it stays short


def lint_manifest(objects: Sequence[Mapping[str, Any]], *, is_adopted: bool = True) -> tuple[Finding, ...]:
    """Return a warning for each trap: the object and the keys, what will happen, and what to write instead.

    Checks Volcano Jobs, PyTorchJobs, JobSets, Jobs, AppWrappers around them, and the Pods, Deployments and
    StatefulSets beside them; skips other objects. Raises nothing, whatever the objects contain. `is_adopted`: a run
    gives an elasticPolicy without a rendezvous id its own.
    """
    jobs = [job for obj in objects for job in list_workloads(obj)]
    findings: list[tuple[str, Finding]] = []
    for rule in _RULES:
        for job in jobs:
            findings += [(job.location, finding) for finding in rule(job)]
    findings += find_refused_metadata(objects)
    findings += find_etcd_without_v2(jobs)
    findings += find_shared_rendezvous_ids(jobs, objects, is_adopted=is_adopted)
    findings += find_address_traps(jobs, objects)
    findings += _find_duplicate_pods(jobs)
    findings += lint_appwrappers(objects)
    return tuple(replace(finding, verdict="warning") for finding in merge_repetitions(findings))


def merge_repetitions(findings: Iterable[tuple[str, Finding]]) -> Iterator[Finding]:
    """Yield one finding for each fault of an object, with the paths of the keys that have it.

    `findings`: each with the object's kind and name, and with a key path as its `where`.
    """
    key_paths_by_fault: dict[tuple[str, Finding], list[str]] = defaultdict(list)
    for location, finding in findings:
        key_paths = key_paths_by_fault[location, replace(finding, where="")]
        if finding.where not in key_paths:
            key_paths.append(finding.where)
    for (location, fault), key_paths in key_paths_by_fault.items():
        full_location = ", ".join([location, *key_paths[:_MAX_KEY_PATHS]])
        if len(key_paths) > _MAX_KEY_PATHS:
            full_location += f" and {len(key_paths) - _MAX_KEY_PATHS} more"
        yield replace(fault, where=full_location)


def _find_duplicate_pods(jobs: Sequence[Workload]) -> Iterator[tuple[str, Finding]]:
    """Yield one finding for each set of workloads that create a pod of the same name in the same namespace."""
    locations_by_pod: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        if job.name:
            for pod_name in dict.fromkeys(job.pod_names):  # two parts of one name are another trap
                locations_by_pod[job.namespace, pod_name].append(job.location)
    pods_by_locations = {}
    for (_, pod_name), locations in reversed(locations_by_pod.items()):  # so that the first shared pod is reported
        if len(locations) > 1:
            pods_by_locations[tuple(locations)] = pod_name
    for (first, *others), pod_name in pods_by_locations.items():
        others_text = " and ".join(dict.fromkeys(others))
        problem = f"{others_text} creates the pod {pod_name} too"
        yield first, Finding("metadata.name", problem, "give each its own name")


# --- Volcano -------------------------------------------------------------------------------------------------------


def _find_hidden_gang(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano" or yaml_number(job.spec.get("minAvailable")) != 0 or job.pod_count < 2:
        return
    minimums = [yaml_number(group.spec.get("minAvailable")) for group in job.groups]
    if all(minimum is None or minimum >= group.replicas for minimum, group in zip(minimums, job.groups, strict=True)):
        yield Finding(
            "spec.minAvailable",
            f"the webhook replaces 0 by {job.pod_count}, the sum of the replicas: no pod starts until all of them fit",
            f"write {job.pod_count} if all pods must start together, and 1 if not",
        )


def _find_unhandled_failure(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano" or job.pod_count < 2:
        return
    if _is_failure_handled(job.spec.get("policies")):
        return
    if all(_is_failure_handled(group.spec.get("policies")) for group in job.groups):
        return
    # With a plugin the pods address each other.
    if not _get_plugins(job) and not any(_is_training(container) for container in job.containers):
        return
    yield Finding(
        "spec.policies",
        "without a policy a failed pod changes nothing: its peers hang, and the job never ends",
        "write {events: [PodFailed, PodEvicted], action: TerminateJob}",
    )


def _is_failure_handled(policies: object) -> bool:
    """Whether one of the policies reacts to a failed pod."""
    for policy in yaml_list(policies):
        if yaml_value(policy, "exitCode"):
            return True
        events = [yaml_value(policy, "event"), *yaml_list(yaml_value(policy, "events"))]
        if any(event in _FAILURE_EVENTS for event in events):
            return True
    return False


def _find_volcano_restarts(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano":
        return
    for group in job.groups:
        policy = group.pod.get("restartPolicy") or "Always"  # Kubernetes' default
        if policy in _RESTARTING_POLICIES:
            yield Finding(
                f"{group.pod_path}.restartPolicy",
                f"{policy} restarts a failing container forever: no pod fails, so no policy takes effect, "
                "and the job stays Running",
                "write Never",
            )


def _find_missing_host_names(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano" or job.pod_count < 2:
        return
    plugins = _get_plugins(job)
    variables = _list_used_variables(job, _list_host_variables(job))
    fix = 'write svc: ["--publish-not-ready-addresses=true"]'
    if "svc" in plugins:
        flags = [yaml_text(flag) for flag in yaml_list(plugins["svc"])]
        if not any(_PUBLISH_FLAG_PATTERN.fullmatch(flag) for flag in flags):
            problem = "a pod's name resolves only once the pod is ready: earlier lookups by its peers fail or hang"
            yield Finding("spec.plugins.svc", problem, fix)
    elif not any(plugin in plugins for plugin in _SERVICE_PLUGINS):
        host = find_own_host(job)
        if variables:
            problem = f"without this plugin {variables[0]} is not set and the names of pods do not resolve"
            yield Finding("spec.plugins.svc", problem, fix)
        elif host:
            problem = f"without this plugin the names of the pods, such as {host}, do not resolve"
            yield Finding("spec.plugins.svc", problem, fix)


def _find_missing_index(job: Workload) -> Iterator[Finding]:
    variables = _list_used_variables(job, _INDEX_VARIABLES)
    if job.kind == "volcano" and variables and "env" not in _get_plugins(job):
        yield Finding("spec.plugins.env", f"without this plugin {variables[0]} is not set in any pod", "write env: []")


def _find_unknown_variables(job: Workload) -> Iterator[Finding]:
    if job.kind != "volcano":
        return
    host_variables = _list_host_variables(job)
    for container in job.containers:
        for name in dict.fromkeys(_VARIABLE_PATTERN.findall(" ".join(container.argv))):
            if name not in host_variables and name not in _INDEX_VARIABLES and not _sets_variable(container, name):
                fix = f"write one of {', '.join([_INDEX_VARIABLES[0], *host_variables[:_MAX_VARIABLES]])}"
                yield Finding(container.script_path, f"Volcano does not set {name}", fix)


def _list_host_variables(job: Workload) -> list[str]:
    """The variables that the plugin svc sets: the hosts of each task, and their number."""
    variables = []
    for group in job.groups:
        task_name = group.name.replace("-", "_").upper()
        variables += [f"VC_{task_name}_HOSTS", f"VC_{task_name}_NUM"]
    return variables


def _list_used_variables(job: Workload, names: Iterable[str]) -> list[str]:
    """Those of the variables that a container's command contains, and that the manifest does not set itself."""
    used_names = []
    for name in names:
        for container in job.containers:
            is_used = re.search(rf"\b{re.escape(name)}\b", " ".join(container.argv))
            if is_used and not _sets_variable(container, name):
                used_names.append(name)
    return used_names


def _sets_variable(container: ManifestContainer, name: str) -> bool:
    """Whether the container has the variable from the manifest, or may have it."""
    return name in container.env or f"{name}=" in " ".join(container.argv) or bool(container.spec.get("envFrom"))


def _get_plugins(job: Workload) -> YamlNode:
    return yaml_mapping(job.spec.get("plugins"))


# --- PyTorchJob ----------------------------------------------------------------------------------------------------


def _find_common_port(job: Workload) -> Iterator[Finding]:
    if job.kind != "pytorchjob":
        return
    for group in job.groups:
        for container in group.containers if group.uses_host_network else ():
            if container.spec.get("name") == "pytorch" and _has_default_port(container.spec):
                yield Finding(
                    f"{container.key_path}.ports",
                    f"pytorchjob-port is {_DEFAULT_JOB_PORT} in every job that does not set it, and with hostNetwork "
                    "it is the node's port: two jobs cannot share a node",
                    "write {name: pytorchjob-port, containerPort: another number}",
                )


def _has_default_port(container: YamlNode) -> bool:
    """Whether the job's port is the operator's default, explicitly or because the container declares none."""
    for port in yaml_list(container.get("ports")):
        if yaml_value(port, "name") == "pytorchjob-port":
            return bool(yaml_value(port, "containerPort") == _DEFAULT_JOB_PORT)
    return True


def _find_operator_restarts(job: Workload) -> Iterator[Finding]:
    if job.kind != "pytorchjob":
        return
    # A limit of retries or of time ends the job in any case.
    run_policy = yaml_value(job.spec, "runPolicy")
    if any(yaml_number(yaml_value(run_policy, key)) is not None for key in ("backoffLimit", "activeDeadlineSeconds")):
        return
    for group in job.groups:
        restart_policy = group.spec.get("restartPolicy")
        policy_text = restart_policy
        if not restart_policy:
            restart_policy = policy_text = "OnFailure"  # training-operator's default
            if group.pod.get("restartPolicy"):
                policy_text = "the operator replaces the pod's restartPolicy by OnFailure, which"
        if restart_policy in _RESTARTING_POLICIES:
            yield Finding(
                f"{group.key_path}.restartPolicy",
                f"{policy_text} restarts a failing container forever, and the job stays Running",
                "write Never, or a runPolicy.backoffLimit",
            )


def _find_elastic_start(job: Workload) -> Iterator[Finding]:
    min_replicas = yaml_number(yaml_value(job.elastic_policy, "minReplicas"))
    max_replicas = yaml_number(yaml_value(job.elastic_policy, "maxReplicas"))
    if min_replicas is None or max_replicas is None or min_replicas == max_replicas:
        return
    if not job.runs_torchrun or job.has_hidden_options:
        return
    # With metrics the number of pods is meant to change, and an explicit --nnodes overrides the policy.
    if yaml_value(job.elastic_policy, "metrics") or job.find_option("nnodes") is not None:
        return
    yield Finding(
        "spec.elasticPolicy.minReplicas",
        f"torchrun waits 30 s for more than {min_replicas} nodes and then starts without the others, which interrupt "
        "the training when they join",
        f"write {job.pod_count} for minReplicas and maxReplicas",
    )


def _find_early_success(job: Workload) -> Iterator[Finding]:
    # A fixed number of agents wait for each other at the end, and no controller deletes their pods.
    min_replicas = yaml_number(yaml_value(job.elastic_policy, "minReplicas"))
    max_replicas = yaml_number(yaml_value(job.elastic_policy, "maxReplicas"))
    if min_replicas == max_replicas and yaml_value(job.spec, "runPolicy", "cleanPodPolicy") in (None, "None"):
        return
    workers = _find_worker_group(job)
    has_master = yaml_value(job.spec, "pytorchReplicaSpecs", "Master") is not None
    if job.elastic_policy and workers and workers.replicas > 1 and not has_master:
        yield Finding(
            "spec.elasticPolicy",
            "the job is Succeeded as soon as one worker has finished, even if others fail",
            "write a Master and no elasticPolicy, or check every pod",
        )


def _find_worker_group(job: Workload) -> ReplicaGroup | None:
    """The workers of a PyTorchJob; None if it has none."""
    for group in job.groups:
        if group.name == "Worker":
            return group
    return None


def _find_many_restarts(job: Workload) -> Iterator[Finding]:
    count = yaml_number(yaml_value(job.elastic_policy, "maxRestarts")) or 0
    if count > _MAX_RESTARTS and job.runs_torchrun:
        problem = f"a permanent failure restarts all workers {count} times before the job fails"
        yield Finding("spec.elasticPolicy.maxRestarts", problem, "write 0, or a few for transient failures")


def _find_autoscaler(job: Workload) -> Iterator[Finding]:
    if yaml_value(job.elastic_policy, "metrics"):
        problem = "the operator creates an autoscaler for it, which changes the number of pods while they train"
        yield Finding("spec.elasticPolicy.metrics", problem, "remove it: a run expects the replicas of the manifest")


def _find_standalone(job: Workload) -> Iterator[Finding]:
    if yaml_value(job.elastic_policy, "standalone") is True and job.runs_torchrun:
        problem = "the operator sets PET_STANDALONE to an empty value, on which torchrun crashes (ValueError)"
        yield Finding("spec.elasticPolicy.standalone", problem, "remove the key")


# --- JobSet and Job ------------------------------------------------------------------------------------------------


def _find_job_restarts(job: Workload) -> Iterator[Finding]:
    """Yield restarts of a failed pod alone, before its Job fails."""
    if job.kind not in ("jobset", "job") or job.pod_count < 2:
        return
    if yaml_value(job.spec, "failurePolicy", "restartStrategy") == _IN_PLACE_RESTART:
        return  # the containers restart in their pods, all together
    for group in job.groups:
        limit = yaml_number(group.spec.get("backoffLimit"))
        has_own_policy = group.spec.get("podFailurePolicy") or group.spec.get("backoffLimitPerIndex") is not None
        if limit == 0 or has_own_policy or not any(_is_training(container) for container in group.containers):
            continue
        limit_text = f"{limit} times (backoffLimit)"
        if limit is None:
            limit_text = f"{_DEFAULT_BACKOFF_LIMIT} times (the default of backoffLimit)"
        effect = f"{limit_text} before its Job fails: its peers hang meanwhile"
        fix = "backoffLimit: 0 in the Job's spec"
        if job.kind == "jobset":
            effect += ", and the JobSet's failurePolicy does not act"
            fix += "; failurePolicy.maxRestarts of the JobSet restarts all pods together"
        restart_policy = group.pod.get("restartPolicy")
        if restart_policy == "Never":
            yield Finding(f"{group.key_path}.backoffLimit", f"a failed pod is replaced {effect}", f"write {fix}")
        elif restart_policy == "OnFailure" or job.kind == "jobset":
            policy_text = "OnFailure" if restart_policy else "OnFailure, the default of a JobSet,"
            problem = f"{policy_text} restarts a failed container in its pod {effect}"
            yield Finding(f"{group.pod_path}.restartPolicy", problem, f"write Never, and {fix}")


def _find_sequential_pods(job: Workload) -> Iterator[Finding]:
    for group in job.groups if job.kind in ("jobset", "job") else ():
        pods = read_job_pods(group.spec)
        if pods.parallel < pods.total and is_indexed_job(group.spec, is_in_jobset=job.kind == "jobset"):
            problem = f"only {pods.parallel} of the {pods.total} pods run at a time: they never meet in one rendezvous"
            yield Finding(f"{group.key_path}.parallelism", problem, f"write {pods.total} if they train together")


def _find_missing_completion_index(job: Workload) -> Iterator[Finding]:
    is_used = _list_used_variables(job, [_COMPLETION_INDEX])
    if job.kind == "job" and is_used and job.spec.get("completionMode") != "Indexed":
        problem = f"without Indexed {_COMPLETION_INDEX} is not set in any pod"
        yield Finding("spec.completionMode", problem, "write Indexed, and as many completions as parallelism")


def _is_training(container: ManifestContainer) -> bool:
    """Whether a container certainly trains together with its peers: it has GPUs, torchrun or a common address."""
    if container.is_idle or any(arg.endswith("sshd") for arg in container.script_argv):
        return False
    has_address = "MASTER_ADDR" in container.env or "MASTER_ADDR" in " ".join(container.argv)
    return container.gpu_count > 0 or bool(container.torchrun_calls) or has_address


_RULES: tuple[_LintRule, ...] = (
    find_refused_fields,
    find_refused_types,
    find_refused_numbers,
    *POD_RULES,
    find_missing_hcas,
    *TORCHRUN_RULES,
    _find_hidden_gang,
    _find_unhandled_failure,
    _find_volcano_restarts,
    _find_missing_host_names,
    _find_missing_index,
    _find_unknown_variables,
    _find_common_port,
    _find_operator_restarts,
    _find_elastic_start,
    _find_early_success,
    _find_many_restarts,
    _find_standalone,
    _find_autoscaler,
    _find_job_restarts,
    _find_sequential_pods,
    _find_missing_completion_index,
    *REJECTION_RULES,
)
