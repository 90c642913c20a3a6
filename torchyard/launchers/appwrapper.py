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
from torchyard.model.plan import ManifestPlan, Watched
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Controller, CrdServed, Object, Permission
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

        api = next((each["apiVersion"] for each in profile.manifest if each["kind"] == _KIND), _V1BETA2)
        options = Options.model_validate({"api": api})
        needs = (*_list_requirements(options), *_list_inner_requirements(pytorchjob.list_requirements(None)))
        about = (api, _KIND, "appwrapper", _list_watched_kinds(options), needs, pytorchjob.list_pod_sets)
        return user_manifest.plan_manifest(
            profile, run, user_manifest.JobKind(*about, inside=_find_inner_path, ports=True)
        )
    inner = pytorchjob.plan(profile.model_copy(update={"options": {"etcd_image": options.etcd_image}}), run)
    wrap, at = (
        (_build_appwrapper, _COMPONENT_PATH)
        if options.api == _V1BETA2
        else (_build_dispatcher_wrapper, _GENERIC_ITEM_PATH)
    )
    return inner.model_copy(
        update={
            "launcher": "appwrapper",
            "objects": (*inner.objects[:-1], wrap(inner.main, profile, options)),
            "template": (*at, *inner.template),
            "inside": at,
            "watch": _list_watched_kinds(options),
            "requires": (*_list_requirements(options), *_list_inner_requirements(inner.requires)),
        }
    )


_COMPONENT_PATH = ("spec", "components", 0, "template")
_GENERIC_ITEM_PATH = ("spec", "resources", "GenericItems", 0, "generictemplate")


def _find_inner_path(wrapper: Mapping[str, Any]) -> template.KeyPath:
    """Where an AppWrapper of either controller holds its PyTorchJob."""
    return _GENERIC_ITEM_PATH if "resources" in wrapper["spec"] else _COMPONENT_PATH


def _build_appwrapper(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta2. Its own deadlines end after ours, so torchyard is the one to report what is late."""
    ours = {
        **dict.fromkeys(_START_OPTIONS, profile.deadlines.start + 60),
        **dict.fromkeys(_KEEP_OPTIONS, profile.deadlines.lease),
    }
    times = {**ours, **options.model_dump(include=set(_DURATION_ANNOTATIONS), exclude_none=True)}
    # Go's durations have no days: one written with them would be ignored.
    said = {
        f"{_ANNOTATION_PREFIX}{key}": f"{math.ceil(times[name])}s"
        for name, key in _DURATION_ANNOTATIONS.items()
        if name in times
    }
    about, wrapped = job["metadata"], copy.deepcopy(job)
    del wrapped["spec"]["runPolicy"]["ttlSecondsAfterFinished"]  # a component that is deleted by its TTL counts as lost
    return {
        "apiVersion": options.api,
        "kind": _KIND,
        "metadata": {
            "name": about["name"],
            "labels": {**about["labels"], **({_QUEUE_LABEL: options.queue} if options.queue else {})},
            "annotations": {**said, f"{_ANNOTATION_PREFIX}retryLimit": str(options.retries)},
        },
        "spec": {"components": [{"template": wrapped}]},
    }


def _build_dispatcher_wrapper(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta1. Without completionstatus it would run for ever."""
    wrapped, about = copy.deepcopy(job), job["metadata"]
    for replica in wrapped["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["metadata"]["labels"][_DISPATCHER_LABEL] = about["name"]
    # The resource definition requires `requests`, even if there are none.
    asked = {key: value for key, value in template.build_resources(profile).items() if key != "claims"}
    pods = {"replicas": profile.nodes.max, "requests": {}, **asked}
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
        "metadata": {"name": about["name"], "labels": about["labels"]},
        "spec": {
            **({"priority": options.priority} if options.priority is not None else {}),
            "schedulingSpec": {"minAvailable": profile.nodes.min, "requeuing": requeue},
            "resources": {"GenericItems": [item]},
        },
    }


def _list_watched_kinds(options: Options) -> tuple[Watched, ...]:
    return (Watched(api=options.api, kind=_KIND), *pytorchjob.list_watched_kinds())


def _list_requirements(options: Options) -> tuple[ClusterRequirement, ...]:
    (group, _, version), newer = options.api.partition("/"), options.api == _V1BETA2
    install = _INSTALL_COMMAND if newer else _DISPATCHER_INSTALL
    # The webhook of v1beta2 lets a user wrap only what that user may create; list and watch are for the job's status.
    verbs = (*(("create",) if newer else ()), "list", "watch")
    return (
        CrdServed(crd=f"appwrappers.{group}", version=version, install=install),
        *((Controller(label="app.kubernetes.io/name=appwrapper"),) if newer else ()),
        *((Object(what="LocalQueue", name=options.queue),) if options.queue else ()),
        requirements.job_permission(f"appwrappers.{group}"),
        Permission(verbs=verbs, resource=_INNER_RESOURCE),
    )


def _list_inner_requirements(needs: Iterable[ClusterRequirement]) -> Iterator[ClusterRequirement]:
    """What the PyTorchJob needs, without the permission to manage it: only the controller does that."""
    return (need for need in needs if need != pytorchjob.JOB_PERMISSION)


# Before and between its tries: there may be no PyTorchJob, or one that is being deleted.
_WAITING_PHASES = {"": "is new", "Suspended": "waits for its queue", "Resuming": "creates its PyTorchJob"}
_ENDED_PHASES = ("Completed", "RunningHoldCompletion")
_RETRY_PHASES = {
    "Resetting": "removes a try that failed, to begin again",
    "Suspending": "was told by its queue to give way",
}


def read_status(observed: Observation) -> Status:
    """The job's status: the wrapper's own if it waits or has given up, else that of the PyTorchJob in it."""
    outer = job_status.find_job_object(observed, _KIND)
    if outer is None or pod_facts.is_being_deleted(outer):
        return job_status.deleted_status(_KIND)
    phase = _read_wrapper_phase(outer)
    if phrase := {**_WAITING_PHASES, **_RETRY_PHASES}.get(phase):
        return Status(state="pending", reason=f"the AppWrapper {phrase}{_quote_conditions(outer)}")
    if phase in ("Failed", "Deleted"):
        missing = _find_unhealthy_condition(outer).get("reason") == "MissingComponent"
        lost = job_status.deleted_status(f"{pytorchjob.KIND} in the AppWrapper")
        return (
            lost if missing else job_status.failed_status(observed, f"the AppWrapper failed{_quote_conditions(outer)}")
        )
    if job_status.find_job_object(observed, pytorchjob.KIND) is None:
        return _read_wrapper_status(observed, outer)
    inner = pytorchjob.read_status(observed)
    if inner.state == "failed" and _has_tries_left(outer):
        return Status(state="pending", reason=f"{inner.reason}; the AppWrapper will begin again")
    return inner


def _read_wrapper_phase(outer: Mapping[str, Any]) -> str:
    """The phase, which the two controllers keep under different keys."""
    status = pod_facts.get_mapping(outer, "status")
    return str(status.get("phase") or status.get("state") or "")


def _read_wrapper_status(observed: Observation, outer: Mapping[str, Any]) -> Status:
    """The status of an AppWrapper whose PyTorchJob does not exist yet, or no longer exists."""
    phase, lost = _read_wrapper_phase(outer), pod_facts.get_mapping(outer, "status").get("failed")
    if phase in _ENDED_PHASES and lost:  # the dispatcher calls a failed job Completed too
        return job_status.failed_status(observed, f"the AppWrapper is {phase} with {lost} failed pods")
    if phase in ("Succeeded", "Completed"):
        return job_status.succeeded_status(observed, outer, 0)
    begun = any(name.startswith(("Pod/", "Removed/")) for name in observed.seen)
    return Status(state="running" if begun else "pending", reason=f"the AppWrapper is {phase}, without a PyTorchJob")


def _has_tries_left(outer: Mapping[str, Any]) -> bool:
    """Whether the controller of v1beta2 will try again; its default is three retries."""
    said = pod_facts.get_mapping(outer, "metadata", "annotations").get(f"{_ANNOTATION_PREFIX}retryLimit", "3")
    made = pod_facts.get_mapping(outer, "status").get("resettingCount") or 0
    newer = "components" in pod_facts.get_mapping(outer, "spec")
    return newer and str(said).isdigit() and isinstance(made, int) and made < int(said)


def _find_unhealthy_condition(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that says why a try failed; it stays after the AppWrapper has given up."""
    return _get_condition(outer, "Unhealthy", "True")


def _quote_conditions(outer: Mapping[str, Any]) -> str:
    """The message of a condition: that it is unhealthy, else that it waits for quota."""
    said = _find_unhealthy_condition(outer).get("message") or _get_condition(outer, "QuotaReserved", "False").get(
        "message"
    )
    return f": {said}" if said else ""


def _get_condition(outer: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any]:
    found = pod_facts.get_mappings(outer, "status", "conditions")
    return next((each for each in found if (each.get("type"), each.get("status")) == (kind, status)), {})
