"""A pod that runs torchrun, built from named pieces: what every launcher on Kubernetes puts into its job."""

import math
from typing import Any

from tasks.errors import ProfileError
from tasks.launchers._torchrun import literal
from tasks.model import Run
from tasks.needs import Admitted, Advice, ClusterNeed, Object, Right, Room, WritableFolder
from tasks.spec import Mount, Pod, Profile, Source

Manifest = dict[str, Any]
RUN, ATTEMPT, ROLE = "torchyard/run", "torchyard/attempt", "torchyard/role"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
GPU = "nvidia.com/gpu"
MOST = 1000  # nodes: the longest name of a profile and three digits make a host name of 63 characters
# Read by whoever judges the log: without NET, NCCL does not say whether GPUDirect is in use.
NCCL_SAYS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET"}


def labels(profile: Profile, run: Run) -> dict[str, str]:
    """What every object of an attempt carries."""
    return {RUN: run.name(profile), ATTEMPT: str(run.attempt)}


def pod_needs(profile: Profile) -> Pod:
    """What the fabric and the profile say together."""
    return profile.pod.over(profile.network.pod) if profile.network else profile.pod


def template(profile: Profile, run: Run, container: Manifest) -> Manifest:
    """A pod template around the one container of the job."""
    needs = pod_needs(profile)
    networks = [name for name, count in needs.networks.items() for _ in range(count)]
    annotations = {**needs.annotations, **({NETWORKS: ",".join(networks)} if networks else {})}
    return {
        "metadata": {
            "labels": {**needs.labels, **labels(profile, run)},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(profile.deadlines.grace),
            "enableServiceLinks": False,
            **network(needs),
            **placement(profile, run, needs),
            **identity(needs),
            "volumes": [volume for volume, _ in volumes(profile, needs)],
        },
    }


def container(profile: Profile, name: str, command: tuple[str, ...], env: list[Manifest]) -> Manifest:
    """The container in which torchrun runs."""
    needs = pod_needs(profile)
    made = {
        "name": name,
        "image": profile.image,
        "command": list(command),
        "env": env,
        "resources": resources(profile),
        "volumeMounts": [mount for _, mount in volumes(profile, needs)],
        "securityContext": security(needs),
        "imagePullPolicy": needs.pull_policy,
        "workingDir": needs.workdir,
    }
    return {key: value for key, value in made.items() if value}


def environment(profile: Profile, run: Run, node_field: str) -> list[Manifest]:
    """The environment of every process; the profile has the last word. `node_field` holds the pod's index."""
    gpus = NCCL_SAYS if GPU in requests(profile) or profile.hardware else {}
    fabric = profile.network.env if profile.network else {}
    plain = {
        "LOGLEVEL": "INFO",  # torchrun tells the rendezvous' result at this level only
        "PYTHONUNBUFFERED": "1",
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        **gpus,
        **fabric,
        **profile.env,
    }
    node = {"name": "TORCHYARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": node_field}}}
    return [node, *(variable(name, value) for name, value in plain.items())]


def variable(name: str, value: str | Source) -> Manifest:
    """A variable, or the reference to its value."""
    if isinstance(value, str):
        return {"name": name, "value": literal(value)}
    kind = {"secretKeyRef": value.secret} if value.secret else {"configMapKeyRef": value.config_map}
    return {"name": name, "valueFrom": {ref: {"name": of, "key": value.key} for ref, of in kind.items()}}


def requests(profile: Profile) -> dict[str, str]:
    """What a pod asks for, by the names of Kubernetes."""
    asked = {**pod_needs(profile).resources, **profile.resources}
    return {gpu(profile) if name == "gpus" else name: amount for name, amount in asked.items() if amount != "0"}


def gpu(profile: Profile) -> str:
    """The GPUs' own name, which is the key of their nodes' taint too."""
    return profile.hardware.gpus.resource if profile.hardware else GPU


def resources(profile: Profile) -> Manifest:
    """Requests; limits for what has no meaning without one. A CPU limit would only throttle."""
    asked = requests(profile)
    limits = {name: amount for name, amount in asked.items() if name not in ("cpu", "memory")}
    return {key: value for key, value in {"requests": asked, "limits": limits}.items() if value}


def network(needs: Pod) -> Manifest:
    """The host's network keeps the cluster's names: without the DNS policy the pods would not find each other."""
    host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if needs.host_network else {}
    return {**host, **({"hostIPC": True} if needs.host_ipc else {})}


def placement(profile: Profile, run: Run, needs: Pod) -> Manifest:
    """Nodes of the shape, one pod on each: two pods on one node would not use the fabric between nodes."""
    selector = {**(profile.hardware.match if profile.hardware else {}), **needs.node_selector}
    workers = {"matchExpressions": [{"key": ROLE, "operator": "DoesNotExist"}], "matchLabels": labels(profile, run)}
    apart = {"labelSelector": workers, "topologyKey": "kubernetes.io/hostname"}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    tolerated = [{"key": key, "operator": "Exists"} for key in tolerations(profile)]
    made = {
        "nodeSelector": selector,
        "affinity": alone if profile.nodes.max > 1 else None,
        "tolerations": tolerated,
    }
    return {key: value for key, value in made.items() if value}


def tolerations(profile: Profile) -> tuple[str, ...]:
    """Taints by name: tolerating all would keep pods on dead nodes for ever, and put them on control planes."""
    tainted = (gpu(profile),) if gpu(profile) in requests(profile) else ()
    return tuple(dict.fromkeys((*tainted, *pod_needs(profile).tolerations)))


def identity(needs: Pod) -> Manifest:
    """As whom the pod runs and pulls."""
    made = {
        "serviceAccountName": needs.service_account,
        "priorityClassName": needs.priority_class,
        "imagePullSecrets": [{"name": name} for name in needs.pull_secrets],
    }
    return {key: value for key, value in made.items() if value}


def security(needs: Pod) -> Manifest:
    capabilities = {"capabilities": {"add": list(needs.capabilities)}} if needs.capabilities else {}
    return {**({"privileged": True} if needs.privileged else {}), **capabilities}


def volumes(profile: Profile, needs: Pod) -> list[tuple[Manifest, Manifest]]:
    """Each volume with its mount."""
    devices = {path: {"hostPath": {"path": path}} for path in needs.devices}
    memory = {"medium": "Memory", "sizeLimit": needs.shm}
    shm: dict[str, Manifest] = {"/dev/shm": {"emptyDir": memory}} if needs.shm else {}
    named = {path: volume_of(mount) for path, mount in profile.mounts.items()}
    read_only = {path for path, mount in profile.mounts.items() if mount.read_only}
    found = enumerate({**devices, **shm, **named}.items())
    return [
        (
            {"name": f"volume-{index}", **source},
            {"name": f"volume-{index}", "mountPath": path, **({"readOnly": True} if path in read_only else {})},
        )
        for index, (path, source) in found
    ]


def volume_of(mount: Mount) -> Manifest:
    """A volume's source."""
    sources: dict[str, Manifest] = {
        "persistentVolumeClaim": {"claimName": mount.claim},
        "configMap": {"name": mount.config_map},
        "secret": {"secretName": mount.secret},
        "hostPath": {"path": mount.host},
        "emptyDir": {"sizeLimit": mount.scratch},
    }
    return {kind: source for kind, source in sources.items() if next(iter(source.values()))}


# --- what must be true


def requires(profile: Profile, run: Run) -> tuple[ClusterNeed, ...]:
    """What a pod of the job needs, whoever makes it."""
    network = profile.network
    room = Room(
        pods=profile.nodes.min,
        labels={**(profile.hardware.match if profile.hardware else {}), **pod_needs(profile).node_selector},
        tolerations=tolerations(profile),
        resources=requests(profile),
        alone=profile.nodes.max > 1,
        device_plugin=network.device_plugin if network else None,
    )
    return (
        WritableFolder(host="localhost", path=run.folder),
        Right(verbs=("get", "list", "watch"), resource="pods"),
        Right(verbs=("get",), resource="pods/log"),
        room,
        Admitted(what="objects"),
        Admitted(what="pod"),
        *named_objects(profile),
        *advice(profile),
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
            found.append(Object(what=what, name=str(name), keys=(source.key,)))
    for mount in profile.mounts.values():
        kinds = {"PersistentVolumeClaim": mount.claim, "ConfigMap": mount.config_map, "Secret": mount.secret}
        found += [Object.model_validate({"what": what, "name": name}) for what, name in kinds.items() if name]
    found += [Object(what="Secret", name=name) for name in needs.pull_secrets]
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


def refuse(profile: Profile) -> None:
    """What only the profile as a whole can get wrong, for a job in pods."""
    findings = []
    if profile.program and not profile.image:
        findings.append("image: the pods need one, with torch and the program in it")
    if profile.name[0].isdigit():
        findings.append(f"name: {profile.name} must begin with a letter, as names of Services do")
    if profile.rendezvous == "static" and profile.nodes.min != profile.nodes.max:
        findings.append(f"nodes: static has a place for each node: one number, not {profile.nodes}")
    if profile.nodes.max > MOST:
        findings.append(f"nodes: at most {MOST}, with more the last pods' names could be too long")
    if findings:
        raise ProfileError(profile.name, tuple(findings))
