"""A job from the user's own manifest: launched as it is, with the labels and the rendezvous id of a run.

If there is a checkpoint to continue from, its path is a variable of the pods (torchyard/pods/manifest_resume.py), and
torchrun gets the level of its log that shows which pod has rank 0 (torchyard/pods/manifest_ranks.py).

It gets the run's name, and what refers to it in the manifest follows (torchyard/pods/manifest_names.py); with
`manifest_name: keep` it keeps its own.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    OpenQueue,
    Permission,
    ReferencedObject,
    WritableFolder,
    get_manifest_location,
    get_resource,
    is_cluster_scoped,
)
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import etcd, manifest_faults, requirements
from torchyard.pods import template as pod_template
from torchyard.pods.job_kind import (
    JobKind,
    JobObjects,
    describe_object,
    get_name,
    list_by_rank,
    list_queue_requirements,
    list_queue_traps,
    plan_job,
)
from torchyard.pods.manifest_names import JobReference, Renaming, rename_references
from torchyard.pods.manifest_pods import list_capacities, list_pod_sets, locate_pods
from torchyard.pods.manifest_ranks import add_log_level, find_rank_source
from torchyard.pods.manifest_resume import add_resume_variable
from torchyard.pods.server_fields import drop_server_fields
from torchyard.pods.volumes import Manifest

# Keys that the manifest itself decides; in the profile they would have no effect.
_MANIFEST_OWNED_KEYS = (
    "args",
    "env",
    "fabric",
    "hardware",
    "image",
    "job",
    "mounts",
    "nodes",
    "options",
    "pod",
    "processes",
    "rendezvous",
    "resources",
    "setup",
)
_CLUSTER_VERBS = ("create", "get")  # on objects without a namespace, which a run does not delete
_VOLCANO_QUEUE = "queues.scheduling.volcano.sh"
_NOTHING_RENAMED = Renaming((), ())


def plan_manifest(
    profile: ResolvedProfile, run: Run, job_kind: JobKind, job_requirements: Iterable[ClusterRequirement]
) -> ManifestPlan:
    """The plan of the manifest's job and the objects beside it. `job_requirements`: of every job of this kind.

    Raises ProfileError unless the manifest holds exactly one job of this kind, in one namespace, and the profile
    repeats nothing of it.
    """
    # The next attempt starts from the profile's documents, so they must not change: these are copies.
    documents: list[Manifest] = []
    read_findings: list[Finding] = [*profile.manifest_warnings]
    for original in profile.manifest:
        document, dropped = drop_server_fields(original)
        documents.append(document)
        if dropped:
            problem = f"left out is what a server or kubectl has added: {', '.join(dropped)}"
            read_findings.append(Finding(describe_object(document), problem, verdict="ok"))
    _validate_manifest(profile, run, job_kind, documents)
    main = next(document for document in documents if manifest_faults.is_main_job(document, job_kind))
    companions = [document for document in documents if document is not main]
    is_renamed = profile.manifest_name == "run"
    # Before the job gets another name: findings are in the manifest's own words.
    traps = (*lint_manifest(documents), *list_queue_traps(job_kind, main))
    queue_requirements = list_queue_requirements(job_kind, main, f"{describe_object(main)}, metadata.labels")
    located_pods = locate_pods(main, job_kind)
    renaming = _rename_job(main, documents, run.job(profile), job_kind) if is_renamed else _NOTHING_RENAMED
    long_names = manifest_faults.find_long_companion_names(companions)
    if long_names:
        raise ProfileError(profile.name, tuple(long_names))
    for companion in companions:
        _add_labels(companion, _companion_labels(companion, profile, run))
    _adopt_job(main, profile, run, job_kind)
    resume_findings = add_resume_variable(profile, run.resume, located_pods)
    job = job_kind.find_job(main)
    level_findings = add_log_level(job, located_pods)
    namespaces = _list_namespaces(profile, documents)
    host_name_findings = manifest_faults.find_long_host_names(
        job, located_pods, job_kind, namespaces[0] if namespaces else "default"
    )
    cluster = profile.cluster.model_copy(update={"namespace": namespaces[0] if namespaces else None})
    advice = (
        *read_findings,
        *renaming.replaced,
        *resume_findings,
        *level_findings,
        *traps,
        *host_name_findings,
        *renaming.doubts,
    )
    created_objects = [*companions, *job_kind.list_companions(main)]
    all_requirements = (
        *(requirement for requirement in job_requirements if not _is_created(requirement, companions)),
        *_list_companion_permissions(companions, etcd.PERMISSION_VERBS),
        *_list_companion_permissions(job_kind.list_companions(main), ("create", "list")),
        WritableFolder(host="localhost", path=run.folder),
        *requirements.list_run_permissions(profile),
        *(requirement for requirement in queue_requirements if not _is_created(requirement, companions)),
        *_list_references(job, job_kind, created_objects),
        *list_capacities(job, located_pods, job_kind),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *(Advice(finding=finding) for finding in advice),
    )
    return plan_job(
        profile.model_copy(update={"cluster": cluster}),
        run,
        job_kind,
        JobObjects(main, store=tuple(companions)),
        [_locate_requirement(profile, requirement) for requirement in all_requirements],
        ranks=find_rank_source(list_by_rank(job, job_kind)[0].template),
    )


def _locate_requirement(profile: Profile, requirement: ClusterRequirement) -> ClusterRequirement:
    """A requirement that is about an object of the manifest, with its line; others unchanged."""
    position = profile.positions.get(get_manifest_location(requirement))
    if position is None:
        return requirement
    if isinstance(requirement, Advice):
        return Advice(finding=requirement.finding.at(position))
    if isinstance(requirement, Capacity) and requirement.manifest:
        fields = requirement.manifest.model_copy(update={"position": position})
        return requirement.model_copy(update={"manifest": fields})
    return requirement


def _rename_job(main: Manifest, documents: Sequence[Manifest], new_name: str, job_kind: JobKind) -> Renaming:
    """Give the job, and the object in it, the run's name; return what became of the references to it."""
    job = job_kind.find_job(main)
    roles: list[str] = []
    for pod_set in list_pod_sets(job, job_kind):
        if pod_set.naming == "by job":
            roles.append("")
        elif pod_set.naming != "as job":  # a script may compute the number of a Job in a JobSet, too: train-worker-$i-0
            roles += [pod_set.name, pod_set.name.rstrip("0123456789").rstrip("-")]
    jobs: list[JobReference] = []
    for obj in (main,) if job is main else (main, job):
        name = (obj.get("metadata") or {}).get("name")
        if isinstance(name, str) and name not in [reference.name for reference in jobs]:
            config_map = f"{name}{job_kind.config_map_suffix}" if job_kind.config_map_suffix else ""
            jobs.append(JobReference(obj["kind"], name, tuple(dict.fromkeys(roles)), job_kind.has_service, config_map))
    renaming = rename_references(documents, jobs, new_name)
    for obj in (main, job):
        obj["metadata"] = (obj.get("metadata") or {}) | {"name": new_name}
        obj["metadata"].pop("generateName", None)
    return renaming


def _adopt_job(main: Manifest, profile: Profile, run: Run, job_kind: JobKind) -> None:
    """Give the job, the object in it and its pods the run's labels and rendezvous id."""
    job = job_kind.find_job(main)
    labels = pod_template.attempt_labels(profile, run)
    for obj in (main, job):
        _add_labels(obj, labels)
    for pod_set in list_pod_sets(job, job_kind):
        _add_labels(pod_set.template, labels)
    for companion in job_kind.list_companions(main):
        _add_labels(companion, labels | {pod_facts.ROLE_LABEL: "companion"})
    elastic_policy = job["spec"].get("elasticPolicy")  # without an id, all jobs would meet under the id `none`
    if isinstance(elastic_policy, dict) and not elastic_policy.get("rdzvId"):
        elastic_policy["rdzvId"] = run.job(profile)


def _companion_labels(document: Mapping[str, Any], profile: Profile, run: Run) -> dict[str, str]:
    """The labels by which a companion is deleted with the run.

    None if it has no namespace, because other users of the cluster may rely on it, or if it holds data that the profile
    protects.
    """
    if is_cluster_scoped(_name_resource(document)):
        return {}
    labels = pod_template.attempt_labels(profile, run)
    if document.get("kind") not in etcd.DATA_KINDS:
        return labels | {pod_facts.ROLE_LABEL: "companion"}
    if profile.on_companion_data == "delete":
        return labels | {pod_facts.ROLE_LABEL: etcd.DISPOSABLE_ROLE}
    return {}


def has_protected_data(obj: Mapping[str, Any]) -> bool:
    """Whether deleting an object would lose data that no profile allows to be deleted."""
    role = pod_facts.get_mapping(obj, "metadata", "labels").get(pod_facts.ROLE_LABEL)
    return obj.get("kind") in etcd.DATA_KINDS and role != etcd.DISPOSABLE_ROLE


def _validate_manifest(profile: Profile, run: Run, job_kind: JobKind, documents: Sequence[Manifest]) -> None:
    """Raise ProfileError if the profile repeats keys of the manifest, or the manifest does not hold one sound job."""
    findings: list[Finding] = []
    for key in _MANIFEST_OWNED_KEYS:
        if key in profile.model_fields_set and getattr(profile, key):
            findings.append(Finding(key, "cannot be combined with manifest, which sets it; change it there"))
    main_faults = manifest_faults.find_main_faults(documents, job_kind)
    findings += main_faults
    if not main_faults:
        main = next(document for document in documents if manifest_faults.is_main_job(document, job_kind))
        name = run.job(profile)
        if profile.manifest_name == "keep":
            findings += manifest_faults.find_kept_name_faults(main, job_kind)
            name = get_name(main) or name
        findings += manifest_faults.find_job_faults(main, name, job_kind)
        findings += manifest_faults.find_metadata_faults(documents, job_kind)
    namespaces = _list_namespaces(profile, documents)
    if len(namespaces) > 1:
        other = next(
            obj for obj in documents if pod_facts.get_mapping(obj, "metadata").get("namespace") == namespaces[1]
        )
        problem = f"all objects of a run must be in one namespace; named are {', '.join(namespaces)}"
        findings.append(Finding(f"{describe_object(other)}, metadata.namespace", problem, "write one, or none"))
    if findings:
        raise ProfileError(profile.name, tuple(findings))


def _list_namespaces(profile: Profile, documents: Sequence[Manifest]) -> list[str]:
    """Every namespace that the profile and the manifest name; the profile's comes first."""
    namespaces = [profile.cluster.namespace]
    for document in documents:
        namespaces.append(pod_facts.get_mapping(document, "metadata").get("namespace"))
    return list(dict.fromkeys(namespace for namespace in namespaces if namespace))


def _add_labels(obj: dict[str, Any], labels: dict[str, str]) -> None:
    """Add labels to an object, whose `metadata:` or `labels:` may be empty; drop empty keys of its metadata."""
    metadata = obj.get("metadata") or {}
    merged_labels = (metadata.get("labels") or {}) | labels
    obj["metadata"] = {key: value for key, value in metadata.items() if value is not None}
    if merged_labels:
        obj["metadata"]["labels"] = merged_labels


def _list_companion_permissions(companions: Sequence[Manifest], verbs: tuple[str, ...]) -> list[Permission]:
    """The permissions on the kinds of companions; those without a namespace are only created, or read."""
    permissions = []
    for resource in sorted({_name_resource(companion) for companion in companions}):
        resource_verbs = _CLUSTER_VERBS if is_cluster_scoped(resource) else verbs
        permissions.append(Permission(verbs=resource_verbs, resource=resource))
    return permissions


def _list_references(job: Manifest, job_kind: JobKind, created_objects: Sequence[Manifest]) -> list[ReferencedObject]:
    """The objects that the pods need to start, each once, without those that are created before them or with them."""
    references: dict[ReferencedObject, None] = {}
    for pod_set in list_pod_sets(job, job_kind):
        references |= dict.fromkeys(requirements.list_referenced_objects(pod_set.template["spec"]))
    if job_kind.config_map_suffix:
        name = f"{get_name(job)}{job_kind.config_map_suffix}"
        references.pop(ReferencedObject(object_kind="ConfigMap", name=name), None)
    return [reference for reference in references if not _is_created(reference, created_objects)]


def _name_resource(document: Mapping[str, Any]) -> str:
    """The full name of a document's kind: networkpolicies.networking.k8s.io."""
    return get_resource(str(document["apiVersion"]), str(document["kind"]))


def _is_created(requirement: ClusterRequirement, companions: Iterable[Manifest]) -> bool:
    """Whether a requirement is an object that the manifest creates beside the job, or that one of those creates."""
    if isinstance(requirement, OpenQueue):
        return any(_name_resource(obj) == _VOLCANO_QUEUE and get_name(obj) == requirement.name for obj in companions)
    if isinstance(requirement, ReferencedObject):
        identity = (requirement.object_kind, requirement.name)
        return any(identity in ((obj["kind"], get_name(obj)), _get_claim_template(obj)) for obj in companions)
    return False


def _get_claim_template(obj: Mapping[str, Any]) -> tuple[str, object]:
    """Kind and name of the claim template that the controller of a ComputeDomain creates for it."""
    return "ResourceClaimTemplate", pod_facts.get_mapping(obj, "spec", "channel", "resourceClaimTemplate").get("name")
