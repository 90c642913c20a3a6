"""What a manifest will do that its author does not expect. Read in Volcano 1.15 and training-operator 1.9."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchyard.pods import lint_appwrapper, lint_pod, lint_torchrun
from torchyard.pods.workload import Found, Group, Node, Workload, get, listed, number, read_workloads, text

Trap = Callable[[Workload], Iterator[Found]]

HOSTS = re.compile(r"\bV[CK]_\w+_(?:HOSTS|NUM)\b")
TASK_INDEX = re.compile(r"\bV[CK]_TASK_INDEX\b")
PUBLISH = re.compile(r"--?publish-not-ready-addresses(?:=(?:[tT]|[tT]rue|TRUE|1))?")
MAKES_SERVICE = ("svc", "pytorch", "tensorflow", "mpi", "ray")  # plugins that are svc or bring it along
FAILURES = ("PodFailed", "TaskFailed", "*")
JOB_PORT = 23456  # training-operator's own choice
MANY = 10


def traps(objects: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """One sentence a trap: the object and the key, what happens, what to write instead. Never raises.

    Known are Volcano Jobs, PyTorchJobs, JobSets, AppWrappers around them and the Pods beside them; other objects are
    passed over.
    """
    jobs = [job for each in objects for job in read_workloads(each)]
    found = [(job.where, each) for trap in TRAPS for job in jobs for each in trap(job)]
    found += [*lint_torchrun.without_v2(jobs), *same_pods(jobs), *lint_appwrapper.traps(objects)]
    return tuple(dict.fromkeys(f"{where}, {at}: {happens}; {instead}." for where, (at, happens, instead) in found))


def same_pods(jobs: Sequence[Workload]) -> Iterator[tuple[str, Found]]:
    makers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        for pod in job.pods if job.name else ():
            makers[job.namespace, pod].append(job.where)
    doubled = {tuple(where): pod for (_, pod), where in reversed(makers.items()) if len(where) > 1}
    for where, pod in doubled.items():
        names = " and ".join(dict.fromkeys(where[1:]))
        yield where[0], ("metadata.name", f"{names} makes the pod {pod} too", "give each a name of its own")


# --- Volcano -------------------------------------------------------------------------------------------------------


def hidden_gang(job: Workload) -> Iterator[Found]:
    if job.kind == "volcano" and number(job.spec.get("minAvailable")) == 0 and job.total > 1:
        happens = f"the webhook makes {job.total} of 0, the sum of the replicas: nothing starts until all of them fit"
        yield "spec.minAvailable", happens, f"write {job.total} if that is meant, and 1 if not"


def unanswered_failure(job: Workload) -> Iterator[Found]:
    policies = [job.spec.get("policies"), *(group.spec.get("policies") for group in job.groups)]
    answered = answers(policies[0]) or all(answers(each) for each in policies[1:])
    if job.kind == "volcano" and job.total > 1 and not answered:
        happens = "without a policy a failed pod changes nothing: its peers hang, and they hold the job for ever"
        yield "spec.policies", happens, "write {events: [PodFailed, PodEvicted], action: TerminateJob}"


def answers(policies: object) -> bool:
    """Whether a failed pod has a consequence."""
    events = [event for each in listed(policies) for event in (get(each, "event"), *listed(get(each, "events")))]
    return any(event in FAILURES for event in events) or any(get(each, "exitCode") for each in listed(policies))


def volcano_restarts(job: Workload) -> Iterator[Found]:
    for group in job.groups if job.kind == "volcano" else ():
        policy = group.pod.get("restartPolicy") or "Always"
        if policy in ("Always", "OnFailure"):
            happens = f"{policy} starts a broken container again for ever: no pod ever fails, no policy for it fires, "
            yield f"{group.pod_at}.restartPolicy", happens + "and the job stays Running", "write Never"


def no_names(job: Workload) -> Iterator[Found]:
    found, name = plugins(job), said(job, HOSTS)
    instead = 'write svc: ["--publish-not-ready-addresses=true"]'
    if job.kind != "volcano" or job.total < 2:
        return
    if "svc" in found and not any(PUBLISH.fullmatch(text(flag)) for flag in listed(found["svc"])):
        happens = "a pod has a name only once it is ready: peers that ask earlier fail, or wait for their resolver"
        yield "spec.plugins.svc", happens, instead
    elif not any(each in found for each in MAKES_SERVICE) and name:
        yield "spec.plugins.svc", f"without this plugin {name} is empty and the pods have no names", instead


def no_index(job: Workload) -> Iterator[Found]:
    name = said(job, TASK_INDEX)
    given = all(name in container.env for container in job.containers)
    if job.kind == "volcano" and name and not given and "env" not in plugins(job):
        yield "spec.plugins.env", f"without this plugin {name} is empty in every pod", "write env: []"


def plugins(job: Workload) -> Node:
    found = job.spec.get("plugins")
    return found if isinstance(found, Mapping) else {}


def said(job: Workload, pattern: re.Pattern[str]) -> str:
    """The first of these names that a command has."""
    words = " ".join(word for container in job.containers for word in container.argv)
    match = pattern.search(words)
    return match[0] if match else ""


# --- PyTorchJob ----------------------------------------------------------------------------------------------------


def common_port(job: Workload) -> Iterator[Found]:
    groups = (group for group in job.groups if job.kind == "pytorchjob" and group.host_network)
    for container in (each for group in groups for each in group.containers if each.spec.get("name") == "pytorch"):
        ports = [port for port in listed(container.spec.get("ports")) if get(port, "name") == "pytorchjob-port"]
        if not ports or get(ports[0], "containerPort") == JOB_PORT:
            happens = f"pytorchjob-port is {JOB_PORT} for every job that names no other, and under hostNetwork it is a "
            instead = "write {name: pytorchjob-port, containerPort: a number of its own}"
            yield f"{container.at}.ports", happens + "port of the node: two jobs cannot share one", instead


def master_not_written(job: Workload) -> Iterator[Found]:
    master = get(job.spec, "pytorchReplicaSpecs", "Master")
    if job.kind == "pytorchjob" and isinstance(master, Mapping) and number(master.get("replicas")) != 1:
        happens = "the webhook refuses a Master whose replicas are not written as 1"
        yield "spec.pytorchReplicaSpecs.Master.replicas", happens, "write 1"


def operator_restarts(job: Workload) -> Iterator[Found]:
    policy = get(job.spec, "runPolicy")
    bounded = any(number(get(policy, key)) is not None for key in ("backoffLimit", "activeDeadlineSeconds"))
    for group in job.groups if job.kind == "pytorchjob" and not bounded else ():
        policy = group.spec.get("restartPolicy") or "OnFailure"
        if policy in ("Always", "OnFailure"):
            happens = f"{policy} starts a broken container again for ever, and the job stays Running"
            yield f"{group.at}.restartPolicy", happens, "write Never, or a runPolicy.backoffLimit"


def elastic_start(job: Workload) -> Iterator[Found]:
    least, most = (number(get(job.elastic, key)) for key in ("minReplicas", "maxReplicas"))
    scaled = get(job.elastic, "metrics") or job.option("nnodes") is not None
    if least is not None and most is not None and least != most and not scaled:
        happens = (
            f"torchrun waits 30 s for more than {least} and then starts without the others: they interrupt it later"
        )
        yield "spec.elasticPolicy.minReplicas", happens, f"write {job.total} for minReplicas and maxReplicas"


def early_success(job: Workload) -> Iterator[Found]:
    workers = workers_of(job)
    # Agents that are neither more nor fewer than asked wait for each other at the end, and nobody takes their pods.
    together = number(get(job.elastic, "minReplicas")) == number(get(job.elastic, "maxReplicas"))
    if together and get(job.spec, "runPolicy", "cleanPodPolicy") in (None, "None"):
        return
    if job.elastic and workers and workers.replicas > 1 and get(job.spec, "pytorchReplicaSpecs", "Master") is None:
        happens = "the job is Succeeded as soon as one worker is done, whatever the others do"
        yield "spec.elasticPolicy", happens, "write a Master and no elasticPolicy, or look at every pod"


def workers_of(job: Workload) -> Group | None:
    return next((group for group in job.groups if group.name == "Worker"), None)


def many_restarts(job: Workload) -> Iterator[Found]:
    count = number(get(job.elastic, "maxRestarts")) or 0
    if count > MANY:
        happens = f"a fault that stays makes all workers begin again {count} times before anybody is told"
        yield "spec.elasticPolicy.maxRestarts", happens, "write 0, or a few for faults that pass"


def standalone(job: Workload) -> Iterator[Found]:
    if get(job.elastic, "standalone") is True:
        happens = "the operator makes an empty PET_STANDALONE of it, of which torchrun crashes (ValueError)"
        yield "spec.elasticPolicy.standalone", happens, "leave it out"


TRAPS: tuple[Trap, ...] = (
    *lint_pod.TRAPS,
    *lint_torchrun.TRAPS,
    *(hidden_gang, unanswered_failure, volcano_restarts, no_names, no_index),
    *(common_port, master_not_written, operator_restarts),
    *(elastic_start, early_success, many_restarts, standalone),
)
