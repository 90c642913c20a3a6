"""Requirements on a cluster, checked before the pods of a job start there."""

from torchyard.agents.job_files import needs_config_map
from torchyard.model.finding import warning_check
from torchyard.model.pod import ConfigReference, KeyReference, Mount, Pod
from torchyard.model.profile import Profile
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    ClusterRequirement,
    Permission,
    ReferencedObject,
    WritableFolder,
)
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run

_RUN_PERMISSIONS = (
    Permission(verbs=("list", "watch"), resource="pods"),
    Permission(verbs=("get",), resource="pods/log"),
    Permission(verbs=("list",), resource="events"),
    Permission(verbs=("create", "get", "patch", "delete"), resource="leases.coordination.k8s.io"),
)
_FILES_PERMISSION = Permission(verbs=("create", "get", "list", "delete"), resource="configmaps")


def list_run_permissions(profile: Profile) -> tuple[Permission, ...]:
    """The permissions that a run needs on any job's pods, and on its Lease."""
    if profile.on_stuck_pod == "force":
        return (*_RUN_PERMISSIONS, Permission(verbs=("delete",), resource="pods"))
    return _RUN_PERMISSIONS


def job_permission(crd: str) -> Permission:
    """The permission that a run needs on the job itself."""
    return Permission(verbs=("create", "get", "list", "watch", "delete"), resource=crd)


def list_pod_requirements(
    profile: ResolvedProfile, run: Run, *, has_ports: bool = False
) -> tuple[ClusterRequirement, ...]:
    """The requirements of the job's pods.

    `has_ports`: they declare ports, which are the node's under the host's network.
    """
    requirements: list[ClusterRequirement] = [
        WritableFolder(host="localhost", path=run.folder),
        *list_run_permissions(profile),
    ]
    if needs_config_map(profile):
        requirements.append(_FILES_PERMISSION)
    requirements += [
        _required_capacity(profile, has_ports=has_ports),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *_list_references(profile),
    ]
    if _has_floating_tag(profile.image or ""):
        problem = "has no fixed tag: the next run may get another program"
        finding = warning_check(f"image {profile.image}", problem, "name a version or a digest")
        requirements.append(Advice(finding=finding))
    return tuple(requirements)


def _required_capacity(profile: ResolvedProfile, *, has_ports: bool) -> Capacity:
    """Enough nodes for the smallest number of pods."""
    pod = profile.pod
    is_spread = profile.nodes.max > 1 and pod.spread
    uses_host_ports = has_ports and pod.host_network
    return Capacity(
        pods=profile.nodes.min,
        labels=profile.node_labels,
        avoid=pod.avoid,
        only=pod.only,
        tolerations=profile.tolerations,
        resources=profile.requests,
        one_per_node=is_spread or uses_host_ports,
        uses_host_ports=uses_host_ports and not is_spread,
        device_plugin=profile.device_plugin,
    )


def _list_references(profile: ResolvedProfile) -> list[ReferencedObject]:
    """Every object that the pods name, which must exist before them."""
    pod = profile.pod
    references = _list_networks(pod)
    for source in profile.env.values():
        if isinstance(source, KeyReference):
            references.append(_reference_source(source, required_entries=(source.key,)))
    references += [_reference_source(source) for source in pod.env_from]
    for mount in profile.mounts.values():
        references += _list_mounted_objects(mount)
    for init in pod.init:
        for mount in init.mounts.values():
            references += _list_mounted_objects(mount)
    references += [ReferencedObject(object_kind="Secret", name=name) for name in pod.pull_secrets]
    references += _list_claimed_objects(profile)
    for mount in profile.mounts.values():
        if mount.storage_class:
            references.append(ReferencedObject(object_kind="StorageClass", name=mount.storage_class))
    if pod.priority_class:
        references.append(ReferencedObject(object_kind="PriorityClass", name=pod.priority_class))
    if pod.service_account:
        references.append(ReferencedObject(object_kind="ServiceAccount", name=pod.service_account))
    return list(dict.fromkeys(references))  # each object once: a ConfigMap may be mounted and in the environment


def _list_networks(pod: Pod) -> list[ReferencedObject]:
    """The networks of the pods; one without a namespace is in the job's."""
    networks = []
    for network, count in pod.networks.items():
        if count:
            namespace, _, name = network.rpartition("/")
            networks.append(
                ReferencedObject(object_kind="NetworkAttachmentDefinition", name=name, namespace=namespace or None)
            )
    return networks


def _reference_source(
    source: ConfigReference | KeyReference, required_entries: tuple[str, ...] = ()
) -> ReferencedObject:
    """The Secret or ConfigMap that variables come from."""
    if source.secret:
        return ReferencedObject(object_kind="Secret", name=source.secret, required_entries=required_entries)
    name = str(source.config_map)  # the model requires one of the two
    return ReferencedObject(object_kind="ConfigMap", name=name, required_entries=required_entries)


def _list_mounted_objects(mount: Mount) -> list[ReferencedObject]:
    """The claim, ConfigMap or Secret of a mount; empty for a mount of another kind."""
    if mount.claim:
        return [ReferencedObject(object_kind="PersistentVolumeClaim", name=mount.claim)]
    if mount.config_map:
        return [ReferencedObject(object_kind="ConfigMap", name=mount.config_map)]
    if mount.secret:
        return [ReferencedObject(object_kind="Secret", name=mount.secret)]
    return []


def _list_claimed_objects(profile: ResolvedProfile) -> list[ReferencedObject]:
    """The objects that provide the fabric's resource claims; a ComputeDomain creates its own claim template."""
    references = []
    for name in profile.claims:
        if name == profile.compute_domain:
            references.append(ReferencedObject(object_kind="ComputeDomain", name=name))
        else:
            references.append(ReferencedObject(object_kind="ResourceClaimTemplate", name=name))
    return references


def _has_floating_tag(image: str) -> bool:
    """Whether the name of an image may mean another image tomorrow: no tag or `latest`, and no digest."""
    if "@" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")
