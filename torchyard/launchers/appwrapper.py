"""AppWrapper: a PyTorchJob inside another object, which Kueue can suspend until the cluster has room for all of it.

Two controllers manage the kind: project-codeflare/appwrapper (v1beta2), and before it the multi-cluster app dispatcher
(v1beta1, in two groups). `kubectl get appwrapper` does not show which group it reads, so full names are used.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from torchyard.diagnosis import job_status, pod_facts
from torchyard.launchers import pytorchjob
from torchyard.model.base import Duration, FrozenModel, Pause
from torchyard.model.plan import ManifestPlan, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd, requirements, template
from torchyard.pods.job_kind import JobKind, build_metadata, list_queue_requirements, plan_own_job
from torchyard.pods.volumes import Manifest

PROGRAM_IS_A_FILE = False
_KIND = "AppWrapper"
_INNER_RESOURCE = "pytorchjobs.kubeflow.org"
_ApiVersion = Literal["workload.codeflare.dev/v1beta2", "workload.codeflare.dev/v1beta1", "mcad.ibm.com/v1beta1"]
V1BETA2: _ApiVersion = "workload.codeflare.dev/v1beta2"
_ANNOTATION_PREFIX = "workload.codeflare.dev.appwrapper/"
_DURATION_ANNOTATIONS = {
    "admission": "admissionGracePeriodDuration",
    "warmup": "warmupGracePeriodDuration",
    "failure": "failureGracePeriodDuration",
    "retry_pause": "retryPausePeriodDuration",
    "deletion_on_failure": "deletionOnFailureGracePeriodDuration",
    "forceful_deletion": "forcefulDeletionGracePeriodDuration",
    "success_ttl": "successTTLDuration",
}
_START_OPTIONS = ("admission", "warmup")
_RETENTION_OPTIONS = ("deletion_on_failure", "success_ttl")
_DISPATCHER_LABEL = "appwrapper.mcad.ibm.com"  # the dispatcher counts the pods that have this label
_INSTALL_COMMAND = "kubectl apply --server-side -f https://github.com/project-codeflare/appwrapper/releases/download/v1.1.2/install.yaml"
_DISPATCHER_INSTALL = (
    "deployment/mcad-controller of github.com/project-codeflare/multi-cluster-app-dispatcher, which is archived; for "
    "the current AppWrapper remove options.api"
)


class Options(FrozenModel):
    """The options of this launcher. The durations are limits and pauses of the controller."""

    api: _ApiVersion = Field(V1BETA2, description="the API of the AppWrapper; v1beta1 is for the archived dispatcher")
    queue: str | None = Field(None, description="a LocalQueue of Kueue")
    admission: Duration | None = Field(
        None, description="time limit until every pod exists; default: deadlines.start + 1m"
    )
    warmup: Duration | None = Field(None, description="time limit until every pod runs; default: deadlines.start + 1m")
    failure: Pause | None = Field(None, description="time between a failed pod and the end of the try")
    retry_pause: Pause | None = Field(None, description="pause between two tries")
    deletion_on_failure: Pause | None = Field(None, description="how long failed pods stay; default: the lease")
    forceful_deletion: Pause | None = Field(None, description="time limit until a deletion is forced")
    success_ttl: Pause | None = Field(None, description="how long a job that succeeded stays; default: the lease")
    retries: int = Field(
        0, ge=0, le=100, description="retries by the controller, which delete the pods and logs of a try"
    )
    priority: int | None = Field(None, description="the priority in the dispatcher's queue (v1beta1)")
    etcd_image: str = Field(etcd.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """The plan of a PyTorchJob, inside an AppWrapper of the same name."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        options = Options.model_validate({"api": _read_api_version(profile)})
        return user_manifest.plan_manifest(
            profile,
            run,
            _build_job_kind(options),
            (*_list_requirements(options), *_list_inner_requirements(pytorchjob.list_requirements(None))),
        )
    job = pytorchjob.build_pytorchjob(profile, run, pytorchjob.Options())
    if options.api == V1BETA2:
        wrapper = _build_appwrapper(job, build_metadata(profile, run, options.queue), profile, options)
    else:
        wrapper = _build_dispatcher_wrapper(job, profile, options)
    inner_requirements = _list_inner_requirements(pytorchjob.list_requirements(None))
    return plan_own_job(
        profile,
        run,
        _build_job_kind(options),
        wrapper,
        options.etcd_image,
        (*_list_requirements(options), *inner_requirements),
    )


def _build_job_kind(options: Options) -> JobKind:
    return JobKind(
        launcher="appwrapper",
        api=options.api,
        kind=_KIND,
        watch=(WatchedKind(api=options.api, kind=_KIND), *pytorchjob.WATCHED_KINDS),
        list_pod_sets=pytorchjob.list_pod_sets,
        find_job=find_wrapped_job,
        has_ports=True,
    )


def _read_api_version(profile: Profile) -> Any:
    """The API version of a manifest's AppWrapper, as it is written; v1beta2 if the manifest has none."""
    for obj in profile.manifest:
        if obj["kind"] == _KIND:
            return obj["apiVersion"]
    return V1BETA2


def find_wrapped_job(wrapper: Manifest) -> Manifest:
    """The PyTorchJob in an AppWrapper of either controller. KeyError, IndexError or TypeError if there is none."""
    spec = wrapper["spec"]
    if "resources" in spec:
        job: Manifest = spec["resources"]["GenericItems"][0]["generictemplate"]
    else:
        job = spec["components"][0]["template"]
    return job


def _build_appwrapper(job: Manifest, metadata: Manifest, profile: Profile, options: Options) -> Manifest:
    """The AppWrapper of v1beta2. Its deadlines end after those of the run, so that torchyard reports what is late."""
    durations = dict.fromkeys(_START_OPTIONS, profile.deadlines.start + 60)
    durations |= dict.fromkeys(_RETENTION_OPTIONS, profile.deadlines.lease)
    durations |= options.model_dump(include=set(_DURATION_ANNOTATIONS), exclude_none=True)
    annotations: dict[str, str] = {}
    for name, key in _DURATION_ANNOTATIONS.items():
        if name in durations:
            # In seconds, because Go's durations have no days: the controller would ignore one that has.
            annotations[f"{_ANNOTATION_PREFIX}{key}"] = f"{math.ceil(durations[name])}s"
    annotations[f"{_ANNOTATION_PREFIX}retryLimit"] = str(options.retries)
    wrapped = copy.deepcopy(job)
    # The controller counts a component that is deleted by its TTL as lost.
    del wrapped["spec"]["runPolicy"]["ttlSecondsAfterFinished"]
    return {
        "apiVersion": options.api,
        "kind": _KIND,
        "metadata": metadata | {"annotations": annotations},
        "spec": {"components": [{"template": wrapped}]},
    }


def _build_dispatcher_wrapper(job: dict[str, Any], profile: ResolvedProfile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta1. Without completionstatus it would run forever."""
    wrapped = copy.deepcopy(job)
    metadata = job["metadata"]
    for replica in wrapped["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["metadata"]["labels"][_DISPATCHER_LABEL] = metadata["name"]
    # The resource definition requires `requests`, even if it is empty.
    pod_resources: dict[str, Any] = {"replicas": profile.nodes.max, "requests": {}}
    for key, value in template.build_resources(profile).items():
        if key != "claims":
            pod_resources[key] = value
    item = {
        "replicas": 1,
        "completionstatus": "Succeeded,Failed",
        "custompodresources": [pod_resources],
        "generictemplate": wrapped,
    }
    requeuing = {"timeInSeconds": math.ceil(profile.deadlines.start + 60), "maxNumRequeuings": max(options.retries, 1)}
    spec: dict[str, Any] = {}
    if options.priority is not None:
        spec["priority"] = options.priority
    spec["schedulingSpec"] = {"minAvailable": profile.nodes.min, "requeuing": requeuing}
    spec["resources"] = {"GenericItems": [item]}
    return {
        "apiVersion": options.api,
        "kind": _KIND,
        "metadata": {"name": metadata["name"], "labels": metadata["labels"]},
        "spec": spec,
    }


def _list_requirements(options: Options) -> tuple[ClusterRequirement, ...]:
    group, _, version = options.api.partition("/")
    job_requirements: list[ClusterRequirement] = []
    verbs: tuple[str, ...] = ("list", "watch")  # for the job's status
    if options.api == V1BETA2:
        job_requirements.append(CrdServed(crd=f"appwrappers.{group}", version=version, install=_INSTALL_COMMAND))
        job_requirements.append(Controller(label="app.kubernetes.io/name=appwrapper"))
        verbs = ("create", *verbs)  # its webhook lets a user wrap only what that user may create
    else:
        job_requirements.append(CrdServed(crd=f"appwrappers.{group}", version=version, install=_DISPATCHER_INSTALL))
    job_requirements += list_queue_requirements(options.queue)
    job_requirements.append(requirements.job_permission(f"appwrappers.{group}"))
    job_requirements.append(Permission(verbs=verbs, resource=_INNER_RESOURCE))
    return tuple(job_requirements)


def _list_inner_requirements(inner_requirements: Iterable[ClusterRequirement]) -> Iterator[ClusterRequirement]:
    """The requirements of the PyTorchJob without the permission to manage it, which only the controller needs."""
    return (requirement for requirement in inner_requirements if requirement != pytorchjob.JOB_PERMISSION)


# Before and between its tries: there may be no PyTorchJob, or one that is being deleted.
_WAITING_PHASES = {"": "is new", "Suspended": "is suspended", "Resuming": "creates its PyTorchJob"}
_ENDED_PHASES = ("Completed", "RunningHoldCompletion")
_RETRY_PHASES = {
    "Resetting": "removes a failed try, to start again",
    "Suspending": "is being preempted by its queue",
}
_PENDING_PHASES = _WAITING_PHASES | _RETRY_PHASES


def read_status(observed: Observation) -> Status:
    """The job's status: the wrapper's own if it waits or has given up, else that of the PyTorchJob in it."""
    wrapper = job_status.find_job_object(observed, _KIND)
    if wrapper is None or pod_facts.is_being_deleted(wrapper):
        return job_status.build_deleted_status(_KIND)
    phase = _read_wrapper_phase(wrapper)
    description = _PENDING_PHASES.get(phase)
    if description:
        return Status(state="pending", reason=f"the AppWrapper {description}{_quote_failed_try(wrapper)}")
    if phase in ("Failed", "Deleted"):
        return _read_failed_status(observed, wrapper)
    if job_status.find_job_object(observed, pytorchjob.KIND) is None:
        return _read_wrapper_status(observed, wrapper)
    inner_status = pytorchjob.read_status(observed)
    if inner_status.state == "failed" and _has_tries_left(wrapper):
        return Status(state="pending", reason=f"{inner_status.reason}; the AppWrapper will start again")
    return inner_status


def _read_failed_status(observed: Observation, wrapper: Mapping[str, Any]) -> Status:
    """The status of an AppWrapper that has given up. A missing component was deleted by another user."""
    if _find_unhealthy_condition(wrapper).get("reason") == "MissingComponent":
        return job_status.build_deleted_status(f"{pytorchjob.KIND} in the AppWrapper")
    return job_status.build_failed_status(observed, f"the AppWrapper failed{_quote_failed_try(wrapper)}")


def _read_wrapper_phase(wrapper: Mapping[str, Any]) -> str:
    """The phase, "" if the wrapper is new. The two controllers store it under different keys."""
    status = pod_facts.get_mapping(wrapper, "status")
    return str(status.get("phase") or status.get("state") or "")


def _read_wrapper_status(observed: Observation, wrapper: Mapping[str, Any]) -> Status:
    """The status of an AppWrapper whose PyTorchJob does not exist yet, or no longer exists."""
    phase = _read_wrapper_phase(wrapper)
    failed_pods = pod_facts.get_mapping(wrapper, "status").get("failed")
    if phase in _ENDED_PHASES and failed_pods:  # the dispatcher reports a failed job as Completed too
        return job_status.build_failed_status(observed, f"the AppWrapper is {phase} with {failed_pods} failed pods")
    if phase in ("Succeeded", "Completed"):
        return job_status.build_succeeded_status(observed, wrapper, 0)
    has_started = any(name.startswith(("Pod/", "Removed/")) for name in observed.states)
    return Status(
        state="running" if has_started else "pending", reason=f"the AppWrapper is {phase}, without a PyTorchJob"
    )


def _has_tries_left(wrapper: Mapping[str, Any]) -> bool:
    """Whether the controller of v1beta2 will try again. Its default is three retries."""
    retry_limit = pod_facts.get_mapping(wrapper, "metadata", "annotations").get(f"{_ANNOTATION_PREFIX}retryLimit", "3")
    retry_count = pod_facts.get_mapping(wrapper, "status").get("resettingCount") or 0
    is_v1beta2 = "components" in pod_facts.get_mapping(wrapper, "spec")
    return is_v1beta2 and str(retry_limit).isdigit() and isinstance(retry_count, int) and retry_count < int(retry_limit)


def _find_unhealthy_condition(wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition with the reason of a failed try, which stays after the AppWrapper has given up; {} if none."""
    return pod_facts.find_condition(wrapper, "Unhealthy") or {}


def _quote_failed_try(wrapper: Mapping[str, Any]) -> str:
    """`: MESSAGE` about a failed try; "" if there is none."""
    message = _find_unhealthy_condition(wrapper).get("message")
    return f": {message}" if message else ""
