"""AppWrapper: a PyTorchJob inside another object, which Kueue can hold back until there is room for all of it.

Two controllers know the kind: project-codeflare/appwrapper (v1beta2), and before it the multi-cluster app dispatcher
(v1beta1, in two groups). `kubectl get appwrapper` does not say which one answers, so full names are used everywhere.
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
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, ReferencedObject, Permission
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd, requirements, template

PROGRAM_IS_A_FILE = False
_KIND = "AppWrapper"
_INNER_RESOURCE = "pytorchjobs.kubeflow.org"
_ApiVersion = Literal["workload.codeflare.dev/v1beta2", "workload.codeflare.dev/v1beta1", "mcad.ibm.com/v1beta1"]
_V1BETA2: _ApiVersion = "workload.codeflare.dev/v1beta2"
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
_START_OPTIONS, _KEEP_OPTIONS = ("admission", "warmup"), ("deletion_on_failure", "success_ttl")
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_DISPATCHER_LABEL = "appwrapper.mcad.ibm.com"  # the dispatcher counts the pods that have this label
_INSTALL_COMMAND = "kubectl apply --server-side -f https://github.com/project-codeflare/appwrapper/releases/download/v1.1.2/install.yaml"


_DISPATCHER_INSTALL = (
    "deployment/mcad-controller of github.com/project-codeflare/multi-cluster-app-dispatcher, which is archived; for "
    "the AppWrapper of today leave options.api out"
)


class Options(FrozenModel):
    """The options of this launcher. The durations are the controller's own limits and pauses."""

    api: _ApiVersion = Field(
        _V1BETA2, description="which controller's AppWrapper; v1beta1 is the archived dispatcher's"
    )
    queue: str | None = Field(None, description="a LocalQueue of Kueue")
    admission: Duration | None = Field(None, description="until every pod exists; default: deadlines.start + 1m")
    warmup: Duration | None = Field(None, description="until every pod runs; default: deadlines.start + 1m")
    failure: Pause | None = Field(None, description="between a failed pod and the end of the try")
    retry_pause: Pause | None = Field(None, description="between two tries")
    deletion_on_failure: Pause | None = Field(None, description="how long failed pods stay; default: the lease")
    forceful_deletion: Pause | None = Field(None, description="until a deletion is forced")
    success_ttl: Pause | None = Field(None, description="how long a job that succeeded stays; default: the lease")
    retries: int = Field(0, ge=0, le=100, description="the controller's own, which delete a try's pods and logs")
    priority: int | None = Field(None, description="in the dispatcher's own queue (v1beta1)")
    etcd_image: str = Field(etcd.DEFAULT_IMAGE, description="image of the run's own store; must serve the v2 API")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """The plan of a PyTorchJob, inside an AppWrapper of the same name."""
    options = Options.model_validate(profile.options)
    if profile.manifest:
        from torchyard.pods import user_manifest

        api = next((obj["apiVersion"] for obj in profile.manifest if obj["kind"] == _KIND), _V1BETA2)
        options = Options.model_validate({"api": api})
        job_requirements = (*_list_requirements(options), *_list_inner_requirements(pytorchjob.list_requirements(None)))
        kind_fields = (api, _KIND, "appwrapper", _list_watched_kinds(options), job_requirements, pytorchjob.list_pod_sets)
        return user_manifest.plan_manifest(
            profile, run, user_manifest.JobKind(*kind_fields, inside=_find_wrapped_path, ports=True)
        )
    inner_plan = pytorchjob.plan(profile.model_copy(update={"options": {"etcd_image": options.etcd_image}}), run)
    build_wrapper, wrapped_path = (
        (_build_appwrapper, _COMPONENT_PATH)
        if options.api == _V1BETA2
        else (_build_dispatcher_wrapper, _GENERIC_ITEM_PATH)
    )
    return inner_plan.model_copy(
        update={
            "launcher": "appwrapper",
            "objects": (*inner_plan.objects[:-1], build_wrapper(inner_plan.main, profile, options)),
            "template_path": (*wrapped_path, *inner_plan.template_path),
            "wrapped_path": wrapped_path,
            "watch": _list_watched_kinds(options),
            "requires": (*_list_requirements(options), *_list_inner_requirements(inner_plan.requires)),
        }
    )


_COMPONENT_PATH = ("spec", "components", 0, "template")
_GENERIC_ITEM_PATH = ("spec", "resources", "GenericItems", 0, "generictemplate")


def _find_wrapped_path(wrapper: Mapping[str, Any]) -> template.KeyPath:
    """Where an AppWrapper of either controller holds its PyTorchJob."""
    return _GENERIC_ITEM_PATH if "resources" in wrapper["spec"] else _COMPONENT_PATH


def _build_appwrapper(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta2. Its own deadlines end after ours, so torchyard is the one to report what is late."""
    defaults = {
        **dict.fromkeys(_START_OPTIONS, profile.deadlines.start + 60),
        **dict.fromkeys(_KEEP_OPTIONS, profile.deadlines.lease),
    }
    durations = {**defaults, **options.model_dump(include=set(_DURATION_ANNOTATIONS), exclude_none=True)}
    # Go's durations have no days: one written with them would be ignored.
    annotations = {
        f"{_ANNOTATION_PREFIX}{key}": f"{math.ceil(durations[name])}s"
        for name, key in _DURATION_ANNOTATIONS.items()
        if name in durations
    }
    metadata, wrapped = job["metadata"], copy.deepcopy(job)
    del wrapped["spec"]["runPolicy"]["ttlSecondsAfterFinished"]  # a component that is deleted by its TTL counts as lost
    return {
        "apiVersion": options.api,
        "kind": _KIND,
        "metadata": {
            "name": metadata["name"],
            "labels": {**metadata["labels"], **({_QUEUE_LABEL: options.queue} if options.queue else {})},
            "annotations": {**annotations, f"{_ANNOTATION_PREFIX}retryLimit": str(options.retries)},
        },
        "spec": {"components": [{"template": wrapped}]},
    }


def _build_dispatcher_wrapper(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta1. Without completionstatus it would run for ever."""
    wrapped, metadata = copy.deepcopy(job), job["metadata"]
    for replica in wrapped["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["metadata"]["labels"][_DISPATCHER_LABEL] = metadata["name"]
    # The resource definition requires `requests`, even if there are none.
    resources = {key: value for key, value in template.build_resources(profile).items() if key != "claims"}
    pods = {"replicas": profile.nodes.max, "requests": {}, **resources}
    item = {
        "replicas": 1,
        "completionstatus": "Succeeded,Failed",
        "custompodresources": [pods],
        "generictemplate": wrapped,
    }
    requeue = {"timeInSeconds": math.ceil(profile.deadlines.start + 60), "maxNumRequeuings": max(options.retries, 1)}
    return {
        "apiVersion": options.api,
        "kind": _KIND,
        "metadata": {"name": metadata["name"], "labels": metadata["labels"]},
        "spec": {
            **({"priority": options.priority} if options.priority is not None else {}),
            "schedulingSpec": {"minAvailable": profile.nodes.min, "requeuing": requeue},
            "resources": {"GenericItems": [item]},
        },
    }


def _list_watched_kinds(options: Options) -> tuple[WatchedKind, ...]:
    return (WatchedKind(api=options.api, kind=_KIND), *pytorchjob.list_watched_kinds())


def _list_requirements(options: Options) -> tuple[ClusterRequirement, ...]:
    (group, _, version), is_v1beta2 = options.api.partition("/"), options.api == _V1BETA2
    install = _INSTALL_COMMAND if is_v1beta2 else _DISPATCHER_INSTALL
    # The webhook of v1beta2 lets a user wrap only what that user may create; list and watch are for the job's status.
    verbs = (*(("create",) if is_v1beta2 else ()), "list", "watch")
    return (
        CrdServed(crd=f"appwrappers.{group}", version=version, install=install),
        *((Controller(label="app.kubernetes.io/name=appwrapper"),) if is_v1beta2 else ()),
        *((ReferencedObject(object_kind="LocalQueue", name=options.queue),) if options.queue else ()),
        requirements.job_permission(f"appwrappers.{group}"),
        Permission(verbs=verbs, resource=_INNER_RESOURCE),
    )


def _list_inner_requirements(inner_requirements: Iterable[ClusterRequirement]) -> Iterator[ClusterRequirement]:
    """What the PyTorchJob needs, without the permission to manage it: only the controller does that."""
    return (requirement for requirement in inner_requirements if requirement != pytorchjob.JOB_PERMISSION)


# Before and between its tries: there may be no PyTorchJob, or one that is being deleted.
_WAITING_PHASES = {"": "is new", "Suspended": "waits for its queue", "Resuming": "creates its PyTorchJob"}
_ENDED_PHASES = ("Completed", "RunningHoldCompletion")
_RETRY_PHASES = {
    "Resetting": "removes a try that failed, to begin again",
    "Suspending": "was told by its queue to give way",
}


def read_status(observed: Observation) -> Status:
    """The job's status: the wrapper's own if it waits or has given up, else that of the PyTorchJob in it."""
    wrapper = job_status.find_job_object(observed, _KIND)
    if wrapper is None or pod_facts.is_being_deleted(wrapper):
        return job_status.deleted_status(_KIND)
    phase = _read_wrapper_phase(wrapper)
    if description := {**_WAITING_PHASES, **_RETRY_PHASES}.get(phase):
        return Status(state="pending", reason=f"the AppWrapper {description}{_quote_conditions(wrapper)}")
    if phase in ("Failed", "Deleted"):
        is_component_missing = _find_unhealthy_condition(wrapper).get("reason") == "MissingComponent"
        deleted = job_status.deleted_status(f"{pytorchjob.KIND} in the AppWrapper")
        return (
            deleted if is_component_missing else job_status.failed_status(observed, f"the AppWrapper failed{_quote_conditions(wrapper)}")
        )
    if job_status.find_job_object(observed, pytorchjob.KIND) is None:
        return _read_wrapper_status(observed, wrapper)
    job_status_ = pytorchjob.read_status(observed)
    if job_status_.state == "failed" and _has_tries_left(wrapper):
        return Status(state="pending", reason=f"{job_status_.reason}; the AppWrapper will begin again")
    return job_status_


def _read_wrapper_phase(wrapper: Mapping[str, Any]) -> str:
    """The phase, which the two controllers keep under different keys."""
    status = pod_facts.get_mapping(wrapper, "status")
    return str(status.get("phase") or status.get("state") or "")


def _read_wrapper_status(observed: Observation, wrapper: Mapping[str, Any]) -> Status:
    """The status of an AppWrapper whose PyTorchJob does not exist yet, or no longer exists."""
    phase, failed_pods = _read_wrapper_phase(wrapper), pod_facts.get_mapping(wrapper, "status").get("failed")
    if phase in _ENDED_PHASES and failed_pods:  # the dispatcher calls a failed job Completed too
        return job_status.failed_status(observed, f"the AppWrapper is {phase} with {failed_pods} failed pods")
    if phase in ("Succeeded", "Completed"):
        return job_status.succeeded_status(observed, wrapper, 0)
    has_started = any(name.startswith(("Pod/", "Removed/")) for name in observed.states)
    return Status(state="running" if has_started else "pending", reason=f"the AppWrapper is {phase}, without a PyTorchJob")


def _has_tries_left(wrapper: Mapping[str, Any]) -> bool:
    """Whether the controller of v1beta2 will try again; its default is three retries."""
    retry_limit = pod_facts.get_mapping(wrapper, "metadata", "annotations").get(f"{_ANNOTATION_PREFIX}retryLimit", "3")
    retry_count = pod_facts.get_mapping(wrapper, "status").get("resettingCount") or 0
    is_v1beta2 = "components" in pod_facts.get_mapping(wrapper, "spec")
    return is_v1beta2 and str(retry_limit).isdigit() and isinstance(retry_count, int) and retry_count < int(retry_limit)


def _find_unhealthy_condition(wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that says why a try failed; it stays after the AppWrapper has given up."""
    return _get_condition(wrapper, "Unhealthy", "True")


def _quote_conditions(wrapper: Mapping[str, Any]) -> str:
    """The message of a condition: that it is unhealthy, else that it waits for quota."""
    message = _find_unhealthy_condition(wrapper).get("message") or _get_condition(wrapper, "QuotaReserved", "False").get(
        "message"
    )
    return f": {message}" if message else ""


def _get_condition(wrapper: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any]:
    conditions = pod_facts.get_mappings(wrapper, "status", "conditions")
    return next((condition for condition in conditions if (condition.get("type"), condition.get("status")) == (kind, status)), {})
