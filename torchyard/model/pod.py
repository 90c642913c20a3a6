"""The models of a profile's `pod`, `job`, `env`, `mounts` and `resources`."""

import math
import re
from base64 import b64decode
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from torchyard.model.base import FrozenModel, Quantity, Text

PLAIN_RESOURCES = ("gpus", "cpu", "memory", "ephemeral-storage")
# What a variable can get from its pod and its container.
_POD_FIELD = (
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_CONTAINER_AMOUNT = r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-\w+)"
_MAX_PATCH_LEVELS = 32  # a pod's own fields have about ten
_MAX_INTERFACES = 256  # of one network in a pod, which names the network once for each; nodes have up to 32


def _read_resources(value: object) -> object:
    """Allow `gpus`, `cpu`, `memory`, `ephemeral-storage`, or a resource by its full name, such as rdma/rdma.

    Devices are counted: Kubernetes refuses half of one.
    """
    for name, amount in value.items() if isinstance(value, dict) else ():
        if name not in PLAIN_RESOURCES and not re.fullmatch(r"hugepages-\w+|[\w.-]+/[\w.-]+", str(name)):
            raise ValueError(
                f"unknown resource {name}: use {', '.join(PLAIN_RESOURCES)}, or a full name such as rdma/rdma"
            )
        if (name == "gpus" or "/" in str(name)) and not re.fullmatch(r"\d{1,9}", str(amount)):
            raise ValueError(f"{name}: {str(amount)[:40]} is not a number of devices: write a whole number")
    return value


Resources = Annotated[dict[str, Quantity], BeforeValidator(_read_resources)]


def _read_patches(value: object, info: ValidationInfo) -> object:
    """A patch as a tuple of one; that of a fabric and that of a profile are joined, and stored as a list."""
    if isinstance(value, tuple) or (isinstance(value, list) and info.mode == "json"):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a mapping, with a part of the Kubernetes object")
    return (_copy_json(value, (), _MAX_PATCH_LEVELS),)


def _copy_json(value: object, key_path: tuple[str, ...], levels: int) -> object:
    """A copy of a value that JSON supports. ValueError for another value, and for more than `levels` levels."""
    location = ".".join(key_path)
    if not levels:
        raise ValueError(f"{location}: more than {_MAX_PATCH_LEVELS} levels")
    if isinstance(value, dict):
        copied = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{location}: the key {key!r} must be text: put it in quotes")
            copied[key] = _copy_json(item, (*key_path, key), levels - 1)
        return copied
    if isinstance(value, list):
        return [_copy_json(item, (*key_path, str(index)), levels - 1) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{location}: {value} is not a number of JSON")
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{location}: JSON has no {type(value).__name__}")
    return value


# Applied in their order; see torchyard/pods/patch.py.
Patches = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_read_patches), WithJsonSchema({"type": "object"})]


class ConfigReference(FrozenModel):
    """A ConfigMap or a Secret."""

    secret: str | None = Field(None, description="the name of a Secret")
    config_map: str | None = Field(None, description="the name of a ConfigMap")

    @model_validator(mode="after")
    def validate_source(self) -> "ConfigReference":
        if bool(self.secret) == bool(self.config_map):
            raise ValueError("must name either a secret or a config_map")
        return self


class KeyReference(ConfigReference):
    """The source of a variable's value; plans and reports show only the reference."""

    key: str = Field(description="the entry's key")


class Mount(FrozenModel):
    """The volume that is mounted at a path: exactly one of these kinds."""

    claim: str | None = Field(None, min_length=1, description="a PersistentVolumeClaim")
    config_map: str | None = Field(None, min_length=1, description="the name of a ConfigMap: each entry a file")
    secret: str | None = Field(None, min_length=1, description="the name of a Secret: each entry a file")
    host: str | None = Field(None, min_length=1, description="a folder of the node")
    scratch: Quantity | None = Field(None, description="an empty folder of this size, deleted with the pod")
    ephemeral: Quantity | None = Field(None, description="a volume of this size, created and deleted with the pod")
    storage_class: str | None = Field(None, description="the class of the ephemeral volume; default: the cluster's")
    read_only: bool = Field(False, description="the pods cannot write to it")

    @model_validator(mode="after")
    def validate_volume(self) -> "Mount":
        kinds = ("claim", "config_map", "secret", "host", "scratch", "ephemeral")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"must have exactly one of {', '.join(kinds)}")
        if self.storage_class and not self.ephemeral:
            raise ValueError("storage_class requires ephemeral: set that too, or remove storage_class")
        return self


class LocalFile(FrozenModel):
    """A file of this machine that is copied into the pods, with the content it had when the profile was loaded."""

    source: str = Field(description="its path on this machine")
    text: str | None = Field(None, description="its content; None if that is not UTF-8")
    binary: str | None = Field(None, description="the content that is not UTF-8, in base64")

    @property
    def content(self) -> bytes:
        return b64decode(self.binary or "") if self.text is None else self.text.encode()


class FieldReference(FrozenModel):
    """A variable's value from the pod itself: a field of it, or an amount of its container."""

    field: str | None = Field(
        None, description="a field of the pod: status.podIP, spec.nodeName, metadata.labels['team']"
    )
    resource: str | None = Field(None, description="an amount of the job's container: limits.memory")
    divisor: Quantity | None = Field(None, description="the unit of the amount: 1Mi, 1m; default: 1")

    @model_validator(mode="after")
    def validate_source(self) -> "FieldReference":
        if bool(self.field) == bool(self.resource):
            raise ValueError("must name either a field or a resource")
        if self.field and not re.fullmatch(_POD_FIELD, self.field):
            raise ValueError(
                f"{self.field} is not a field that a variable can have: use metadata.name, metadata.namespace, "
                "metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'], spec.nodeName, "
                "spec.serviceAccountName, status.hostIP or status.podIP"
            )
        if self.resource and not re.fullmatch(_CONTAINER_AMOUNT, self.resource):
            raise ValueError(
                f"{self.resource} is not an amount that a variable can have: use limits or requests, a dot, and cpu, "
                "memory, ephemeral-storage or hugepages-SIZE"
            )
        if self.divisor and not self.resource:
            raise ValueError("divisor requires resource: remove it")
        return self


class Toleration(FrozenModel):
    """A toleration of taints; `KEY` is short for {key: KEY}, which tolerates all taints of the key."""

    key: str | None = Field(None, description="the key of the taints; without it all keys, with operator Exists")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="default: Equal with a value, else Exists")
    value: Text | None = Field(None, description="the value of the taints; default: any")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="default: any")
    toleration_seconds: int | None = Field(
        None, ge=0, description="how long a pod stays on a node after a taint with NoExecute; default: forever"
    )

    @model_validator(mode="after")
    def validate_conditions(self) -> "Toleration":
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists tolerates all values: remove value, or use Equal")
        if self.operator == "Equal" and self.value is None:
            raise ValueError("operator Equal requires value")
        if not self.key and (self.operator != "Exists" or self.value is not None):
            raise ValueError("requires key: without one, write operator: Exists, which tolerates all taints")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("toleration_seconds requires effect: NoExecute")
        return self

    @property
    def resolved_operator(self) -> str:
        """`operator`, or its default."""
        return self.operator or ("Exists" if self.value is None else "Equal")

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether it tolerates a taint."""
        return (
            self.key in (None, "", key)
            and (self.resolved_operator == "Exists" or self.value == value)
            and self.effect in (None, effect)
        )


def read_toleration(item: "TolerationItem") -> Toleration:
    """A toleration as it is written in a profile: a key tolerates all its taints; an empty one, all taints."""
    if isinstance(item, Toleration):
        return item
    return Toleration(key=item or None, operator="Exists")


def _read_toleration_tag(value: object) -> str:
    return "conditions" if isinstance(value, dict | Toleration) else "text"


TolerationItem = Annotated[
    Annotated[str, Tag("text")] | Annotated[Toleration, Tag("conditions")], Discriminator(_read_toleration_tag)
]


class Init(FrozenModel):
    """A container that starts before the job's and runs to completion or, as a sidecar, in parallel with it."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="the container's name")
    image: str = Field(description="its image, with a tag")
    command: tuple[Text, ...] = Field((), description="default: the image's own")
    sidecar: bool = Field(False, description="runs until the job's container ends; needs Kubernetes 1.29")
    capabilities: tuple[str, ...] = Field((), description="without the prefix CAP_: NET_ADMIN")
    env: dict[str, Text] = Field({}, description="environment variables")
    mounts: dict[str, Mount] = Field({}, description="the volumes of this container, by path")


class Pod(FrozenModel):
    """Settings that a pod needs from its node and its namespace; a hardware file's fabric and a profile can set them.

    pods/template.py writes them into a pod; pods/runai_flags.py turns them into flags, or refuses those without a flag.
    """

    host_network: bool = Field(False, description="the node's own network: its name, its addresses, its ports")
    host_ipc: bool = Field(False, description="the node's own shared memory and semaphores")
    spread: bool = Field(True, description="one pod per node; false if a node has room for more than one")
    privileged: bool = Field(False, description="all privileges on the node; some clusters refuse it")
    capabilities: tuple[str, ...] = Field((), description="without the prefix CAP_: IPC_LOCK")
    devices: tuple[str, ...] = Field((), description="folders of the node, at the same path in the pod")
    shm: Quantity | None = Field(None, description="size of /dev/shm, in memory; default: 64 MiB")
    resources: Resources = Field({}, description="per pod")
    limits: Resources = Field({}, description="per pod, for CPU and memory; devices are limited to the request")
    networks: dict[str, Annotated[int, Field(ge=0, le=_MAX_INTERFACES)]] = Field(
        {}, description="secondary networks (namespace/name) and how many of each"
    )
    node_selector: dict[str, Text] = Field({}, description="labels that a node must have")
    avoid: dict[str, tuple[Text, ...]] = Field({}, description="node labels, and the values that keep pods off a node")
    only: dict[str, tuple[Text, ...]] = Field(
        {}, description="node labels, and the values of which a node must have one"
    )
    tolerations: tuple[TolerationItem, ...] = Field(
        (), description="the taints to tolerate: keys, or mappings for a value, an effect, or some seconds"
    )
    scheduler: str | None = Field(None, description="default: the scheduler of the cluster, or of the job's controller")
    env_from: tuple[ConfigReference, ...] = Field(
        (), description="{config_map: NAME} or {secret: NAME}: a variable per key"
    )
    init: tuple[Init, ...] = Field((), description="containers that start before the job's: to completion, or sidecars")
    annotations: dict[str, Text] = Field({}, description="annotations of the pods")
    labels: dict[str, Text] = Field({}, description="labels of the pods, in addition to torchyard's own")
    workdir: str | None = Field(None, description="default: the image's own")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="when to pull the image; default: the cluster's rule"
    )
    pull_secrets: tuple[str, ...] = Field((), description="names of the Secrets for the image's registry")
    service_account: str | None = Field(None, description="default: the namespace's own")
    priority_class: str | None = Field(None, description="the priority class of the pods")
    patch: Patches = Field(
        (),
        description="a part of a pod template of Kubernetes (`metadata`, `spec`) that is merged over the one that "
        "torchyard builds",
    )

    @property
    def memory_volumes(self) -> dict[str, str]:
        """The sizes of the volumes in the node's memory, by path; without one, /dev/shm has the container's default."""
        return {"/dev/shm": self.shm} if self.shm else {}

    def merge_over(self, base: "Pod") -> "Pod":
        """Merge these settings over those of `base`.

        Mappings and lists are joined, but an empty list of `self` removes that of `base`; any other value of `self`
        wins.
        """
        merged: dict[str, Any] = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            base_value = getattr(base, name)
            if isinstance(value, dict):
                merged[name] = base_value | value
            elif isinstance(value, tuple) and value:
                merged[name] = _join_unique(base_value, value)
            else:
                merged[name] = value
        return base.model_copy(update=merged)


class Job(FrozenModel):
    """Settings of the job's main object, such as a JobSet, which creates the pods."""

    labels: dict[str, Text] = Field({}, description="labels of the object, in addition to torchyard's own")
    annotations: dict[str, Text] = Field({}, description="annotations of the object")
    patch: Patches = Field(
        (), description="a part of the object that is merged over the one that torchyard builds; pods have pod.patch"
    )


def _join_unique(*groups: tuple[Any, ...]) -> tuple[Any, ...]:
    """All items in order, each once. Items may be unhashable models."""
    items: list[Any] = []
    for group in groups:
        for item in group:
            if item not in items:
                items.append(item)
    return tuple(items)


_FIELD_KEYS = frozenset(FieldReference.model_fields)


def _read_tag(value: object) -> str:
    if isinstance(value, FieldReference) or (isinstance(value, dict) and value.keys() & _FIELD_KEYS):
        return "field"
    return "source" if isinstance(value, dict | KeyReference) else "text"


EnvValue = Annotated[
    Annotated[Text, Tag("text")] | Annotated[KeyReference, Tag("source")] | Annotated[FieldReference, Tag("field")],
    Discriminator(_read_tag),
]
