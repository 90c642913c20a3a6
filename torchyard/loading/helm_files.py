"""The files that a profile names as `values`: read, layered as helm layers them, and told in the profile's keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from torchyard.loading.helm_keys import profile_keys, refusals
from torchyard.loading.helm_values import Values
from torchyard.loading.yaml_document import read
from torchyard.loading.yaml_errors import explain, place
from torchyard.model.errors import ProfileError

File = tuple[Path, dict[str, Any], yaml.MappingNode]


def read_values(paths: Sequence[Path], name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the files say, as keys of the profile `name`; `own` is what that says itself.

    ProfileError names every unknown key, wrong value, and what a profile cannot say, with the line where it stands.
    """
    files = [(path, *read(path, name, "a values file", empty=True)) for path in paths]
    merged: dict[str, Any] = {}
    for _, document, _ in files:
        merged = layered(merged, document)
    try:
        values = Values.model_validate({key: pruned(value) for key, value in merged.items()})
    except ValidationError as error:
        findings = [explain(each, (), Values) for each in error.errors()]
        raise ProfileError(name, tuple(where(files, loc) + text for loc, text in findings)) from error
    if refused := tuple(f"{where(files, (key,))}{key}: {text}" for key, text in refusals(values, own)):
        raise ProfileError(name, refused)
    return profile_keys(values, own)


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged, everything else is replaced, also by null."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = layered(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def pruned(value: Any) -> Any:
    """Without the keys of mappings that a null takes away; helm leaves those in lists."""
    if not isinstance(value, dict):
        return value
    return {key: pruned(each) for key, each in value.items() if each is not None}


def where(files: Sequence[File], loc: tuple[str | int, ...]) -> str:
    """`file:line: ` of a key, in the last of the files that say most of it."""
    path, _, root = max(reversed(files), key=lambda each: depth(each[1], loc))
    return place(path, root, loc, None)


def depth(document: Any, loc: tuple[str | int, ...]) -> int:
    """How many steps of a place a document has."""
    for at, part in enumerate(loc):
        known = part in document if isinstance(document, dict) else isinstance(document, list) and isinstance(part, int)
        if not known:
            return at
        document = document[part]
    return len(loc)
