"""Describe a mistake in a user's YAML file: its location, and a finding with the valid choices."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from torchyard.loading.key_places import suggest_place
from torchyard.model.finding import FilePosition, Finding

_UNION_TAGS = (
    "text",
    "source",
    "field",
    "conditions",
)  # pydantic adds the tag of a union's member to an error's location
_MAX_VALUE_CHARS = 200  # of a wrong value that is shown
_MAX_PLACE_LEVELS = 2  # of a key that may belong elsewhere: deeper ones, such as `env.A.key`, have names of their own
_MAX_MESSAGE_CHARS = 1000  # of a message, which may quote a part of the value as well
_QUEUE_OPTIONS = {"queue": "a queue of Volcano", "local_queue": "a LocalQueue of Kueue"}
Loc = tuple[str | int, ...]  # keys and indices into a document, as in pydantic's errors


class ProfileKeyError(Exception):
    """A mistake in one key of a profile, such as the name of a file that cannot be read; `load_profile` adds its line.

    `loc` is the location of the key: `key`, or `key` and `subkey` if the mistake is in a mapping.
    """

    def __init__(self, key: str, message: str, subkey: object = None) -> None:
        super().__init__(key, message)
        self.finding = Finding(key, message)
        self.loc: tuple[str, ...] = (key,) if subkey is None else (key, str(subkey))


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """`did you mean x? there are: …`, for a name that is not among the choices."""
    names = sorted(choices)
    names_text = f"there are: {', '.join(names)}"
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {matches[0]}? {names_text}" if matches else names_text


def shorten_value(text: str) -> str:
    """The start of a value that is too long for a message, with its length in characters."""
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[:_MAX_VALUE_CHARS]}… ({len(text)} characters)"


def shorten_message(text: str) -> str:
    """The start of a message that is too long, as it may quote a part of the value."""
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"


# Of pydantic's errors whose own message names types of Python.
_TYPE_MESSAGES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "tuple_type": "must be a list, such as [A, B]",
    "dict_type": "must be a mapping, such as {KEY: VALUE}",
    "model_type": "must be a mapping, such as {KEY: VALUE}",
    "string_type": "must be a text",
}


# The beginning of pydantic's other messages; the end of some repeats the wrong value.
_MESSAGE_START = re.compile(r"(?:Input|String|Tuple|List|Dictionary) should (?=be |have |match )")
_MESSAGE_END = re.compile(r" after validation, not \d+$")


class LocatedFinding(NamedTuple):
    """A mistake, and its location in the document, which may have segments that no key path can express."""

    loc: Loc
    finding: Finding


def explain_error(
    error: ErrorDetails,
    prefix: tuple[str, ...],
    model: type[BaseModel],
    key_places: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> LocatedFinding:
    """A finding for an error of pydantic.

    prefix: the location of `model` in the document.
    key_places: the paths of the keys that belong elsewhere in the document (see `list_key_places`).
    """
    loc = _drop_union_tag(prefix + error["loc"])
    key_path = shorten_value(".".join(str(segment) for segment in loc))
    if error["type"] == "extra_forbidden":
        choices = _list_keys(model, error["loc"][:-1])
        place = suggest_place(str(loc[-1]), key_places) if len(loc) <= _MAX_PLACE_LEVELS else None
        suggestion = _explain_queue_key(loc, choices) or place or suggest_name(str(loc[-1]), choices)
        return LocatedFinding(loc, Finding("", f"unknown key {key_path}: {suggestion}"))
    if error["type"] == "missing":
        return LocatedFinding(loc[:-1], Finding("", f"the key {key_path} is missing"))
    message = shorten_message(_TYPE_MESSAGES.get(error["type"]) or _rephrase(error["msg"]))
    description = _find_description(model, error["loc"]) if error["type"] == "string_pattern_mismatch" else None
    if description:
        message = f"{message} ({description})"
    if loc:
        is_about_a_part = error["type"] == "value_error" and isinstance(error["input"], dict)
        if not is_about_a_part:  # else the message names the key, and the whole mapping would hide it
            message = f"{message}, not {shorten_value(repr(error['input']))}"
        return LocatedFinding(loc, Finding(key_path, message))
    # The error is about the whole profile. The message may begin with a key, whose line is then shown.
    first_key, _, problem = message.partition(": ")
    if first_key in model.model_fields:
        return LocatedFinding((first_key,), Finding(first_key, problem))
    return LocatedFinding((), Finding("", message))


def _rephrase(pydantic_message: str) -> str:
    """The message as a predicate of its key, if pydantic wrote it; one of our own begins with a small letter."""
    message = pydantic_message.removeprefix("Value error, ")
    message = _MESSAGE_END.sub("", _MESSAGE_START.sub("must ", message))
    return message[:1].lower() + message[1:]


def _find_description(model: type[BaseModel], loc: Sequence[str | int]) -> str | None:
    """What the field at a location is for, in one clause; None if the field has no description."""
    description = None
    for segment in loc:
        field = model.model_fields.get(str(segment))
        if field:
            description = field.description and re.split("; | [(]default", field.description)[0]
            nested_models = _list_models(field.annotation)
            model = nested_models[0] if nested_models else model
    return description


def _explain_queue_key(loc: Loc, choices: Sequence[str]) -> str | None:
    """Why a launcher does not have an option that names a queue; None for another key.

    Its similar name must not be suggested: a job would then wait in a queue of another scheduler.
    """
    meaning = _QUEUE_OPTIONS.get(str(loc[-1])) if loc[:1] == ("options",) else None
    if meaning is None:
        return None
    explanation = f"it is {meaning}, which jobs of this launcher cannot be in"
    for name, other_meaning in _QUEUE_OPTIONS.items():
        if name in choices:
            explanation += f"; {name} is {other_meaning}"
    return f"{explanation}; there are: {', '.join(sorted(choices))}"


def _drop_union_tag(loc: Loc) -> Loc:
    """The location without a union's tag, as in `env.A.source.key`: a user does not write it."""
    position = 3 if loc[:2] == ("pod", "tolerations") else 2  # behind the index of an item, or the name of a variable
    if len(loc) > position and loc[position] in _UNION_TAGS:
        return loc[:position] + loc[position + 1 :]
    return loc


def _list_keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that are valid at a location of a document of this model."""
    for segment in loc:
        field = model.model_fields.get(str(segment))
        nested_models = _list_models(field.annotation) if field else []
        model = nested_models[0] if nested_models else model
    return [name for name in model.model_fields if (model.__name__, name) != ("Profile", "name")]


def _list_models(annotation: Any) -> list[type[BaseModel]]:
    """The models inside an annotation, such as Mount of dict[str, Mount]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    models: list[type[BaseModel]] = []
    for argument in get_args(annotation):
        models += _list_models(argument)
    return models


def find_position(
    path: Path, root: yaml.Node, loc: Sequence[str | int], overrides: Mapping[str, Any] | None
) -> FilePosition:
    """The file and line of a key, or `override` if its value came from an override.

    The line is that of the last segment of the location that the document has.
    """
    loc_keys = [str(segment) for segment in loc]
    for dotted_key in overrides or {}:
        # Either may be the longer one: an override may set a whole mapping, or a key inside the location.
        if loc and all(map(str.__eq__, dotted_key.split("."), loc_keys)):
            return FilePosition("override")
    node = root
    line = root.start_mark.line
    for segment in loc:
        if isinstance(node, yaml.MappingNode):
            line = _get_key_line(node, segment, line)
        node = _get_child(node, segment) or node
        if isinstance(segment, int):
            line = node.start_mark.line
    return FilePosition(str(path), line + 1)


def _get_key_line(mapping: yaml.MappingNode, key: str | int, default: int) -> int:
    """The line of a key in a mapping, counted from 0; `default` if the mapping does not have it."""
    for key_node, _ in mapping.value:
        if key_node.value == key:
            return int(key_node.start_mark.line)
    return default


def _get_child(node: yaml.Node, segment: str | int) -> yaml.Node | None:
    """The value of a key or an index of a node; of a repeated key the last one. None if there is none."""
    children: dict[Any, yaml.Node] = {}
    if isinstance(node, yaml.MappingNode):
        children = {key_node.value: value for key_node, value in node.value}
    elif isinstance(node, yaml.SequenceNode):
        children = dict(enumerate(node.value))
    return children.get(segment)
