"""Convert values of the chart to keys of a profile. docs/values.md has a line for each."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.loading.helm_values import ChartValues

ProfileKeys = dict[str, Any]
_LAUNCHER = "appwrapper"
_HEALTH_LABELS = {"autopilot.ibm.com/gpuhealth": ["ERR", "TESTING", "EVICT"]}  # the chart avoids these by default
_TOPOLOGY_FOLDER = "/var/run/nvidia-topologyd"
_KUBERNETES_GRACE_S = 30  # the default of Kubernetes
_NVME_STORAGE_CLASS = "odf-lvm-vg1"
_OPTION_KEYS = {
    "queueName": "local_queue",
    "admissionGracePeriodDuration": "admission",
    "warmupGracePeriodDuration": "warmup",
    "failureGracePeriodDuration": "failure",
    "retryPausePeriodDuration": "retry_pause",
    "forcefulDeletionGracePeriodDuration": "forceful_deletion",
    "deletionOnFailureGracePeriodDuration": "deletion_on_failure",
    "successTTLDuration": "success_ttl",
    "retryLimit": "retries",
}
_QUOTED_PATTERN = re.compile(r"""\\.|'[^']*'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_SHELL_PATTERN = re.compile(r"[$`;&|<>()*?\n]|(?<!\S)[~#]")


def build_profile_keys(values: ChartValues, profile_keys: Mapping[str, Any]) -> ProfileKeys:
    """The equivalent keys of a profile, without `profile_keys`, the keys that the profile itself sets.

    Those decide which values apply: a program in the profile replaces `mainProgram`, for example.
    """
    command = [] if _has_program(profile_keys) else _split_command(values.mainProgram)
    module = None
    if command[:1] == ["-m"]:
        module = " ".join(command[1:2])
        command = command[1:]
    return _drop_empty_keys(
        launcher=_LAUNCHER,
        rendezvous="static",
        image=values.containerImage,
        nodes=values.numPods,
        processes=max(1, values.numGpusPerPod),
        program=command[0] if command and module is None else None,
        module=module,
        args=command[1:],
        setup=list(values.setupCommands),
        env=_build_env(values),
        mounts=dict(_list_mounts(values)),
        resources=_build_resources(values),
        pod=_build_pod_keys(values, profile_keys.get("resources")),
        cluster=_drop_empty_keys(namespace=values.namespace),
        deadlines={"grace": values.terminationGracePeriodSeconds or _KUBERNETES_GRACE_S},
        options=_build_launcher_options(values) if _get_launcher(profile_keys) == _LAUNCHER else {},
    )


def _drop_empty_keys(**keys: Any) -> ProfileKeys:
    """The keys that have a value: the profile defaults the others. False and 0 are values."""
    return {key: value for key, value in keys.items() if value not in (None, [], {})}


def _get_launcher(profile_keys: Mapping[str, Any]) -> Any:
    return profile_keys.get("launcher") or _LAUNCHER


def _split_command(program: str) -> list[str]:
    """The arguments of a command, as a shell splits them. ValueError if a quote is not closed."""
    return shlex.split(program.replace("\\\n", ""))


def _build_env(values: ChartValues) -> ProfileKeys:
    """The variables in the chart's order: of two with the same name the later one wins."""
    variables: ProfileKeys = {}
    if values.topologyFileConfigMap:
        variables["NCCL_TOPO_FILE"] = f"{_TOPOLOGY_FOLDER}/virtualTopology.xml"
    if values.mountNVMe:
        variables["NVME_MOUNT_PATH"] = values.mountNVMe.mountPath
    for variable in values.environmentVariables:
        if variable.secret:
            variables[variable.name] = {"secret": variable.secret.name, "key": variable.secret.key}
        elif variable.configmap:
            variables[variable.name] = {"config_map": variable.configmap.name, "key": variable.configmap.key}
        else:
            variables[variable.name] = variable.value
    if values.sshGitCloneConfig:
        variables["GIT_SSH_COMMAND"] = values.sshGitCloneConfig.command
    return variables


def _list_mounts(values: ChartValues) -> Iterator[tuple[str, ProfileKeys]]:
    """Each path in the pods, with the volume that is mounted there."""
    if values.topologyFileConfigMap:
        yield _TOPOLOGY_FOLDER, {"config_map": values.topologyFileConfigMap}
    nvme = values.mountNVMe
    if nvme:
        yield nvme.mountPath, {"ephemeral": nvme.storage, "storage_class": _NVME_STORAGE_CLASS}
    for volume in values.volumes:
        yield volume.mountPath, {"claim": volume.claimName}
    ssh = values.sshGitCloneConfig
    if ssh:
        yield ssh.secretMountPath, {"secret": ssh.secretName, "read_only": True}
        yield ssh.configMapMountPath, {"config_map": ssh.configMapName}


def _build_resources(values: ChartValues) -> ProfileKeys:
    resources: ProfileKeys = {"cpu": values.numCpusPerPod, "memory": values.totalMemoryPerPod}
    if values.numGpusPerPod:
        resources["gpus"] = values.numGpusPerPod
    if values.numRoceGdr:
        resources[values.roceGdrResName] = values.numRoceGdr
    return resources


def _build_pod_keys(values: ChartValues, resources: Any) -> ProfileKeys:
    """The keys of `pod`. `resources`: those that the profile itself requests; a limit must not be below them.

    The kubelet gives a memory volume without a size the pod's memory, so shm is set to that.
    """
    requests = resources if isinstance(resources, dict) else {}
    avoided_labels: dict[str, list[str]] = dict(_HEALTH_LABELS)
    if values.hostIgnoreList:
        avoided_labels["kubernetes.io/hostname"] = list(values.hostIgnoreList)
    networks = (values.multiNicNetworkName or "").replace(" ", "").split(",")
    locks_memory = values.numRoceGdr > 0 or values.serviceAccountName == "gdr"
    return _drop_empty_keys(
        labels=_build_pod_labels(values),
        avoid=avoided_labels,
        spread=False,  # the chart lets pods share a node
        limits={
            "cpu": values.limitCpusPerPod or requests.get("cpu") or values.numCpusPerPod,
            "memory": values.limitMemoryPerPod or requests.get("memory") or values.totalMemoryPerPod,
        },
        shm=None if values.disableSharedMemory else values.limitMemoryPerPod or values.totalMemoryPerPod,
        capabilities=["IPC_LOCK"] if locks_memory else [],
        networks=dict(Counter(filter(None, networks))),
        env_from=list(_list_env_sources(values)),
        init=[container.model_dump(mode="json") for container in values.initContainers],
        scheduler=values.schedulerName,
        pull_policy=values.imagePullPolicy,
        pull_secrets=[secret.name for secret in values.imagePullSecrets],
        service_account=values.serviceAccountName,
        priority_class=values.priority,
    )


def _build_pod_labels(values: ChartValues) -> ProfileKeys:
    labels: ProfileKeys = {}
    if values.jobName:
        labels["app.kubernetes.io/name"] = values.jobName
    for label in values.customLabels:
        labels[label.key] = label.value
    if values.autopilotHealthChecks:
        labels |= dict.fromkeys(("autopilot", *values.autopilotHealthChecks), "")
    return labels


def _list_env_sources(values: ChartValues) -> Iterator[ProfileKeys]:
    if values.ncclGdrEnvConfigMap:
        yield {"config_map": values.ncclGdrEnvConfigMap}
    for source in values.envFrom:
        if source.configMapRef:
            yield {"config_map": source.configMapRef.name}
        if source.secretRef:
            yield {"secret": source.secretRef.name}


def _build_launcher_options(values: ChartValues) -> ProfileKeys:
    """The options that only AppWrappers have. A duration may be in days: the launcher converts it to seconds for Go."""
    return _drop_empty_keys(**{option: getattr(values, key) for key, option in _OPTION_KEYS.items()})


# --- values that a profile cannot express

_RESTART_REFUSAL = "only Never: a restarted container has lost its peers; see `attempts` in the profile"
_OPTION_REFUSAL = f"only AppWrappers have it: use `launcher: {_LAUNCHER}`, or set it to null in a later file"
_MISSING_PROGRAM = (
    "is missing: torchrun needs a program, here or in the profile; if setupCommands are the whole job, save the output "
    "of `helm template` in a file, and name that as the `manifest` of a profile without values"
)
_SHELL_REFUSAL = "is for a shell, but no shell runs it: put it in '…', or set program and args in the profile"


def list_refusals(values: ChartValues, profile_keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key that a profile cannot express, with the reason."""
    gpus = values.numGpusPerPod
    if values.restartPolicy != "Never":
        yield "restartPolicy", _RESTART_REFUSAL
    if values.limitGpusPerPod not in (None, gpus):
        yield "limitGpusPerPod", f"GPUs are not shared: leave it out, or set it to {gpus} like numGpusPerPod"
    if values.numRoceGdr and values.numPods == 1:
        yield "numRoceGdr", "one pod has no other to reach: set it to 0, or use more pods"
    if _get_launcher(profile_keys) != _LAUNCHER:
        for key in _list_set_option_keys(values):
            yield key, _OPTION_REFUSAL
    mount_counts = Counter(path for path, _ in _list_mounts(values))
    for path, count in mount_counts.items():
        if count > 1:
            yield "volumes", f"{count} volumes are mounted at {path}: each needs a different path"
    if not _has_program(profile_keys):
        for reason in _list_program_faults(values.mainProgram):
            yield "mainProgram", reason


def _list_set_option_keys(values: ChartValues) -> list[str]:
    """The keys of _OPTION_KEYS that a file sets; the chart's own defaults do not count."""
    return [key for key in _OPTION_KEYS if key in values.model_fields_set and getattr(values, key) is not None]


def _has_program(profile_keys: Mapping[str, Any]) -> bool:
    """Whether the profile itself names the program; mainProgram is then ignored."""
    return bool(profile_keys.get("program") or profile_keys.get("module"))


def _list_program_faults(program: str) -> Iterator[str]:
    """Each reason why torchrun cannot start this program."""
    command = program.strip().replace("\\\n", "")
    if not program.strip():
        yield _MISSING_PROGRAM
    elif match := _SHELL_PATTERN.search(_strip_quoted_text(command)):
        yield f"{match[0]!r} {_SHELL_REFUSAL}"
    try:
        _split_command(program)
    except ValueError:
        yield f"a quote is not closed: {program}"


def _strip_quoted_text(text: str) -> str:
    """The text without its quoted parts, which a shell does not interpret; `$` and backquotes in "..." are kept."""
    return _QUOTED_PATTERN.sub(_keep_expansions, text)


def _keep_expansions(match: re.Match[str]) -> str:
    """The characters inside double quotes that a shell interprets."""
    unescaped = re.sub(r"\\.", "", match[1] or "")
    return "".join(re.findall(r"[$`]", unescaped))
