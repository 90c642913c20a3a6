"""What must be true in a cluster before the pods of a job can start there."""

from torchyard.model.pod import KeyReference
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
from torchyard.model.run import Run
from torchyard.pods.template import list_resource_claims, list_tolerations, merge_pod_settings, resource_requests
from torchyard.pods.volumes import merge_mounts

_RUN_PERMISSIONS = (
    Permission(verbs=("list", "watch"), resource="pods"),
    Permission(verbs=("get",), resource="pods/log"),
    Permission(verbs=("list",), resource="events"),
    Permission(verbs=("create", "get", "patch", "delete"), resource="leases.coordination.k8s.io"),
)


_FILES_PERMISSION = Permission(verbs=("create", "get", "list", "delete"), resource="configmaps")


def list_run_permissions(profile: Profile) -> tuple[Permission, ...]:
    """The permissions that a run needs on any job's pods, and on its Lease."""
    force = profile.on_stuck_pod == "force"
    return (*_RUN_PERMISSIONS, Permission(verbs=("delete",), resource="pods")) if force else _RUN_PERMISSIONS


def job_permission(crd: str) -> Permission:
    """The permission that a run needs on the job itself."""
    return Permission(verbs=("create", "get", "list", "watch", "delete"), resource=crd)


def list_pod_requirements(profile: Profile, run: Run, ports: bool = False) -> tuple[ClusterRequirement, ...]:
    """What the job's pods need. `ports`: they name ports, which are the node's own under the host's network."""
    return (
        WritableFolder(host="localhost", path=run.folder),
        *list_run_permissions(profile),
        *((_FILES_PERMISSION,) if profile.files else ()),
        _required_capacity(profile, ports),
        AdmissionAccepted(target="objects"),
        AdmissionAccepted(target="pod"),
        *_list_references(profile),
        *_advise_image_tag(profile),
    )


def _required_capacity(profile: Profile, ports: bool) -> Capacity:
    """Enough nodes for the smallest number of pods."""
    network, pod = profile.network, merge_pod_settings(profile)
    is_spread, uses_host_ports = profile.nodes.max > 1 and pod.spread, ports and pod.host_network
    return Capacity(
        pods=profile.nodes.min,
        labels={**(profile.hardware.match if profile.hardware else {}), **pod.node_selector},
        avoid=pod.avoid,
        only=pod.only,
        tolerations=list_tolerations(profile),
        resources=resource_requests(profile),
        one_per_node=is_spread or uses_host_ports,
        uses_host_ports=uses_host_ports and not is_spread,
        device_plugin=network.device_plugin if network else None,
    )


def _list_references(profile: Profile) -> list[ReferencedObject]:
    """Every object that the pods name, which must exist before them."""
    pod = merge_pod_settings(profile)
    references = [
        ReferencedObject(object_kind="NetworkAttachmentDefinition", name=name, namespace=namespace or None)
        for namespace, _, name in (network.rpartition("/") for network, count in pod.networks.items() if count)
    ]
    for source in profile.env.values():
        if isinstance(source, KeyReference):
            object_kind, name = ("Secret", source.secret) if source.secret else ("ConfigMap", source.config_map)
            references.append(ReferencedObject(object_kind=object_kind, name=str(name), required_entries=(source.key,)))
    for source_ref in pod.env_from:
        object_kind, name = ("Secret", source_ref.secret) if source_ref.secret else ("ConfigMap", source_ref.config_map)
        references.append(ReferencedObject(object_kind=object_kind, name=str(name)))
    for mount in (*merge_mounts(profile).values(), *(mount for init in pod.init for mount in init.mounts.values())):
        kinds = {"PersistentVolumeClaim": mount.claim, "ConfigMap": mount.config_map, "Secret": mount.secret}
        references += [
            ReferencedObject.model_validate({"object_kind": object_kind, "name": name})
            for object_kind, name in kinds.items()
            if name
        ]
    references += [ReferencedObject(object_kind="Secret", name=name) for name in pod.pull_secrets]
    references += _list_claimed(profile)
    references += [
        ReferencedObject(object_kind="StorageClass", name=mount.storage_class)
        for mount in merge_mounts(profile).values()
        if mount.storage_class
    ]
    if pod.priority_class:
        references.append(ReferencedObject(object_kind="PriorityClass", name=pod.priority_class))
    if pod.service_account:
        references.append(ReferencedObject(object_kind="ServiceAccount", name=pod.service_account))
    return list(dict.fromkeys(references))


def _list_claimed(profile: Profile) -> list[ReferencedObject]:
    """What fills the fabric's claims; a ComputeDomain brings its own template."""
    domain = profile.network.compute_domain if profile.network else None
    names = [claim["name"] for claim in list_resource_claims(profile)]
    kinds = {name: "ComputeDomain" if name == domain else "ResourceClaimTemplate" for name in names}
    return [
        ReferencedObject.model_validate({"object_kind": object_kind, "name": name})
        for name, object_kind in kinds.items()
    ]


def _advise_image_tag(profile: Profile) -> list[Advice]:
    """A warning about an image without a fixed tag."""
    tag = (profile.image or "").rpartition("/")[2].partition("@")[0].partition(":")[2]
    if tag in ("", "latest") and "@" not in (profile.image or ""):
        detail = "has no fixed tag: the next run may be another program; name a version or a digest"
        return [Advice(topic=f"image {profile.image}", detail=detail)]
    return []
