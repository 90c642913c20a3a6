"""What is wrong in a user's YAML file: where it is, in one sentence, with what is allowed."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

_UNION_TAGS = ("text", "source")  # of a union's members, which pydantic puts into an error's location
_MAX_VALUE_CHARS = 200  # characters of a wrong value that are shown
_MAX_MESSAGE_CHARS = 1000  # of a message, which may quote a part of the value as well


class NamedFileError(Exception):
    """A key of the profile names a file that does not exist, or does not name a file at all; `subkey`: a key in it."""

    def __init__(self, key: str, message: str, subkey: object = None) -> None:
        super().__init__(key, message)
        self.message, self.loc = message, (key,) if subkey is None else (key, str(subkey))

    def __str__(self) -> str:
        return f"{self.loc[0]}: {self.message}"


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """`did you mean x? there are: …`, for a name that is not among the known ones."""
    names = sorted(choices)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean {matches[0]}? " if matches else "") + "there are: " + ", ".join(names)


def shorten_value(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}… ({len(text)} characters)"


def explain_error(
    error: ErrorDetails, prefix: tuple[str, ...], model: type[BaseModel]
) -> tuple[tuple[str | int, ...], str]:
    """The location of a wrong value, and one sentence about it."""
    loc = tuple(
        segment for index, segment in enumerate(prefix + error["loc"]) if not (index == 2 and segment in _UNION_TAGS)
    )
    key = shorten_value(".".join(str(segment) for segment in loc))
    if error["type"] == "extra_forbidden":
        return loc, f"unknown key {key}: " + suggest_name(str(loc[-1]), _list_keys(model, error["loc"][:-1]))
    if error["type"] == "missing":
        return loc[:-1], f"the key {key} is missing"
    text = error["msg"].removeprefix("Value error, ")
    message = text[:1].lower() + text[1:]
    if len(message) > _MAX_MESSAGE_CHARS:
        message = f"{message[:_MAX_MESSAGE_CHARS]}…"
    if not loc:  # about the profile as a whole: the message may begin with the key that it is about
        first_key = message.partition(":")[0]
        return (first_key,) if first_key in model.model_fields else (), message
    return loc, f"{key}: {message}, not {shorten_value(repr(error['input']))}"


def _list_keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that are allowed at a location in a profile."""
    for segment in loc:
        field = model.model_fields.get(str(segment))
        nested_models = _list_models(field.annotation) if field else []
        model = nested_models[0] if nested_models else model
    return [name for name in model.model_fields if (model.__name__, name) != ("Profile", "name")]


def _list_models(annotation: Any) -> list[type[BaseModel]]:
    """The models inside an annotation, such as Mount of dict[str, Mount]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _list_models(argument)]


def format_location(path: Path, root: yaml.Node, loc: Sequence[str | int], overrides: Mapping[str, Any] | None) -> str:
    """`file:line: ` of a key, or `override: ` if its value came from an override."""
    loc_keys = [str(segment) for segment in loc]
    override_paths = (dotted.split(".") for dotted in overrides or {})
    if loc and any(all(map(str.__eq__, override_path, loc_keys)) for override_path in override_paths):
        return "override: "
    line = root.start_mark.line
    for segment in loc:
        children: list[tuple[Any, yaml.Node]] = []
        if isinstance(root, yaml.MappingNode):
            children = [(key.value, value) for key, value in root.value]
            line = next((key.start_mark.line for key, _ in root.value if key.value == segment), line)
        elif isinstance(root, yaml.SequenceNode):
            children = list(enumerate(root.value))
        root = dict(children).get(segment, root)
        line = root.start_mark.line if isinstance(segment, int) else line
    return f"{path}:{line + 1}: "
