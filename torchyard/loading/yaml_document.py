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
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _WrittenInt(int):
    """An integer that keeps its text as written, where Python would print another: 010."""

    written = ""


class _WrittenFloat(float):
    """A float that keeps its text as written, where Python would print another: 1.10."""

    written = ""


def _construct_number(loader: Any, node: yaml.ScalarNode) -> int | float:
    """A number that keeps its digits: as a text, 1.10 is not 1.1, and 010 is not 8."""
    whole = node.tag == _INT_TAG
    value = loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)
    if str(value) == node.value:
        return value  # type: ignore[no-any-return]
    known = _WrittenInt(value) if whole else _WrittenFloat(value)
    known.written = node.value
    return known


for tag in (_INT_TAG, _FLOAT_TAG):
    _Loader.add_constructor(tag, _construct_number)


def read_document(
    path: Path, name: str, what: str = "a profile", empty: bool = False
) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The only document of a file, and its nodes, which know their lines. `empty`: the file may be empty."""
    found = read_documents(path, name)
    if len(found) > 1:
        raise ProfileError(name, (f"{path}:{found[1][1].start_mark.line + 1}: {what} is one document, not more",))
    if empty and all(document is None for document, _ in found):
        start = yaml.Mark(str(path), 0, 0, 0, None, 0)
        return {}, yaml.MappingNode("tag:yaml.org,2002:map", [], start, start)
    document, root = found[0] if found else (None, None)
    if not isinstance(root, yaml.MappingNode) or not isinstance(document, dict):
        raise ProfileError(name, (f"{path}:1: {what} is a mapping of keys to values",))
    return document, root


def read_documents(path: Path, name: str) -> list[tuple[Any, yaml.Node]]:
    """Every document of a file, with its nodes. ProfileError if it cannot be read, or repeats a key."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ProfileError(name, (f"{path} cannot be read: {error}",)) from error
    try:
        for event, level in _list_event_levels(text) if _is_possibly_deep(text) else ():
            _check_condition(level <= _MAX_LEVELS, f"more than {_MAX_LEVELS} levels", event.start_mark)
        loader, found, twice = _Loader(text), [], []
        while loader.check_node():
            root = loader.get_node()
            nodes = list(_unfold_nodes(root))
            twice += _find_repeated_keys(nodes)
            found.append((_construct_values(loader, root, nodes), root))
    except yaml.YAMLError as error:
        raise ProfileError(name, (_describe_syntax_error(path, text, error),)) from error
    if twice:
        said = (f"{path}:{line}: the key {shorten_value(key)} appears here a second time" for key, line in twice)
        raise ProfileError(name, tuple(said))
    return found


def _check_condition(true: bool, problem: str, mark: Any) -> None:
    """Raise YAMLError unless `true`."""
    if not true:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _is_possibly_deep(text: bytes) -> bool:
    """Whether brackets and indentation could nest deeper than is allowed; in most files they cannot."""
    indented = max((len(found) for found in _INDENT_PATTERN.findall(text)), default=0)
    return text.count(b"[") + text.count(b"{") + indented > _MAX_LEVELS or b"\0" in text


def _list_event_levels(text: bytes) -> Iterator[tuple[yaml.Event, int]]:
    """Every event with its level. PyYAML builds nodes by recursion: too many levels would crash the process."""
    level = 0
    for event in yaml.parse(text, _Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield event, level


def _unfold_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node, with aliases expanded. YAMLError if they expand without end, or beyond the limits."""
    waiting, count = [(root, 1)], 0
    while waiting:
        (node, level), count = waiting.pop(), count + 1
        if level > _MAX_LEVELS or count > _MAX_VALUES:
            _check_condition(
                level <= _MAX_LEVELS,
                f"more than {_MAX_LEVELS} levels: an alias may contain itself",
                node.start_mark,
            )
            _check_condition(False, f"more than {_MAX_VALUES} values", node.start_mark)
        yield node
        if isinstance(node, yaml.ScalarNode):
            continue
        mapping = isinstance(node, yaml.MappingNode)
        inner = [each for pair in node.value for each in pair] if mapping else node.value
        waiting += [(each, level + 1) for each in reversed(inner)]


def _construct_values(loader: Any, root: yaml.Node, nodes: list[yaml.Node]) -> Any:
    """The values of a document. YAMLError if one does not fit its tag."""
    for node in nodes:
        if node.tag == _INT_TAG and len(node.value) > _MAX_DIGITS:
            said = f"a number of {len(node.value)} digits; at most {_MAX_DIGITS} are read"
            _check_condition(False, said, node.start_mark)
    try:
        return loader.construct_document(root)
    except _CONSTRUCTOR_ERRORS:
        _blame_value(nodes)
        raise


def _blame_value(nodes: list[yaml.Node]) -> None:
    """Raise YAMLError for the first value that does not fit its tag."""
    for node in nodes:
        kind = node.tag.rpartition(":")[2]
        try:
            if kind in _SCALAR_KINDS:
                _Loader("").construct_object(node)
        except _CONSTRUCTOR_ERRORS:
            _check_condition(False, f"{shorten_value(repr(node.value))} cannot be read as {kind}", node.start_mark)


def _describe_syntax_error(path: Path, text: bytes, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count(b"\n", 0, error.position) + 1
        remedy = "" if "character" in problem else ": it is not UTF-8; save it as UTF-8"
        return f"{path}:{line}: {problem}{remedy}"
    if unknown := _UNKNOWN_TAG_PATTERN.search(problem):
        problem = f"a value cannot have the tag !!{unknown[1]}: write it without one"
    return f"{path}:{mark.line + 1}: {problem} (column {mark.column + 1})" if mark else f"{path}: {problem}"


def _find_repeated_keys(nodes: list[yaml.Node]) -> list[tuple[str, int]]:
    """Keys that appear twice in one mapping: YAML readers silently take the last one."""
    found = []
    for node in nodes:
        keys: set[str] = set()
        for key in (each for each, _ in node.value) if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                found.append((key.value, key.start_mark.line + 1))
            keys |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
    return list(dict.fromkeys(found))


def merge_overrides(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged key by key, everything else is replaced.

    In the keys of `changes` itself dots lead into mappings; in deeper keys, such as labels, a dot is part of the key.
    """
    merged = dict(base)
    for dotted, value in changes.items():
        change: Any = value
        for part in reversed(dotted.split(".")):
            change = {part: change}
        merged = merge_mappings(merged, change)
    return merged


def merge_mappings(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(base)
    for key, value in change.items():
        old = joined.get(key)
        joined[key] = merge_mappings(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return joined
