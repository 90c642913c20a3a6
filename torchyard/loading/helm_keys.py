"""Values of the chart -> keys of a profile. docs/values.md has a line for each."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.loading.helm_values import Values

Keys = dict[str, Any]
LAUNCHER = "appwrapper"
HEALTH = {"autopilot.ibm.com/gpuhealth": ["ERR", "TESTING", "EVICT"]}  # which the chart avoids without being asked
TOPOLOGY = "/var/run/nvidia-topologyd"
NVME_CLASS = "odf-lvm-vg1"
OPTIONS = {
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
QUOTED = re.compile(r"""\\.|'[^']*'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
FOR_A_SHELL = re.compile(r"[$`;&|<>()*?\n]|(?<!\S)[~#]")


def profile_keys(values: Values, own: Mapping[str, Any]) -> Keys:
    """The keys of a profile that say the same; `own` is what the profile itself says, and is not in them."""
    main = [] if starts(own) else words(values.mainProgram)
    return said(
        launcher=LAUNCHER,
        rendezvous="static",
        image=values.containerImage,
        nodes=values.numPods,
        processes=max(1, values.numGpusPerPod),
        program=main[0] if main else None,
        args=main[1:],
        setup=list(values.setupCommands),
        env=environment(values),
        mounts=dict(mounts(values)),
        resources=resources(values),
        pod=pod(values),
        cluster=said(namespace=values.namespace),
        deadlines=said(grace=values.terminationGracePeriodSeconds),
        options=options(values) if launcher(own) == LAUNCHER else {},
    )


def said(**keys: Any) -> Keys:
    """Without those that say nothing."""
    return {key: value for key, value in keys.items() if value not in (None, [], {})}


def launcher(own: Mapping[str, Any]) -> Any:
    return own.get("launcher") or LAUNCHER


def words(program: str) -> list[str]:
    """The words of a command, as a shell splits them. ValueError where a quote does not end."""
    return shlex.split(program.replace("\\\n", ""))


def environment(values: Values) -> Keys:
    """The chart's order: of two with one name the later one counts."""
    found: Keys = {}
    if values.topologyFileConfigMap:
        found["NCCL_TOPO_FILE"] = f"{TOPOLOGY}/virtualTopology.xml"
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


def mounts(values: Values) -> Iterator[tuple[str, Keys]]:
    """Each path with what is mounted there."""
    if values.topologyFileConfigMap:
        yield TOPOLOGY, {"config_map": values.topologyFileConfigMap}
    if nvme := values.mountNVMe:
        yield nvme.mountPath, {"ephemeral": nvme.storage, "storage_class": NVME_CLASS}
    for each in values.volumes:
        yield each.mountPath, {"claim": each.claimName}
    if ssh := values.sshGitCloneConfig:
        yield ssh.secretMountPath, {"secret": ssh.secretName, "read_only": True}
        yield ssh.configMapMountPath, {"config_map": ssh.configMapName}


def resources(values: Values) -> Keys:
    devices = {"gpus": values.numGpusPerPod, values.roceGdrResName: values.numRoceGdr}
    plain = {"cpu": values.numCpusPerPod, "memory": values.totalMemoryPerPod}
    return {**plain, **{name: count for name, count in devices.items() if count}}


def pod(values: Values) -> Keys:
    """What a memory volume without a size gets from the kubelet is the pod's memory, so that is what shm says."""
    hosts = {"kubernetes.io/hostname": list(values.hostIgnoreList)} if values.hostIgnoreList else {}
    networks = (values.multiNicNetworkName or "").replace(" ", "").split(",")
    locks = values.numRoceGdr > 0 or values.serviceAccountName == "gdr"
    return said(
        labels=labels(values),
        avoid={**HEALTH, **hosts},
        limits=said(cpu=values.limitCpusPerPod, memory=values.limitMemoryPerPod),
        shm=None if values.disableSharedMemory else values.limitMemoryPerPod or values.totalMemoryPerPod,
        capabilities=["IPC_LOCK"] if locks else [],
        networks=dict(Counter(filter(None, networks))),
        env_from=list(bundles(values)),
        init=[each.model_dump(mode="json") for each in values.initContainers],
        scheduler=values.schedulerName,
        pull_policy=values.imagePullPolicy,
        pull_secrets=[each.name for each in values.imagePullSecrets],
        service_account=values.serviceAccountName,
        priority_class=values.priority,
    )


def labels(values: Values) -> Keys:
    job = {"app.kubernetes.io/name": values.jobName} if values.jobName else {}
    checks = dict.fromkeys(("autopilot", *values.autopilotHealthChecks), "") if values.autopilotHealthChecks else {}
    return {**job, **{each.key: each.value for each in values.customLabels}, **checks}


def bundles(values: Values) -> Iterator[Keys]:
    if values.ncclGdrEnvConfigMap:
        yield {"config_map": values.ncclGdrEnvConfigMap}
    for each in values.envFrom:
        if each.configMapRef:
            yield {"config_map": each.configMapRef.name}
        if each.secretRef:
            yield {"secret": each.secretRef.name}


def options(values: Values) -> Keys:
    """What only AppWrappers have. Their durations may have days, which Go's have not: the launcher writes seconds."""
    return said(**{option: getattr(values, key) for key, option in OPTIONS.items()})


# --- what cannot be said in a profile

NEVER = "only Never: what a pod starts again has lost its peers; see `attempts` of the profile"
OF_APPWRAPPERS = f"only AppWrappers have it: say `launcher: {LAUNCHER}`, or null in a file after this one"
MISSING = (
    "is missing: torchrun needs a program, here or in the profile; where setupCommands are the whole job, keep what "
    "`helm template` prints in a file, and name that as the `manifest` of a profile without values"
)
SHELL = "is for a shell, and it is started without one: put it in '…', or say program and args in the profile"


def refusals(values: Values, own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A key, and why a profile cannot say the same."""
    gpus = values.numGpusPerPod
    if values.restartPolicy != "Never":
        yield "restartPolicy", NEVER
    if values.limitGpusPerPod not in (None, gpus):
        yield "limitGpusPerPod", f"GPUs are not shared: leave it out, or say {gpus} as numGpusPerPod does"
    if values.numRoceGdr and values.numPods == 1:
        yield "numRoceGdr", "one pod has no other to reach: 0, or more pods"
    if launcher(own) != LAUNCHER:
        told = (key for key in OPTIONS if key in values.model_fields_set and getattr(values, key) is not None)
        yield from ((key, OF_APPWRAPPERS) for key in told)
    for path, count in Counter(path for path, _ in mounts(values)).items():
        if count > 1:
            yield "volumes", f"{count} volumes are mounted at {path}: each needs a place of its own"
    if not starts(own):
        yield from (("mainProgram", text) for text in unstarted(values.mainProgram))


def starts(own: Mapping[str, Any]) -> bool:
    """Whether the profile itself says what is started; then mainProgram counts for nothing."""
    return bool(own.get("program"))


def unstarted(program: str) -> Iterator[str]:
    """Why torchrun cannot be started with it."""
    if not program.strip():
        yield MISSING
    elif found := FOR_A_SHELL.search(unquoted(program.strip().replace("\\\n", ""))):
        yield f"{found[0]!r} {SHELL}"
    try:
        words(program)
    except ValueError:
        yield f"a quote has no end: {program}"


def unquoted(text: str) -> str:
    """Without what quotes hide from a shell; double quotes do not hide `$` and backquotes."""
    return QUOTED.sub(lambda found: "".join(re.findall(r"[$`]", re.sub(r"\\.", "", found[1] or ""))), text)
