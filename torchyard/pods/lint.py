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


def lint_manifest(objects: Sequence[Mapping[str, Any]], renamed: bool = True) -> tuple[str, ...]:
    """One sentence per trap: the object and the key, what happens, what to write instead. Never raises.

    Checks Volcano Jobs, PyTorchJobs, JobSets, AppWrappers around them and the Pods beside them; skips other objects.
    `renamed`: a run gives the job another name.
    """
    jobs = [job for each in objects for job in read_workloads(each)]
    found = [(job.where, each) for trap in _RULES for job in jobs for each in trap(job)]
    found += [
        *lint_torchrun.find_etcd_without_v2(jobs),
        *lint_torchrun.find_shared_rendezvous_ids(jobs, objects),
        *lint_address.find_address_traps(jobs, objects, renamed),
        *_find_same_pods(jobs),
        *lint_appwrapper.lint_appwrappers(objects),
    ]
    return tuple(dict.fromkeys(f"{where}, {at}: {happens}; {instead}." for where, (at, happens, instead) in found))


def _find_same_pods(jobs: Sequence[Workload]) -> Iterator[tuple[str, LintFinding]]:
    makers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        for pod in job.pods if job.name else ():
            makers[job.namespace, pod].append(job.where)
    doubled = {tuple(where): pod for (_, pod), where in reversed(makers.items()) if len(where) > 1}
    for where, pod in doubled.items():
        names = " and ".join(dict.fromkeys(where[1:]))
        yield where[0], ("metadata.name", f"{names} makes the pod {pod} too", "give each a name of its own")


# --- Volcano -------------------------------------------------------------------------------------------------------


def _find_hidden_gang(job: Workload) -> Iterator[LintFinding]:
    if job.kind == "volcano" and yaml_number(job.spec.get("minAvailable")) == 0 and job.total > 1:
        happens = f"the webhook makes {job.total} of 0, the sum of the replicas: nothing starts until all of them fit"
        yield "spec.minAvailable", happens, f"write {job.total} if that is meant, and 1 if not"


def _find_unanswered_failure(job: Workload) -> Iterator[LintFinding]:
    policies = [job.spec.get("policies"), *(group.spec.get("policies") for group in job.groups)]
    answered = _is_failure_answered(policies[0]) or all(_is_failure_answered(each) for each in policies[1:])
    if job.kind == "volcano" and job.total > 1 and not answered:
        happens = "without a policy a failed pod changes nothing: its peers hang, and they hold the job for ever"
        yield "spec.policies", happens, "write {events: [PodFailed, PodEvicted], action: TerminateJob}"


def _is_failure_answered(policies: object) -> bool:
    """Whether a failed pod has a consequence."""
    events = [
        event
        for each in yaml_list(policies)
        for event in (yaml_value(each, "event"), *yaml_list(yaml_value(each, "events")))
    ]
    return any(event in _FAILURE_EVENTS for event in events) or any(
        yaml_value(each, "exitCode") for each in yaml_list(policies)
    )


def _find_volcano_restarts(job: Workload) -> Iterator[LintFinding]:
    for group in job.groups if job.kind == "volcano" else ():
        policy = group.pod.get("restartPolicy") or "Always"
        if policy in ("Always", "OnFailure"):
            happens = f"{policy} restarts a broken container for ever: no pod ever fails, no policy for it fires, "
            yield f"{group.pod_at}.restartPolicy", happens + "and the job stays Running", "write Never"


def _find_missing_names(job: Workload) -> Iterator[LintFinding]:
    found, name = _read_plugins(job), _find_variable(job, _HOSTS_VARIABLE_PATTERN)
    instead = 'write svc: ["--publish-not-ready-addresses=true"]'
    if job.kind != "volcano" or job.total < 2:
        return
    if "svc" in found and not any(_PUBLISH_FLAG_PATTERN.fullmatch(yaml_text(flag)) for flag in yaml_list(found["svc"])):
        happens = "a pod has a name only once it is ready: peers that ask earlier fail, or wait for their resolver"
        yield "spec.plugins.svc", happens, instead
    elif not any(each in found for each in _SERVICE_PLUGINS) and name:
        yield "spec.plugins.svc", f"without this plugin {name} is empty and the pods have no names", instead


def _find_missing_index(job: Workload) -> Iterator[LintFinding]:
    name = _find_variable(job, _TASK_INDEX_PATTERN)
    given = all(name in container.env for container in job.containers)
    if job.kind == "volcano" and name and not given and "env" not in _read_plugins(job):
        yield "spec.plugins.env", f"without this plugin {name} is empty in every pod", "write env: []"


def _read_plugins(job: Workload) -> YamlNode:
    found = job.spec.get("plugins")
    return found if isinstance(found, Mapping) else {}


def _find_variable(job: Workload, pattern: re.Pattern[str]) -> str:
    """The first name in the commands that the pattern matches; empty if there is none."""
    words = " ".join(word for container in job.containers for word in container.argv)
    match = pattern.search(words)
    return match[0] if match else ""


# --- PyTorchJob ----------------------------------------------------------------------------------------------------


def _find_common_port(job: Workload) -> Iterator[LintFinding]:
    groups = (group for group in job.groups if job.kind == "pytorchjob" and group.host_network)
    for container in (each for group in groups for each in group.containers if each.spec.get("name") == "pytorch"):
        ports = [
            port for port in yaml_list(container.spec.get("ports")) if yaml_value(port, "name") == "pytorchjob-port"
        ]
        if not ports or yaml_value(ports[0], "containerPort") == _DEFAULT_JOB_PORT:
            happens = (
                f"pytorchjob-port is {_DEFAULT_JOB_PORT} for every job that names no other, and under hostNetwork it "
                "is a port of the node: two jobs cannot share one"
            )
            instead = "write {name: pytorchjob-port, containerPort: a number of its own}"
            yield f"{container.at}.ports", happens, instead


def _find_unwritten_master(job: Workload) -> Iterator[LintFinding]:
    master = yaml_value(job.spec, "pytorchReplicaSpecs", "Master")
    if job.kind == "pytorchjob" and isinstance(master, Mapping) and yaml_number(master.get("replicas")) != 1:
        happens = "the webhook refuses a Master whose replicas are not written as 1"
        yield "spec.pytorchReplicaSpecs.Master.replicas", happens, "write 1"


def _find_operator_restarts(job: Workload) -> Iterator[LintFinding]:
    policy = yaml_value(job.spec, "runPolicy")
    bounded = any(yaml_number(yaml_value(policy, key)) is not None for key in ("backoffLimit", "activeDeadlineSeconds"))
    for group in job.groups if job.kind == "pytorchjob" and not bounded else ():
        policy = group.spec.get("restartPolicy") or "OnFailure"
        if policy in ("Always", "OnFailure"):
            happens = f"{policy} restarts a broken container for ever, and the job stays Running"
            yield f"{group.at}.restartPolicy", happens, "write Never, or a runPolicy.backoffLimit"


def _find_elastic_start(job: Workload) -> Iterator[LintFinding]:
    least, most = (yaml_number(yaml_value(job.elastic, key)) for key in ("minReplicas", "maxReplicas"))
    scaled = yaml_value(job.elastic, "metrics") or job.option("nnodes") is not None
    if least is not None and most is not None and least != most and not scaled:
        happens = (
            f"torchrun waits 30 s for more than {least} and then starts without the others: they interrupt it later"
        )
        yield "spec.elasticPolicy.minReplicas", happens, f"write {job.total} for minReplicas and maxReplicas"


def _find_early_success(job: Workload) -> Iterator[LintFinding]:
    workers = _find_worker_group(job)
    # A fixed number of agents wait for each other at the end, and no controller deletes their pods.
    together = yaml_number(yaml_value(job.elastic, "minReplicas")) == yaml_number(
        yaml_value(job.elastic, "maxReplicas")
    )
    if together and yaml_value(job.spec, "runPolicy", "cleanPodPolicy") in (None, "None"):
        return
    if (
        job.elastic
        and workers
        and workers.replicas > 1
        and yaml_value(job.spec, "pytorchReplicaSpecs", "Master") is None
    ):
        happens = "the job is Succeeded as soon as one worker is done, whatever the others do"
        yield "spec.elasticPolicy", happens, "write a Master and no elasticPolicy, or check every pod"


def _find_worker_group(job: Workload) -> ReplicaGroup | None:
    return next((group for group in job.groups if group.name == "Worker"), None)


def _find_many_restarts(job: Workload) -> Iterator[LintFinding]:
    count = yaml_number(yaml_value(job.elastic, "maxRestarts")) or 0
    if count > _MAX_RESTARTS:
        happens = f"a lasting fault restarts all workers {count} times before the job reports it"
        yield "spec.elasticPolicy.maxRestarts", happens, "write 0, or a few for faults that pass"


def _find_standalone(job: Workload) -> Iterator[LintFinding]:
    if yaml_value(job.elastic, "standalone") is True:
        happens = "the operator turns it into an empty PET_STANDALONE, and torchrun crashes on that (ValueError)"
        yield "spec.elasticPolicy.standalone", happens, "leave it out"


_RULES: tuple[_LintRule, ...] = (
    *lint_pod.POD_RULES,
    *lint_torchrun.TORCHRUN_RULES,
    *(_find_hidden_gang, _find_unanswered_failure, _find_volcano_restarts, _find_missing_names, _find_missing_index),
    *(_find_common_port, _find_unwritten_master, _find_operator_restarts),
    *(_find_elastic_start, _find_early_success, _find_many_restarts, _find_standalone),
)
