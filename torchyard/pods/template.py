"""A pod that runs torchrun, built from named pieces: what every launcher on Kubernetes puts into its job."""

import math
from typing import Any, NamedTuple

from torchyard.agents.process_env import NCCL_LOG_ENV, NODE_VARIABLE, escape_dollars
from torchyard.model.errors import ProfileError
from torchyard.model.pod import ConfigReference, Init, KeyReference, Pod
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.pods.volumes import build_file_mounts, build_files_volume, build_init_volumes, build_volumes

Manifest = dict[str, Any]
KeyPath = tuple[str | int, ...]  # keys, from the outermost to the innermost
RUN_LABEL, ATTEMPT_KEY, ROLE_LABEL = "torchyard/run", "torchyard/attempt", "torchyard/role"
CLI_RUN_LABEL = "torchyard/cli-run"  # of a job that has no Lease: a sweep finds runs by RUN_LABEL
_NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
GPU_RESOURCE = "nvidia.com/gpu"
_MAX_NODES = 1000  # nodes: the longest name of a profile and three digits make a host name of 63 characters


class PodSet(NamedTuple):
    """The pods of one template in a user's manifest; they are named <job>-<name>-<i>."""

    name: str
    pods: int
    template: KeyPath


def attempt_labels(profile: Profile, run: Run) -> dict[str, str]:
    """The labels of every object of an attempt."""
    return {RUN_LABEL: run.name(profile), ATTEMPT_KEY: str(run.attempt)}


def files_name(profile: Profile, run: Run) -> str:
    """The name of the ConfigMap with the profile's files."""
    return f"{run.job(profile)}-files"


def merge_pod_settings(profile: Profile) -> Pod:
    """The pod settings of the fabric and the profile together; the profile takes precedence."""
    return profile.pod.merge_over(profile.network.pod) if profile.network else profile.pod


def pod_template(profile: Profile, run: Run, container: Manifest) -> Manifest:
    """A pod template around the one container of the job."""
    needs = merge_pod_settings(profile)
    names = [container["name"], *(each.name for each in needs.init)]
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        said = f"pod.init: a second container cannot be called {twice[0]}; the job's own is {names[0]}"
        raise ProfileError(profile.name, (said,))
    mounted = [volume for volume, _ in build_volumes(profile, needs)]
    mounted += [volume for index in range(len(needs.init)) for volume, _ in build_init_volumes(needs, index)]
    mounted += build_files_volume(profile, files_name(profile, run))
    networks = [name for name, count in needs.networks.items() for _ in range(count)]
    annotations = {**needs.annotations, **({_NETWORKS_ANNOTATION: ",".join(networks)} if networks else {})}
    return {
        "metadata": {
            "labels": {**needs.labels, **attempt_labels(profile, run)},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(profile.deadlines.grace),
            "enableServiceLinks": False,
            **_build_host_network(needs),
            **_build_placement(profile, run, needs),
            **build_pod_identity(needs),
            **_build_init_containers(needs),
            **({"resourceClaims": list_resource_claims(profile)} if list_resource_claims(profile) else {}),
            **({"volumes": mounted} if mounted else {}),
        },
    }


def build_container(profile: Profile, name: str, command: tuple[str, ...], env: list[Manifest]) -> Manifest:
    """The container in which torchrun runs."""
    needs = merge_pod_settings(profile)
    made = {
        "name": name,
        "image": profile.image,
        "command": list(command),
        "env": env,
        "envFrom": [_build_env_source(each) for each in needs.env_from],
        "resources": build_resources(profile),
        "volumeMounts": [*(mount for _, mount in build_volumes(profile, needs)), *build_file_mounts(profile)],
        "securityContext": _build_security_context(needs),
        "imagePullPolicy": needs.pull_policy,
        "workingDir": needs.workdir,
    }
    return {key: value for key, value in made.items() if value}


def build_container_env(profile: Profile, run: Run, first: list[Manifest]) -> list[Manifest]:
    """The environment of every process; `first` describes its place in the job. The profile takes precedence."""
    gpus = NCCL_LOG_ENV if GPU_RESOURCE in resource_requests(profile) or profile.hardware else {}
    fabric = profile.network.env if profile.network else {}
    plain = {
        "LOGLEVEL": "INFO",  # torchrun logs the rendezvous' result at this level only
        "PYTHONUNBUFFERED": "1",
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        **gpus,
        **fabric,
        **profile.env,
    }
    own = [each for each in first if each["name"] not in plain]
    return [*own, *(_build_variable(name, value) for name, value in plain.items())]


def _build_variable(name: str, value: str | KeyReference) -> Manifest:
    """A variable, or the reference to its value."""
    if isinstance(value, str):
        return {"name": name, "value": escape_dollars(value)}
    kind = {"secretKeyRef": value.secret} if value.secret else {"configMapKeyRef": value.config_map}
    return {"name": name, "valueFrom": {ref: {"name": of, "key": value.key} for ref, of in kind.items()}}


def _build_env_source(source: ConfigReference) -> Manifest:
    """One variable for each key; `env` takes precedence over them."""
    return {"secretRef": {"name": source.secret}} if source.secret else {"configMapRef": {"name": source.config_map}}


def _build_init_containers(needs: Pod) -> Manifest:
    """The containers that run before the job's."""
    made = [
        {
            "name": each.name,
            "image": each.image,
            **({"command": [escape_dollars(word) for word in each.command]} if each.command else {}),
            **_build_init_extras(each, [mount for _, mount in build_init_volumes(needs, index)]),
        }
        for index, each in enumerate(needs.init)
    ]
    return {"initContainers": made} if made else {}


def _build_init_extras(init: Init, mounts: list[Manifest]) -> Manifest:
    """What most init containers do not need. `Always` makes a sidecar of one: the kubelet ends it after the job's."""
    made = {
        "restartPolicy": "Always" if init.sidecar else None,
        "env": [_build_variable(name, value) for name, value in init.env.items()],
        "volumeMounts": mounts,
        "securityContext": {"capabilities": {"add": list(init.capabilities)}} if init.capabilities else None,
    }
    return {key: value for key, value in made.items() if value}


def resource_requests(profile: Profile) -> dict[str, str]:
    """What a pod requests, under Kubernetes' names."""
    return name_resources(profile, {**merge_pod_settings(profile).resources, **profile.resources})


def name_resources(profile: Profile, amounts: dict[str, str]) -> dict[str, str]:
    """Amounts under Kubernetes' names, without those that are 0."""
    return {
        _find_gpu_resource(profile) if name == "gpus" else name: amount
        for name, amount in amounts.items()
        if amount != "0"
    }


def _find_gpu_resource(profile: Profile) -> str:
    """The GPUs' resource name, which is also the key of their nodes' taint."""
    return profile.hardware.gpus.resource if profile.hardware else GPU_RESOURCE


def build_resources(profile: Profile) -> Manifest:
    """Requests and limits. CPU and memory have a limit only if the profile sets one: one of CPU would only throttle."""
    asked = resource_requests(profile)
    limits = {name: amount for name, amount in asked.items() if name not in ("cpu", "memory")}
    limits |= name_resources(profile, merge_pod_settings(profile).limits)
    claimed = [{"name": each["name"]} for each in list_resource_claims(profile)]
    return {key: value for key, value in {"requests": asked, "limits": limits, "claims": claimed}.items() if value}


def list_resource_claims(profile: Profile) -> list[Manifest]:
    """The fabric's claims: on a channel of its ComputeDomain, whose template has the domain's name, and on devices."""
    if not profile.network:
        return []
    names = (profile.network.compute_domain, *profile.network.claim_templates)
    return [{"name": name, "resourceClaimTemplateName": name} for name in names if name]


def _build_host_network(needs: Pod) -> Manifest:
    """The host's network with the cluster's DNS: without that DNS policy the pods would not find each other."""
    host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if needs.host_network else {}
    return {**host, **({"hostIPC": True} if needs.host_ipc else {})}


def _build_placement(profile: Profile, run: Run, needs: Pod) -> Manifest:
    """Nodes of the shape, one pod on each: two pods on one node would not use the fabric between nodes."""
    selector = {**(profile.hardware.match if profile.hardware else {}), **needs.node_selector}
    workers = {
        "matchExpressions": [{"key": ROLE_LABEL, "operator": "DoesNotExist"}],
        "matchLabels": attempt_labels(profile, run),
    }
    apart = {"labelSelector": workers, "topologyKey": "kubernetes.io/hostname"}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    affinity = {**_build_node_affinity(needs), **(alone if profile.nodes.max > 1 and needs.spread else {})}
    tolerated = [{"key": key, "operator": "Exists"} for key in list_tolerations(profile)]
    made = {
        "nodeSelector": selector,
        "affinity": affinity,
        "tolerations": tolerated,
        "schedulerName": needs.scheduler,
    }
    return {key: value for key, value in made.items() if value}


def _build_node_affinity(needs: Pod) -> Manifest:
    """Which nodes to use and which to avoid, by the values of labels. A node without the label is not avoided."""
    rules = [
        {"key": key, "operator": operator, "values": list(values)}
        for operator, labels in (("In", needs.only), ("NotIn", needs.avoid))
        for key, values in labels.items()
        if values
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}} if rules else {}


def list_tolerations(profile: Profile) -> tuple[str, ...]:
    """The taints to tolerate, by name: tolerating all would keep pods on dead nodes, and put them on control planes."""
    tainted = (_find_gpu_resource(profile),) if _find_gpu_resource(profile) in resource_requests(profile) else ()
    return tuple(dict.fromkeys((*tainted, *merge_pod_settings(profile).tolerations)))


def build_pod_identity(needs: Pod) -> Manifest:
    """The service account, priority class and pull secrets of the pod."""
    made = {
        "serviceAccountName": needs.service_account,
        "priorityClassName": needs.priority_class,
        "imagePullSecrets": [{"name": name} for name in needs.pull_secrets],
    }
    return {key: value for key, value in made.items() if value}


def _build_security_context(needs: Pod) -> Manifest:
    capabilities = {"capabilities": {"add": list(needs.capabilities)}} if needs.capabilities else {}
    return {**({"privileged": True} if needs.privileged else {}), **capabilities}


def validate_pod_profile(profile: Profile) -> None:
    """Raise ProfileError for faults of a job in pods that only the whole profile shows."""
    findings = []
    if profile.program and not profile.image:
        findings.append("image: the pods need one, with torch and the program in it")
    if profile.name[0].isdigit():
        findings.append(f"name: {profile.name} must begin with a letter, as names of Services do")
    if NODE_VARIABLE in profile.env:
        findings.append(f"env.{NODE_VARIABLE}: torchyard sets this in each pod; choose another name")
    if profile.nodes.max > _MAX_NODES:
        findings.append(f"nodes: at most {_MAX_NODES}, with more the last pods' names could be too long")
    if findings:
        raise ProfileError(profile.name, tuple(findings))
