"""The files that a profile names as `values`: read them, merge them as helm does, and convert them to profile keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from torchyard.loading.helm_keys import build_profile_keys, list_refusals
from torchyard.loading.helm_values import ChartValues
from torchyard.loading.yaml_document import read_document
from torchyard.loading.yaml_errors import explain_error, find_position
from torchyard.model.errors import ProfileError
from torchyard.model.finding import FilePosition, Finding


class _ValuesFile(NamedTuple):
    """A file, its document, and the YAML nodes of the document, which have line numbers."""

    path: Path
    document: dict[str, Any]
    root: yaml.MappingNode


def read_values(paths: Sequence[Path], name: str, profile_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Read the files as keys of the profile `name`; `profile_keys` contains the keys that the profile itself sets.

    ProfileError lists every unknown key, wrong value, and setting that a profile cannot express, each with its line.
    """
    files: list[_ValuesFile] = []
    merged: dict[str, Any] = {}
    for path in paths:
        document, root = read_document(path, name, "a values file", allow_empty=True)
        files.append(_ValuesFile(path, document, root))
        merged = _layer_values(merged, document)
    try:
        values = ChartValues.model_validate({key: _prune_nulls(value) for key, value in merged.items()})
    except ValidationError as error:
        findings = [explain_error(details, (), ChartValues) for details in error.errors()]
        raise ProfileError(name, tuple(finding.at(_locate_key(files, loc)) for loc, finding in findings)) from error
    refusals = [Finding(key, text) for key, text in list_refusals(values, profile_keys)]
    if refusals:
        raise ProfileError(name, tuple(refusal.at(_locate_key(files, (refusal.where,))) for refusal in refusals))
    return build_profile_keys(values, profile_keys)


def _layer_values(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; any other value, null included, replaces the earlier one."""
    merged = dict(base)
    for key, value in overrides.items():
        previous = merged.get(key)
        if isinstance(previous, dict) and isinstance(value, dict):
            merged[key] = _layer_values(previous, value)
        else:
            merged[key] = value
    return merged


def _prune_nulls(value: Any) -> Any:
    """Remove keys whose value is null from mappings, but not inside lists, where helm keeps them too."""
    if not isinstance(value, dict):
        return value
    return {key: _prune_nulls(child) for key, child in value.items() if child is not None}


def _locate_key(files: Sequence[_ValuesFile], loc: tuple[str | int, ...]) -> FilePosition:
    """The position of a key, in the file that has most of its path; of several such files the last one."""
    values_file = max(reversed(files), key=lambda candidate: _measure_depth(candidate.document, loc))
    return find_position(values_file.path, values_file.root, loc, None)


def _measure_depth(document: Any, loc: tuple[str | int, ...]) -> int:
    """The number of segments of a key's path that a document has."""
    for depth, key in enumerate(loc):
        if not _has_key(document, key):
            return depth
        document = document[key]
    return len(loc)


def _has_key(document: Any, key: str | int) -> bool:
    if isinstance(document, dict):
        return key in document
    return isinstance(document, list) and isinstance(key, int)
