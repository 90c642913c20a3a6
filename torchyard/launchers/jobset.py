"""JobSet of Kubernetes SIGs: a set of Jobs with stable host names; here one Job with a pod for each node."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis import job_status, pod_facts
from torchyard.launchers.job import list_job_faults
from torchyard.lint.workload import JobPods, is_indexed_job, list_workloads, read_job_pods
from torchyard.model.base import FrozenModel
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan, ObjectKind, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, Permission
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

_API = "jobset.x-k8s.io/v1alpha2"
KIND = "JobSet"
_JOB_NAME = "worker"
PROGRAM_IS_A_FILE = False
_INSTALL_COMMAND = (
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.10.1/manifests.yaml"
)
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_MAX_POD_NAME_CHARS = 63  # characters of a pod's name


class Options(FrozenModel):
    """The options of this launcher."""

    local_queue: str | None = Field(None, description="a LocalQueue of Kueue, which then admits the job")
    suspend: bool = Field(False, description="the JobSet waits until it is resumed, for example by Kueue")
    etcd_image: str = Field(_store.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """One JobSet of one Job; with etcd-v2 the run's own store before it."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        return user_manifest.plan_manifest(profile, run, JOB_KIND, list_requirements())
    _validate_profile(profile, run)
    job = _build_jobset(profile, run, options)
    return plan_own_job(profile, run, JOB_KIND, job, options.etcd_image, list_requirements())


def _validate_profile(profile: Profile, run: Run) -> None:
    """Refuse what a JobSet cannot do. ProfileError with all findings.

    Its webhook counts the random suffix of a pod's name too (jobset_webhook.go, longestPodName).
    """
    findings: list[Finding] = []
    if profile.nodes.min != profile.nodes.max:
        findings.append(Finding("nodes", f"must be one number, not {profile.nodes}: a JobSet needs all of its pods"))
    last_attempt = max(profile.attempts, run.attempt)
    longest_name = f"{run.name(profile)}-{last_attempt}-{_JOB_NAME}-0-{profile.nodes.max - 1}-abcde"
    excess = len(longest_name) - _MAX_POD_NAME_CHARS
    if excess > 0:
        findings.append(
            Finding(
                "name",
                f"the pod's name {longest_name} would exceed {_MAX_POD_NAME_CHARS} characters: shorten the profile's "
                f"name by {excess}",
            )
        )
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _build_jobset(profile: ResolvedProfile, run: Run, options: Options) -> dict[str, Any]:
    """The JobSet. A failed pod ends it and nothing restarts: a new attempt is torchyard's decision."""
    node = _build_job_node(profile, run)
    pods = profile.nodes.max
    env = template.build_container_env(profile, run, process_env.pod_environment(profile, node, _INDEX_FIELD))
    container = template.build_container(profile, _JOB_NAME, command.pod_command(profile, run, node), env)
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "template": template.build_pod_template(profile, run, container),
    }
    spec: dict[str, Any] = {
        "failurePolicy": {"maxRestarts": 0},
        "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
    }
    if options.suspend:
        spec["suspend"] = True
    spec["replicatedJobs"] = [
        {
            "name": _JOB_NAME,
            "replicas": 1,
            "template": {"metadata": {"labels": template.attempt_labels(profile, run)}, "spec": job},
        }
    ]
    return {
        "apiVersion": _API,
        "kind": KIND,
        "metadata": build_metadata(profile, run, options.local_queue),
        "spec": spec,
    }


def _build_job_node(profile: Profile, run: Run) -> JobNode:
    """One pod as a node of the job. Its host name is its name without the random suffix, in the JobSet's Service."""
    job = run.job(profile)
    address = f"{job}-{_JOB_NAME}-0-$({process_env.NODE_VARIABLE}).{job}"
    if profile.rendezvous == "etcd-v2":
        endpoint = Endpoint(address=_store.etcd_name(profile, run), port=_store.CLIENT_PORT)
    else:
        endpoint = Endpoint(address=f"{job}-{_JOB_NAME}-0-0.{job}", port=torchrun.first_port(run))
    return JobNode(endpoint, process_env.NODE_VARIABLE, address)


def _list_pod_sets(job: Manifest) -> Iterator[PodSet]:
    """The pods of each Job that a JobSet creates: Job <name>-<number> of the replicated job <name>."""
    stages = _list_stages(job)
    for replicated_job, stage in zip(job["spec"]["replicatedJobs"], stages, strict=True):
        spec = replicated_job["template"]["spec"]
        pods = read_job_pods(spec)
        naming: Literal["by set", "as set"] = "by set" if is_indexed_job(spec, is_in_jobset=True) else "as set"
        for number in range(_count_or_one(replicated_job.get("replicas"))):
            name = f"{replicated_job['name']}-{number}"
            yield PodSet(name, pods.total, spec["template"], naming, parallel_count=pods.parallel, stage=stage)


def _list_stages(job: Mapping[str, Any]) -> list[int]:
    """The stage of each of a JobSet's replicatedJobs: 0, and one more than that of a Job whose success it waits for.

    A Job that waits until another one is ready starts in the stage of that one.
    """
    stages: dict[str, int] = {}
    stage_list: list[int] = []
    for replicated_job in pod_facts.get_mappings(job, "spec", "replicatedJobs"):
        stage = 0
        for dependency in pod_facts.get_mappings(replicated_job, "dependsOn"):
            earlier_stage = stages.get(pod_facts.to_text(dependency.get("name")), 0)
            stage = max(stage, earlier_stage + (dependency.get("status") == "Complete"))
        stages[pod_facts.to_text(replicated_job.get("name"))] = stage
        stage_list.append(stage)
    return stage_list


def _list_faults(job: Manifest) -> list[Finding]:
    """Why a JobSet of a manifest cannot be followed: the faults of its Jobs. Empty if it can, or has another shape."""
    faults: list[Finding] = []
    for workload in list_workloads(job):
        for group in workload.groups:
            faults += list_job_faults(group.spec, f"{workload.location}, {group.key_path}", is_in_jobset=True)
    return faults


def _find_leader(job: Manifest) -> str | None:
    """The Job of a JobSet's coordinator; None if it names none."""
    coordinator = pod_facts.get_mapping(job, "spec", "coordinator")
    name = coordinator.get("replicatedJob")
    return f"{name}-{pod_facts.to_number(coordinator.get('jobIndex'))}" if name else None


def _count_or_one(value: Any) -> int:
    """A count; 1 if it is left out. Raises TypeError or ValueError if it is not a number."""
    return 1 if value is None else int(value)


JOB_KIND = JobKind(
    launcher="jobset",
    api=_API,
    kind=KIND,
    watch=(WatchedKind(api=_API, kind=KIND), WatchedKind(api="v1", kind="Pod")),
    list_pod_sets=_list_pod_sets,
    made=(ObjectKind(api="batch/v1", kind="Job"), ObjectKind(api="v1", kind="Service")),
    find_leader=_find_leader,
    list_faults=_list_faults,
    has_random_suffix=True,
    has_service=True,
)


def list_requirements() -> tuple[ClusterRequirement, ...]:
    return (
        CrdServed(crd="jobsets.jobset.x-k8s.io", version="v1alpha2", install=_INSTALL_COMMAND),
        # The Helm chart sets the label, the release's manifest does not.
        Controller(label="app.kubernetes.io/name=jobset", deployment="jobset-controller-manager"),
        requirements.job_permission("jobsets.jobset.x-k8s.io"),
        # To check that the Job which the JobSet creates is gone.
        Permission(verbs=("list",), resource="jobs.batch"),
    )


_TERMS = job_status.JobKindTerms(KIND, "Completed", "spec.suspend")


def read_status(observed: Observation) -> Status:
    """The JobSet's status: its end from its conditions, the rest from its pods.

    It runs once the pods of its first stage do: those of a later one do not exist before these have succeeded.
    """
    gang = _read_gang(observed)
    return job_status.build_condition_status(observed, _TERMS, gang, first_pods=_count_first_pods(observed))


def _read_gang(observed: Observation) -> job_status.Gang:
    """The number of pods of all Jobs, and of those that run at a time."""
    total = 0
    parallel = 0
    for pods, _ in _list_job_pods(observed):
        total += pods.total
        parallel += pods.parallel
    return job_status.Gang(total, parallel)


def _count_first_pods(observed: Observation) -> int:
    """The number of pods of the first stage that run at a time."""
    return sum(pods.parallel for pods, stage in _list_job_pods(observed) if stage == 0)


def _list_job_pods(observed: Observation) -> Iterator[tuple[JobPods, int]]:
    """The pods of each of the JobSet's replicatedJobs, and its stage."""
    job = job_status.find_job_object(observed, KIND) or {}
    replicated_jobs = pod_facts.get_mappings(job, "spec", "replicatedJobs")
    for replicated_job, stage in zip(replicated_jobs, _list_stages(job), strict=True):
        replicas = pod_facts.to_number(replicated_job.get("replicas"), 1)
        pods = read_job_pods(pod_facts.get_mapping(replicated_job, "template", "spec"))
        yield JobPods(replicas * pods.total, replicas * pods.parallel), stage
