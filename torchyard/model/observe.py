"""Receivers of messages about a run, and trackers that record its metrics."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from torchyard.model.base import Duration, FrozenModel, Text

RunEvent = Literal["failed", "regressed", "recovered", "waiting", "hanging", "bad-loss", "succeeded"]
_DEFAULT_EVENTS: tuple[RunEvent, ...] = ("failed", "regressed", "recovered", "waiting", "hanging", "bad-loss")


def _read_addresses(value: object) -> object:
    """Convert one address to a list of one."""
    return [value] if isinstance(value, str) else value


class Notify(FrozenModel):
    """The receivers of messages about a run, and the events that cause one."""

    to: Annotated[tuple[str, ...], BeforeValidator(_read_addresses)] = Field(
        min_length=1, description="addresses in apprise's format; $NAME is a variable of the launcher's environment"
    )
    events: tuple[RunEvent, ...] = Field(_DEFAULT_EVENTS, description="the events that cause a message")
    waiting: Duration = Field(1800.0, description="the time that a job may wait for its start before a message is sent")


class TensorBoard(FrozenModel):
    """Event files, which `tensorboard --logdir` shows."""

    folder: Text | None = Field(None, description="the folder for the data of all runs; default: a folder of the run")


class Mlflow(FrozenModel):
    """A run in an experiment of MLflow."""

    uri: Text | None = Field(None, description="the tracking server; default: the launcher's MLFLOW_TRACKING_URI")
    experiment: Text | None = Field(None, description="default: the profile's name")


class Wandb(FrozenModel):
    """A run in a project of Weights & Biases; its key and its mode come from the launcher's environment."""

    project: Text | None = Field(None, description="default: the profile's name")
    entity: Text | None = Field(None, description="default: the user's default entity")


class Trackers(FrozenModel):
    """The trackers that record metrics, in addition to the report."""

    tensorboard: TensorBoard | None = None
    mlflow: Mlflow | None = None
    wandb: Wandb | None = None
    package_trackers: dict[str, dict[str, Any]] = Field(
        {}, description="the options of trackers of other packages, by name"
    )

    @model_validator(mode="before")
    @classmethod
    def move_package_trackers(cls, value: Any) -> Any:
        """Move the trackers that are not torchyard's to `package_trackers`."""
        if not isinstance(value, dict):
            return value
        settings: dict[str, Any] = {}
        package_trackers = value.get("package_trackers") or {}
        if not isinstance(package_trackers, dict):
            return value  # the field's own type refuses it
        package_trackers = dict(package_trackers)
        for name, options in value.items():
            if name in TRACKER_NAMES:
                settings[name] = options
            elif name != "package_trackers":
                package_trackers[str(name)] = {} if options is None else options
        settings["package_trackers"] = package_trackers
        return settings

    def __bool__(self) -> bool:
        return bool(self.package_trackers) or any(getattr(self, name) is not None for name in TRACKER_NAMES)


TrackerName = Literal["tensorboard", "mlflow", "wandb"]
TRACKER_NAMES: tuple[TrackerName, ...] = get_args(TrackerName)


def _read_notify(value: object) -> object:
    """`[slack://…]` is short for `{to: [slack://…]}`."""
    if isinstance(value, str | list | tuple):
        return {"to": value}
    if not isinstance(value, dict | Notify | None):
        raise ValueError("must be a list of addresses, or {to: [slack://…], events: [failed], waiting: 30m}")
    return value


def _read_trackers(value: object) -> object:
    """Convert `[tensorboard, {mlflow: {uri: …}}]` to a mapping by name."""
    if isinstance(value, dict | Trackers):
        return value
    entries = value if isinstance(value, list | tuple) else [value]
    trackers: dict[str, Any] = {}
    for entry in entries:
        settings_by_name = entry if isinstance(entry, dict) else {str(entry): None}
        for name, settings in settings_by_name.items():
            if name in trackers:
                raise ValueError(f"{name} is named twice: name it once")
            trackers[name] = {} if settings is None else settings
    return trackers


_NOTIFY_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {
            "type": "object",
            "properties": {
                "to": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "events": {"type": "array", "items": {"enum": list(get_args(RunEvent))}},
                "waiting": {"type": ["string", "number"]},
            },
            "required": ["to"],
            "additionalProperties": False,
        },
    ]
}
_BY_NAME = {"type": "object", "properties": {name: {"type": "object"} for name in TRACKER_NAMES}}
_TRACKER_NAME = {"anyOf": [{"enum": list(TRACKER_NAMES)}, {"type": "string"}]}  # or that of another package
_TRACKERS_SCHEMA = {
    "anyOf": [_BY_NAME, {"type": "array", "items": {"anyOf": [_TRACKER_NAME, _BY_NAME]}}],
}
NotifySetting = Annotated[Notify | None, BeforeValidator(_read_notify), WithJsonSchema(_NOTIFY_SCHEMA)]
TrackersSetting = Annotated[Trackers, BeforeValidator(_read_trackers), WithJsonSchema(_TRACKERS_SCHEMA)]
