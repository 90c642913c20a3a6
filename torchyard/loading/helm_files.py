"""The files that a profile names as `values`: read, layered as helm layers them, and told in the profile's keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from torchyard.loading.helm_keys import find_refusals, profile_keys
from torchyard.loading.helm_values import ChartValues
from torchyard.loading.yaml_document import read_document
from torchyard.loading.yaml_errors import explain_error, format_location
from torchyard.model.errors import ProfileError

_ValuesFile = tuple[Path, dict[str, Any], yaml.MappingNode]


def read_values(paths: Sequence[Path], name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """What the files say, as keys of the profile `name`; `own` is what that says itself.

    ProfileError names every unknown key, wrong value, and what a profile cannot say, with the line where it stands.
    """
    files = [(path, *read_document(path, name, "a values file", empty=True)) for path in paths]
    merged: dict[str, Any] = {}
    for _, document, _ in files:
        merged = _layer_values(merged, document)
    try:
        values = ChartValues.model_validate({key: _prune_nulls(value) for key, value in merged.items()})
    except ValidationError as error:
        findings = [explain_error(each, (), ChartValues) for each in error.errors()]
        raise ProfileError(name, tuple(_locate_key(files, loc) + text for loc, text in findings)) from error
    if refused := tuple(f"{_locate_key(files, (key,))}{key}: {text}" for key, text in find_refusals(values, own)):
        raise ProfileError(name, refused)
    return profile_keys(values, own)


def _layer_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged, everything else is replaced, also by null."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _layer_values(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _prune_nulls(value: Any) -> Any:
    """Without the keys of mappings that a null takes away; helm leaves those in lists."""
    if not isinstance(value, dict):
        return value
    return {key: _prune_nulls(each) for key, each in value.items() if each is not None}


def _locate_key(files: Sequence[_ValuesFile], loc: tuple[str | int, ...]) -> str:
    """`file:line: ` of a key, in the last of the files that say most of it."""
    path, _, root = max(reversed(files), key=lambda each: _measure_depth(each[1], loc))
    return format_location(path, root, loc, None)


def _measure_depth(document: Any, loc: tuple[str | int, ...]) -> int:
    """How many steps of a place a document has."""
    for at, part in enumerate(loc):
        known = part in document if isinstance(document, dict) else isinstance(document, list) and isinstance(part, int)
        if not known:
            return at
        document = document[part]
    return len(loc)
