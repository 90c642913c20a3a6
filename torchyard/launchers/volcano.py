"""Volcano: a Job of batch.volcano.sh, whose pods start together or not at all."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, Place
from torchyard.diagnosis import job_status, pod_facts
from torchyard.model.base import Noun
from torchyard.model.plan import ManifestPlan, Watched
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterNeed, Controller, OpenQueue, Right, Served
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import lease_record, requirements, template
from torchyard.pods.template import Part

API, KIND, TASK = "batch.volcano.sh/v1alpha1", "Job", "worker"
INSTALL = (
    "helm install volcano volcano --repo https://volcano-sh.github.io/helm-charts -n volcano-system --create-namespace"
)
# Of the pod, written before it is created; the label of the same name came with 1.9.
INDEX = "metadata.annotations['volcano.sh/task-index']"
# Phases that do not become good any more. Aborted may be resumed by hand, which nobody does to a run.
ENDING = {"Terminating": "is being terminated", "Terminated": "was terminated", "Failed": "failed"}
ABORTED = {"Aborting": "is being aborted", "Aborted": "was aborted"}


class Options(Noun):
    """What only this launcher knows."""

    queue: str = Field("default", description="of Volcano; it must be open")
    etcd_image: str = Field(_store.IMAGE, description="of the run's own store: one that serves the v2 API")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """One Job with one task; with etcd-v2 a store of the run's own before it."""
    options = Options.model_validate(profile.options)
    template.refuse(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        needs = requires(queue_of(profile))
        return user_manifest.plan(profile, run, user_manifest.Frame(API, KIND, "volcano", watch(), needs, parts))
    job = volcano_job(profile, run, options)
    etcd = _store.objects(profile, run, options.etcd_image) if profile.rendezvous == "etcd-v2" else ()
    return ManifestPlan(
        launcher="volcano",
        cluster=profile.cluster,
        store=etcd,
        objects=(job,),
        tasks={TASK: profile.nodes.max},
        container=TASK,
        template=("spec", "tasks", 0, "template"),
        watch=watch(),
        ranks=command.ranks(profile),
        requires=(*requires(options.queue), *_store.requires(profile), *requirements.requires(profile, run)),
        **lease_record.of_run(profile, run),
    )


def volcano_job(profile: Profile, run: Run, options: Options) -> dict[str, Any]:
    """The Job. Every default that a webhook would fill in is written: an installation may lack the webhook."""
    place = placed(profile, run)
    env = template.environment(profile, run, process_env.pod_environment(profile, place, INDEX))
    worker = template.container(profile, TASK, command.pod_command(profile, run, place), env)
    task = {
        "name": TASK,
        "replicas": profile.nodes.max,
        "minAvailable": profile.nodes.min,
        "template": template.template(profile, run, worker),
    }
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": run.job(profile), "labels": template.labels(profile, run)},
        "spec": {
            "schedulerName": "volcano",
            "queue": options.queue,
            "minAvailable": profile.nodes.min,
            "maxRetry": 1,
            "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
            "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
            **policies(profile),
            "tasks": [task],
        },
    }


def policies(profile: Profile) -> dict[str, list[dict[str, str]]]:
    """A pod that fails or is deleted ends the job: its peers would hold their GPUs for ever. A new try is ours.

    Restarting would delete the failed pod's log and meet under a rendezvous id that is closed. An elastic job has no
    policy, because a deleted pod has failed before it is gone: the others go on, and Volcano makes it anew.
    """
    elastic = profile.nodes.min != profile.nodes.max
    ends = [{"event": event, "action": "TerminateJob"} for event in ("PodFailed", "PodEvicted")]
    return {} if elastic else {"policies": ends}


def placed(profile: Profile, run: Run) -> Place:
    """The svc plugin gives each pod the name <job>-<task>-<i>.<job>, also under the host's network."""
    job = run.job(profile)
    if profile.rendezvous == "etcd-v2":
        endpoint = Endpoint(address=_store.name(profile, run), port=_store.PORT)
    else:
        endpoint = Endpoint(address=f"{job}-{TASK}-0.{job}", port=torchrun.first_port(run))
    return Place(endpoint, process_env.NODE, f"{job}-{TASK}-$({process_env.NODE}).{job}")


def watch() -> tuple[Watched, ...]:
    return (
        Watched(api=API, kind=KIND),
        Watched(api="v1", kind="Pod"),
        Watched(api="scheduling.volcano.sh/v1beta1", kind="PodGroup"),
    )


def queue_of(profile: Profile) -> str:
    """The queue that a manifest's Job names; Volcano's webhook makes it `default` where it names none."""
    specs = [each.get("spec") for each in profile.manifest if each["kind"] == KIND]
    return next((str(spec["queue"]) for spec in specs if isinstance(spec, dict) and spec.get("queue")), "default")


def parts(job: Mapping[str, Any]) -> Iterator[Part]:
    """The tasks of a Job. Replicas that are not written are none."""
    for place, task in enumerate(job["spec"]["tasks"]):
        pods = int(task.get("replicas") or 0)
        yield Part(task.get("name") or f"default{place}", pods, ("spec", "tasks", place, "template"))


def requires(queue: str) -> tuple[ClusterNeed, ...]:
    return (
        Served(crd="jobs.batch.volcano.sh", version="v1alpha1", install=INSTALL),
        *(Controller(label=f"app=volcano-{name}") for name in ("scheduler", "controller", "admission")),
        OpenQueue(name=queue),
        requirements.job_right("jobs.batch.volcano.sh"),
        Right(verbs=("list", "watch"), resource="podgroups.scheduling.volcano.sh"),
    )


def read_status(observed: Observation) -> Status:
    """How the Job is, by its phase and, where that does not tell, by its pods.

    Its conditions are a history: a Job that is Pending again has been Running before.
    """
    job = job_status.main(observed, KIND)
    if job is None or pod_facts.leaving(job):
        return job_status.deleted(KIND)
    phase = pod_facts.text(pod_facts.part(job, "status", "state").get("phase"))
    pods, gang = job_status.job_pods(observed), gang_of(job)
    if phase == "Completed":
        return job_status.succeeded(observed)
    if phase in ENDING or phase in ABORTED:
        return job_status.failed(observed, f"the Job {({**ENDING, **ABORTED})[phase]} by Volcano")
    if phase in ("", "Pending", "Running") and is_doomed(job, pods, gang):
        return job_status.failed(observed, "the Job cannot succeed any more")
    history = {pod_facts.text(each.get("status")) for each in pod_facts.rows(job, "status", "conditions")}
    return job_status.under_way(observed, pods, gang, "Running" in history)


def gang_of(job: Mapping[str, Any]) -> job_status.Gang:
    """Without minAvailable, or with 0, Volcano's webhook takes all."""
    total = sum(pod_facts.number(task.get("replicas")) for task in pod_facts.rows(job, "spec", "tasks"))
    return job_status.Gang(total, pod_facts.number(pod_facts.part(job, "spec").get("minAvailable")) or total)


def is_doomed(job: Mapping[str, Any], pods: pod_facts.Pods, gang: job_status.Gang) -> bool:
    """Whether too few pods are left to succeed: Volcano says so only when the last one has ended."""
    written = [pod_facts.part(job, "spec"), *pod_facts.rows(job, "spec", "tasks")]
    policies = [policy for each in written for policy in pod_facts.rows(each, "policies")]
    if any(str(policy.get("action")).startswith("Restart") for policy in policies):
        return False
    lost = [pod for pod in pods.values() if pod_facts.phase(pod) == "Failed" and not pod_facts.leaving(pod)]
    return bool(lost) and gang.pods - len(lost) < gang.least
