"""Strict reading of the user's YAML files: every finding names its file, line and key."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from torchyard.loading.yaml_errors import shorten_value
from torchyard.model.errors import ProfileError

_MAX_LEVELS, _MAX_VALUES = 100, 100_000  # levels and values of a document, with aliases expanded
_MAX_DIGITS = 1000  # of a number: Python itself refuses to print more than 4300
_INDENT_PATTERN = re.compile(rb"^[ ?:-]+", re.MULTILINE)
_INT_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_UNKNOWN_TAG_PATTERN = re.compile(r"could not determine a constructor for the tag '(?:tag:yaml\.org,2002:)?([^']*)'")
_SCALAR_KINDS = ("bool", "float", "int", "timestamp")
# What PyYAML's constructors raise for a value that does not fit its tag.
_CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, ArithmeticError)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a date is a text, as for kubectl and helm: no model has a date."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _WrittenInt(int):
    """An integer that keeps its text as written, where Python would print another: 010."""

    written = ""


class _WrittenFloat(float):
    """A float that keeps its text as written, where Python would print another: 1.10."""

    written = ""


def _construct_number(loader: Any, node: yaml.ScalarNode) -> int | float:
    """A number that keeps its digits: as a text, 1.10 is not 1.1, and 010 is not 8."""
    is_int = node.tag == _INT_TAG
    value = loader.construct_yaml_int(node) if is_int else loader.construct_yaml_float(node)
    if str(value) == node.value:
        return value  # type: ignore[no-any-return]
    number = _WrittenInt(value) if is_int else _WrittenFloat(value)
    number.written = node.value
    return number


for tag in (_INT_TAG, _FLOAT_TAG):
    _Loader.add_constructor(tag, _construct_number)


def read_document(
    path: Path, name: str, noun: str = "a profile", allow_empty: bool = False
) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The only document of a file, and its nodes, which know their lines. `allow_empty`: the file may be empty."""
    documents = read_documents(path, name)
    if len(documents) > 1:
        raise ProfileError(name, (f"{path}:{documents[1][1].start_mark.line + 1}: {noun} is one document, not more",))
    if allow_empty and all(document is None for document, _ in documents):
        start = yaml.Mark(str(path), 0, 0, 0, None, 0)
        return {}, yaml.MappingNode("tag:yaml.org,2002:map", [], start, start)
    document, root = documents[0] if documents else (None, None)
    if not isinstance(root, yaml.MappingNode) or not isinstance(document, dict):
        raise ProfileError(name, (f"{path}:1: {noun} is a mapping of keys to values",))
    return document, root


def read_documents(path: Path, name: str) -> list[tuple[Any, yaml.Node]]:
    """Every document of a file, with its nodes. ProfileError if it cannot be read, or repeats a key."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileError(name, (f"{path} cannot be read: {error}",)) from error
    try:
        for event, level in _list_event_levels(content) if _is_possibly_deep(content) else ():
            _require(level <= _MAX_LEVELS, f"more than {_MAX_LEVELS} levels", event.start_mark)
        loader, documents, repeated_keys = _Loader(content), [], []
        while loader.check_node():
            root = loader.get_node()
            nodes = list(_expand_nodes(root))
            repeated_keys += _list_repeated_keys(nodes)
            documents.append((_construct_values(loader, root, nodes), root))
    except yaml.YAMLError as error:
        raise ProfileError(name, (_describe_syntax_error(path, content, error),)) from error
    if repeated_keys:
        messages = (
            f"{path}:{line}: the key {shorten_value(key)} appears here a second time" for key, line in repeated_keys
        )
        raise ProfileError(name, tuple(messages))
    return documents


def _require(is_met: bool, problem: str, mark: Any) -> None:
    """Raise YAMLError unless `is_met`."""
    if not is_met:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _is_possibly_deep(content: bytes) -> bool:
    """Whether brackets and indentation could nest deeper than is allowed; in most files they cannot."""
    indented = max((len(indent) for indent in _INDENT_PATTERN.findall(content)), default=0)
    return content.count(b"[") + content.count(b"{") + indented > _MAX_LEVELS or b"\0" in content


def _list_event_levels(content: bytes) -> Iterator[tuple[yaml.Event, int]]:
    """Every event with its level. PyYAML builds nodes by recursion: too many levels would crash the process."""
    level = 0
    for event in yaml.parse(content, _Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield event, level


def _expand_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node, with aliases expanded. YAMLError if they expand without end, or beyond the limits."""
    unvisited, count = [(root, 1)], 0
    while unvisited:
        (node, level), count = unvisited.pop(), count + 1
        if level > _MAX_LEVELS or count > _MAX_VALUES:
            _require(
                level <= _MAX_LEVELS,
                f"more than {_MAX_LEVELS} levels: an alias may contain itself",
                node.start_mark,
            )
            _require(False, f"more than {_MAX_VALUES} values", node.start_mark)
        yield node
        if isinstance(node, yaml.ScalarNode):
            continue
        is_mapping = isinstance(node, yaml.MappingNode)
        children = [child for pair in node.value for child in pair] if is_mapping else node.value
        unvisited += [(child, level + 1) for child in reversed(children)]


def _construct_values(loader: Any, root: yaml.Node, nodes: list[yaml.Node]) -> Any:
    """The values of a document. YAMLError if one does not fit its tag."""
    for node in nodes:
        if node.tag == _INT_TAG and len(node.value) > _MAX_DIGITS:
            problem = f"a number of {len(node.value)} digits; at most {_MAX_DIGITS} are read"
            _require(False, problem, node.start_mark)
    try:
        return loader.construct_document(root)
    except _CONSTRUCTOR_ERRORS:
        _raise_for_invalid_value(nodes)
        raise


def _raise_for_invalid_value(nodes: list[yaml.Node]) -> None:
    """Raise YAMLError for the first value that does not fit its tag."""
    for node in nodes:
        kind = node.tag.rpartition(":")[2]
        try:
            if kind in _SCALAR_KINDS:
                _Loader("").construct_object(node)
        except _CONSTRUCTOR_ERRORS:
            _require(False, f"{shorten_value(repr(node.value))} cannot be read as {kind}", node.start_mark)


def _describe_syntax_error(path: Path, content: bytes, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
    if isinstance(error, yaml.reader.ReaderError):
        line = content.count(b"\n", 0, error.position) + 1
        remedy = "" if "character" in problem else ": it is not UTF-8; save it as UTF-8"
        return f"{path}:{line}: {problem}{remedy}"
    if match := _UNKNOWN_TAG_PATTERN.search(problem):
        problem = f"a value cannot have the tag !!{match[1]}: write it without one"
    return f"{path}:{mark.line + 1}: {problem} (column {mark.column + 1})" if mark else f"{path}: {problem}"


def _list_repeated_keys(nodes: list[yaml.Node]) -> list[tuple[str, int]]:
    """Keys that appear twice in one mapping: YAML readers silently take the last one."""
    repeated_keys = []
    for node in nodes:
        keys: set[str] = set()
        for key_node in (pair_key for pair_key, _ in node.value) if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in keys:
                repeated_keys.append((key_node.value, key_node.start_mark.line + 1))
            keys |= {key_node.value} if isinstance(key_node, yaml.ScalarNode) else set()
    return list(dict.fromkeys(repeated_keys))


def merge_overrides(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged key by key, everything else is replaced.

    In the keys of `changes` itself dots lead into mappings; in deeper keys, such as labels, a dot is part of the key.
    """
    merged = dict(base)
    for dotted_key, value in changes.items():
        change: Any = value
        for key in reversed(dotted_key.split(".")):
            change = {key: change}
        merged = merge_mappings(merged, change)
    return merged


def merge_mappings(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        previous = merged.get(key)
        merged[key] = (
            merge_mappings(previous if isinstance(previous, dict) else {}, value) if isinstance(value, dict) else value
        )
    return merged
