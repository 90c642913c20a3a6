"""A job from the user's own manifest: launched as it is, with the run's name, labels and rendezvous id."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torchyard.diagnosis import pod_facts
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan, WatchedKind, get_nested
from torchyard.model.profile import Profile
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    ClusterRequirement,
    Permission,
    WritableFolder,
    plural_kind,
)
from torchyard.model.run import Run
from torchyard.pods import etcd, lease_record, requirements
from torchyard.pods import template as _pod
from torchyard.pods.lint import lint_manifest
from torchyard.pods.template import KeyPath, PodSet

# Keys that the manifest itself decides; in the profile they would have no effect.
_MANIFEST_OWNED_KEYS = (
    *("args", "env", "fabric", "hardware", "image", "mounts", "nodes", "options"),
    *("pod", "processes", "rendezvous", "resources", "setup"),
)
_MAX_HOST_NAME_CHARS = 63  # characters of a host name


class JobKind(NamedTuple):
    """What a launcher knows about its kind of job."""

    api: str
    kind: str
    launcher: str
    watch: tuple[WatchedKind, ...]
    requires: tuple[ClusterRequirement, ...]
    list_pod_sets: Callable[[Mapping[str, Any]], Iterable[PodSet]]  # of the object that makes the pods
    find_job_path: Callable[[Mapping[str, Any]], KeyPath] = (
        lambda _: ()
    )  # the path to that object in the main one, if it is another
    has_ports: bool = False  # the controller gives each pod a port
    has_random_suffix: bool = False  # pods' names end in a random word


class _PodTask(NamedTuple):
    """A part of the job, its pod template, and its main container."""

    pod_set: PodSet
    template: dict[str, Any]
    container: str


def plan_manifest(profile: Profile, run: Run, job_kind: JobKind) -> ManifestPlan:
    """The plan of the manifest's job and the objects beside it. ProfileError unless it holds exactly one such job."""
    _validate_manifest(profile, run, job_kind)
    documents = [copy.deepcopy(document) for document in profile.manifest]
    main = next(document for document in documents if _is_main_job(document, job_kind))
    companions = [document for document in documents if document is not main]
    for companion in companions:
        _add_labels(companion, _companion_labels(companion, profile, run))
    tasks = _adopt_job(main, profile, run, job_kind)
    first = tasks[0]
    return ManifestPlan(
        launcher=job_kind.launcher,
        cluster=profile.cluster.model_copy(update={"namespace": next(iter(_list_namespaces(profile)), None)}),
        store=tuple(companions),
        objects=(main,),
        tasks={task.pod_set.name: task.pod_set.pod_count for task in tasks},
        has_random_suffix=job_kind.has_random_suffix,
        container=first.container,
        template_path=(*job_kind.find_job_path(main), *first.pod_set.template_path),
        wrapped_path=job_kind.find_job_path(main),
        watch=job_kind.watch,
        ranks="teed" if "--tee" in str(first.template) else "logged",
        requires=(
            *job_kind.requires,
            *_list_companion_permissions(companions),
            *_list_manifest_requirements(profile, run, main, job_kind),
        ),
        **lease_record.build_plan_fields(profile, run),
    )


def _adopt_job(main: dict[str, Any], profile: Profile, run: Run, job_kind: JobKind) -> list[_PodTask]:
    """Give the job, the object in it and its pods the run's name, labels and rendezvous id; return the job's parts."""
    job = get_nested(main, job_kind.find_job_path(main))
    for obj in (main, job):
        _add_labels(obj, _pod.attempt_labels(profile, run))
        obj["metadata"]["name"] = run.job(profile)
    tasks = _read_tasks(job, job_kind)
    for task in tasks:
        _add_labels(task.template, _pod.attempt_labels(profile, run))
    elastic = job["spec"].get("elasticPolicy")
    if isinstance(elastic, dict) and not elastic.get("rdzvId"):
        elastic["rdzvId"] = run.job(profile)
    return tasks


def _companion_labels(document: Mapping[str, Any], profile: Profile, run: Run) -> dict[str, str]:
    """The labels by which a companion is deleted with the run; one that holds data needs the profile's consent."""
    if document.get("kind") not in etcd.DATA_KINDS:
        return {**_pod.attempt_labels(profile, run), _pod.ROLE_LABEL: "companion"}
    return (
        {**_pod.attempt_labels(profile, run), _pod.ROLE_LABEL: etcd.DISPOSABLE_ROLE}
        if profile.on_companion_data == "delete"
        else {}
    )


def has_protected_data(obj: Mapping[str, Any]) -> bool:
    """Whether deleting an object would lose data that no profile allows to be deleted."""
    return (
        obj.get("kind") in etcd.DATA_KINDS
        and pod_facts.get_mapping(obj, "metadata", "labels").get(_pod.ROLE_LABEL) != etcd.DISPOSABLE_ROLE
    )


def _list_manifest_requirements(
    profile: Profile, run: Run, main: dict[str, Any], job_kind: JobKind
) -> tuple[ClusterRequirement, ...]:
    """What any job needs, and what this one will do that its author does not expect."""
    job = get_nested(main, job_kind.find_job_path(main))
    return (
        WritableFolder(host="localhost", path=run.folder),
        *requirements.list_run_permissions(profile),
        _required_capacity(job, _read_tasks(job, job_kind), job_kind),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *(Advice(topic="manifest", detail=finding) for finding in lint_manifest(profile.manifest)),
    )


def _validate_manifest(profile: Profile, run: Run, job_kind: JobKind) -> None:
    """Raise ProfileError if the profile repeats what the manifest says, or the manifest does not hold one sound job."""
    repeated_keys = [key for key in _MANIFEST_OWNED_KEYS if key in profile.model_fields_set and getattr(profile, key)]
    findings = [f"{key}: the manifest says it; change it there" for key in repeated_keys]
    jobs = sum(_is_main_job(document, job_kind) for document in profile.manifest)
    if jobs != 1:
        kinds = ", ".join(str(document.get("kind")) for document in profile.manifest)
        findings.append(
            f"manifest: holds {jobs} of kind {job_kind.kind} ({job_kind.api}), one is needed; it has: {kinds}"
        )
    else:
        findings += _find_job_faults(
            next(document for document in profile.manifest if _is_main_job(document, job_kind)),
            run.job(profile),
            job_kind,
        )
    namespaces = _list_namespaces(profile)
    if len(namespaces) > 1:
        findings.append(f"manifest: one namespace is needed for all of it; named are {', '.join(namespaces)}")
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _find_job_faults(main: dict[str, Any], name: str, job_kind: JobKind) -> list[str]:
    """Why the job cannot be launched as it is."""
    try:
        job = get_nested(main, job_kind.find_job_path(main))
        tasks = _read_tasks(job, job_kind)
        _required_capacity(job, tasks, job_kind)
        for obj in (job, *(task.template for task in tasks)):
            _add_labels(dict(obj), {})
        pods = ["-".join((name, task.pod_set.name, str(max(task.pod_set.pod_count - 1, 0)))) for task in tasks]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        tasks, pods = [], []
    if not any(task.pod_set.pod_count for task in tasks):
        return [f"manifest: the {main['kind']} has no task with replicas and a pod template with a named container"]
    containers = dict.fromkeys(task.container for task in tasks)
    findings = [
        f"manifest: the pod {pod} has a name of over {_MAX_HOST_NAME_CHARS} characters"
        for pod in pods
        if len(pod) > _MAX_HOST_NAME_CHARS
    ]
    if len(containers) > 1:
        findings.append(f"manifest: the first containers of all tasks need one name; they are {', '.join(containers)}")
    return findings


def _is_main_job(document: dict[str, Any], job_kind: JobKind) -> bool:
    return document.get("kind") == job_kind.kind and document.get("apiVersion") == job_kind.api


def _list_namespaces(profile: Profile) -> list[str]:
    """Every namespace that the profile and the manifest name."""
    namespaces = [
        profile.cluster.namespace,
        *((document["metadata"] or {}).get("namespace") for document in profile.manifest),
    ]
    return list(dict.fromkeys(namespace for namespace in namespaces if namespace))


def _read_tasks(job: dict[str, Any], job_kind: JobKind) -> list[_PodTask]:
    """The parts of a job that have a pod template; the main container is the operator's own, else the first."""
    tasks = []
    for pod_set in job_kind.list_pod_sets(job):
        template = get_nested(job, pod_set.template_path)
        names = [str(container["name"]) for container in template["spec"]["containers"]]
        tasks.append(_PodTask(pod_set, template, "pytorch" if "pytorch" in names else names[0]))
    return tasks


def _add_labels(obj: dict[str, Any], labels: dict[str, str]) -> None:
    """Add labels; `metadata:` or `labels:` may be empty."""
    metadata = obj.get("metadata") or {}
    obj["metadata"] = {**{key: value for key, value in metadata.items() if value is not None}}
    if merged := {**(metadata.get("labels") or {}), **labels}:
        obj["metadata"]["labels"] = merged


def _list_companion_permissions(companions: list[dict[str, Any]]) -> list[Permission]:
    kinds = sorted({_name_resource(document) for document in companions})
    return [Permission(verbs=etcd.PERMISSION_VERBS, resource=kind) for kind in kinds]


def _name_resource(document: dict[str, Any]) -> str:
    """The full name of a document's kind: networkpolicies.networking.k8s.io."""
    group = str(document["apiVersion"]).rpartition("/")[0]
    return plural_kind(str(document["kind"])) + (f".{group}" if group else "")


def _required_capacity(job: dict[str, Any], tasks: list[_PodTask], job_kind: JobKind) -> Capacity:
    """What the first part's pods need from the nodes. Under the host's network a port allows one pod per node.

    The number of pods is Volcano's minAvailable, or else all.
    """
    spec = tasks[0].template["spec"]
    container = spec["containers"][0]
    resources_field = container.get("resources") or {}
    resources = {**(resources_field.get("limits") or {}), **(resources_field.get("requests") or {})}
    return Capacity(
        pods=int(job["spec"].get("minAvailable") or 0) or sum(task.pod_set.pod_count for task in tasks),
        labels=spec.get("nodeSelector") or {},
        tolerations=tuple(toleration.get("key") or "" for toleration in spec.get("tolerations") or ()),
        resources={name: str(amount) for name, amount in resources.items()},
        one_per_node=bool(spec.get("hostNetwork") and (job_kind.has_ports or container.get("ports"))),
    )
