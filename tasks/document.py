"""A YAML file of the user's, read strictly: every finding stands with its file, its line and its key."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from tasks.errors import ProfileError

TAGS = ("text", "source")  # of a union's members, which pydantic puts into the place of an error
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean x? There are: …`, for a name that is not among the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]}? " if close else "") + "there are: " + ", ".join(names)


def read(path: Path, name: str) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The document, and its nodes, which know their lines."""
    try:
        loader = Loader(path.read_text())
        root = loader.get_single_node()
        twice = repeated(root)
        document = loader.construct_document(root) if root else {}
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(name, (f"{path} cannot be read: {error}",)) from error
    except yaml.YAMLError as error:
        raise ProfileError(name, (syntax(path, error),)) from error
    if not isinstance(root, yaml.MappingNode):
        raise ProfileError(name, (f"{path}:1: a profile is a mapping of keys to values",))
    if twice:
        raise ProfileError(
            name, tuple(f"{path}:{line}: the key {key} stands here a second time" for key, line in twice)
        )
    return document, root


def syntax(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it is not YAML"
    return f"{path}:{mark.line + 1}: {problem} (column {mark.column + 1})" if mark else f"{path}: {problem}"


def repeated(node: yaml.Node | None) -> list[tuple[str, int]]:
    """Keys that stand twice in one mapping: YAML readers take the last one without a word."""
    if isinstance(node, yaml.SequenceNode):
        return [each for child in node.value for each in repeated(child)]
    if not isinstance(node, yaml.MappingNode):
        return []
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    here = [(key.value, key.start_mark.line + 1) for at, (key, _) in enumerate(node.value) if key.value in keys[:at]]
    return here + [each for _, child in node.value for each in repeated(child)]


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged key by key, everything else is replaced.

    Dots lead into mappings in the keys of `changes` themselves, and not further in, where labels have dots.
    """
    merged = dict(base)
    for dotted, value in changes.items():
        change: Any = value
        for part in reversed(dotted.split(".")):
            change = {part: change}
        merged = join(merged, change)
    return merged


def join(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(base)
    for key, value in change.items():
        old = joined.get(key)
        joined[key] = join(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return joined


def explain(error: ErrorDetails, prefix: tuple[str, ...], model: type[BaseModel]) -> tuple[tuple[str | int, ...], str]:
    """Where a value is wrong, and one sentence about it."""
    loc = tuple(part for at, part in enumerate(prefix + error["loc"]) if not (at == 2 and part in TAGS))
    key = ".".join(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        return loc, f"unknown key {key}: " + nearest(str(loc[-1]), keys(model, error["loc"][:-1]))
    if error["type"] == "missing":
        return loc[:-1], f"the key {key} is missing"
    text = error["msg"].removeprefix("Value error, ")
    said = text[:1].lower() + text[1:]
    if not loc:  # of the profile as a whole: it may begin with the key that it is about
        head = said.partition(":")[0]
        return (head,) if head in model.model_fields else (), said
    return loc, f"{key}: {said}, not {error['input']!r}"


def keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that are allowed at a place of a profile."""
    for part in loc:
        field = model.model_fields.get(str(part))
        inner = models(field.annotation) if field else []
        model = inner[0] if inner else model
    return [name for name in model.model_fields if (model.__name__, name) != ("Profile", "name")]


def models(annotation: Any) -> list[type[BaseModel]]:
    """The models inside an annotation, such as Mount of dict[str, Mount]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [each for part in get_args(annotation) for each in models(part)]


def place(path: Path, root: yaml.Node, loc: Sequence[str | int], overrides: Mapping[str, Any] | None) -> str:
    """`file:line: ` of a key, or `override: ` where the value came from there."""
    here = [str(part) for part in loc]
    changed = (dotted.split(".") for dotted in overrides or {})
    if loc and any(all(map(str.__eq__, parts, here)) for parts in changed):
        return "override: "
    line = root.start_mark.line
    for part in loc:
        children: list[tuple[Any, yaml.Node]] = []
        if isinstance(root, yaml.MappingNode):
            children = [(key.value, value) for key, value in root.value]
            line = next((key.start_mark.line for key, _ in root.value if key.value == part), line)
        elif isinstance(root, yaml.SequenceNode):
            children = list(enumerate(root.value))
        root = dict(children).get(part, root)
        line = root.start_mark.line if isinstance(part, int) else line
    return f"{path}:{line + 1}: "
