"""A pod that runs torchrun, built from named pieces: what every launcher on Kubernetes puts into its job."""

import math
from collections.abc import Iterable, Iterator, Mapping

from torchyard.agents.job_code import get_pod_folder
from torchyard.agents.job_files import MOUNTED
from torchyard.agents.process_env import NCCL_LOG_ENV, NODE_VARIABLE, build_job_env, escape_dollars
from torchyard.diagnosis.pod_facts import ROLE_LABEL, RUN_LABEL, get_mapping
from torchyard.lint.rdma import NETWORKS_ANNOTATION
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.pod import (
    ConfigReference,
    EnvValue,
    FieldReference,
    Init,
    Pod,
    TolerationItem,
    read_toleration,
)
from torchyard.model.profile import Profile
from torchyard.model.resolved import GPU_RESOURCE, ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods.code.unpacking import (
    CONTAINER_NAME,
    PROXY_VARIABLES,
    SOURCE_FOLDER,
    ContainerParts,
    build_code_container,
    build_code_mounts,
    build_code_volumes,
    find_code_faults,
)
from torchyard.pods.patch import patch_template
from torchyard.pods.volumes import (
    Manifest,
    build_file_mounts,
    build_files_volume,
    build_init_volumes,
    build_job_file_volumes,
    build_volumes,
    drop_empty,
)

ATTEMPT_KEY = "torchyard/attempt"
CLI_RUN_LABEL = "torchyard/cli-run"  # of a job without a Lease: with RUN_LABEL, a sweep would remove it as abandoned
NODE_TOPOLOGY_KEY = "kubernetes.io/hostname"  # the label whose value differs on each node
_MAX_NODES = 1000  # nodes: the longest name of a profile and three digits make a host name of 63 characters


def attempt_labels(profile: Profile, run: Run) -> dict[str, str]:
    """The labels of every object of an attempt."""
    return {RUN_LABEL: run.name(profile), ATTEMPT_KEY: str(run.attempt)}


def parse_attempt_labels(job_name: str) -> dict[str, str]:
    """The labels of an attempt by the name of its objects (Run.job), which consists of their values."""
    run_name, _, attempt = job_name.rpartition("-")
    return {RUN_LABEL: run_name, ATTEMPT_KEY: attempt}


def files_name(profile: Profile, run: Run) -> str:
    """The name of the ConfigMap with the profile's files and torchyard's own."""
    return f"{run.job(profile)}-files"


def code_name(profile: Profile, run: Run) -> str:
    """The name of the ConfigMap with the profile's code."""
    return f"{run.job(profile)}-code"


def build_pod_template(profile: ResolvedProfile, run: Run, container: Manifest) -> Manifest:
    """A pod template with `container` as its first regular container, and the only one unless a patch adds others.

    Raises ProfileError if two containers have the same name, or a patch cannot be merged.
    """
    pod = profile.pod
    _check_container_names(profile, container)

    annotations = dict(pod.annotations)
    networks = _format_networks(pod)
    if networks:
        annotations[NETWORKS_ANNOTATION] = networks
    metadata = {
        "labels": pod.labels | attempt_labels(profile, run),
        "annotations": annotations,
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",  # a container that ends keeps its log and exit code
        "terminationGracePeriodSeconds": math.ceil(profile.deadlines.grace),  # the API takes whole seconds
        "enableServiceLinks": False,  # a Service called `etcd` or `port` would set variables that programs read
    }
    spec |= _build_host_network(pod)
    spec |= _build_placement(profile, run)
    spec |= build_pod_identity(pod)
    code_parts = ContainerParts(_build_security_context(pod), build_resources(profile), _build_proxy_env(profile))
    spec["initContainers"] = build_code_container(profile, code_parts) + _build_init_containers(pod)
    spec["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": name} for name in profile.claims]
    spec["volumes"] = _list_volumes(profile, run)
    return patch_template(profile, {"metadata": drop_empty(metadata), "spec": drop_empty(spec)})


def _format_networks(pod: Pod) -> str:
    """The annotation's text for the pod's networks: one interface for each repetition of a name; empty without one."""
    names: list[str] = []
    for name, count in pod.networks.items():
        names += [name] * count
    return ",".join(names)


def _find_network_conflicts(pod: Pod) -> Iterator[Finding]:
    """Yield each setting of the annotation that contradicts `pod.networks`.

    The two are not merged: their order gives the interfaces their names, and an annotation may be in JSON.
    """
    networks = _format_networks(pod)
    if not networks:
        return
    settings: list[tuple[str, Mapping[str, object]]] = [("pod.annotations", pod.annotations)]
    settings += [("pod.patch", get_mapping(patch, "metadata", "annotations")) for patch in pod.patch]
    for key, annotations in settings:
        if annotations.get(NETWORKS_ANNOTATION, networks) != networks:
            names = ", ".join(name for name, count in pod.networks.items() if count)
            problem = f"{NETWORKS_ANNOTATION} cannot be combined with pod.networks, which sets it ({names})"
            remedy = "remove it, or set each of these networks to 0 in pod.networks, also those of the fabric"
            yield Finding(key, problem, remedy)


def _check_container_names(profile: Profile, container: Manifest) -> None:
    """Raise ProfileError if two containers of the pod have the same name, which Kubernetes rejects."""
    names = {container["name"], CONTAINER_NAME}
    for init in profile.pod.init:
        if init.name in names:
            own_names = f"{container['name']} and {CONTAINER_NAME}"
            problem = f"a second container cannot be called {init.name}; the job's own are {own_names}"
            raise ProfileError(profile.name, (Finding("pod.init", problem),))
        names.add(init.name)


def _list_volumes(profile: ResolvedProfile, run: Run) -> list[Manifest]:
    """The volumes of the job's container, of the init containers, of the profile's files and of torchyard's own."""
    volumes = [volume for volume, _ in build_volumes(profile)]
    for index in range(len(profile.pod.init)):
        volumes += [volume for volume, _ in build_init_volumes(profile.pod, index)]
    config_map = files_name(profile, run)
    volumes += build_files_volume(profile, config_map)
    volumes += [volume for volume, _ in build_job_file_volumes(profile, config_map)]
    volumes += build_code_volumes(profile, code_name(profile, run))
    return volumes


def build_container(profile: ResolvedProfile, name: str, command: tuple[str, ...], env: list[Manifest]) -> Manifest:
    """The container that runs torchrun, or the program alone. For an image's entrypoint, `command` is its arguments."""
    pod = profile.pod
    mounts = [mount for _, mount in build_volumes(profile)]
    mounts += build_file_mounts(profile)
    mounts += [mount for _, mount in build_job_file_volumes(profile, "")]
    mounts += build_code_mounts(profile)
    fields = {
        "name": name,
        "image": profile.image,
        "args" if profile.has_image_entrypoint else "command": list(command),
        "env": env,
        "envFrom": [_build_env_source(source) for source in pod.env_from],
        "resources": build_resources(profile),
        "volumeMounts": mounts,
        "securityContext": _build_security_context(pod),
        "imagePullPolicy": pod.pull_policy,
        "workingDir": get_pod_folder(profile) or pod.workdir,
    }
    return drop_empty(fields)


def build_container_env(profile: ResolvedProfile, run: Run, node_env: list[Manifest]) -> list[Manifest]:
    """The environment of every process.

    `node_env`: the variables that give the pod its place in the job. They come first, because the others may refer to
    them. The profile and its fabric take precedence over them.
    """
    variables: dict[str, EnvValue] = {}
    variables |= build_job_env(profile, run)
    if GPU_RESOURCE in profile.requests or profile.hardware:
        variables |= NCCL_LOG_ENV
    variables |= profile.env
    env = [variable for variable in node_env if variable["name"] not in variables]
    env += [_build_variable(name, value) for name, value in variables.items()]
    return env


def _build_proxy_env(profile: Profile) -> list[Manifest]:
    """The profile's variables that name proxies."""
    return [_build_variable(name, value) for name, value in profile.env.items() if name.upper() in PROXY_VARIABLES]


def _build_variable(name: str, value: EnvValue) -> Manifest:
    """A variable with its value, or with a reference to the key or the field that holds it."""
    if isinstance(value, str):
        return {"name": name, "value": escape_dollars(value)}
    if isinstance(value, FieldReference):
        return {"name": name, "valueFrom": _build_field_source(value)}
    kind = "secretKeyRef" if value.secret else "configMapKeyRef"
    source = {"name": value.secret or value.config_map, "key": value.key}
    return {"name": name, "valueFrom": {kind: source}}


def _build_field_source(reference: FieldReference) -> Manifest:
    """The field of the pod, or the amount of its container, that is a variable's value."""
    if reference.field:
        return {"fieldRef": {"fieldPath": reference.field}}
    return {"resourceFieldRef": drop_empty({"resource": reference.resource, "divisor": reference.divisor})}


def _build_env_source(source: ConfigReference) -> Manifest:
    """A variable for each key of a Secret or ConfigMap; `env` takes precedence over them."""
    if source.secret:
        return {"secretRef": {"name": source.secret}}
    return {"configMapRef": {"name": source.config_map}}


def _build_init_containers(pod: Pod) -> list[Manifest]:
    """The containers that start before the job's."""
    containers = []
    for index, init in enumerate(pod.init):
        mounts = [mount for _, mount in build_init_volumes(pod, index)]
        containers.append(_build_init_container(init, mounts))
    return containers


def _build_init_container(init: Init, mounts: list[Manifest]) -> Manifest:
    """An init container; `restartPolicy: Always` makes it a sidecar, which the kubelet stops after the job's."""
    fields: Manifest = {
        "name": init.name,
        "image": init.image,
        "command": [escape_dollars(arg) for arg in init.command],
        "restartPolicy": "Always" if init.sidecar else None,
        "env": [_build_variable(name, value) for name, value in init.env.items()],
        "volumeMounts": mounts,
    }
    if init.capabilities:
        fields["securityContext"] = {"capabilities": {"add": list(init.capabilities)}}
    return drop_empty(fields)


def build_resources(profile: ResolvedProfile) -> Manifest:
    """Requests, limits and claims.

    Other resources have a limit equal to their request. CPU and memory have one only if the profile sets it, because a
    limit may throttle or kill a job that its nodes have room for.
    """
    requests = profile.requests
    limits = {name: amount for name, amount in requests.items() if name not in ("cpu", "memory")} | profile.limits
    claims = [{"name": name} for name in profile.claims]
    return drop_empty({"requests": requests, "limits": limits, "claims": claims})


def _build_host_network(pod: Pod) -> Manifest:
    """The host's network and IPC, if the pod uses them.

    The host's network comes with the cluster's DNS: without that policy the pods would not find each other by name.
    """
    fields: Manifest = {}
    if pod.host_network:
        fields["hostNetwork"] = True
        fields["dnsPolicy"] = "ClusterFirstWithHostNet"
    if pod.host_ipc:
        fields["hostIPC"] = True
    return fields


def _build_placement(profile: ResolvedProfile, run: Run) -> Manifest:
    """Nodes of the shape, and one pod on each: two pods on one node would not use the fabric between nodes."""
    affinity = _build_node_affinity(profile.pod)
    if profile.nodes.max > 1 and profile.pod.spread:
        affinity["podAntiAffinity"] = _build_anti_affinity(profile, run)
    fields = {
        "nodeSelector": profile.node_labels,
        "affinity": affinity,
        "tolerations": build_tolerations(profile.tolerations),
        "schedulerName": profile.pod.scheduler,
    }
    return drop_empty(fields)


def build_tolerations(items: Iterable[TolerationItem]) -> list[Manifest]:
    """Tolerations as Kubernetes has them."""
    tolerations = []
    for toleration in map(read_toleration, items):
        fields = {
            "key": toleration.key,
            "operator": toleration.resolved_operator,
            "value": toleration.value,
            "effect": toleration.effect,
            "tolerationSeconds": toleration.toleration_seconds,
        }
        tolerations.append(drop_empty(fields))
    return tolerations


def _build_anti_affinity(profile: Profile, run: Run) -> Manifest:
    """At most one of the attempt's workers on each node; pods with a role, such as the store, may be there too."""
    workers = {
        "matchExpressions": [{"key": ROLE_LABEL, "operator": "DoesNotExist"}],
        "matchLabels": attempt_labels(profile, run),
    }
    term = {"labelSelector": workers, "topologyKey": NODE_TOPOLOGY_KEY}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _build_node_affinity(pod: Pod) -> Manifest:
    """Which nodes to use and which to avoid, by the values of labels. A node without the label is not avoided."""
    expressions = []
    for operator, labels in (("In", pod.only), ("NotIn", pod.avoid)):
        for key, values in labels.items():
            if values:
                expressions.append({"key": key, "operator": operator, "values": list(values)})
    if not expressions:
        return {}
    selector = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def build_pod_identity(pod: Pod) -> Manifest:
    """The service account, priority class and pull secrets of the pod."""
    fields = {
        "serviceAccountName": pod.service_account,
        "priorityClassName": pod.priority_class,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    return drop_empty(fields)


def _build_security_context(pod: Pod) -> Manifest:
    fields: Manifest = {}
    if pod.privileged:
        fields["privileged"] = True
    if pod.capabilities:
        fields["capabilities"] = {"add": list(pod.capabilities)}
    return fields


def validate_pod_profile(profile: ResolvedProfile) -> None:
    """Raise ProfileError with all faults of a job in pods that only the whole profile shows."""
    findings: list[Finding] = []
    if not profile.manifest and not profile.image:
        findings.append(Finding("image", "the pods need one, with torch and the program in it"))
    if profile.program and profile.program.startswith("~") and not profile.code:
        problem = "is a file of the image, and in a pod no shell expands ~"
        findings.append(Finding("program", problem, "write its absolute path"))
    if profile.name[0].isdigit():
        findings.append(Finding("name", f"{profile.name} must begin with a letter, as names of Services do"))
    if NODE_VARIABLE in profile.env:
        findings.append(Finding(f"env.{NODE_VARIABLE}", "torchyard sets this in each pod; choose another name"))
    own_folders = [*MOUNTED, SOURCE_FOLDER]
    for path in own_folders:
        if path in profile.mounts:
            findings.append(Finding(f"mounts.{path}", "torchyard mounts its own files there; choose another path"))
    findings += find_code_faults(profile)
    findings += _find_network_conflicts(profile.pod)
    if profile.nodes.max > _MAX_NODES:
        findings.append(Finding("nodes", f"at most {_MAX_NODES}, with more the last pods' names could be too long"))
    if findings:
        raise ProfileError(profile.name, tuple(findings))
