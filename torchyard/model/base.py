"""The base class of all models, and the value types they share: durations, texts, amounts."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class FrozenModel(BaseModel):
    """An immutable model; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # most processes use only a few models


def _read_duration(value: object) -> object:
    """Convert `30m`, `1.5h`, `90s` or plain seconds to seconds."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)
    if match is None:
        raise ValueError("a duration is a number with a unit: 90s, 30m, 12h, 2d")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2]]


_MAX_DURATION_S = 10 * 365 * _SECONDS_PER_UNIT["d"]  # Kubernetes counts some seconds in 32 bits
_DURATION_SCHEMA = WithJsonSchema({"type": ["string", "number"], "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"})
Duration = Annotated[float, BeforeValidator(_read_duration), Field(gt=0, le=_MAX_DURATION_S), _DURATION_SCHEMA]
Pause = Annotated[float, BeforeValidator(_read_duration), Field(ge=0, le=_MAX_DURATION_S), _DURATION_SCHEMA]


def _read_text(value: object) -> object:
    """A number becomes its digits as written; a bare yes, no, on or off is refused, since its text is ambiguous.

    So is a placeholder without quotes, `{nodes}`, which is a mapping in YAML.
    """
    if isinstance(value, dict) and len(value) == 1 and list(value.values()) == [None]:
        text = "{" + str(next(iter(value))) + "}"
        raise ValueError(f'{text} is a mapping in YAML: put the text in quotes, as in "{text}"')
    if isinstance(value, bool):
        raise ValueError(f'{str(value).lower()} is a boolean in YAML: put the text in quotes, such as "1" or "yes"')
    return getattr(value, "written", str(value)) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_read_text), WithJsonSchema({"type": ["string", "number"]})]


def _read_quantity(value: object) -> object:
    """A Kubernetes quantity as text: `64`, `500m`, `512Gi`."""
    is_number_or_text = isinstance(value, int | float | str) and not isinstance(value, bool)
    text = str(value) if is_number_or_text else ""
    if not is_quantity(text):
        raise ValueError("an amount is a number with or without a unit of Kubernetes: 64, 500m, 512Gi")
    return text


def is_quantity(text: str) -> bool:
    """Whether a text is an amount of Kubernetes that is not negative: `64`, `1.5`, `129e6`, `500m`, `512Gi`."""
    return bool(re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?", text))


Quantity = Annotated[str, BeforeValidator(_read_quantity), WithJsonSchema({"type": ["string", "number"]})]
