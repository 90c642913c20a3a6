"""AppWrapper: a job inside another object, which Kueue can suspend until the cluster has room for all of it.

A profile's job is a PyTorchJob; the AppWrapper of a manifest may also contain a JobSet or plain Pods.

Two controllers manage the kind: project-codeflare/appwrapper (v1beta2), and before it the multi-cluster app dispatcher
(v1beta1, in two groups). `kubectl get appwrapper` does not show which group it reads, so full names are used.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from torchyard.diagnosis import job_status, pod_facts
from torchyard.launchers import job as plain_job
from torchyard.launchers import jobset, pytorchjob
from torchyard.lint.workload import has_pod_template, list_wrapped_objects
from torchyard.model.base import Duration, FrozenModel, Pause
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd, requirements, template
from torchyard.pods.job_kind import (
    JobKind,
    PodSet,
    build_metadata,
    describe_object,
    plan_own_job,
)
from torchyard.pods.volumes import Manifest

PROGRAM_IS_A_FILE = False
_KIND = "AppWrapper"
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
_ITEM_KEYS = ("spec", "resources", "GenericItems")
_DISPATCHER_LABEL = "appwrapper.mcad.ibm.com"  # the dispatcher counts the pods that have this label
_INSTALL_COMMAND = "kubectl apply --server-side -f https://github.com/project-codeflare/appwrapper/releases/download/v1.1.2/install.yaml"
_DISPATCHER_INSTALL = (
    "deployment/mcad-controller of github.com/project-codeflare/multi-cluster-app-dispatcher, which is archived; for "
    "the current AppWrapper remove options.api"
)


class Options(FrozenModel):
    """The options of this launcher. The durations are limits and pauses of the controller."""

    api: _ApiVersion = Field(V1BETA2, description="the API of the AppWrapper; v1beta1 is for the archived dispatcher")
    local_queue: str | None = Field(None, description="a LocalQueue of Kueue, which then admits the job")
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

    @model_validator(mode="after")
    def validate_queue(self) -> "Options":
        if self.local_queue and self.api != V1BETA2:
            raise ValueError(
                f"local_queue: requires api: {V1BETA2}, because Kueue does not manage the AppWrappers of the archived "
                "dispatcher; set it to null"
            )
        return self


class _WrappedKind(NamedTuple):
    """A kind of job inside an AppWrapper.

    job_kind: of the job; of plain Pods, which are the job together, that of the AppWrapper.
    resource: the full name of the kind.
    requirements: of the job without the permission to manage it, which only the controller needs.
    read_status: its status, once the AppWrapper has created it.
    """

    kind: str
    api: str
    resource: str
    watch: tuple[WatchedKind, ...]
    requirements: tuple[ClusterRequirement, ...]
    read_status: Callable[[Observation], Status]
    job_kind: JobKind | None = None


def plan(profile: ResolvedProfile, run: Run) -> ManifestPlan:
    """The plan of a PyTorchJob, inside an AppWrapper of the same name."""
    options = Options.model_validate(profile.options)
    template.validate_pod_profile(profile)
    if profile.manifest:
        from torchyard.pods import user_manifest

        options = Options.model_validate({"api": _read_api_version(profile)})
        wrapped_kind = _find_wrapped_kind(_find_wrapper(profile)) or _PYTORCHJOB
        return user_manifest.plan_manifest(
            profile,
            run,
            _build_job_kind(options, wrapped_kind),
            (*_list_requirements(options, wrapped_kind), *wrapped_kind.requirements),
        )
    job = pytorchjob.build_pytorchjob(profile, run, pytorchjob.Options())
    if options.api == V1BETA2:
        wrapper = _build_appwrapper(job, build_metadata(profile, run, options.local_queue), profile, options)
    else:
        wrapper = _build_dispatcher_wrapper(job, profile, options)
    return plan_own_job(
        profile,
        run,
        _build_job_kind(options, _PYTORCHJOB),
        wrapper,
        options.etcd_image,
        (*_list_requirements(options, _PYTORCHJOB), *_PYTORCHJOB.requirements),
    )


def _build_job_kind(options: Options, wrapped_kind: _WrappedKind) -> JobKind:
    """The kind of an AppWrapper with this kind of job in it."""
    fields: dict[str, Any] = {}
    job_kind = wrapped_kind.job_kind
    if job_kind:
        fields["made"] = job_kind.made
        fields["find_job"] = find_wrapped_job
        fields["find_leader"] = job_kind.find_leader
        fields["has_ports"] = job_kind.has_ports
        fields["has_random_suffix"] = job_kind.has_random_suffix
        fields["has_service"] = job_kind.has_service
    if options.api != V1BETA2:
        fields["kueue_alternative"] = (
            "remove it, or use the current AppWrapper; the archived dispatcher has its own queue"
        )
    return JobKind(
        launcher="appwrapper",
        api=options.api,
        kind=_KIND,
        watch=(WatchedKind(api=options.api, kind=_KIND), *wrapped_kind.watch),
        list_pod_sets=job_kind.list_pod_sets if job_kind else _list_plain_pods,
        list_companions=_list_companions,
        list_faults=_list_faults,
        **fields,
    )


def _find_wrapper(profile: Profile) -> Manifest | None:
    """The AppWrapper of a manifest; None if it has none."""
    return next((obj for obj in profile.manifest if obj["kind"] == _KIND), None)


def _read_api_version(profile: Profile) -> Any:
    """The API version of a manifest's AppWrapper; v1beta2 if there is none, or this launcher does not know it."""
    wrapper = _find_wrapper(profile)
    api = wrapper["apiVersion"] if wrapper else V1BETA2
    return api if api in get_args(_ApiVersion) else V1BETA2


# --- what an AppWrapper contains


def find_wrapped_job(wrapper: Manifest) -> Manifest:
    """The job in an AppWrapper of either controller. KeyError, IndexError or TypeError if there is none."""
    for obj in _list_components(wrapper):
        if _get_wrapped_kind(obj):
            return obj
    raise KeyError("no job in the AppWrapper")


def _list_components(wrapper: object) -> list[Manifest]:
    """The objects in an AppWrapper; empty if it has another shape."""
    return [obj for obj in list_wrapped_objects(wrapper) if isinstance(obj, dict)]


def _get_wrapped_kind(obj: Mapping[str, Any]) -> _WrappedKind | None:
    """The kind of job that a component is; None if it is another object, or a plain Pod."""
    for wrapped_kind in (_PYTORCHJOB, _JOBSET, _JOB):
        if (obj.get("apiVersion"), obj.get("kind")) == (wrapped_kind.api, wrapped_kind.kind):
            return wrapped_kind
    return None


def _get_job_kind(obj: Mapping[str, Any]) -> JobKind | None:
    """The kind of job that a component is, as its own launcher plans it; None if it is another object."""
    wrapped_kind = _get_wrapped_kind(obj)
    return wrapped_kind.job_kind if wrapped_kind else None


def _find_wrapped_kind(wrapper: object) -> _WrappedKind | None:
    """The kind of job in an AppWrapper: of its first job, or else of its Pods; None if it has neither."""
    components = _list_components(wrapper)
    wrapped_kinds = [wrapped_kind for obj in components if (wrapped_kind := _get_wrapped_kind(obj))]
    if wrapped_kinds:
        return wrapped_kinds[0]
    return _PODS if any(_is_pod(obj) for obj in components) else None


def _is_pod(obj: Mapping[str, Any]) -> bool:
    return (obj.get("apiVersion"), obj.get("kind")) == ("v1", "Pod")


def _list_plain_pods(wrapper: Manifest) -> Iterator[PodSet]:
    """The Pods that an AppWrapper contains, each a set of one."""
    for obj in _list_components(wrapper):
        if _is_pod(obj):
            yield PodSet(obj["metadata"]["name"], 1, obj, naming="own")


def _list_companions(wrapper: Manifest) -> list[Manifest]:
    """The objects beside the job in an AppWrapper."""
    wrapped_kind = _find_wrapped_kind(wrapper)
    is_job = _is_pod if wrapped_kind is _PODS else _get_wrapped_kind
    return [obj for obj in _list_components(wrapper) if not is_job(obj)]


def _list_faults(wrapper: Manifest) -> list[Finding]:
    """Why an AppWrapper cannot be followed: a run watches one job. Empty if it can."""
    location = describe_object(wrapper)
    faults = [*_list_shape_faults(wrapper, location), *_list_content_faults(wrapper, location)]
    return [*faults, *_list_item_faults(wrapper, location)][:1]


def _list_shape_faults(wrapper: Manifest, location: str) -> Iterator[Finding]:
    """Yield the keys that prevent the objects of an AppWrapper from being read."""
    for keys, template_key in ((("spec", "components"), "template"), (_ITEM_KEYS, "generictemplate")):
        items = pod_facts.get_mapping(wrapper, *keys[:-1]).get(keys[-1])
        key_path = f"{location}, {'.'.join(keys)}"
        if isinstance(items, Mapping):
            yield Finding(key_path, "it must be a list, whose items begin with `-`")
        for index, item in enumerate(items if isinstance(items, list) else ()):
            for key in pod_facts.get_mapping(item):
                if key != template_key and str(key).lower() == template_key:
                    problem = "it is not a field of an AppWrapper"
                    yield Finding(f"{key_path}[{index}].{key}", problem, f"write {template_key}")


def _list_content_faults(wrapper: Manifest, location: str) -> Iterator[Finding]:
    """Yield the objects in an AppWrapper that cannot be followed."""
    components = _list_components(wrapper)
    for obj in components:
        is_known = _get_wrapped_kind(obj) or _is_pod(obj)
        if not is_known and has_pod_template(obj):
            problem = f"the pods of a {obj.get('kind')} of {obj.get('apiVersion')} cannot be followed"
            yield Finding(f"{location}, {describe_object(obj)}", problem, f"write {_FOLLOWED}")
    jobs = [obj for obj in components if _get_wrapped_kind(obj)]
    if len(jobs) > 1:
        names = " and ".join(f"the {describe_object(obj)}" for obj in jobs)
        yield Finding(location, f"it contains {names}, and a run has one job: write an AppWrapper for each")
    for obj in jobs:
        job_kind = _get_job_kind(obj)
        for finding in job_kind.list_faults(obj) if job_kind else ():
            yield replace(finding, where=f"{location}, {finding.where}")
    items = pod_facts.get_mapping(wrapper, "spec", "resources").get("GenericItems")
    is_list = items is None or isinstance(items, list)
    if is_list and not jobs and not any(_is_pod(obj) for obj in components):
        kinds = ", ".join(str(obj.get("kind")) for obj in components)
        contents = f"no job, but {kinds}" if kinds else "no object that could be read"
        yield Finding(location, f"it contains {contents}: write {_FOLLOWED}")


def _list_item_faults(wrapper: Manifest, location: str) -> Iterator[Finding]:
    """Yield the faults of the items of v1beta1."""
    key_path = f"{location}, spec.resources.GenericItems"
    items = pod_facts.get_mapping(wrapper, "spec", "resources").get("GenericItems")
    if items is not None and not isinstance(items, list):
        yield Finding(key_path, "it must be a list, whose items begin with `-`")
    elif any(item.get("replicas", 1) != 1 for item in items or () if isinstance(item, dict)):
        yield Finding(key_path, "an item has replicas other than 1: write the item once, with more pods in it")


# --- building


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
    first_pods = next(iter(pytorchjob.JOB_KIND.list_pod_sets(job)))
    container = first_pods.template["spec"]["containers"][0]
    for key, value in pod_facts.get_mapping(container, "resources").items():
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


def _list_requirements(options: Options, wrapped_kind: _WrappedKind) -> tuple[ClusterRequirement, ...]:
    group, _, version = options.api.partition("/")
    job_requirements: list[ClusterRequirement] = []
    verbs: tuple[str, ...] = ("list", "watch")  # for the job's status
    if options.api == V1BETA2:
        job_requirements.append(CrdServed(crd=f"appwrappers.{group}", version=version, install=_INSTALL_COMMAND))
        job_requirements.append(Controller(label="app.kubernetes.io/name=appwrapper"))
        verbs = ("create", *verbs)  # its webhook lets a user wrap only what that user may create
    else:
        job_requirements.append(CrdServed(crd=f"appwrappers.{group}", version=version, install=_DISPATCHER_INSTALL))
    job_requirements.append(requirements.job_permission(f"appwrappers.{group}"))
    job_requirements.append(Permission(verbs=verbs, resource=wrapped_kind.resource))
    return tuple(job_requirements)


# Before and between its tries: there may be no PyTorchJob, or one that is being deleted.
_WAITING_PHASES = {"": "is new", "Suspended": "is suspended", "Resuming": "creates its {kind}"}
_FOLLOWED = "a PyTorchJob of kubeflow.org/v1, a JobSet of jobset.x-k8s.io/v1alpha2, a Job of batch/v1 or plain Pods"
_ENDED_PHASES = ("Completed", "RunningHoldCompletion")
_RETRY_PHASES = {
    "Resetting": "removes a failed try, to start again",
    "Suspending": "is being preempted by its queue",
}
# Of the controller, to end a try in which nothing has failed: too few pods ran in time, or a node is not healthy.
_OWN_REASONS = ("InsufficientPodsReady", "AutopilotNoExecute")
# Plain Pods have no status of their own that reports their end together.
_ENDED_PHASES_OF_PODS = {"Pod": ("Succeeded", *_ENDED_PHASES)}
_PENDING_PHASES = _WAITING_PHASES | _RETRY_PHASES


def read_status(observed: Observation) -> Status:
    """The job's status: the wrapper's own if it waits or has given up, else that of the job in it."""
    wrapper = job_status.find_job_object(observed, _KIND)
    if wrapper is None or pod_facts.is_being_deleted(wrapper):
        return job_status.build_deleted_status(_KIND)
    wrapped_kind = _find_wrapped_kind(wrapper) or _PYTORCHJOB
    phase = _read_wrapper_phase(wrapper)
    description = _PENDING_PHASES.get(phase, "").format(kind=wrapped_kind.kind)
    if description:
        return _read_pending_status(observed, wrapper, f"the AppWrapper {description}{_quote_failed_try(wrapper)}")
    if phase in ("Failed", "Deleted"):
        return _read_failed_status(observed, wrapper, wrapped_kind)
    is_created = wrapped_kind is _PODS or job_status.find_job_object(observed, wrapped_kind.kind)
    if not is_created or phase in _ENDED_PHASES_OF_PODS.get(wrapped_kind.kind, ()):
        return _read_wrapper_status(observed, wrapper, wrapped_kind)
    inner_status = wrapped_kind.read_status(observed)
    if inner_status.state == "failed" and _has_tries_left(wrapper):
        return Status(state="pending", reason=f"{inner_status.reason}; the AppWrapper will start again")
    return inner_status


def _read_pending_status(observed: Observation, wrapper: Mapping[str, Any], reason: str) -> Status:
    """The status of an AppWrapper that waits, unless its queue has taken its machines away."""
    if _read_wrapper_phase(wrapper) in ("Suspending", "Suspended"):
        return job_status.build_suspended_status(observed, wrapper, reason)
    return Status(state="pending", reason=reason)


def _read_failed_status(observed: Observation, wrapper: Mapping[str, Any], wrapped_kind: _WrappedKind) -> Status:
    """The status of an AppWrapper that has given up. A missing component was deleted by another user."""
    if _find_unhealthy_condition(wrapper).get("reason") == "MissingComponent":
        return job_status.build_deleted_status(f"{wrapped_kind.kind} in the AppWrapper")
    reason = f"the AppWrapper failed{_quote_failed_try(wrapper)}"
    return job_status.build_failed_status(observed, reason, given_up_at=_read_time_of_giving_up(wrapper))


def _read_time_of_giving_up(wrapper: Mapping[str, Any]) -> float:
    """When the controller ended a try for a reason of its own; infinity if a pod or the job in it failed."""
    condition = _find_unhealthy_condition(wrapper)
    has_own_reason = condition.get("reason") in _OWN_REASONS
    return pod_facts.parse_timestamp(condition.get("lastTransitionTime")) if has_own_reason else math.inf


def _read_wrapper_phase(wrapper: Mapping[str, Any]) -> str:
    """The phase, "" if the wrapper is new. The two controllers store it under different keys."""
    status = pod_facts.get_mapping(wrapper, "status")
    return str(status.get("phase") or status.get("state") or "")


def _read_wrapper_status(observed: Observation, wrapper: Mapping[str, Any], wrapped_kind: _WrappedKind) -> Status:
    """The status of an AppWrapper whose job does not exist yet, or no longer exists, or has no status of its own."""
    phase = _read_wrapper_phase(wrapper)
    failed_pods = pod_facts.get_mapping(wrapper, "status").get("failed")
    if phase in _ENDED_PHASES and failed_pods:  # the dispatcher reports a failed job as Completed too
        return job_status.build_failed_status(observed, f"the AppWrapper is {phase} with {failed_pods} failed pods")
    if phase in ("Succeeded", "Completed"):
        return job_status.build_succeeded_status(observed, wrapper, job_status.Gang(0, 0))
    has_started = any(name.startswith(("Pod/", "Removed/")) for name in observed.states)
    return Status(
        state="running" if has_started else "pending",
        reason=f"the AppWrapper is {phase}, without a {wrapped_kind.kind}",
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


def _read_pods_status(observed: Observation) -> Status:
    """The status of plain Pods before the AppWrapper reports their end."""
    pods = job_status.select_job_pods(observed)
    wrapper = job_status.find_job_object(observed, _KIND) or {}
    count = sum(_is_pod(obj) for obj in _list_components(wrapper))
    return job_status.build_unfinished_status(observed, pods, job_status.Gang(count, count))


def _build_wrapped_kind(
    job_kind: JobKind,
    resource: str,
    job_requirements: tuple[ClusterRequirement, ...],
    read_inner_status: Callable[[Observation], Status],
) -> _WrappedKind:
    """A kind of job that has a launcher of its own. `job_requirements`: those of that launcher."""
    permission = requirements.job_permission(resource)
    return _WrappedKind(
        kind=job_kind.kind,
        api=job_kind.api,
        resource=resource,
        watch=job_kind.watch,
        requirements=tuple(requirement for requirement in job_requirements if requirement != permission),
        read_status=read_inner_status,
        job_kind=job_kind,
    )


_PYTORCHJOB = _build_wrapped_kind(
    pytorchjob.JOB_KIND, "pytorchjobs.kubeflow.org", pytorchjob.list_requirements(None), pytorchjob.read_status
)
_JOBSET = _build_wrapped_kind(
    jobset.JOB_KIND, "jobsets.jobset.x-k8s.io", jobset.list_requirements(), jobset.read_status
)
_JOB = _build_wrapped_kind(plain_job.JOB_KIND, "jobs.batch", plain_job.list_requirements(), plain_job.read_status)
_PODS = _WrappedKind(
    kind="Pod",
    api="v1",
    resource="pods",
    watch=(WatchedKind(api="v1", kind="Pod"),),
    requirements=(),
    read_status=_read_pods_status,
)
