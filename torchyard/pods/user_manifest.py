"""A job from the user's own manifest: launched as it is, with the run's name, labels and rendezvous id."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torchyard.diagnosis import pod_facts
from torchyard.lint.manifest import lint_manifest
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
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
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import etcd, requirements
from torchyard.pods import template as pod_template
from torchyard.pods.job_kind import JobKind, JobObjects, PodSet, plan_job

# Keys that the manifest itself decides; in the profile they would have no effect.
_MANIFEST_OWNED_KEYS = (
    "args",
    "env",
    "fabric",
    "hardware",
    "image",
    "mounts",
    "nodes",
    "options",
    "pod",
    "processes",
    "rendezvous",
    "resources",
    "setup",
)
_MAX_PODS = 10_000  # as of `nodes`: a plan has an entry for each
_MAX_HOST_NAME_CHARS = 63  # characters of a host name


def plan_manifest(
    profile: ResolvedProfile, run: Run, job_kind: JobKind, job_requirements: Iterable[ClusterRequirement]
) -> ManifestPlan:
    """The plan of the manifest's job and the objects beside it. `job_requirements`: of every job of this kind.

    Raises ProfileError unless the manifest holds exactly one job of this kind, in one namespace, and the profile
    repeats nothing of it.
    """
    _validate_manifest(profile, run, job_kind)
    # The next attempt starts from the profile's documents, so they must not change.
    documents = [copy.deepcopy(document) for document in profile.manifest]
    main = next(document for document in documents if _is_main_job(document, job_kind))
    companions = [document for document in documents if document is not main]
    for companion in companions:
        _add_labels(companion, _companion_labels(companion, profile, run))
    pod_sets = _adopt_job(main, profile, run, job_kind)
    namespaces = _list_namespaces(profile)
    has_tee = "--tee" in str(pod_sets[0].template)  # torchrun then prefixes each line with its local rank
    cluster = profile.cluster.model_copy(update={"namespace": namespaces[0] if namespaces else None})
    all_requirements = (
        *job_requirements,
        *_list_companion_permissions(companions),
        *_list_manifest_requirements(profile, run, main, job_kind),
    )
    return plan_job(
        profile.model_copy(update={"cluster": cluster}),
        run,
        job_kind,
        JobObjects(main, store=tuple(companions)),
        all_requirements,
        ranks="teed" if has_tee else "logged",
    )


def _adopt_job(main: dict[str, Any], profile: Profile, run: Run, job_kind: JobKind) -> list[PodSet]:
    """Give the job, the object in it and its pods the run's name, labels and rendezvous id; return the sets of pods."""
    job = job_kind.find_job(main)
    labels = pod_template.attempt_labels(profile, run)
    for obj in (main, job):
        _add_labels(obj, labels)
        obj["metadata"]["name"] = run.job(profile)
    pod_sets = _list_pod_sets(job, job_kind)
    for pod_set in pod_sets:
        _add_labels(pod_set.template, labels)
    elastic_policy = job["spec"].get("elasticPolicy")  # without an id, all jobs would meet under the id `none`
    if isinstance(elastic_policy, dict) and not elastic_policy.get("rdzvId"):
        elastic_policy["rdzvId"] = run.job(profile)
    return pod_sets


def _companion_labels(document: Mapping[str, Any], profile: Profile, run: Run) -> dict[str, str]:
    """The labels by which a companion is deleted with the run; none if it holds data that the profile protects."""
    labels = pod_template.attempt_labels(profile, run)
    if document.get("kind") not in etcd.DATA_KINDS:
        return labels | {pod_template.ROLE_LABEL: "companion"}
    if profile.on_companion_data == "delete":
        return labels | {pod_template.ROLE_LABEL: etcd.DISPOSABLE_ROLE}
    return {}


def has_protected_data(obj: Mapping[str, Any]) -> bool:
    """Whether deleting an object would lose data that no profile allows to be deleted."""
    role = pod_facts.get_mapping(obj, "metadata", "labels").get(pod_template.ROLE_LABEL)
    return obj.get("kind") in etcd.DATA_KINDS and role != etcd.DISPOSABLE_ROLE


def _list_manifest_requirements(
    profile: Profile, run: Run, main: dict[str, Any], job_kind: JobKind
) -> tuple[ClusterRequirement, ...]:
    """The requirements of any job, and advice about the traps of this one."""
    job = job_kind.find_job(main)
    return (
        WritableFolder(host="localhost", path=run.folder),
        *requirements.list_run_permissions(profile),
        _required_capacity(job, _list_pod_sets(job, job_kind), job_kind),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *(Advice(finding=finding) for finding in lint_manifest(profile.manifest)),
    )


def _validate_manifest(profile: Profile, run: Run, job_kind: JobKind) -> None:
    """Raise ProfileError if the profile repeats keys of the manifest, or the manifest does not hold one sound job."""
    findings: list[Finding] = []
    for key in _MANIFEST_OWNED_KEYS:
        if key in profile.model_fields_set and getattr(profile, key):
            findings.append(Finding(key, "cannot be combined with manifest, which sets it; change it there"))
    main_jobs = [document for document in profile.manifest if _is_main_job(document, job_kind)]
    if len(main_jobs) == 1:
        findings += _list_job_faults(main_jobs[0], run.job(profile), job_kind)
    else:
        kinds = ", ".join(str(document.get("kind")) for document in profile.manifest)
        findings.append(
            Finding(
                "manifest",
                f"holds {len(main_jobs)} of kind {job_kind.kind} ({job_kind.api}), one is needed; it has: {kinds}",
            )
        )
    for document in profile.manifest:
        if not isinstance(document.get("metadata"), dict):
            findings.append(
                Finding("manifest", f"the {document.get('kind')} has no metadata: write a mapping with its name")
            )
    namespaces = _list_namespaces(profile)
    if len(namespaces) > 1:
        findings.append(Finding("manifest", f"must be in one namespace; named are {', '.join(namespaces)}"))
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _list_job_faults(main: dict[str, Any], job_name: str, job_kind: JobKind) -> list[Finding]:
    """Why the job cannot be launched as it is; empty if it can."""
    try:
        job = job_kind.find_job(main)
        pod_sets = _list_pod_sets(job, job_kind)
        _required_capacity(job, pod_sets, job_kind)
        for obj in (job, *(pod_set.template for pod_set in pod_sets)):
            _add_labels(dict(obj), {})  # raises if the metadata has another shape
        last_pods = []
        for pod_set in pod_sets:
            # The last pod has the longest name.
            last_index = max(pod_set.pod_count - 1, 0)
            last_pods.append(f"{job_name}-{pod_set.name}-{last_index}")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):  # some part has another shape
        pod_sets = []
        last_pods = []
    if not any(pod_set.pod_count for pod_set in pod_sets):
        return [
            Finding(
                "manifest", f"the {main['kind']} has no task with replicas and a pod template with a named container"
            )
        ]
    pod_count = sum(pod_set.pod_count for pod_set in pod_sets)
    if pod_count > _MAX_PODS:
        return [Finding("manifest", f"the {main['kind']} has {pod_count} pods: at most {_MAX_PODS} are supported")]
    findings = [
        Finding("manifest", f"the pod {pod_name} has a name of over {_MAX_HOST_NAME_CHARS} characters")
        for pod_name in last_pods
        if len(pod_name) > _MAX_HOST_NAME_CHARS
    ]
    containers = dict.fromkeys(pod_set.container for pod_set in pod_sets)
    if len(containers) > 1:
        findings.append(
            Finding("manifest", f"the first containers of all tasks need one name; they are {', '.join(containers)}")
        )
    return findings


def _is_main_job(document: dict[str, Any], job_kind: JobKind) -> bool:
    return document.get("kind") == job_kind.kind and document.get("apiVersion") == job_kind.api


def _list_namespaces(profile: Profile) -> list[str]:
    """Every namespace that the profile and the manifest name; the profile's comes first."""
    namespaces = [profile.cluster.namespace]
    for document in profile.manifest:
        namespaces.append(pod_facts.get_mapping(document, "metadata").get("namespace"))
    return list(dict.fromkeys(namespace for namespace in namespaces if namespace))


def _list_pod_sets(job: dict[str, Any], job_kind: JobKind) -> list[PodSet]:
    """The sets of pods of a job.

    Raises KeyError, IndexError, TypeError, AttributeError or ValueError if the job has another shape.
    """
    pod_sets = list(job_kind.list_pod_sets(job))
    for pod_set in pod_sets:
        if not isinstance(pod_set.name, str) or not pod_set.container:
            raise TypeError(f"{pod_set.name!r} is not the name of pods, or they have no container")
    return pod_sets


def _add_labels(obj: dict[str, Any], labels: dict[str, str]) -> None:
    """Add labels to an object, whose `metadata:` or `labels:` may be empty; drop empty keys of its metadata."""
    metadata = obj.get("metadata") or {}
    merged_labels = (metadata.get("labels") or {}) | labels
    obj["metadata"] = {key: value for key, value in metadata.items() if value is not None}
    if merged_labels:
        obj["metadata"]["labels"] = merged_labels


def _list_companion_permissions(companions: list[dict[str, Any]]) -> list[Permission]:
    kinds = sorted({_name_resource(companion) for companion in companions})
    return [Permission(verbs=etcd.PERMISSION_VERBS, resource=kind) for kind in kinds]


def _name_resource(document: dict[str, Any]) -> str:
    """The full name of a document's kind: networkpolicies.networking.k8s.io."""
    group = str(document["apiVersion"]).rpartition("/")[0]
    resource = plural_kind(str(document["kind"]))
    return f"{resource}.{group}" if group else resource


def _required_capacity(job: dict[str, Any], pod_sets: list[PodSet], job_kind: JobKind) -> Capacity:
    """The capacity that the pods of the first set need. Under the host's network a port allows one pod per node.

    The number of pods is Volcano's minAvailable, or else all. Raises as `_list_pod_sets` does.
    """
    spec = pod_sets[0].template["spec"]
    container = spec["containers"][0]
    container_resources = container.get("resources") or {}
    resources = (container_resources.get("limits") or {}) | (container_resources.get("requests") or {})
    min_available = int(job["spec"].get("minAvailable") or 0)
    has_ports = job_kind.has_ports or container.get("ports")
    return Capacity(
        pods=min_available or sum(pod_set.pod_count for pod_set in pod_sets),
        labels=spec.get("nodeSelector") or {},
        tolerations=tuple(toleration.get("key") or "" for toleration in spec.get("tolerations") or ()),
        resources={name: str(amount) for name, amount in resources.items()},
        one_per_node=bool(spec.get("hostNetwork") and has_ports),
    )
