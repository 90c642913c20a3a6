"""What only jobs in pods have: the nouns of a profile's `pod`, `env`, `mounts` and `resources`."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from torchyard.model.base import FrozenModel, Quantity, Text

_PLAIN_RESOURCES = ("gpus", "cpu", "memory", "ephemeral-storage")


def _read_resources(value: object) -> object:
    """`gpus`, `cpu`, `memory`, `ephemeral-storage`, or a resource by its full name, such as rdma/rdma."""
    for name in value if isinstance(value, dict) else ():
        if name not in _PLAIN_RESOURCES and not re.fullmatch(r"hugepages-\w+|[\w.-]+/[\w.-]+", str(name)):
            raise ValueError(f"there is no {name}: {', '.join(_PLAIN_RESOURCES)}, or a full name such as rdma/rdma")
    return value


Resources = Annotated[dict[str, Quantity], BeforeValidator(_read_resources)]


class Bundle(FrozenModel):
    """A ConfigMap or a Secret."""

    secret: str | None = None
    config_map: str | None = None

    @model_validator(mode="after")
    def one(self) -> "Bundle":
        if bool(self.secret) == bool(self.config_map):
            raise ValueError("name a secret or a config_map: one of them")
        return self


class Source(Bundle):
    """Where the value of a variable comes from: plans and reports show the reference only."""

    key: str


class Init(FrozenModel):
    """A container that runs to its end before the job's begins."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    image: str
    command: tuple[Text, ...] = Field((), description="else the image's own")


class Pod(FrozenModel):
    """What a pod needs of its node and its namespace. A hardware file's fabric and a profile both say it."""

    host_network: bool = Field(False, description="the node's own network: its name, its addresses, its ports")
    host_ipc: bool = False
    spread: bool = Field(True, description="one pod a node; false where a node has room for more than one")
    privileged: bool = False
    capabilities: tuple[str, ...] = Field((), description="without CAP_: IPC_LOCK")
    devices: tuple[str, ...] = Field((), description="folders of the node, at the same place in the pod")
    shm: Quantity | None = Field(None, description="/dev/shm, in memory; without it 64 MiB")
    resources: Resources = Field({}, description="per pod")
    limits: Resources = Field({}, description="per pod, of CPU and memory; devices are limited to what is asked for")
    networks: dict[str, int] = Field({}, description="secondary networks (namespace/name) and how many of each")
    node_selector: dict[str, Text] = Field({})
    avoid: dict[str, tuple[Text, ...]] = Field({}, description="labels of nodes, and the values to keep away from")
    tolerations: tuple[str, ...] = Field((), description="keys of taints")
    scheduler: str | None = Field(None, description="else the cluster's own, or that of the job's controller")
    env_from: tuple[Bundle, ...] = Field((), description="{config_map: NAME} or {secret: NAME}: each key a variable")
    init: tuple[Init, ...] = Field((), description="containers that run to their end before the job's begins")
    annotations: dict[str, Text] = Field({})
    labels: dict[str, Text] = Field({})
    workdir: str | None = Field(None, description="else the image's own")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None

    def over(self, base: "Pod") -> "Pod":
        """This pod's needs and those of `base`: mappings and lists are joined, else what is said here counts."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        for name, value in said.items():
            if isinstance(value, dict):
                said[name] = {**getattr(base, name), **value}
            elif isinstance(value, tuple):
                said[name] = tuple(dict.fromkeys((*getattr(base, name), *value)))
        return base.model_copy(update=said)


def _read_tag(value: object) -> str:
    return "source" if isinstance(value, dict | Source) else "text"


EnvValue = Annotated[Annotated[Text, Tag("text")] | Annotated[Source, Tag("source")], Discriminator(_read_tag)]


class Mount(FrozenModel):
    """What is mounted at a path: exactly one of these."""

    claim: str | None = Field(None, description="a PersistentVolumeClaim")
    config_map: str | None = None
    secret: str | None = None
    host: str | None = Field(None, description="a folder of the node")
    scratch: Quantity | None = Field(None, description="an empty folder of this size, gone with the pod")
    ephemeral: Quantity | None = Field(None, description="a volume of this size, made for the pod and gone with it")
    storage_class: str | None = Field(None, description="of the ephemeral volume; else the cluster's default")
    read_only: bool = False

    @model_validator(mode="after")
    def one(self) -> "Mount":
        kinds = ("claim", "config_map", "secret", "host", "scratch", "ephemeral")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"exactly one of {', '.join(kinds)}")
        if self.storage_class and not self.ephemeral:
            raise ValueError("a storage_class is of an ephemeral volume, and none is asked for")
        return self
