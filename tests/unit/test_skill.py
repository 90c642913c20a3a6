"""SKILL.md: its exit codes and the keys that it names; tests/unit/test_pages.py checks its commands."""

import re
from typing import Any

import pytest

from torchyard.cli.documents import DOCUMENTS, ErrorDocument
from torchyard.cli.exit_codes import ExitCode
from torchyard.common.project_root import ROOT
from torchyard.model.base import FrozenModel

SKILL = (ROOT / "SKILL.md").read_text()
KEY_PATHS = re.findall(r"`((?:error|failure|hang)\.[a-z_.]+|[a-z_.]+\[\][a-z_.]*)(?:\[\])?`", SKILL)


def list_key_paths(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 3) -> set[str]:
    """The paths of all keys of a schema down to a depth; of a list, those of its items."""
    if "$ref" in schema:
        return list_key_paths(definitions[schema["$ref"].rpartition("/")[2]], definitions, depth)
    paths: set[str] = set()
    for choice in (*schema.get("anyOf", ()), schema.get("items", {})):
        if choice:
            paths |= list_key_paths(choice, definitions, depth)
    for key, value in schema.get("properties", {}).items():
        paths.add(key)
        if depth:
            paths |= {f"{key}.{path}" for path in list_key_paths(value, definitions, depth - 1)}
    return paths


def test_exit_codes_are_complete() -> None:
    """The table has every exit code of the command, and no other."""
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", SKILL, re.MULTILINE)] == [code.value for code in ExitCode]


@pytest.mark.parametrize("key_path", sorted(set(KEY_PATHS)))
def test_keys_exist(key_path: str) -> None:
    """Each key that a reader is told to read is in the schema of a document."""
    known_paths: set[str] = set()
    documents: list[type[FrozenModel]] = [*DOCUMENTS.values(), ErrorDocument]
    for document in documents:
        schema = document.model_json_schema(mode="serialization")
        known_paths |= list_key_paths(schema, schema.get("$defs", {}))
    assert key_path.replace("[]", "") in known_paths


def test_key_paths_are_found() -> None:
    """The pattern of this test finds the keys of the page."""
    assert {"failure.cause", "error.findings", "profiles[].name", "hang.location"} <= set(KEY_PATHS)
