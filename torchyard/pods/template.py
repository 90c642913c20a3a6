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
    pod_count: int
    template_path: KeyPath


def attempt_labels(profile: Profile, run: Run) -> dict[str, str]:
    """The labels of every object of an attempt."""
    return {RUN_LABEL: run.name(profile), ATTEMPT_KEY: str(run.attempt)}


def files_name(profile: Profile, run: Run) -> str:
    """The name of the ConfigMap with the profile's files."""
    return f"{run.job(profile)}-files"


def merge_pod_settings(profile: Profile) -> Pod:
    """The pod settings of the fabric and the profile together; the profile takes precedence."""
    return profile.pod.merge_over(profile.network.pod) if profile.network else profile.pod


def build_pod_template(profile: Profile, run: Run, container: Manifest) -> Manifest:
    """A pod template around the one container of the job."""
    pod = merge_pod_settings(profile)
    names = [container["name"], *(init.name for init in pod.init)]
    if duplicates := [name for index, name in enumerate(names) if name in names[:index]]:
        message = f"pod.init: a second container cannot be called {duplicates[0]}; the job's own is {names[0]}"
        raise ProfileError(profile.name, (message,))
    volumes = [volume for volume, _ in build_volumes(profile, pod)]
    volumes += [volume for index in range(len(pod.init)) for volume, _ in build_init_volumes(pod, index)]
    volumes += build_files_volume(profile, files_name(profile, run))
    networks = [name for name, count in pod.networks.items() for _ in range(count)]
    annotations = {**pod.annotations, **({_NETWORKS_ANNOTATION: ",".join(networks)} if networks else {})}
    return {
        "metadata": {
            "labels": {**pod.labels, **attempt_labels(profile, run)},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(profile.deadlines.grace),
            "enableServiceLinks": False,
            **_build_host_network(pod),
            **_build_placement(profile, run, pod),
            **build_pod_identity(pod),
            **_build_init_containers(pod),
            **({"resourceClaims": list_resource_claims(profile)} if list_resource_claims(profile) else {}),
            **({"volumes": volumes} if volumes else {}),
        },
    }


def build_container(profile: Profile, name: str, command: tuple[str, ...], env: list[Manifest]) -> Manifest:
    """The container in which torchrun runs."""
    pod = merge_pod_settings(profile)
    fields = {
        "name": name,
        "image": profile.image,
        "command": list(command),
        "env": env,
        "envFrom": [_build_env_source(source) for source in pod.env_from],
        "resources": build_resources(profile),
        "volumeMounts": [*(mount for _, mount in build_volumes(profile, pod)), *build_file_mounts(profile)],
        "securityContext": _build_security_context(pod),
        "imagePullPolicy": pod.pull_policy,
        "workingDir": pod.workdir,
    }
    return {key: value for key, value in fields.items() if value}


def build_container_env(profile: Profile, run: Run, node_env: list[Manifest]) -> list[Manifest]:
    """The environment of every process; `first` describes its place in the job. The profile takes precedence."""
    gpus = NCCL_LOG_ENV if GPU_RESOURCE in resource_requests(profile) or profile.hardware else {}
    fabric = profile.network.env if profile.network else {}
    variables = {
        "LOGLEVEL": "INFO",  # torchrun logs the rendezvous' result at this level only
        "PYTHONUNBUFFERED": "1",
        "TORCHYARD_RUN": run.name(profile),
        "TORCHYARD_ATTEMPT": str(run.attempt),
        **gpus,
        **fabric,
        **profile.env,
    }
    unset_node_env = [variable for variable in node_env if variable["name"] not in variables]
    return [*unset_node_env, *(_build_variable(name, value) for name, value in variables.items())]


def _build_variable(name: str, value: str | KeyReference) -> Manifest:
    """A variable, or the reference to its value."""
    if isinstance(value, str):
        return {"name": name, "value": escape_dollars(value)}
    names_by_source = {"secretKeyRef": value.secret} if value.secret else {"configMapKeyRef": value.config_map}
    return {
        "name": name,
        "valueFrom": {
            source: {"name": object_name, "key": value.key} for source, object_name in names_by_source.items()
        },
    }


def _build_env_source(source: ConfigReference) -> Manifest:
    """One variable for each key; `env` takes precedence over them."""
    return {"secretRef": {"name": source.secret}} if source.secret else {"configMapRef": {"name": source.config_map}}


def _build_init_containers(pod: Pod) -> Manifest:
    """The containers that run before the job's."""
    containers = [
        {
            "name": init.name,
            "image": init.image,
            **({"command": [escape_dollars(arg) for arg in init.command]} if init.command else {}),
            **_build_init_extras(init, [mount for _, mount in build_init_volumes(pod, index)]),
        }
        for index, init in enumerate(pod.init)
    ]
    return {"initContainers": containers} if containers else {}


def _build_init_extras(init: Init, mounts: list[Manifest]) -> Manifest:
    """What most init containers do not need. `Always` makes a sidecar of one: the kubelet ends it after the job's."""
    fields = {
        "restartPolicy": "Always" if init.sidecar else None,
        "env": [_build_variable(name, value) for name, value in init.env.items()],
        "volumeMounts": mounts,
        "securityContext": {"capabilities": {"add": list(init.capabilities)}} if init.capabilities else None,
    }
    return {key: value for key, value in fields.items() if value}


def resource_requests(profile: Profile) -> dict[str, str]:
    """What a pod requests, under Kubernetes' names."""
    return rename_resources(profile, {**merge_pod_settings(profile).resources, **profile.resources})


def rename_resources(profile: Profile, amounts: dict[str, str]) -> dict[str, str]:
    """Amounts under Kubernetes' names, without those that are 0."""
    return {
        _get_gpu_resource(profile) if name == "gpus" else name: amount
        for name, amount in amounts.items()
        if amount != "0"
    }


def _get_gpu_resource(profile: Profile) -> str:
    """The GPUs' resource name, which is also the key of their nodes' taint."""
    return profile.hardware.gpus.resource if profile.hardware else GPU_RESOURCE


def build_resources(profile: Profile) -> Manifest:
    """Requests and limits. CPU and memory have a limit only if the profile sets one: one of CPU would only throttle."""
    requests = resource_requests(profile)
    limits = {name: amount for name, amount in requests.items() if name not in ("cpu", "memory")}
    limits |= rename_resources(profile, merge_pod_settings(profile).limits)
    claims = [{"name": claim["name"]} for claim in list_resource_claims(profile)]
    return {key: value for key, value in {"requests": requests, "limits": limits, "claims": claims}.items() if value}


def list_resource_claims(profile: Profile) -> list[Manifest]:
    """The fabric's claims: on a channel of its ComputeDomain, whose template has the domain's name, and on devices."""
    if not profile.network:
        return []
    names = (profile.network.compute_domain, *profile.network.claim_templates)
    return [{"name": name, "resourceClaimTemplateName": name} for name in names if name]


def _build_host_network(pod: Pod) -> Manifest:
    """The host's network with the cluster's DNS: without that DNS policy the pods would not find each other."""
    settings = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if pod.host_network else {}
    return {**settings, **({"hostIPC": True} if pod.host_ipc else {})}


def _build_placement(profile: Profile, run: Run, pod: Pod) -> Manifest:
    """Nodes of the shape, one pod on each: two pods on one node would not use the fabric between nodes."""
    selector = {**(profile.hardware.match if profile.hardware else {}), **pod.node_selector}
    same_attempt = {
        "matchExpressions": [{"key": ROLE_LABEL, "operator": "DoesNotExist"}],
        "matchLabels": attempt_labels(profile, run),
    }
    anti_affinity_term = {"labelSelector": same_attempt, "topologyKey": "kubernetes.io/hostname"}
    anti_affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [anti_affinity_term]}}
    affinity = {**_build_node_affinity(pod), **(anti_affinity if profile.nodes.max > 1 and pod.spread else {})}
    tolerations = [{"key": key, "operator": "Exists"} for key in list_tolerations(profile)]
    fields = {
        "nodeSelector": selector,
        "affinity": affinity,
        "tolerations": tolerations,
        "schedulerName": pod.scheduler,
    }
    return {key: value for key, value in fields.items() if value}


def _build_node_affinity(pod: Pod) -> Manifest:
    """Which nodes to use and which to avoid, by the values of labels. A node without the label is not avoided."""
    rules = [
        {"key": key, "operator": operator, "values": list(values)}
        for operator, labels in (("In", pod.only), ("NotIn", pod.avoid))
        for key, values in labels.items()
        if values
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}} if rules else {}


def list_tolerations(profile: Profile) -> tuple[str, ...]:
    """The taints to tolerate, by name: tolerating all would keep pods on dead nodes, and put them on control planes."""
    taints = (_get_gpu_resource(profile),) if _get_gpu_resource(profile) in resource_requests(profile) else ()
    return tuple(dict.fromkeys((*taints, *merge_pod_settings(profile).tolerations)))


def build_pod_identity(pod: Pod) -> Manifest:
    """The service account, priority class and pull secrets of the pod."""
    fields = {
        "serviceAccountName": pod.service_account,
        "priorityClassName": pod.priority_class,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    return {key: value for key, value in fields.items() if value}


def _build_security_context(pod: Pod) -> Manifest:
    capabilities = {"capabilities": {"add": list(pod.capabilities)}} if pod.capabilities else {}
    return {**({"privileged": True} if pod.privileged else {}), **capabilities}


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
