"""The values of the FMS / mlbatch helm chart pytorchjob-generator 1.1.12, with its keys, types and defaults.

Where the chart's own schema is open (the items of its lists), what its templates read is allowed, and no more.
"""
# ruff: noqa: N815 - the chart's names are the keys of its users' files

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from torchyard.model.base import Noun

UNIT = "(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)"
NETWORK = r"[a-z0-9.-]+(/[a-z0-9.-]+)?"
WITH_DEFAULT = ("queueName", "priority")  # whose null means none, and not the chart's default


def read_processors(value: object) -> object:
    """`8` or `500m`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def read_printed(value: object) -> object:
    """A value of a variable as helm prints it: a number's digits, true or false."""
    return str(value).lower() if isinstance(value, bool) else read_number(value)


def read_number(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Name = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Lower = Annotated[str, BeforeValidator(read_number), Field(pattern="^[^A-Z]+$")]
Printed = Annotated[str, BeforeValidator(read_printed)]
Whole = Annotated[int, Field(strict=True, ge=0)]
Processors = Annotated[str, BeforeValidator(read_processors), Field(pattern=f"^[0-9]+{UNIT}?$")]
Memory = Annotated[str, Field(pattern=f"^[0-9]+{UNIT}$")]
Path = Annotated[str, Field(pattern="^/")]
Time = Annotated[str, Field(pattern="^0*[1-9][0-9]*(s|m|h|d)$")]


class Pair(Noun):
    """A label."""

    key: Lower
    value: Lower


class Named(Noun):
    """The name of an object of the namespace."""

    name: Name


class Reference(Named):
    """A key of a Secret or a ConfigMap."""

    key: Name


class Variable(Named):
    """A variable, with one of the three."""

    value: Printed | None = None
    secret: Reference | None = None
    configmap: Reference | None = None

    @model_validator(mode="after")
    def one(self) -> "Variable":
        if sum(each is not None for each in (self.value, self.secret, self.configmap)) != 1:
            raise ValueError("a variable has a name and one of value, secret, configmap")
        return self


class EnvFrom(Noun):
    """As Kubernetes has it, without its prefix and its optional."""

    configMapRef: Named | None = None
    secretRef: Named | None = None

    @model_validator(mode="after")
    def one(self) -> "EnvFrom":
        if bool(self.configMapRef) == bool(self.secretRef):
            raise ValueError("an item of envFrom has one of configMapRef, secretRef")
        return self


class Ssh(Noun):
    """Where git finds its key and the hosts that it knows."""

    secretName: Label
    configMapName: Label
    secretMountPath: Path = "/tmp/.ssh/keys"
    configMapMountPath: Path = "/tmp/.ssh/hosts"
    sshCmd: Name | None = None

    @property
    def command(self) -> str:
        known = f"{self.configMapMountPath}/known_hosts"
        return self.sshCmd or f"ssh -i {self.secretMountPath}/id_rsa -o UserKnownHostsFile={known} -vv"


class Volume(Named):
    """A PersistentVolumeClaim and its place."""

    claimName: Name
    mountPath: Path


class Nvme(Noun):
    """A volume on the disks of the node."""

    storage: Memory
    mountPath: Path = "/workspace/scratch-nvme"


class Container(Named):
    """A container before the job's."""

    name: Label
    image: Name
    command: tuple[str, ...] = Field(min_length=1)


class Values(Noun):
    """All keys of the chart. jobName and containerImage may be missing: a profile has a name, and may have an image."""

    jobName: Annotated[Label, Field(max_length=50)] | None = None
    namespace: Label | None = None
    queueName: Label | None = "default-queue"
    priority: Literal["default-priority", "low-priority", "high-priority"] | None = "default-priority"
    customLabels: tuple[Pair, ...] = ()
    containerImage: Name | None = None
    imagePullSecrets: tuple[Named, ...] = ()
    imagePullPolicy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    numPods: Annotated[Whole, Field(ge=1)] = 1
    numCpusPerPod: Processors = "1"
    numGpusPerPod: Whole = 0
    totalMemoryPerPod: Memory = "1Gi"
    limitCpusPerPod: Processors | None = None
    limitGpusPerPod: Whole | None = None
    limitMemoryPerPod: Memory | None = None
    environmentVariables: tuple[Variable, ...] = ()
    envFrom: tuple[EnvFrom, ...] = ()
    sshGitCloneConfig: Ssh | None = None
    setupCommands: tuple[str, ...] = ()
    mainProgram: str = ""
    volumes: tuple[Volume, ...] = ()
    roceGdrResName: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] = "nvidia.com/roce_gdr"
    numRoceGdr: Whole = 0
    topologyFileConfigMap: Label | None = None
    ncclGdrEnvConfigMap: Label | None = None
    multiNicNetworkName: Annotated[str, Field(pattern=f"^{NETWORK}(, *{NETWORK})*$")] | None = None
    disableSharedMemory: Annotated[bool, Field(strict=True)] = False
    mountNVMe: Nvme | None = None
    initContainers: tuple[Container, ...] = ()
    autopilotHealthChecks: tuple[Name, ...] = ()
    hostIgnoreList: tuple[Name, ...] = ()
    schedulerName: Literal["sakkara", "scheduler-plugins-scheduler", "default-scheduler"] | None = None
    serviceAccountName: Label | None = None
    restartPolicy: Literal["Never", "Always", "OnFailure"] = "Never"
    terminationGracePeriodSeconds: Annotated[Whole, Field(ge=1)] | None = None
    admissionGracePeriodDuration: Time | None = None
    warmupGracePeriodDuration: Time | None = None
    failureGracePeriodDuration: Time | None = None
    retryPausePeriodDuration: Time | None = None
    forcefulDeletionGracePeriodDuration: Time | None = None
    deletionOnFailureGracePeriodDuration: Time | None = None
    successTTLDuration: Time | None = None
    retryLimit: Annotated[Whole, Field(le=100)] | None = None

    @model_validator(mode="before")
    @classmethod
    def unsaid(cls, raw: Any) -> Any:
        """A null is a key that nobody says."""
        if not isinstance(raw, dict):
            return raw
        known = set(cls.model_fields) - set(WITH_DEFAULT)
        return {key: value for key, value in raw.items() if value is not None or key not in known}
