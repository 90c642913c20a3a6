"""A YAML file of the user's, read strictly: every finding stands with its file, its line and its key."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from torchyard.loading.yaml_errors import short
from torchyard.model.errors import ProfileError

DEEPEST, MOST = 100, 100_000  # levels and values of a document, an alias counted as what it stands for
DIGITS = 1000  # of a number: Python itself refuses to print more than 4300
# What PyYAML's constructors let through for a value that its tag does not fit.
INDENT = re.compile(rb"^[ ?:-]+", re.MULTILINE)
INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
SINGLE = ("bool", "float", "int", "timestamp")
UNFIT = (ValueError, LookupError, AttributeError, ArithmeticError)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a date is a text, as it is to kubectl and helm: no noun has one."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class WrittenInt(int):
    """A number that is not written as Python prints it, and how it is."""

    written = ""


class WrittenFloat(float):
    """The same: 1.10."""

    written = ""


def number(loader: Any, node: yaml.ScalarNode) -> int | float:
    """A number that knows its digits: as a text, 1.10 is not 1.1, and 010 not 8."""
    whole = node.tag == INT
    value = loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)
    if str(value) == node.value:
        return value  # type: ignore[no-any-return]
    known = WrittenInt(value) if whole else WrittenFloat(value)
    known.written = node.value
    return known


for tag in (INT, FLOAT):
    Loader.add_constructor(tag, number)


def read(
    path: Path, name: str, what: str = "a profile", empty: bool = False
) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The document, and its nodes, which know their lines. `empty`: it may say nothing at all."""
    found = read_all(path, name)
    if len(found) > 1:
        raise ProfileError(name, (f"{path}:{found[1][1].start_mark.line + 1}: {what} is one document, not more",))
    if empty and all(document is None for document, _ in found):
        start = yaml.Mark(str(path), 0, 0, 0, None, 0)
        return {}, yaml.MappingNode("tag:yaml.org,2002:map", [], start, start)
    document, root = found[0] if found else (None, None)
    if not isinstance(root, yaml.MappingNode) or not isinstance(document, dict):
        raise ProfileError(name, (f"{path}:1: {what} is a mapping of keys to values",))
    return document, root


def read_all(path: Path, name: str) -> list[tuple[Any, yaml.Node]]:
    """Every document of a file, with its nodes. ProfileError where it cannot be read, or has a key twice."""
    try:
        text = path.read_bytes()
        for event, level in nesting(text) if may_be_deep(text) else ():
            held(level <= DEEPEST, f"more than {DEEPEST} levels", event.start_mark)
        loader, found, twice = Loader(text), [], []
        while loader.check_node():
            root = loader.get_node()
            nodes = list(unfold(root))
            twice += repeated(nodes)
            found.append((construct(loader, root, nodes), root))
    except OSError as error:
        raise ProfileError(name, (f"{path} cannot be read: {error}",)) from error
    except yaml.YAMLError as error:
        raise ProfileError(name, (syntax(path, error),)) from error
    if twice:
        said = (f"{path}:{line}: the key {short(key)} stands here a second time" for key, line in twice)
        raise ProfileError(name, tuple(said))
    return found


def held(true: bool, problem: str, mark: Any) -> None:
    """YAMLError where it is not true."""
    if not true:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def may_be_deep(text: bytes) -> bool:
    """Whether there are more brackets and more indentation than levels are allowed; most files have fewer."""
    indented = max((len(found) for found in INDENT.findall(text)), default=0)
    return text.count(b"[") + text.count(b"{") + indented > DEEPEST or b"\0" in text


def nesting(text: bytes) -> Iterator[tuple[yaml.Event, int]]:
    """Every event with its level: PyYAML makes nodes by recursion, in which libyaml's end is that of the process."""
    level = 0
    for event in yaml.parse(text, Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield event, level


def unfold(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node, an alias as what it stands for. YAMLError where that has no end, or one that is too far away."""
    waiting, count = [(root, 1)], 0
    while waiting:
        (node, level), count = waiting.pop(), count + 1
        if level > DEEPEST or count > MOST:
            held(level <= DEEPEST, f"more than {DEEPEST} levels: an alias may stand inside itself", node.start_mark)
            held(False, f"more than {MOST} values", node.start_mark)
        yield node
        if isinstance(node, yaml.ScalarNode):
            continue
        mapping = isinstance(node, yaml.MappingNode)
        inner = [each for pair in node.value for each in pair] if mapping else node.value
        waiting += [(each, level + 1) for each in reversed(inner)]


def construct(loader: Any, root: yaml.Node, nodes: list[yaml.Node]) -> Any:
    """The values of a document. YAMLError where one is not what its tag says."""
    for node in nodes:
        if node.tag == INT and len(node.value) > DIGITS:
            said = f"a number of {len(node.value)} digits; at most {DIGITS} are read"
            held(False, said, node.start_mark)
    try:
        return loader.construct_document(root)
    except UNFIT:
        blame(nodes)
        raise


def blame(nodes: list[yaml.Node]) -> None:
    """YAMLError for the first value that is not what its tag says."""
    for node in nodes:
        kind = node.tag.rpartition(":")[2]
        try:
            if kind in SINGLE:
                Loader("").construct_object(node)
        except UNFIT:
            held(False, f"{short(repr(node.value))} cannot be read as {kind}", node.start_mark)


def syntax(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
    return f"{path}:{mark.line + 1}: {problem} (column {mark.column + 1})" if mark else f"{path}: {problem}"


def repeated(nodes: list[yaml.Node]) -> list[tuple[str, int]]:
    """Keys that stand twice in one mapping: YAML readers take the last one without a word."""
    found = []
    for node in nodes:
        keys: set[str] = set()
        for key in (each for each, _ in node.value) if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                found.append((key.value, key.start_mark.line + 1))
            keys |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
    return list(dict.fromkeys(found))


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
