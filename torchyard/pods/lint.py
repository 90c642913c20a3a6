"""What a manifest will do that its author does not expect.

The rules follow the sources of Volcano 1.15 and training-operator 1.9.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchyard.pods import lint_address, lint_appwrapper, lint_pod, lint_torchrun
from torchyard.pods.workload import (
    LintFinding,
    ReplicaGroup,
    Workload,
    YamlNode,
    read_workloads,
    yaml_list,
    yaml_number,
    yaml_text,
    yaml_value,
)

_LintRule = Callable[[Workload], Iterator[LintFinding]]

_HOSTS_VARIABLE_PATTERN = re.compile(r"\bV[CK]_\w+_(?:HOSTS|NUM)\b")
_TASK_INDEX_PATTERN = re.compile(r"\bV[CK]_TASK_INDEX\b")
_PUBLISH_FLAG_PATTERN = re.compile(r"--?publish-not-ready-addresses(?:=(?:[tT]|[tT]rue|TRUE|1))?")
_SERVICE_PLUGINS = ("svc", "pytorch", "tensorflow", "mpi", "ray")  # svc, and the plugins that include it
_FAILURE_EVENTS = ("PodFailed", "TaskFailed", "*")
_DEFAULT_JOB_PORT = 23456  # training-operator's own choice
_MAX_RESTARTS = 10


def lint_manifest(objects: Sequence[Mapping[str, Any]], is_renamed: bool = True) -> tuple[str, ...]:
    """One sentence per trap: the object and the key, what happens, what to write instead. Never raises.

    Checks Volcano Jobs, PyTorchJobs, JobSets, AppWrappers around them and the Pods beside them; skips other objects.
    `renamed`: a run gives the job another name.
    """
    jobs = [job for obj in objects for job in read_workloads(obj)]
    findings = [(job.location, finding) for rule in _RULES for job in jobs for finding in rule(job)]
    findings += [
        *lint_torchrun.find_etcd_without_v2(jobs),
        *lint_torchrun.find_shared_rendezvous_ids(jobs, objects),
        *lint_address.find_address_traps(jobs, objects, is_renamed),
        *_find_duplicate_pods(jobs),
        *lint_appwrapper.lint_appwrappers(objects),
    ]
    return tuple(
        dict.fromkeys(f"{location}, {key_path}: {problem}; {fix}." for location, (key_path, problem, fix) in findings)
    )


def _find_duplicate_pods(jobs: Sequence[Workload]) -> Iterator[tuple[str, LintFinding]]:
    locations_by_pod: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        for pod in job.pod_names if job.name else ():
            locations_by_pod[job.namespace, pod].append(job.location)
    duplicates = {
        tuple(locations): pod for (_, pod), locations in reversed(locations_by_pod.items()) if len(locations) > 1
    }
    for locations, pod in duplicates.items():
        names_text = " and ".join(dict.fromkeys(locations[1:]))
        yield locations[0], ("metadata.name", f"{names_text} makes the pod {pod} too", "give each a name of its own")


# --- Volcano -------------------------------------------------------------------------------------------------------


def _find_hidden_gang(job: Workload) -> Iterator[LintFinding]:
    if job.kind == "volcano" and yaml_number(job.spec.get("minAvailable")) == 0 and job.pod_count > 1:
        problem = (
            f"the webhook makes {job.pod_count} of 0, the sum of the replicas: nothing starts until all of them fit"
        )
        yield "spec.minAvailable", problem, f"write {job.pod_count} if that is meant, and 1 if not"


def _find_unhandled_failure(job: Workload) -> Iterator[LintFinding]:
    policy_lists = [job.spec.get("policies"), *(group.spec.get("policies") for group in job.groups)]
    is_handled = _is_failure_handled(policy_lists[0]) or all(
        _is_failure_handled(policy_list) for policy_list in policy_lists[1:]
    )
    if job.kind == "volcano" and job.pod_count > 1 and not is_handled:
        problem = "without a policy a failed pod changes nothing: its peers hang, and they hold the job for ever"
        yield "spec.policies", problem, "write {events: [PodFailed, PodEvicted], action: TerminateJob}"


def _is_failure_handled(policies: object) -> bool:
    """Whether a failed pod has a consequence."""
    events = [
        event
        for policy in yaml_list(policies)
        for event in (yaml_value(policy, "event"), *yaml_list(yaml_value(policy, "events")))
    ]
    return any(event in _FAILURE_EVENTS for event in events) or any(
        yaml_value(policy, "exitCode") for policy in yaml_list(policies)
    )


def _find_volcano_restarts(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups if job.kind == "volcano" else ():
        policy = group.pod.get("restartPolicy") or "Always"
        if policy in ("Always", "OnFailure"):
            problem = f"{policy} restarts a broken container for ever: no pod ever fails, no policy for it fires, "
            yield f"{group.pod_path}.restartPolicy", problem + "and the job stays Running", "write Never"


def _find_missing_host_names(job: Workload) -> Iterator[LintFinding]:
    plugins, variable = _get_plugins(job), _find_variable(job, _HOSTS_VARIABLE_PATTERN)
    fix = 'write svc: ["--publish-not-ready-addresses=true"]'
    if job.kind != "volcano" or job.pod_count < 2:
        return
    if "svc" in plugins and not any(
        _PUBLISH_FLAG_PATTERN.fullmatch(yaml_text(flag)) for flag in yaml_list(plugins["svc"])
    ):
        problem = "a pod has a name only once it is ready: peers that ask earlier fail, or wait for their resolver"
        yield "spec.plugins.svc", problem, fix
    elif not any(plugin in plugins for plugin in _SERVICE_PLUGINS) and variable:
        yield "spec.plugins.svc", f"without this plugin {variable} is empty and the pods have no names", fix


def _find_missing_index(job: Workload) -> Iterator[LintFinding]:
    name = _find_variable(job, _TASK_INDEX_PATTERN)
    is_set = all(name in container.env for container in job.containers)
    if job.kind == "volcano" and name and not is_set and "env" not in _get_plugins(job):
        yield "spec.plugins.env", f"without this plugin {name} is empty in every pod", "write env: []"


def _get_plugins(job: Workload) -> YamlNode:
    plugins = job.spec.get("plugins")
    return plugins if isinstance(plugins, Mapping) else {}


def _find_variable(job: Workload, pattern: re.Pattern[str]) -> str:
    """The first name in the commands that the pattern matches; empty if there is none."""
    command_text = " ".join(arg for container in job.containers for arg in container.argv)
    match = pattern.search(command_text)
    return match[0] if match else ""


# --- PyTorchJob ----------------------------------------------------------------------------------------------------


def _find_common_port(job: Workload) -> Iterator[LintFinding]:
    groups = (group for group in job.groups if job.kind == "pytorchjob" and group.uses_host_network)
    for container in (
        candidate for group in groups for candidate in group.containers if candidate.spec.get("name") == "pytorch"
    ):
        ports = [
            port for port in yaml_list(container.spec.get("ports")) if yaml_value(port, "name") == "pytorchjob-port"
        ]
        if not ports or yaml_value(ports[0], "containerPort") == _DEFAULT_JOB_PORT:
            problem = (
                f"pytorchjob-port is {_DEFAULT_JOB_PORT} for every job that names no other, and under hostNetwork it "
                "is a port of the node: two jobs cannot share one"
            )
            fix = "write {name: pytorchjob-port, containerPort: a number of its own}"
            yield f"{container.key_path}.ports", problem, fix


def _find_unwritten_master(job: Workload) -> Iterator[LintFinding]:
    master = yaml_value(job.spec, "pytorchReplicaSpecs", "Master")
    if job.kind == "pytorchjob" and isinstance(master, Mapping) and yaml_number(master.get("replicas")) != 1:
        problem = "the webhook refuses a Master whose replicas are not written as 1"
        yield "spec.pytorchReplicaSpecs.Master.replicas", problem, "write 1"


def _find_operator_restarts(job: Workload) -> Iterator[LintFinding]:
    run_policy = yaml_value(job.spec, "runPolicy")
    is_bounded = any(
        yaml_number(yaml_value(run_policy, key)) is not None for key in ("backoffLimit", "activeDeadlineSeconds")
    )
    for group in job.groups if job.kind == "pytorchjob" and not is_bounded else ():
        restart_policy = group.spec.get("restartPolicy") or "OnFailure"
        if restart_policy in ("Always", "OnFailure"):
            problem = f"{restart_policy} restarts a broken container for ever, and the job stays Running"
            yield f"{group.key_path}.restartPolicy", problem, "write Never, or a runPolicy.backoffLimit"


def _find_elastic_start(job: Workload) -> Iterator[LintFinding]:
    min_replicas, max_replicas = (
        yaml_number(yaml_value(job.elastic_policy, key)) for key in ("minReplicas", "maxReplicas")
    )
    is_scaled = yaml_value(job.elastic_policy, "metrics") or job.find_option("nnodes") is not None
    if min_replicas is not None and max_replicas is not None and min_replicas != max_replicas and not is_scaled:
        problem = f"torchrun waits 30 s for more than {min_replicas} and then starts without the others: they interrupt it later"
        yield "spec.elasticPolicy.minReplicas", problem, f"write {job.pod_count} for minReplicas and maxReplicas"


def _find_early_success(job: Workload) -> Iterator[LintFinding]:
    workers = _find_worker_group(job)
    # A fixed number of agents wait for each other at the end, and no controller deletes their pods.
    is_fixed_size = yaml_number(yaml_value(job.elastic_policy, "minReplicas")) == yaml_number(
        yaml_value(job.elastic_policy, "maxReplicas")
    )
    if is_fixed_size and yaml_value(job.spec, "runPolicy", "cleanPodPolicy") in (None, "None"):
        return
    if (
        job.elastic_policy
        and workers
        and workers.replicas > 1
        and yaml_value(job.spec, "pytorchReplicaSpecs", "Master") is None
    ):
        problem = "the job is Succeeded as soon as one worker is done, whatever the others do"
        yield "spec.elasticPolicy", problem, "write a Master and no elasticPolicy, or check every pod"


def _find_worker_group(job: Workload) -> ReplicaGroup | None:
    return next((group for group in job.groups if group.name == "Worker"), None)


def _find_many_restarts(job: Workload) -> Iterator[LintFinding]:
    count = yaml_number(yaml_value(job.elastic_policy, "maxRestarts")) or 0
    if count > _MAX_RESTARTS:
        problem = f"a lasting fault restarts all workers {count} times before the job reports it"
        yield "spec.elasticPolicy.maxRestarts", problem, "write 0, or a few for faults that pass"


def _find_standalone(job: Workload) -> Iterator[LintFinding]:
    if yaml_value(job.elastic_policy, "standalone") is True:
        problem = "the operator turns it into an empty PET_STANDALONE, and torchrun crashes on that (ValueError)"
        yield "spec.elasticPolicy.standalone", problem, "leave it out"


_RULES: tuple[_LintRule, ...] = (
    *lint_pod.POD_RULES,
    *lint_torchrun.TORCHRUN_RULES,
    *(
        _find_hidden_gang,
        _find_unhandled_failure,
        _find_volcano_restarts,
        _find_missing_host_names,
        _find_missing_index,
    ),
    *(_find_common_port, _find_unwritten_master, _find_operator_restarts),
    *(_find_elastic_start, _find_early_success, _find_many_restarts, _find_standalone),
)
