"""Kubeflow's Training Operator, version 1: a PyTorchJob of kubeflow.org/v1, elastic, or with a master and workers."""

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis import job_status, pod_facts
from torchyard.model.base import FrozenModel
from torchyard.model.plan import ManifestPlan, WatchedKind
from torchyard.model.profile import WITH_AGENT, Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, OpenQueue, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import requirements, template
from torchyard.pods.job_kind import (
    JobKind,
    PodSet,
    build_metadata,
    plan_own_job,
)
from torchyard.pods.volumes import Manifest

_API = "kubeflow.org/v1"
KIND = "PyTorchJob"
PROGRAM_IS_A_FILE = False
_INSTALL_COMMAND = (
    "kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.8.1'"
)
_INDEX_FIELD = "metadata.labels['training.kubeflow.org/replica-index']"
_CONTAINER_NAME = "pytorch"  # the operator looks for this name


class Options(FrozenModel):
    """The options of this launcher."""

    queue: str | None = Field(None, description="a Volcano queue, if the operator has Volcano as its gang scheduler")
    local_queue: str | None = Field(None, description="a LocalQueue of Kueue, which then admits the job")
    etcd_image: str = Field(_store.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")
    suspend: bool = Field(False, description="the job waits until it is resumed, for example by Kueue")


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """One PyTorchJob; with etcd-v2 the run's own store before it."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        return user_manifest.plan_manifest(profile, run, JOB_KIND, list_requirements(_read_queue(profile)))
    job = build_pytorchjob(profile, run, options)
    return plan_own_job(profile, run, JOB_KIND, job, options.etcd_image, list_requirements(options.queue))


def _count_pods_by_role(profile: Profile) -> dict[str, int]:
    """Pods per role. The operator gives pods their ranks and the master's address only if there is a master."""
    if profile.rendezvous in WITH_AGENT:
        return {"Worker": profile.nodes.max}
    counts = {"Master": 1}
    if profile.nodes.max > 1:
        counts["Worker"] = profile.nodes.max - 1
    return counts


def build_pytorchjob(profile: ResolvedProfile, run: Run, options: Options) -> dict[str, Any]:
    """The PyTorchJob. A failed pod and its log stay; a new attempt is torchyard's decision."""
    job_node = _build_job_node(profile, run)
    variables = []
    if profile.rendezvous in WITH_AGENT:
        variables = process_env.pod_environment(profile, job_node, _INDEX_FIELD)
    env = template.build_container_env(profile, run, variables)
    container = template.build_container(profile, _CONTAINER_NAME, command.pod_command(profile, run, job_node), env)
    # If no port has this name, the operator adds 23456: under the host's network, only one such job per node.
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": torchrun.first_port(run)}]
    replica_spec = {"restartPolicy": "Never", "template": template.build_pod_template(profile, run, container)}
    spec: dict[str, Any] = {}
    if profile.rendezvous in WITH_AGENT:
        spec["elasticPolicy"] = _build_elastic_policy(profile, run, job_node.endpoint)
    if profile.resolved_agent == "none":
        # The operator multiplies WORLD_SIZE by this. Without it, every version sets WORLD_SIZE to the number of pods.
        spec["nprocPerNode"] = str(profile.processes)
    spec["runPolicy"] = _build_run_policy(profile, options)
    spec["pytorchReplicaSpecs"] = {
        role: {"replicas": count} | copy.deepcopy(replica_spec) for role, count in _count_pods_by_role(profile).items()
    }
    return {
        "apiVersion": _API,
        "kind": KIND,
        "metadata": build_metadata(profile, run, options.local_queue),
        "spec": spec,
    }


def _build_run_policy(profile: Profile, options: Options) -> dict[str, Any]:
    """Pods stay after the job's end, so that their logs can be read; the job itself stays for the run's lease."""
    scheduling: dict[str, Any] = {"minAvailable": profile.nodes.min}
    if options.queue:
        scheduling["queue"] = options.queue
    policy = {
        "cleanPodPolicy": "None",
        "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
        "schedulingPolicy": scheduling,
    }
    if options.suspend:
        policy["suspend"] = True
    return policy


def _build_elastic_policy(profile: Profile, run: Run, endpoint: Endpoint) -> dict[str, Any]:
    """The rendezvous in the operator's terms, for agents that meet in a store.

    Without an id every job would be called `none`, and a store refuses an id that another job has closed.
    """
    return {
        "rdzvBackend": profile.rendezvous,
        "rdzvId": torchrun.rendezvous_id(profile, run),
        "rdzvHost": endpoint.address,
        "rdzvPort": endpoint.port,
        "minReplicas": profile.nodes.min,
        "maxReplicas": profile.nodes.max,
        "maxRestarts": 0,
    }


def _build_job_node(profile: Profile, run: Run) -> JobNode:
    """One pod as a node of the job. The operator creates a Service for each pod, and sets RANK if there is a master."""
    job = run.job(profile)
    port = torchrun.first_port(run)
    if profile.rendezvous not in WITH_AGENT:
        return JobNode(Endpoint(address=f"{job}-master-0", port=port), "RANK")
    address = f"{job}-worker-$({process_env.NODE_VARIABLE})"
    if profile.rendezvous == "etcd-v2":
        endpoint = Endpoint(address=_store.etcd_name(profile, run), port=_store.CLIENT_PORT)
    else:
        endpoint = Endpoint(address=f"{job}-worker-0", port=port)
    return JobNode(endpoint, process_env.NODE_VARIABLE, address)


def _read_queue(profile: Profile) -> str | None:
    """The queue that a manifest's PyTorchJob sets for its PodGroup; None if it sets none."""
    for obj in profile.manifest:
        if obj["kind"] == KIND:
            queue = pod_facts.get_mapping(obj, "spec", "runPolicy", "schedulingPolicy").get("queue")
            return str(queue) if queue else None
    return None


def _list_pod_sets(job: Manifest) -> Iterator[PodSet]:
    """The replicas of a PyTorchJob, by role; their number defaults to 1."""
    for role, replica_spec in job["spec"]["pytorchReplicaSpecs"].items():
        pods = 1 if replica_spec.get("replicas") is None else int(replica_spec["replicas"])
        yield PodSet(role.lower(), pods, replica_spec["template"])


def _find_leader(_: Manifest) -> str:
    """The role that the operator gives rank 0, if the job has it."""
    return "master"


_WATCHED_KINDS = (
    WatchedKind(api=_API, kind=KIND),
    WatchedKind(api="v1", kind="Pod"),
    WatchedKind(api="scheduling.volcano.sh/v1beta1", kind="PodGroup", by_name=True),
)
JOB_KIND = JobKind("pytorchjob", _API, KIND, _WATCHED_KINDS, _list_pod_sets, find_leader=_find_leader, has_ports=True)


def list_requirements(queue: str | None) -> tuple[ClusterRequirement, ...]:
    """The requirements of a PyTorchJob, without those of its pods.

    The queue is one of them, because a closed queue leaves the job Created forever and no object reports why.
    """
    job_requirements: list[ClusterRequirement] = [
        CrdServed(crd="pytorchjobs.kubeflow.org", version="v1", install=_INSTALL_COMMAND),
        Controller(label="control-plane=kubeflow-training-operator", gang="--gang-scheduler-name"),
        requirements.job_permission("pytorchjobs.kubeflow.org"),
        Permission(verbs=("list", "watch"), resource="podgroups.scheduling.volcano.sh"),
    ]
    if queue:
        job_requirements.append(OpenQueue(name=queue))
    return tuple(job_requirements)


_TERMS = job_status.JobKindTerms(KIND, "Succeeded", "runPolicy.suspend")


def read_status(observed: Observation) -> Status:
    """The PyTorchJob's status: Failed as the operator reports it, Succeeded only once every pod has succeeded.

    The operator reports an elastic job as Succeeded as soon as one worker is, and as Running while one has no node.
    """
    gang = _read_gang(observed)
    status = job_status.find_condition_status(observed, _TERMS, gang)
    return status or job_status.build_unfinished_status(observed, job_status.select_job_pods(observed), gang)


def _read_gang(observed: Observation) -> job_status.Gang:
    """The number of pods and the minimum with which the job continues: minReplicas, if it is elastic."""
    job = job_status.find_job_object(observed, KIND) or {}
    specs = pod_facts.get_mapping(job, "spec", "pytorchReplicaSpecs").values()
    total = sum(pod_facts.to_number(pod_facts.get_mapping(spec).get("replicas")) or 1 for spec in specs)
    minimum = pod_facts.to_number(pod_facts.get_mapping(job, "spec", "elasticPolicy").get("minReplicas")) or total
    return job_status.Gang(total, min(minimum, total))
