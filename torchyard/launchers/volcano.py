"""Volcano: a Job of batch.volcano.sh, whose pods start together or not at all (gang scheduling)."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from torchyard.agents import command, process_env, torchrun
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.diagnosis import job_status, pod_facts
from torchyard.lint.workload import find_master_task
from torchyard.model.base import FrozenModel
from torchyard.model.plan import ManifestPlan, ObjectKind, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, OpenQueue, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd as _store
from torchyard.pods import requirements, template
from torchyard.pods.job_kind import JobKind, PodSet, build_metadata, plan_own_job
from torchyard.pods.volumes import Manifest

PROGRAM_IS_A_FILE = False
_API = "batch.volcano.sh/v1alpha1"
_KIND = "Job"
_TASK_NAME = "worker"
_INSTALL_COMMAND = (
    "helm install volcano volcano --repo https://volcano-sh.github.io/helm-charts -n volcano-system --create-namespace"
)
# An annotation of the pod, set before it is created; the label of the same name came with 1.9.
_INDEX_FIELD = "metadata.annotations['volcano.sh/task-index']"
# Phases that cannot become a success. An Aborted Job could be resumed by hand, which does not happen to a run's Job.
_ENDED_PHASES = {"Terminating": "is being terminated", "Terminated": "was terminated", "Failed": "failed"}
_TTL_PHASES = ("Failed", "Terminated")  # in which the TTL deletes a job that has failed
_ABORTED_PHASES = {"Aborting": "is being aborted", "Aborted": "was aborted"}
_FINAL_PHASES = _ENDED_PHASES | _ABORTED_PHASES


class Options(FrozenModel):
    """The options of this launcher."""

    queue: str = Field("default", description="a Volcano queue; it must be open")
    etcd_image: str = Field(_store.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """One Job with one task; with etcd-v2 the run's own store before it."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        return user_manifest.plan_manifest(profile, run, _JOB_KIND, _list_requirements(_read_queue(profile)))
    job = _build_volcano_job(profile, run, options)
    return plan_own_job(profile, run, _JOB_KIND, job, options.etcd_image, _list_requirements(options.queue))


def _build_volcano_job(profile: ResolvedProfile, run: Run, options: Options) -> dict[str, Any]:
    """The Job, with every default that a webhook would fill in: an installation may lack the webhook."""
    node = _build_job_node(profile, run)
    env = template.build_container_env(profile, run, process_env.pod_environment(profile, node, _INDEX_FIELD))
    worker = template.build_container(profile, _TASK_NAME, command.pod_command(profile, run, node), env)
    task = {
        "name": _TASK_NAME,
        "replicas": profile.nodes.max,
        "minAvailable": profile.nodes.min,
        "template": template.build_pod_template(profile, run, worker),
    }
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": options.queue,
        "minAvailable": profile.nodes.min,
        "maxRetry": 1,
        "ttlSecondsAfterFinished": int(profile.deadlines.lease) or 1,
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
    }
    is_elastic = profile.nodes.min != profile.nodes.max
    if not is_elastic:
        # In an elastic job the other pods continue, and Volcano creates a deleted pod again.
        spec["policies"] = _build_policies()
    spec["tasks"] = [task]
    return {
        "apiVersion": _API,
        "kind": _KIND,
        "metadata": build_metadata(profile, run),
        "spec": spec,
    }


def _build_policies() -> list[dict[str, str]]:
    """End the job if a pod fails or is deleted; otherwise its peers would hold their GPUs forever.

    Volcano must not restart the job: that would delete the failed pod's log and reuse a rendezvous id that is closed.
    A new attempt is torchyard's decision.
    """
    return [{"event": event, "action": "TerminateJob"} for event in ("PodFailed", "PodEvicted")]


def _build_job_node(profile: Profile, run: Run) -> JobNode:
    """One pod as a node of the job. The svc plugin names it <job>-<task>-<i>.<job>, also in the host's network."""
    job = run.job(profile)
    if profile.rendezvous == "etcd-v2":
        endpoint = Endpoint(address=_store.etcd_name(profile, run), port=_store.CLIENT_PORT)
    else:
        endpoint = Endpoint(address=f"{job}-{_TASK_NAME}-0.{job}", port=torchrun.first_port(run))
    return JobNode(endpoint, process_env.NODE_VARIABLE, f"{job}-{_TASK_NAME}-$({process_env.NODE_VARIABLE}).{job}")


def _read_queue(profile: Profile) -> str:
    """The queue of a manifest's Job. Without one, Volcano's webhook sets `default`."""
    for obj in profile.manifest:
        spec = obj.get("spec")
        if obj["kind"] == _KIND and isinstance(spec, dict) and spec.get("queue"):
            return str(spec["queue"])
    return "default"


def _list_pod_sets(job: Manifest) -> Iterator[PodSet]:
    """The tasks of a Job. A task without `replicas` has no pods."""
    for index, task in enumerate(job["spec"]["tasks"]):
        yield PodSet(task.get("name") or f"default{index}", int(task.get("replicas") or 0), task["template"])


def _find_leader(job: Manifest) -> str | None:
    """The task that a plugin gives rank 0, or that starts MPI's ranks; None without such a plugin."""
    for plugin in ("pytorch", "mpi"):
        task_name = find_master_task(job["spec"], plugin)
        if task_name:
            return task_name
    return None


_JOB_KIND = JobKind(
    launcher="volcano",
    api=_API,
    kind=_KIND,
    watch=(
        WatchedKind(api=_API, kind=_KIND),
        WatchedKind(api="v1", kind="Pod"),
        WatchedKind(api="scheduling.volcano.sh/v1beta1", kind="PodGroup"),
    ),
    list_pod_sets=_list_pod_sets,
    # By the plugins svc and ssh; the Secret of ssh is not among them, because nothing here reads Secrets.
    made=(
        ObjectKind(api="v1", kind="Service"),
        ObjectKind(api="v1", kind="ConfigMap"),
        ObjectKind(api="networking.k8s.io/v1", kind="NetworkPolicy"),
    ),
    find_leader=_find_leader,
    has_service=True,
    config_map_suffix="-svc",  # of the plugin svc, with the names of the hosts
    kueue_alternative="use a queue of Volcano (options.queue, in a manifest spec.queue), or another launcher",
)


def _list_requirements(queue: str) -> tuple[ClusterRequirement, ...]:
    return (
        CrdServed(crd="jobs.batch.volcano.sh", version="v1alpha1", install=_INSTALL_COMMAND),
        Controller(label="app=volcano-scheduler"),
        Controller(label="app=volcano-controller"),
        Controller(label="app=volcano-admission"),
        OpenQueue(name=queue),
        requirements.job_permission("jobs.batch.volcano.sh"),
        Permission(verbs=("list", "watch"), resource="podgroups.scheduling.volcano.sh"),
    )


def read_status(observed: Observation) -> Status:
    """The Job's status, from its phase and, where that does not decide, from its pods.

    Its conditions are a history: they show that a Job which is Pending again was Running before.
    """
    job = job_status.find_job_object(observed, _KIND)
    if job is None:
        return job_status.build_deleted_status(_KIND)
    phase = pod_facts.to_text(pod_facts.get_mapping(job, "status", "state").get("phase"))
    pods = job_status.select_job_pods(observed)
    gang = _read_gang(job)
    if phase == "Completed":  # also while it is being deleted, as it is after its TTL
        return job_status.build_succeeded_status(observed, job, gang)
    if pod_facts.is_being_deleted(job) and phase not in _TTL_PHASES:
        return job_status.build_deleted_status(_KIND)
    if phase in _FINAL_PHASES:
        return job_status.build_failed_status(observed, f"the Job {_FINAL_PHASES[phase]} by Volcano")
    if phase in ("", "Pending", "Running") and _is_doomed(job, pods, gang):
        return job_status.build_failed_status(observed, "the Job cannot succeed any more")
    conditions = pod_facts.get_mappings(job, "status", "conditions")
    past_phases = {pod_facts.to_text(condition.get("status")) for condition in conditions}
    return job_status.build_unfinished_status(observed, pods, gang, has_started="Running" in past_phases)


def _read_gang(job: Mapping[str, Any]) -> job_status.Gang:
    """The number of the Job's pods, and how many it needs: all, if minAvailable is missing or 0."""
    total = sum(pod_facts.to_number(task.get("replicas")) for task in pod_facts.get_mappings(job, "spec", "tasks"))
    minimum = pod_facts.to_number(pod_facts.get_mapping(job, "spec").get("minAvailable"))
    return job_status.Gang(total, minimum or total)


def _is_doomed(job: Mapping[str, Any], pods: pod_facts.Pods, gang: job_status.Gang) -> bool:
    """Whether too few pods remain for a success. Volcano itself reports that only when the last pod has ended."""
    for spec in (pod_facts.get_mapping(job, "spec"), *pod_facts.get_mappings(job, "spec", "tasks")):
        for policy in pod_facts.get_mappings(spec, "policies"):
            if str(policy.get("action")).startswith("Restart"):
                return False
    failed = [
        pod for pod in pods.values() if pod_facts.get_pod_phase(pod) == "Failed" and not pod_facts.is_being_deleted(pod)
    ]
    needed_pods = pod_facts.to_number(pod_facts.get_mapping(job, "spec").get("minSuccess")) or gang.min_pods
    return bool(failed) and gang.pod_count - len(failed) < needed_pods
