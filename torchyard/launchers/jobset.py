"""JobSet of Kubernetes SIGs: a set of Jobs with stable host names; here one Job with a pod for each node."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, Place
from torchyard.diagnosis import job_status, pod_facts
from torchyard.model.base import Noun
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan, Watched
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterNeed, Controller, Object, Right, Served
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import lease_record, requirements, template
from torchyard.pods.template import Part

API, KIND, JOB = "jobset.x-k8s.io/v1alpha2", "JobSet", "worker"
INSTALL = (
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml"
)
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
QUEUE = "kueue.x-k8s.io/queue-name"
LONGEST = 63  # characters of a pod's name


class Options(Noun):
    """What only this launcher knows."""

    queue: str | None = Field(None, description="a LocalQueue of Kueue")
    suspend: bool = Field(False, description="the JobSet waits until somebody, such as Kueue, resumes it")
    etcd_image: str = Field(_store.IMAGE, description="of the run's own store: one that serves the v2 API")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """One JobSet of one Job; with etcd-v2 a store of the run's own before it."""
    options = Options.model_validate(profile.options)
    template.refuse(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        needs = requires(None)
        frame = user_manifest.Frame(API, KIND, "jobset", watch(), needs, parts, suffixed=True)
        return user_manifest.plan(profile, run, frame)
    refuse(profile, run)
    etcd = _store.objects(profile, run, options.etcd_image) if profile.rendezvous == "etcd-v2" else ()
    return ManifestPlan(
        launcher="jobset",
        cluster=profile.cluster,
        store=etcd,
        objects=(job_set(profile, run, options),),
        tasks={f"{JOB}-0": profile.nodes.max},
        suffixed=True,
        container=JOB,
        template=("spec", "replicatedJobs", 0, "template", "spec", "template"),
        watch=watch(),
        ranks=command.ranks(profile),
        requires=(*requires(options.queue), *_store.requires(profile), *requirements.requires(profile, run)),
        **lease_record.of_run(profile, run),
    )


def refuse(profile: Profile, run: Run) -> None:
    """What a JobSet cannot be. Its webhook counts the pods' random ends too (jobset_webhook.go, longestPodName)."""
    findings = []
    if profile.nodes.min != profile.nodes.max:
        findings.append(f"nodes: a JobSet needs all of its pods: one number, not {profile.nodes}")
    last = f"{run.name(profile)}-{max(profile.attempts, run.attempt)}-{JOB}-0-{profile.nodes.max - 1}-abcde"
    if over := max(len(last) - LONGEST, 0):
        findings.append(f"name: the pod {last} would have over {LONGEST} characters: leave out {over} of the profile's")
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def job_set(profile: Profile, run: Run, options: Options) -> dict[str, Any]:
    """The JobSet. A failed pod ends it, and nothing begins again: a new try is ours."""
    place, pods = placed(profile, run), profile.nodes.max
    env = template.environment(profile, run, process_env.pod_environment(profile, place, INDEX))
    container = template.container(profile, JOB, command.pod_command(profile, run, place), env)
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "template": template.template(profile, run, container),
    }
    queue = {QUEUE: options.queue} if options.queue else {}
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": run.job(profile), "labels": {**template.labels(profile, run), **queue}},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
            **({"suspend": True} if options.suspend else {}),
            "replicatedJobs": [
                {
                    "name": JOB,
                    "replicas": 1,
                    "template": {"metadata": {"labels": template.labels(profile, run)}, "spec": job},
                }
            ],
        },
    }


def placed(profile: Profile, run: Run) -> Place:
    """A pod's host name is that of the pod without its random end, in a Service called like the JobSet."""
    job = run.job(profile)
    own = f"{job}-{JOB}-0-$({process_env.NODE}).{job}"
    if profile.rendezvous == "etcd-v2":
        return Place(Endpoint(address=_store.name(profile, run), port=_store.PORT), process_env.NODE, own)
    return Place(Endpoint(address=f"{job}-{JOB}-0-0.{job}", port=torchrun.first_port(run)), process_env.NODE, own)


def watch() -> tuple[Watched, ...]:
    return (Watched(api=API, kind=KIND), Watched(api="v1", kind="Pod"))


def parts(job: Mapping[str, Any]) -> Iterator[Part]:
    """Each Job of a JobSet: <name>-<number>. Without `completions` it ends with any one of its pods."""
    for place, each in enumerate(job["spec"]["replicatedJobs"]):
        spec = each["template"]["spec"]
        way = ("spec", "replicatedJobs", place, "template", "spec", "template")
        for number in range(int(each.get("replicas", 1))):
            yield Part(f"{each['name']}-{number}", int(spec.get("parallelism", 1)), way)


def requires(queue: str | None) -> tuple[ClusterNeed, ...]:
    return (
        Served(crd="jobsets.jobset.x-k8s.io", version="v1alpha2", install=INSTALL),
        # Helm's chart sets the label, the release's manifest does not.
        Controller(label="app.kubernetes.io/name=jobset", deployment="jobset-controller-manager"),
        *((Object(what="LocalQueue", name=queue),) if queue else ()),
        requirements.job_right("jobsets.jobset.x-k8s.io"),
        Right(verbs=("list",), resource="jobs.batch"),  # is the one that it makes gone?
    )


def read_status(observed: Observation) -> Status:
    """How the JobSet is: its conditions tell the end, its pods the rest."""
    told = job_status.told(observed, KIND, "Completed", "spec.suspend")
    begun = any(name.startswith("Removed/") for name in observed.seen)  # no condition tells it
    return told or job_status.under_way(observed, job_status.job_pods(observed), gang_of(observed), begun)


def gang_of(observed: Observation) -> job_status.Gang:
    job, total = job_status.main(observed, KIND) or {}, 0
    for each in pod_facts.rows(job, "spec", "replicatedJobs"):
        replicas, pods = each.get("replicas", 1), pod_facts.part(each, "template", "spec").get("parallelism", 1)
        total += replicas * pods if isinstance(replicas, int) and isinstance(pods, int) else 0
    return job_status.Gang(total, total)
