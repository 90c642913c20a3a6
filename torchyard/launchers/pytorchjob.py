"""Kubeflow's Training Operator, version 1: a PyTorchJob of kubeflow.org/v1, elastic, or of a master and workers."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, Place
from torchyard.diagnosis import job_status, pod_facts
from torchyard.model.base import Noun
from torchyard.model.plan import ManifestPlan, Watched
from torchyard.model.profile import WITH_AGENT, Profile
from torchyard.model.requirements import ClusterNeed, Controller, OpenQueue, Right, Served
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import lease_record, requirements, template
from torchyard.pods.template import Part

API, KIND = "kubeflow.org/v1", "PyTorchJob"
INSTALL = (
    "kubectl apply --server-side -k "
    "'github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.8.1'"
)
INDEX = "metadata.labels['training.kubeflow.org/replica-index']"
OWN = requirements.job_right("pytorchjobs.kubeflow.org")
CONTAINER = "pytorch"  # the operator looks for this name


class Options(Noun):
    """What only this launcher knows."""

    queue: str | None = Field(None, description="of the gang scheduler, where the operator has one")
    etcd_image: str = Field(_store.IMAGE, description="of the run's own store: one that serves the v2 API")
    suspend: bool = Field(False, description="the job waits until somebody, such as Kueue, resumes it")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """One PyTorchJob; with etcd-v2 a store of the run's own before it."""
    options = Options.model_validate(profile.options)
    template.refuse(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        needs = requires(queue_of(profile))
        return user_manifest.plan(
            profile, run, user_manifest.Frame(API, KIND, "pytorchjob", watch(), needs, parts, ports=True)
        )
    job = pytorch_job(profile, run, options)
    etcd = _store.objects(profile, run, options.etcd_image) if profile.rendezvous == "etcd-v2" else ()
    return ManifestPlan(
        launcher="pytorchjob",
        cluster=profile.cluster,
        store=etcd,
        objects=(job,),
        tasks={role.lower(): pods for role, pods in roles(profile).items()},
        container=CONTAINER,
        template=("spec", "pytorchReplicaSpecs", next(iter(roles(profile))), "template"),
        watch=watch(),
        ranks=command.ranks(profile),
        requires=(
            *requires(options.queue),
            *_store.requires(profile),
            *requirements.requires(profile, run, ports=True),
        ),
        **lease_record.of_run(profile, run),
    )


def roles(profile: Profile) -> dict[str, int]:
    """Pods by role. Only a master makes the operator tell the pods their ranks and where it is."""
    if profile.rendezvous in WITH_AGENT:
        return {"Worker": profile.nodes.max}
    return {"Master": 1, **({"Worker": profile.nodes.max - 1} if profile.nodes.max > 1 else {})}


def pytorch_job(profile: Profile, run: Run, options: Options) -> dict[str, Any]:
    """The PyTorchJob. A failed pod stays, with its log; a new try is ours."""
    place = placed(profile, run)
    told = process_env.pod_environment(profile, place, INDEX) if profile.rendezvous in WITH_AGENT else []
    env = template.environment(profile, run, told)
    container = template.container(profile, CONTAINER, command.pod_command(profile, run, place), env)
    # The operator adds 23456 where no port has this name: under the host's network, one such job a node.
    container["ports"] = [{"name": "pytorchjob-port", "containerPort": torchrun.first_port(run)}]
    pod = {"restartPolicy": "Never", "template": template.template(profile, run, container)}
    policy = {"minAvailable": profile.nodes.min, "queue": options.queue}
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": run.job(profile), "labels": template.labels(profile, run)},
        "spec": {
            **elastic(profile, run, place.endpoint),
            "nprocPerNode": str(profile.processes),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
                "schedulingPolicy": {key: value for key, value in policy.items() if value},
                **({"suspend": True} if options.suspend else {}),
            },
            "pytorchReplicaSpecs": {
                role: {"replicas": pods, **copy.deepcopy(pod)} for role, pods in roles(profile).items()
            },
        },
    }


def elastic(profile: Profile, run: Run, meets: Endpoint) -> dict[str, Any]:
    """The rendezvous as the operator knows it, where the agents meet in a store.

    Without an id every job would be called `none`, and a store refuses an id that another job has closed.
    """
    if profile.rendezvous not in WITH_AGENT:
        return {}
    return {
        "elasticPolicy": {
            "rdzvBackend": profile.rendezvous,
            "rdzvId": torchrun.rendezvous_id(profile, run),
            "rdzvHost": meets.address,
            "rdzvPort": meets.port,
            "minReplicas": profile.nodes.min,
            "maxReplicas": profile.nodes.max,
            "maxRestarts": 0,
        }
    }


def placed(profile: Profile, run: Run) -> Place:
    """The operator makes a Service for each pod, and gives the pods of a job with a master their RANK."""
    job, port = run.job(profile), torchrun.first_port(run)
    if profile.rendezvous not in WITH_AGENT:
        return Place(Endpoint(address=f"{job}-master-0", port=port), "RANK")
    own = f"{job}-worker-$({process_env.NODE})"
    if profile.rendezvous == "etcd-v2":
        return Place(Endpoint(address=_store.name(profile, run), port=_store.PORT), process_env.NODE, own)
    return Place(Endpoint(address=f"{job}-worker-0", port=port), process_env.NODE, own)


def watch() -> tuple[Watched, ...]:
    return (
        Watched(api=API, kind=KIND),
        Watched(api="v1", kind="Pod"),
        Watched(api="scheduling.volcano.sh/v1beta1", kind="PodGroup", by_name=True),
    )


def queue_of(profile: Profile) -> str | None:
    """The queue that a manifest's PyTorchJob names for its PodGroup."""
    job = next((each for each in profile.manifest if each["kind"] == KIND), {})
    queue = pod_facts.part(job, "spec", "runPolicy", "schedulingPolicy").get("queue")
    return str(queue) if queue else None


def parts(job: Mapping[str, Any]) -> Iterator[Part]:
    """The replicas of a PyTorchJob; one where their number is not written."""
    for role, part in job["spec"]["pytorchReplicaSpecs"].items():
        pods = 1 if part.get("replicas") is None else int(part["replicas"])
        yield Part(role.lower(), pods, ("spec", "pytorchReplicaSpecs", role, "template"))


def requires(queue: str | None) -> tuple[ClusterNeed, ...]:
    """A closed queue leaves a PyTorchJob Created for ever: no object says why, so it is asked before."""
    return (
        Served(crd="pytorchjobs.kubeflow.org", version="v1", install=INSTALL),
        Controller(label="control-plane=kubeflow-training-operator", gang="--gang-scheduler-name"),
        OWN,
        Right(verbs=("list", "watch"), resource="podgroups.scheduling.volcano.sh"),
        *((OpenQueue(name=queue),) if queue else ()),
    )


def read_status(observed: Observation) -> Status:
    """How the PyTorchJob is: Failed is the operator's word, Succeeded is believed when every pod has succeeded.

    An elastic job is Succeeded to the operator as soon as one worker is, and Running while a worker never fits.
    """
    told = job_status.told(observed, KIND, "Succeeded", "runPolicy.suspend")
    return told or job_status.under_way(observed, job_status.job_pods(observed), gang_of(observed))


def gang_of(observed: Observation) -> job_status.Gang:
    """An elastic job goes on with minReplicas workers."""
    job = job_status.main(observed, KIND) or {}
    specs = pod_facts.part(job, "spec", "pytorchReplicaSpecs").values()
    total = sum(pod_facts.number(pod_facts.part(spec).get("replicas")) or 1 for spec in specs)
    least = pod_facts.number(pod_facts.part(job, "spec", "elasticPolicy").get("minReplicas")) or total
    return job_status.Gang(total, min(least, total))
