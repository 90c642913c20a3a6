"""The files that a profile names as `values`: read, layered as helm layers them, and turned into profile keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from torchyard.loading.helm_keys import build_profile_keys, list_refusals
from torchyard.loading.helm_values import ChartValues
from torchyard.loading.yaml_document import read_document
from torchyard.loading.yaml_errors import explain_error, format_location
from torchyard.model.errors import ProfileError

_ValuesFile = tuple[Path, dict[str, Any], yaml.MappingNode]


def read_values(paths: Sequence[Path], name: str, profile_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Read the files as keys of the profile `name`; `profile_keys` holds the keys that the profile itself sets.

    ProfileError names every unknown key, wrong value, and setting that a profile cannot express, each with its line.
    """
    files = [(path, *read_document(path, name, "a values file", allow_empty=True)) for path in paths]
    merged: dict[str, Any] = {}
    for _, document, _ in files:
        merged = _layer_values(merged, document)
    try:
        values = ChartValues.model_validate({key: _prune_nulls(value) for key, value in merged.items()})
    except ValidationError as error:
        findings = [explain_error(details, (), ChartValues) for details in error.errors()]
        raise ProfileError(name, tuple(_locate_key(files, loc) + text for loc, text in findings)) from error
    if refusals := tuple(
        f"{_locate_key(files, (key,))}{key}: {text}" for key, text in list_refusals(values, profile_keys)
    ):
        raise ProfileError(name, refusals)
    return build_profile_keys(values, profile_keys)


def _layer_values(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; any other value replaces the earlier one, null too."""
    merged = dict(base)
    for key, value in overrides.items():
        previous = merged.get(key)
        merged[key] = (
            _layer_values(previous, value) if isinstance(previous, dict) and isinstance(value, dict) else value
        )
    return merged


def _prune_nulls(value: Any) -> Any:
    """Remove keys whose value is null from mappings, but not inside lists, where helm keeps them too."""
    if not isinstance(value, dict):
        return value
    return {key: _prune_nulls(child) for key, child in value.items() if child is not None}


def _locate_key(files: Sequence[_ValuesFile], loc: tuple[str | int, ...]) -> str:
    """`file:line: ` of a key, in the file that has most of its path; of several the last one."""
    path, _, root = max(reversed(files), key=lambda values_file: _measure_depth(values_file[1], loc))
    return format_location(path, root, loc, None)


def _measure_depth(document: Any, loc: tuple[str | int, ...]) -> int:
    """How many parts of a key's path a document has."""
    for depth, key in enumerate(loc):
        has_key = key in document if isinstance(document, dict) else isinstance(document, list) and isinstance(key, int)
        if not has_key:
            return depth
        document = document[key]
    return len(loc)
