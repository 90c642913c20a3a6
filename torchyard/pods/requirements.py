"""What must be true in a cluster before the pods of a job can start there."""

from torchyard.model.pod import Source
from torchyard.model.profile import Profile
from torchyard.model.requirements import Admitted, Advice, ClusterNeed, Object, Right, Room, WritableFolder
from torchyard.model.run import Run
from torchyard.pods.template import claims, pod_needs, requests, tolerations
from torchyard.pods.volumes import mounts

EVERY_RUN = (
    Right(verbs=("list", "watch"), resource="pods"),
    Right(verbs=("get",), resource="pods/log"),
    Right(verbs=("list",), resource="events"),
    Right(verbs=("create", "get", "patch", "delete"), resource="leases.coordination.k8s.io"),
)


def rights(profile: Profile) -> tuple[Right, ...]:
    """What the line does with any job's pods, and with its Lease."""
    force = profile.on_stuck_pod == "force"
    return (*EVERY_RUN, Right(verbs=("delete",), resource="pods")) if force else EVERY_RUN


def job_right(crd: str) -> Right:
    """What the line does with the job itself."""
    return Right(verbs=("create", "get", "list", "watch", "delete"), resource=crd)


def requires(profile: Profile, run: Run, ports: bool = False) -> tuple[ClusterNeed, ...]:
    """What a pod of the job needs. `ports`: it names some, and under the host's network they are the node's."""
    return (
        WritableFolder(host="localhost", path=run.folder),
        *rights(profile),
        room(profile, ports),
        Admitted(what="objects"),
        Admitted(what="pod"),
        *named_objects(profile),
        *advice(profile),
    )


def room(profile: Profile, ports: bool) -> Room:
    """Enough nodes for the fewest pods."""
    network, needs = profile.network, pod_needs(profile)
    apart, held = profile.nodes.max > 1 and needs.spread, ports and needs.host_network
    return Room(
        pods=profile.nodes.min,
        labels={**(profile.hardware.match if profile.hardware else {}), **needs.node_selector},
        avoid=needs.avoid,
        tolerations=tolerations(profile),
        resources=requests(profile),
        alone=apart or held,
        port=held and not apart,
        device_plugin=network.device_plugin if network else None,
    )


def named_objects(profile: Profile) -> list[Object]:
    """Everything that the pods name and that must be there before them."""
    needs = pod_needs(profile)
    found = [
        Object(what="NetworkAttachmentDefinition", name=name, namespace=namespace or None)
        for namespace, _, name in (each.rpartition("/") for each, count in needs.networks.items() if count)
    ]
    for source in profile.env.values():
        if isinstance(source, Source):
            what, name = ("Secret", source.secret) if source.secret else ("ConfigMap", source.config_map)
            found.append(Object(what=what, name=str(name), holds=(source.key,)))
    for each in needs.env_from:
        what, name = ("Secret", each.secret) if each.secret else ("ConfigMap", each.config_map)
        found.append(Object(what=what, name=str(name)))
    for mount in mounts(profile).values():
        kinds = {"PersistentVolumeClaim": mount.claim, "ConfigMap": mount.config_map, "Secret": mount.secret}
        found += [Object.model_validate({"what": what, "name": name}) for what, name in kinds.items() if name]
    found += [Object(what="Secret", name=name) for name in needs.pull_secrets]
    found += [Object(what="ComputeDomain", name=each["name"]) for each in claims(profile)]
    found += [
        Object(what="StorageClass", name=each.storage_class) for each in mounts(profile).values() if each.storage_class
    ]
    if needs.priority_class:
        found.append(Object(what="PriorityClass", name=needs.priority_class))
    if needs.service_account:
        found.append(Object(what="ServiceAccount", name=needs.service_account))
    return list(dict.fromkeys(found))


def advice(profile: Profile) -> list[Advice]:
    """What can be told of the profile alone."""
    tag = (profile.image or "").rpartition("/")[2].partition("@")[0].partition(":")[2]
    if tag in ("", "latest") and "@" not in (profile.image or ""):
        detail = "has no fixed tag: the next run may be another program; name a version or a digest"
        return [Advice(about=f"image {profile.image}", detail=detail)]
    return []
