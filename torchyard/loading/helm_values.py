"""The values of the FMS / mlbatch helm chart pytorchjob-generator 1.1.12, with its keys, types and defaults.

Where the chart's own schema is open (the items of its lists), only what its templates read is allowed.
"""
# ruff: noqa: N815 - the chart's names are the keys of its users' files

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from torchyard.model.base import FrozenModel

_UNIT_PATTERN = "(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)"
_NETWORK_PATTERN = r"[a-z0-9.-]+(/[a-z0-9.-]+)?"
_NULLABLE_KEYS = ("queueName", "priority")  # null means none for these, not the chart's default


def _format_cpus(value: object) -> object:
    """A number of CPUs as text, as in `8` or `500m`; any other value unchanged, for pydantic to check."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _format_value(value: object) -> object:
    """A variable's value as helm prints it: a number's digits, true or false; other values unchanged."""
    return str(value).lower() if isinstance(value, bool) else _format_number(value)


def _format_number(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


NonEmptyText = Annotated[str, Field(min_length=1)]
DnsLabel = Annotated[str, Field(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
LowerCaseText = Annotated[str, BeforeValidator(_format_number), Field(pattern="^[^A-Z]+$")]
PrintedText = Annotated[str, BeforeValidator(_format_value)]
WholeNumber = Annotated[int, Field(strict=True, ge=0)]
CpuQuantity = Annotated[str, BeforeValidator(_format_cpus), Field(pattern=f"^[0-9]+{_UNIT_PATTERN}?$")]
MemoryQuantity = Annotated[str, Field(pattern=f"^[0-9]+{_UNIT_PATTERN}$")]
AbsolutePath = Annotated[str, Field(pattern="^/")]
ChartDuration = Annotated[str, Field(pattern="^0*[1-9][0-9]*(s|m|h|d)$")]  # with 0 the controller would give up at once
ChartPause = Annotated[str, Field(pattern="^[0-9]+(s|m|h|d)$")]


class ChartLabel(FrozenModel):
    """A label."""

    key: LowerCaseText
    value: LowerCaseText


class ObjectName(FrozenModel):
    """The name of an object in the namespace."""

    name: NonEmptyText


class KeyReference(ObjectName):
    """A key of a Secret or a ConfigMap."""

    key: NonEmptyText


class EnvVariable(ObjectName):
    """An environment variable, with exactly one of value, secret and configmap."""

    value: PrintedText | None = None
    secret: KeyReference | None = None
    configmap: KeyReference | None = None

    @model_validator(mode="after")
    def validate_value_source(self) -> "EnvVariable":
        sources = [source for source in (self.value, self.secret, self.configmap) if source is not None]
        if len(sources) != 1:
            raise ValueError("a variable has a name and one of value, secret, configmap")
        return self


class EnvFrom(FrozenModel):
    """An item of `envFrom` as in Kubernetes, but without `prefix` and `optional`."""

    configMapRef: ObjectName | None = None
    secretRef: ObjectName | None = None

    @model_validator(mode="after")
    def validate_reference(self) -> "EnvFrom":
        if bool(self.configMapRef) == bool(self.secretRef):
            raise ValueError("an item of envFrom has one of configMapRef, secretRef")
        return self


class SshClone(FrozenModel):
    """The Secret and the ConfigMap with git's ssh key and known hosts, and their mount paths."""

    secretName: DnsLabel
    configMapName: DnsLabel
    secretMountPath: AbsolutePath = "/tmp/.ssh/keys"
    configMapMountPath: AbsolutePath = "/tmp/.ssh/hosts"
    sshCmd: NonEmptyText | None = None

    @property
    def command(self) -> str:
        """The value of GIT_SSH_COMMAND."""
        known_hosts = f"{self.configMapMountPath}/known_hosts"
        return self.sshCmd or f"ssh -i {self.secretMountPath}/id_rsa -o UserKnownHostsFile={known_hosts} -vv"


class ClaimVolume(ObjectName):
    """A PersistentVolumeClaim and its mount path."""

    claimName: NonEmptyText
    mountPath: AbsolutePath


class NvmeVolume(FrozenModel):
    """A volume on the node's local disks."""

    storage: MemoryQuantity
    mountPath: AbsolutePath = "/workspace/scratch-nvme"


class InitContainer(ObjectName):
    """A container that runs before the job's container."""

    name: DnsLabel
    image: NonEmptyText
    command: tuple[str, ...] = Field(min_length=1)


class ChartValues(FrozenModel):
    """All keys of the chart. jobName and containerImage may be missing: a profile has a name, and may have an image."""

    jobName: Annotated[DnsLabel, Field(max_length=50)] | None = None
    namespace: DnsLabel | None = None
    queueName: DnsLabel | None = "default-queue"
    priority: Literal["default-priority", "low-priority", "high-priority"] | None = "default-priority"
    customLabels: tuple[ChartLabel, ...] = ()
    containerImage: NonEmptyText | None = None
    imagePullSecrets: tuple[ObjectName, ...] = ()
    imagePullPolicy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    numPods: Annotated[WholeNumber, Field(ge=1)] = 1
    numCpusPerPod: CpuQuantity = "1"
    numGpusPerPod: WholeNumber = 0
    totalMemoryPerPod: MemoryQuantity = "1Gi"
    limitCpusPerPod: CpuQuantity | None = None
    limitGpusPerPod: WholeNumber | None = None
    limitMemoryPerPod: MemoryQuantity | None = None
    environmentVariables: tuple[EnvVariable, ...] = ()
    envFrom: tuple[EnvFrom, ...] = ()
    sshGitCloneConfig: SshClone | None = None
    setupCommands: tuple[str, ...] = ()
    mainProgram: str = ""
    volumes: tuple[ClaimVolume, ...] = ()
    roceGdrResName: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] = "nvidia.com/roce_gdr"
    numRoceGdr: WholeNumber = 0
    topologyFileConfigMap: DnsLabel | None = None
    ncclGdrEnvConfigMap: DnsLabel | None = None
    multiNicNetworkName: Annotated[str, Field(pattern=f"^{_NETWORK_PATTERN}(, *{_NETWORK_PATTERN})*$")] | None = None
    disableSharedMemory: Annotated[bool, Field(strict=True)] = False
    mountNVMe: NvmeVolume | None = None
    initContainers: tuple[InitContainer, ...] = ()
    autopilotHealthChecks: tuple[NonEmptyText, ...] = ()
    hostIgnoreList: tuple[NonEmptyText, ...] = ()
    schedulerName: Literal["sakkara", "scheduler-plugins-scheduler", "default-scheduler"] | None = None
    serviceAccountName: DnsLabel | None = None
    restartPolicy: Literal["Never", "Always", "OnFailure"] = "Never"
    terminationGracePeriodSeconds: Annotated[WholeNumber, Field(ge=1)] | None = None
    admissionGracePeriodDuration: ChartDuration | None = None
    warmupGracePeriodDuration: ChartDuration | None = None
    failureGracePeriodDuration: ChartPause | None = None
    retryPausePeriodDuration: ChartPause | None = None
    forcefulDeletionGracePeriodDuration: ChartPause | None = None
    deletionOnFailureGracePeriodDuration: ChartPause | None = None
    successTTLDuration: ChartPause | None = None
    retryLimit: Annotated[WholeNumber, Field(le=100)] | None = None

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, raw: Any) -> Any:
        """Treat a key that is null as not set."""
        if not isinstance(raw, dict):
            return raw
        defaulted_keys = set(cls.model_fields) - set(_NULLABLE_KEYS)
        return {key: value for key, value in raw.items() if value is not None or key not in defaulted_keys}
