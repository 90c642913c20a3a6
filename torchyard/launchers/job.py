"""Job of Kubernetes itself, for clusters without an operator: an Indexed Job, and a Service that resolves its pods."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis import job_status, pod_facts
from torchyard.lint.workload import is_indexed_job, read_job_pods
from torchyard.model.base import FrozenModel
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import ManifestPlan, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice, ClusterRequirement, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import requirements, template
from torchyard.pods.job_kind import (
    QUEUE_LABEL,
    JobKind,
    PodSet,
    build_metadata,
    describe_object,
    plan_own_job,
)
from torchyard.pods.volumes import Manifest

_API = "batch/v1"
KIND = "Job"
_NODE_NAME = "worker"  # of the nodes and of the container; a Job has no name for its only set of pods
PROGRAM_IS_A_FILE = False
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_JOB_NAME_LABEL = "job-name"  # the controller sets it on the Job's pods; batch.kubernetes.io/job-name came with 1.27


class Options(FrozenModel):
    """The options of this launcher."""

    local_queue: str | None = Field(None, description="a LocalQueue of Kueue, which then starts all pods or none")
    suspend: bool = Field(False, description="the Job waits until it is resumed, for example by Kueue")
    etcd_image: str = Field(_store.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """One Job, and before it the Service of its pods; with etcd-v2 the run's own store before both."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        return user_manifest.plan_manifest(profile, run, JOB_KIND, _list_manifest_requirements(profile))
    if profile.nodes.min != profile.nodes.max:
        problem = f"must be one number, not {profile.nodes}: a Job needs all of its pods"
        raise ProfileError(profile.name, (Finding("nodes", problem),))
    job = _build_job(profile, run, options)
    job_plan = plan_own_job(profile, run, JOB_KIND, job, options.etcd_image, _list_own_requirements(profile, options))
    return job_plan.model_copy(update={"objects": (_build_service(profile, run), *job_plan.objects)})


def _build_job(profile: ResolvedProfile, run: Run, options: Options) -> dict[str, Any]:
    """The Job. A failed pod ends it and nothing restarts: a new attempt is torchyard's decision."""
    node = _build_job_node(profile, run)
    pods = profile.nodes.max
    env = template.build_container_env(profile, run, process_env.pod_environment(profile, node, _INDEX_FIELD))
    container = template.build_container(profile, _NODE_NAME, command.pod_command(profile, run, node), env)
    pod_template = template.build_pod_template(profile, run, container)
    pod_template["spec"]["subdomain"] = run.job(profile)
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
    }
    if options.suspend:
        spec["suspend"] = True
    spec["template"] = pod_template
    return {
        "apiVersion": _API,
        "kind": KIND,
        "metadata": build_metadata(profile, run, options.local_queue),
        "spec": spec,
    }


def _build_service(profile: Profile, run: Run) -> Manifest:
    """The headless Service that resolves the pods' host names, also of pods that are not ready: the agents meet there.

    It selects by the Job's own label, which the pod of the run's store does not have.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": build_metadata(profile, run),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {_JOB_NAME_LABEL: run.job(profile)},
        },
    }


def _build_job_node(profile: Profile, run: Run) -> JobNode:
    """One pod as a node of the job. Its host name is its name without the random suffix, in the run's Service.

    The name resolves to the pod's address also under the host's network, where it is the machine's.
    """
    job = run.job(profile)
    if profile.rendezvous == "etcd-v2":
        endpoint = Endpoint(address=_store.etcd_name(profile, run), port=_store.CLIENT_PORT)
    else:
        endpoint = Endpoint(address=f"{job}-0.{job}", port=torchrun.first_port(run))
    return JobNode(endpoint, process_env.NODE_VARIABLE, f"{job}-$({process_env.NODE_VARIABLE}).{job}")


def _list_pod_sets(job: Manifest) -> Iterator[PodSet]:
    """The pods of a Job, one for each index; the only pod of a Job that is not Indexed."""
    spec = job["spec"]
    pods = read_job_pods(spec)
    if is_indexed_job(spec, is_in_jobset=False):
        yield PodSet(_NODE_NAME, pods.total, spec["template"], naming="by job", parallel_count=pods.parallel)
    else:
        yield PodSet(_NODE_NAME, 1, spec["template"], naming="as job")


def _list_faults(job: Manifest) -> list[Finding]:
    """Why a Job of a manifest cannot be followed; empty if it can, or if it has another shape."""
    return list_job_faults(pod_facts.get_mapping(job, "spec"), f"{describe_object(job)}, spec", is_in_jobset=False)


def list_job_faults(spec: Mapping[str, Any], location: str, *, is_in_jobset: bool) -> list[Finding]:
    """Why a Job with this spec cannot be followed; empty if it can, or if it has another shape."""
    completions = spec.get("completions")
    pod_count = spec.get("parallelism") if completions is None else completions
    if is_indexed_job(spec, is_in_jobset=is_in_jobset):
        if completions is not None or pod_count is None:  # without either number the API server sets both to 1
            return []
        problem = "the API server rejects an Indexed Job without it"
        return [Finding(f"{location}.completions", problem, f"write {pod_count or 1}")]
    if pod_count in (None, 1):
        return []
    problem = "without Indexed the pods of a Job have random names, and a run could not tell its nodes apart"
    remedy = "write Indexed" if completions else f"write Indexed, and spec.completions: {pod_count}"
    return [Finding(f"{location}.completionMode", problem, remedy)]


JOB_KIND = JobKind(
    launcher="job",
    api=_API,
    kind=KIND,
    watch=(WatchedKind(api=_API, kind=KIND), WatchedKind(api="v1", kind="Pod")),
    list_pod_sets=_list_pod_sets,
    made=(),
    list_faults=_list_faults,
    has_random_suffix=True,
)


def _list_own_requirements(profile: Profile, options: Options) -> tuple[ClusterRequirement, ...]:
    own_requirements = list(list_requirements())
    own_requirements.append(Permission(verbs=("create", "get", "list", "delete"), resource="services"))
    has_queue = options.local_queue or QUEUE_LABEL in profile.job.labels
    if not has_queue and profile.nodes.max > 1:
        own_requirements.append(_advise_queue("options.local_queue", "name a LocalQueue of Kueue"))
    return tuple(own_requirements)


def _list_manifest_requirements(profile: Profile) -> tuple[ClusterRequirement, ...]:
    """The requirements of a manifest's Job, and advice about its pods."""
    jobs = [obj for obj in profile.manifest if obj["kind"] == KIND and obj["apiVersion"] == _API]
    if len(jobs) != 1:  # which is refused
        return ()
    job = jobs[0]
    location = describe_object(job)
    queue = pod_facts.to_text(pod_facts.get_mapping(job, "metadata", "labels").get(QUEUE_LABEL))
    spec = pod_facts.get_mapping(job, "spec")
    job_requirements = list(list_requirements())
    scheduler = pod_facts.get_mapping(spec, "template", "spec").get("schedulerName")
    has_default_scheduler = scheduler in (None, "", "default-scheduler")  # another one may start the pods together
    if read_job_pods(spec).total > 1 and not queue and has_default_scheduler:
        remedy = f"name a LocalQueue of Kueue in {QUEUE_LABEL}"
        job_requirements.append(_advise_queue(f"{location}, metadata.labels", remedy))
    return tuple(job_requirements)


def list_requirements() -> tuple[ClusterRequirement, ...]:
    return (requirements.job_permission("jobs.batch"),)


def _advise_queue(location: str, remedy: str) -> Advice:
    """The advice for a Job of several pods without a queue."""
    problem = "no scheduler starts the pods together: some may hold their machines while the others wait for room"
    return Advice(finding=warning_check(location, problem, f"{remedy}, which starts all pods or none"))


# FailureTarget and SuccessCriteriaMet are not read: they precede Failed and Complete until the last pod has ended.
_TERMS = job_status.JobKindTerms(KIND, "Complete", "spec.suspend")


def read_status(observed: Observation) -> Status:
    """The Job's status: its end from its conditions, the rest from its pods."""
    return job_status.build_condition_status(observed, _TERMS, _read_gang(observed))


def _read_gang(observed: Observation) -> job_status.Gang:
    """The number of pods, and of those that run at a time."""
    pods = read_job_pods(pod_facts.get_mapping(job_status.find_job_object(observed, KIND), "spec"))
    return job_status.Gang(pods.total, pods.parallel)
