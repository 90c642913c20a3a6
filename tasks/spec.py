"""What the user writes: the nouns of a profile, and how their values are read."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Noun(BaseModel):
    """A frozen value; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_duration(value: object) -> object:
    """`30m`, `1.5h`, `90s` or plain seconds, as seconds."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)):
        return float(match[1]) * SECONDS[match[2]]
    if isinstance(value, str):
        raise ValueError("a duration is a number with a unit: 90s, 30m, 12h, 2d")
    return value


Duration = Annotated[
    float,
    BeforeValidator(read_duration),
    Field(gt=0),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"}),
]


def read_text(value: object) -> object:
    """A number in YAML stands for its digits; a bare yes, no, on or off does not say which text it means."""
    if isinstance(value, bool):
        raise ValueError(f'{str(value).lower()} is a boolean in YAML: put the text in quotes, such as "1" or "yes"')
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(read_text), WithJsonSchema({"type": ["string", "number"]})]


def read_nodes(value: object) -> object:
    """`2` is short for `{min: 2, max: 2}`."""
    if isinstance(value, int) and value < 1:
        raise ValueError("a number of nodes is at least 1")
    return {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value


class NodeRange(Noun):
    """How many nodes: exactly `min` where both are the same, else elastic."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def ordered(self) -> "NodeRange":
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, max is {self.max}: min must not be larger than max")
        return self

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


COUNT = {"type": "integer", "minimum": 1}
Nodes = Annotated[
    NodeRange,
    BeforeValidator(read_nodes),
    WithJsonSchema(
        {"anyOf": [COUNT, {"type": "object", "properties": {"min": COUNT, "max": COUNT}, "required": ["min", "max"]}]}
    ),
]


class Deadlines(Noun):
    """When a run is given up. `lease`: how long a job lives on when nobody looks after it."""

    start: Duration = Field(600.0, description="until every node has joined")
    run: Duration = Field(86400.0, description="until the job has ended")
    silence: Duration = Field(1800.0, description="without a single new line in any log")
    lease: Duration = Field(1800.0, description="without a living launcher")
    grace: Duration = Field(10.0, description="between asking a process to stop and killing it")


Rendezvous = Literal["c10d", "etcd-v2", "static"]
MetricsFormat = Literal["none", "json-lines"]
OnLauncherLost = Literal["keep", "stop"]


class Profile(Noun):
    """One job, as its YAML file says it."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", description="the file's name without .yaml")
    about: str = Field(description="one line for the list of profiles")
    launcher: str = Field(description="where it runs")
    program: str = Field(description="the Python file that torchrun starts")
    args: tuple[Text, ...] = Field((), description="the program's arguments")
    nodes: Nodes = Field(NodeRange(min=1, max=1), description="2, or {min: 2, max: 8}")
    processes: int = Field(1, ge=1, description="per node")
    rendezvous: Rendezvous = Field("c10d", description="how the nodes find each other")
    env: dict[str, Text] = Field({}, description="environment of every process")
    deadlines: Deadlines = Field(Deadlines(), description="when a run is given up")
    attempts: int = Field(1, ge=1, le=20, description="at most, and only for causes worth another try")
    on_launcher_lost: OnLauncherLost = Field("keep", description="keep: the job lives on under its lease")
    metrics: MetricsFormat = Field("none", description="how rank 0 prints its metrics")
    options: dict[str, Any] = Field({}, description="the launcher's own")
