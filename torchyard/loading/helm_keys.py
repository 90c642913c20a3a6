"""Values of the chart -> keys of a profile. docs/values.md has a line for each."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.loading.helm_values import ChartValues

ProfileKeys = dict[str, Any]
_LAUNCHER = "appwrapper"
_HEALTH_LABELS = {
    "autopilot.ibm.com/gpuhealth": ["ERR", "TESTING", "EVICT"]
}  # which the chart avoids without being asked
_TOPOLOGY_FOLDER = "/var/run/nvidia-topologyd"
_NVME_STORAGE_CLASS = "odf-lvm-vg1"
_OPTION_KEYS = {
    "queueName": "queue",
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


def profile_keys(values: ChartValues, own: Mapping[str, Any]) -> ProfileKeys:
    """The keys of a profile that say the same; `own` is what the profile itself says, and is not in them."""
    main = [] if _has_program(own) else _split_words(values.mainProgram)
    return _drop_empty_keys(
        launcher=_LAUNCHER,
        rendezvous="static",
        image=values.containerImage,
        nodes=values.numPods,
        processes=max(1, values.numGpusPerPod),
        program=main[0] if main else None,
        args=main[1:],
        setup=list(values.setupCommands),
        env=_env_variables(values),
        mounts=dict(_list_mounts(values)),
        resources=_pod_resources(values),
        pod=_pod_keys(values),
        cluster=_drop_empty_keys(namespace=values.namespace),
        deadlines=_drop_empty_keys(grace=values.terminationGracePeriodSeconds),
        options=_launcher_options(values) if _find_launcher(own) == _LAUNCHER else {},
    )


def _drop_empty_keys(**keys: Any) -> ProfileKeys:
    """Without those that say nothing."""
    return {key: value for key, value in keys.items() if value not in (None, [], {})}


def _find_launcher(own: Mapping[str, Any]) -> Any:
    return own.get("launcher") or _LAUNCHER


def _split_words(program: str) -> list[str]:
    """The words of a command, as a shell splits them. ValueError where a quote does not end."""
    return shlex.split(program.replace("\\\n", ""))


def _env_variables(values: ChartValues) -> ProfileKeys:
    """The chart's order: of two with one name the later one counts."""
    found: ProfileKeys = {}
    if values.topologyFileConfigMap:
        found["NCCL_TOPO_FILE"] = f"{_TOPOLOGY_FOLDER}/virtualTopology.xml"
    if values.mountNVMe:
        found["NVME_MOUNT_PATH"] = values.mountNVMe.mountPath
    for each in values.environmentVariables:
        if each.secret:
            found[each.name] = {"secret": each.secret.name, "key": each.secret.key}
        elif each.configmap:
            found[each.name] = {"config_map": each.configmap.name, "key": each.configmap.key}
        else:
            found[each.name] = each.value
    if values.sshGitCloneConfig:
        found["GIT_SSH_COMMAND"] = values.sshGitCloneConfig.command
    return found


def _list_mounts(values: ChartValues) -> Iterator[tuple[str, ProfileKeys]]:
    """Each path with what is mounted there."""
    if values.topologyFileConfigMap:
        yield _TOPOLOGY_FOLDER, {"config_map": values.topologyFileConfigMap}
    if nvme := values.mountNVMe:
        yield nvme.mountPath, {"ephemeral": nvme.storage, "storage_class": _NVME_STORAGE_CLASS}
    for each in values.volumes:
        yield each.mountPath, {"claim": each.claimName}
    if ssh := values.sshGitCloneConfig:
        yield ssh.secretMountPath, {"secret": ssh.secretName, "read_only": True}
        yield ssh.configMapMountPath, {"config_map": ssh.configMapName}


def _pod_resources(values: ChartValues) -> ProfileKeys:
    devices = {"gpus": values.numGpusPerPod, values.roceGdrResName: values.numRoceGdr}
    plain = {"cpu": values.numCpusPerPod, "memory": values.totalMemoryPerPod}
    return {**plain, **{name: count for name, count in devices.items() if count}}


def _pod_keys(values: ChartValues) -> ProfileKeys:
    """What a memory volume without a size gets from the kubelet is the pod's memory, so that is what shm says."""
    hosts = {"kubernetes.io/hostname": list(values.hostIgnoreList)} if values.hostIgnoreList else {}
    networks = (values.multiNicNetworkName or "").replace(" ", "").split(",")
    locks = values.numRoceGdr > 0 or values.serviceAccountName == "gdr"
    return _drop_empty_keys(
        labels=_pod_labels(values),
        avoid={**_HEALTH_LABELS, **hosts},
        limits=_drop_empty_keys(cpu=values.limitCpusPerPod, memory=values.limitMemoryPerPod),
        shm=None if values.disableSharedMemory else values.limitMemoryPerPod or values.totalMemoryPerPod,
        capabilities=["IPC_LOCK"] if locks else [],
        networks=dict(Counter(filter(None, networks))),
        env_from=list(_list_bundles(values)),
        init=[each.model_dump(mode="json") for each in values.initContainers],
        scheduler=values.schedulerName,
        pull_policy=values.imagePullPolicy,
        pull_secrets=[each.name for each in values.imagePullSecrets],
        service_account=values.serviceAccountName,
        priority_class=values.priority,
    )


def _pod_labels(values: ChartValues) -> ProfileKeys:
    job = {"app.kubernetes.io/name": values.jobName} if values.jobName else {}
    checks = dict.fromkeys(("autopilot", *values.autopilotHealthChecks), "") if values.autopilotHealthChecks else {}
    return {**job, **{each.key: each.value for each in values.customLabels}, **checks}


def _list_bundles(values: ChartValues) -> Iterator[ProfileKeys]:
    if values.ncclGdrEnvConfigMap:
        yield {"config_map": values.ncclGdrEnvConfigMap}
    for each in values.envFrom:
        if each.configMapRef:
            yield {"config_map": each.configMapRef.name}
        if each.secretRef:
            yield {"secret": each.secretRef.name}


def _launcher_options(values: ChartValues) -> ProfileKeys:
    """What only AppWrappers have. Their durations may have days, which Go's have not: the launcher writes seconds."""
    return _drop_empty_keys(**{option: getattr(values, key) for key, option in _OPTION_KEYS.items()})


# --- what cannot be said in a profile

_RESTART_REFUSAL = "only Never: what a pod starts again has lost its peers; see `attempts` of the profile"
_OPTION_REFUSAL = f"only AppWrappers have it: say `launcher: {_LAUNCHER}`, or null in a file after this one"
_MISSING_PROGRAM = (
    "is missing: torchrun needs a program, here or in the profile; where setupCommands are the whole job, keep what "
    "`helm template` prints in a file, and name that as the `manifest` of a profile without values"
)
_SHELL_REFUSAL = "is for a shell, and it is started without one: put it in '…', or say program and args in the profile"


def find_refusals(values: ChartValues, own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A key, and why a profile cannot say the same."""
    gpus = values.numGpusPerPod
    if values.restartPolicy != "Never":
        yield "restartPolicy", _RESTART_REFUSAL
    if values.limitGpusPerPod not in (None, gpus):
        yield "limitGpusPerPod", f"GPUs are not shared: leave it out, or say {gpus} as numGpusPerPod does"
    if values.numRoceGdr and values.numPods == 1:
        yield "numRoceGdr", "one pod has no other to reach: 0, or more pods"
    if _find_launcher(own) != _LAUNCHER:
        told = (key for key in _OPTION_KEYS if key in values.model_fields_set and getattr(values, key) is not None)
        yield from ((key, _OPTION_REFUSAL) for key in told)
    for path, count in Counter(path for path, _ in _list_mounts(values)).items():
        if count > 1:
            yield "volumes", f"{count} volumes are mounted at {path}: each needs a place of its own"
    if not _has_program(own):
        yield from (("mainProgram", text) for text in _find_program_faults(values.mainProgram))


def _has_program(own: Mapping[str, Any]) -> bool:
    """Whether the profile itself says what is started; then mainProgram counts for nothing."""
    return bool(own.get("program"))


def _find_program_faults(program: str) -> Iterator[str]:
    """Why torchrun cannot be started with it."""
    if not program.strip():
        yield _MISSING_PROGRAM
    elif found := _SHELL_PATTERN.search(_strip_quoted_text(program.strip().replace("\\\n", ""))):
        yield f"{found[0]!r} {_SHELL_REFUSAL}"
    try:
        _split_words(program)
    except ValueError:
        yield f"a quote has no end: {program}"


def _strip_quoted_text(text: str) -> str:
    """Without what quotes hide from a shell; double quotes do not hide `$` and backquotes."""
    return _QUOTED_PATTERN.sub(lambda found: "".join(re.findall(r"[$`]", re.sub(r"\\.", "", found[1] or ""))), text)
