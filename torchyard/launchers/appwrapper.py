"""AppWrapper: a PyTorchJob inside another object, which Kueue can hold back until there is room for all of it.

Two controllers know the kind: project-codeflare/appwrapper (v1beta2), and before it the multi-cluster app dispatcher
(v1beta1, in two groups). `kubectl get appwrapper` does not say which one answers: full names are used everywhere.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from torchyard.diagnosis import job_status, pod_facts
from torchyard.launchers import pytorchjob
from torchyard.model.base import Duration, Noun
from torchyard.model.plan import ManifestPlan, Watched
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterNeed, Controller, Object, Right, Served
from torchyard.model.run import Observation, Run, Status
from torchyard.pods import etcd, requirements, template

KIND = "AppWrapper"
# Its webhook lets nobody wrap what he may not create himself; the rest is to see how it goes.
INNER = Right(verbs=("create", "list", "watch"), resource="pytorchjobs.kubeflow.org")
Api = Literal["workload.codeflare.dev/v1beta2", "workload.codeflare.dev/v1beta1", "mcad.ibm.com/v1beta1"]
V1BETA2: Api = "workload.codeflare.dev/v1beta2"
PREFIX = "workload.codeflare.dev.appwrapper/"
QUEUE = "kueue.x-k8s.io/queue-name"
COUNTED = "appwrapper.mcad.ibm.com"  # the dispatcher counts the pods that have this label
INSTALL = "kubectl apply --server-side -f https://github.com/project-codeflare/appwrapper/releases/download/v1.1.2/install.yaml"


class Options(Noun):
    """What only this launcher knows. Durations are those after which the controller gives up, and tries again."""

    api: Api = Field(V1BETA2, description="which controller's AppWrapper; v1beta1 is the archived dispatcher's")
    queue: str | None = Field(None, description="a LocalQueue of Kueue")
    admission: Duration | None = Field(None, description="until every pod exists; else a minute after deadlines.start")
    warmup: Duration | None = Field(None, description="until every pod runs; else a minute after deadlines.start")
    failure: Duration | None = Field(None, description="between a failed pod and the end of the try")
    retry_pause: Duration | None = Field(None, description="between two tries")
    deletion_on_failure: Duration | None = Field(None, description="how long failed pods stay; else the lease")
    forceful_deletion: Duration | None = Field(None, description="until a deletion is forced")
    success_ttl: Duration | None = Field(None, description="how long a job that succeeded stays; else the lease")
    retries: int = Field(0, ge=0, le=100, description="its own, which delete a try's pods and logs")
    priority: int | None = Field(None, description="of the dispatcher's own queue (v1beta1)")
    etcd_image: str = Field(etcd.IMAGE, description="of the run's own store: one that serves the v2 API")


def plan(profile: Profile, run: Run) -> ManifestPlan:
    """The plan of a PyTorchJob, inside an AppWrapper of the same name."""
    options = Options.model_validate(profile.options)
    if profile.manifest:
        from torchyard.pods import user_manifest

        api = next((each["apiVersion"] for each in profile.manifest if each["kind"] == KIND), V1BETA2)
        options = Options.model_validate({"api": api})
        needs = (*requires(options), *of_inner(pytorchjob.requires(None)))
        about = (api, KIND, "appwrapper", watch(options), needs, pytorchjob.parts)
        return user_manifest.plan(profile, run, user_manifest.Frame(*about, inside=inside, ports=True))
    inner = pytorchjob.plan(profile.model_copy(update={"options": {"etcd_image": options.etcd_image}}), run)
    wrap, at = (wrapper, COMPONENT) if options.api == V1BETA2 else (dispatched, GENERIC)
    return inner.model_copy(
        update={
            "launcher": "appwrapper",
            "objects": (wrap(inner.main, profile, options),),
            "template": (*at, *inner.template),
            "inside": at,
            "watch": watch(options),
            "requires": (*requires(options), *of_inner(inner.requires)),
        }
    )


COMPONENT = ("spec", "components", 0, "template")
GENERIC = ("spec", "resources", "GenericItems", 0, "generictemplate")


def inside(wrapper: Mapping[str, Any]) -> template.Way:
    """Where an AppWrapper of either kind has its PyTorchJob."""
    return GENERIC if "resources" in wrapper["spec"] else COMPONENT


def wrapper(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta2. Its own patience begins to end after ours: who is late is told by torchyard."""
    patience = profile.deadlines.start + 60
    times = {
        "admissionGracePeriodDuration": options.admission or patience,
        "warmupGracePeriodDuration": options.warmup or patience,
        "failureGracePeriodDuration": options.failure,
        "retryPausePeriodDuration": options.retry_pause,
        "deletionOnFailureGracePeriodDuration": options.deletion_on_failure or profile.deadlines.lease,
        "forcefulDeletionGracePeriodDuration": options.forceful_deletion,
        "successTTLDuration": options.success_ttl or profile.deadlines.lease,
    }
    # Go's durations have no days: one written with them would be ignored.
    said = {f"{PREFIX}{name}": f"{math.ceil(seconds)}s" for name, seconds in times.items() if seconds}
    about, wrapped = job["metadata"], copy.deepcopy(job)
    del wrapped["spec"]["runPolicy"]["ttlSecondsAfterFinished"]  # a component that goes by itself is taken for lost
    return {
        "apiVersion": options.api,
        "kind": KIND,
        "metadata": {
            "name": about["name"],
            "labels": {**about["labels"], **({QUEUE: options.queue} if options.queue else {})},
            "annotations": {**said, f"{PREFIX}retryLimit": str(options.retries)},
        },
        "spec": {"components": [{"template": wrapped}]},
    }


def dispatched(job: dict[str, Any], profile: Profile, options: Options) -> dict[str, Any]:
    """The AppWrapper of v1beta1. Without completionstatus it would run for ever."""
    wrapped, about = copy.deepcopy(job), job["metadata"]
    for replica in wrapped["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["metadata"]["labels"][COUNTED] = about["name"]
    # The resource definition wants `requests`, also where there are none.
    asked = {key: value for key, value in template.resources(profile).items() if key != "claims"}
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
        "kind": KIND,
        "metadata": {"name": about["name"], "labels": about["labels"]},
        "spec": {
            **({"priority": options.priority} if options.priority is not None else {}),
            "schedulingSpec": {"minAvailable": profile.nodes.min, "requeuing": requeue},
            "resources": {"GenericItems": [item]},
        },
    }


def watch(options: Options) -> tuple[Watched, ...]:
    return (Watched(api=options.api, kind=KIND), *pytorchjob.watch())


def requires(options: Options) -> tuple[ClusterNeed, ...]:
    group, _, version = options.api.partition("/")
    return (
        Served(crd=f"appwrappers.{group}", version=version, install=INSTALL),
        *((Controller(label="app.kubernetes.io/name=appwrapper"),) if options.api == V1BETA2 else ()),
        *((Object(what="LocalQueue", name=options.queue),) if options.queue else ()),
        requirements.job_right(f"appwrappers.{group}"),
        INNER,
    )


def of_inner(needs: Iterable[ClusterNeed]) -> Iterator[ClusterNeed]:
    """What the PyTorchJob needs, but that nobody touches it himself."""
    return (need for need in needs if need != pytorchjob.OWN)


# Before and between its tries: there may be no PyTorchJob, or one that is on its way out.
WAITING = {"": "is new", "Suspended": "waits for its queue", "Resuming": "creates its PyTorchJob"}
ENDED = ("Completed", "RunningHoldCompletion")
AGAIN = {"Resetting": "removes a try that failed, to begin again", "Suspending": "was told by its queue to give way"}


def read_status(observed: Observation) -> Status:
    """How the job is: the wrapper's word where it waits or has given up, else that of the PyTorchJob in it."""
    outer = job_status.main(observed, KIND)
    if outer is None or pod_facts.leaving(outer):
        return job_status.deleted(KIND)
    phase = phase_of(outer)
    if told := {**WAITING, **AGAIN}.get(phase):
        return Status(state="pending", reason=f"the AppWrapper {told}{why(outer)}")
    if phase in ("Failed", "Deleted"):
        missing = unhealthy(outer).get("reason") == "MissingComponent"
        lost = job_status.deleted(f"{pytorchjob.KIND} in the AppWrapper")
        return lost if missing else job_status.failed(observed, f"the AppWrapper failed{why(outer)}")
    if job_status.main(observed, pytorchjob.KIND) is None:
        return read_alone(observed, outer)
    inner = pytorchjob.read_status(observed)
    if inner.state == "failed" and has_tries(outer):
        return Status(state="pending", reason=f"{inner.reason}; the AppWrapper will begin again")
    return inner


def phase_of(outer: Mapping[str, Any]) -> str:
    """The one word of either controller."""
    status = pod_facts.part(outer, "status")
    return str(status.get("phase") or status.get("state") or "")


def read_alone(observed: Observation, outer: Mapping[str, Any]) -> Status:
    """How an AppWrapper is whose PyTorchJob is not there yet, or not any more."""
    phase, lost = phase_of(outer), pod_facts.part(outer, "status").get("failed")
    if phase in ENDED and lost:  # the dispatcher's Completed is that of a failed job too
        return job_status.failed(observed, f"the AppWrapper is {phase} with {lost} failed pods")
    if phase in ("Succeeded", "Completed"):
        return job_status.succeeded(observed)
    begun = any(name.startswith(("Pod/", "Removed/")) for name in observed.seen)
    return Status(state="running" if begun else "pending", reason=f"the AppWrapper is {phase}, without a PyTorchJob")


def has_tries(outer: Mapping[str, Any]) -> bool:
    """Whether the controller of v1beta2 will try again, as it does three times where nothing is said."""
    said = pod_facts.part(outer, "metadata", "annotations").get(f"{PREFIX}retryLimit", "3")
    made = pod_facts.part(outer, "status").get("resettingCount") or 0
    newer = "components" in pod_facts.part(outer, "spec")
    return newer and str(said).isdigit() and isinstance(made, int) and made < int(said)


def unhealthy(outer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition that says why a try failed; it stays when the AppWrapper has given up."""
    return condition(outer, "Unhealthy", "True")


def why(outer: Mapping[str, Any]) -> str:
    """What its conditions say: what is not healthy comes before what is waited for."""
    said = unhealthy(outer).get("message") or condition(outer, "QuotaReserved", "False").get("message")
    return f": {said}" if said else ""


def condition(outer: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any]:
    found = pod_facts.rows(outer, "status", "conditions")
    return next((each for each in found if (each.get("type"), each.get("status")) == (kind, status)), {})
