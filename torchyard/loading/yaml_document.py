"""Read the user's YAML files strictly: every finding contains its file, line and key."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml

from torchyard.loading.yaml_errors import shorten_value
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding

# Of a document, with aliases expanded:
_MAX_LEVELS = 100
_MAX_VALUES = 100_000
_MAX_DIGITS = 1000  # of a number: Python itself refuses to print more than 4300
_INDENT_PATTERN = re.compile(rb"^[ ?:-]+", re.MULTILINE)
# What a template contains that YAML does not: an expression, or a line that is only a variable.
_TEMPLATE_PATTERN = re.compile(rb"\{\{|\{%|^[ \t]*\$\{?\w+\}?[ \t\r]*$", re.MULTILINE)
_RENDER_FIX = "the file contains `{mark}`: if it is a template, fill it in first (helm template, envsubst)"
_INDENT_FIX = "check the indentation of this line and of those before it; a text with `: ` or ` #` needs quotes"
# By the words of PyYAML's problem.
_SYNTAX_REMEDIES = {
    "tab character": "indent with spaces",
    "cannot start any token": "indent with spaces; a text that begins with a special character needs quotes",
    "undefined alias": "define it with `&` before its name, earlier in the same document; a text needs quotes",
    "mapping values are not allowed": _INDENT_FIX,
    "did not find expected": _INDENT_FIX,
    "could not find expected": _INDENT_FIX,
    "is not closed": "close it; a quote inside a text in single quotes is written twice",
}
_OPEN_QUOTE_PROBLEM = "unexpected end of stream"
_INT_TAG = "tag:yaml.org,2002:int"
_FLOAT_TAG = "tag:yaml.org,2002:float"
_REPLACED_TAGS = (_INT_TAG, _FLOAT_TAG, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_UNKNOWN_TAG_PATTERN = re.compile(r"could not determine a constructor for the tag '(?:tag:yaml\.org,2002:)?([^']*)'")
_SCALAR_KINDS = ("bool", "float", "int", "timestamp")
# PyYAML's constructors raise these for a value that does not fit its tag.
_CONSTRUCTOR_ERRORS = (ValueError, LookupError, AttributeError, ArithmeticError)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a date, a time such as 12:30 (a number of base 60) and `=` are text, as for kubectl."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _WrittenInt(int):
    """An integer with its text in the file, if Python prints a different one: 010."""

    written = ""


class _WrittenFloat(float):
    """A float with its text in the file, if Python prints a different one: 1.10."""

    written = ""


def _construct_number(loader: Any, node: yaml.ScalarNode) -> int | float:
    """A number that keeps its digits. Where a model expects text, 1.10 must not become 1.1, nor 010 become 8."""
    is_int = node.tag == _INT_TAG
    value = loader.construct_yaml_int(node) if is_int else loader.construct_yaml_float(node)
    if str(value) == node.value:
        return value  # type: ignore[no-any-return]
    number = _WrittenInt(value) if is_int else _WrittenFloat(value)
    number.written = node.value
    return number


# Those of PyYAML without numbers of base 60, and with YAML 1.2's octals, which kubectl reads as numbers too.
_INT_PATTERN = r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$|0o[0-7]+$"
_FLOAT_PATTERN = (
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_Loader.add_implicit_resolver(_FLOAT_TAG, re.compile(_FLOAT_PATTERN), list("-+0123456789."))
_Loader.add_implicit_resolver(_INT_TAG, re.compile(_INT_PATTERN), list("-+0123456789"))
for tag in (_INT_TAG, _FLOAT_TAG):
    _Loader.add_constructor(tag, _construct_number)


def read_document(
    path: Path, name: str, noun: str = "a profile", *, allow_empty: bool = False
) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The only document of a file, and its root node, which has line numbers.

    ProfileError if the file does not contain exactly one mapping: the error is about the profile `name`, and calls the
    file `noun`. With `allow_empty`, a file without a document is an empty mapping.
    """
    documents = read_documents(path, name)
    if len(documents) > 1:
        line = documents[1].root.start_mark.line + 1
        raise ProfileError(name, (Finding("", f"{noun} is one document, not more", file=str(path), line=line),))
    if allow_empty and all(document.content is None for document in documents):
        start = yaml.Mark(str(path), 0, 0, 0, None, 0)
        return {}, yaml.MappingNode("tag:yaml.org,2002:map", [], start, start)
    if documents:
        content, root, _ = documents[0]
        if isinstance(root, yaml.MappingNode) and isinstance(content, dict):
            return content, root
    raise ProfileError(name, (Finding("", f"{noun} is a mapping of keys to values", file=str(path), line=1),))


class Document(NamedTuple):
    """A YAML document: its content, and its root node, which has line numbers.

    repetitions: a warning for each key that appears twice with one value, where that is allowed.
    """

    content: Any
    root: yaml.Node
    repetitions: tuple[Finding, ...] = ()


def read_documents(path: Path, name: str, *, allow_repetitions: bool = False) -> list[Document]:
    """Every document of a file. ProfileError, about the profile `name`, if it cannot be read or repeats a key.

    `allow_repetitions`: of a key with its value, as kubectl does; with another value it is an error in any case.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ProfileError(name, (Finding("", f"{path} cannot be read: {error}"),)) from error
    documents: list[Document] = []
    conflicts: list[Finding] = []
    try:
        if _is_possibly_deep(text):
            _check_levels(text)
        loader = _Loader(text)
        while loader.check_node():
            root = loader.get_node()
            nodes = list(_expand_nodes(root))
            repetitions: list[Finding] = []
            for repeated_key in _list_repeated_keys(root, nodes):
                finding = repeated_key.describe(str(path))
                is_allowed = allow_repetitions and repeated_key.has_same_value
                (repetitions if is_allowed else conflicts).append(finding)
            documents.append(Document(_construct_values(loader, root, nodes), root, tuple(repetitions)))
    except yaml.YAMLError as error:
        raise ProfileError(name, (_describe_syntax_error(path, text, error),)) from error
    if conflicts:
        raise ProfileError(name, tuple(conflicts))
    return documents


def read_value(text: str) -> Any:
    """The value that a text is in YAML, as a file would have it. YAMLError if it is none."""
    data = text.encode()
    if _is_possibly_deep(data):
        _check_levels(data)
    loader = _Loader(text)
    root = loader.get_single_node()
    return None if root is None else _construct_values(loader, root, list(_expand_nodes(root)))


def _build_error(problem: str, node: Any) -> yaml.MarkedYAMLError:
    """The error for a problem at the start of a node or an event of PyYAML."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _is_possibly_deep(text: bytes) -> bool:
    """Whether brackets and indentation could nest deeper than is allowed; in most files they cannot."""
    longest_indent = max((len(indent) for indent in _INDENT_PATTERN.findall(text)), default=0)
    return text.count(b"[") + text.count(b"{") + longest_indent > _MAX_LEVELS or b"\0" in text


def _check_levels(text: bytes) -> None:
    """Raise YAMLError if a document has too many levels.

    PyYAML builds nodes by recursion, which would exhaust the stack and crash the process; its events do not recurse.
    """
    level = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
        if level > _MAX_LEVELS:
            raise _build_error(f"more than {_MAX_LEVELS} levels", event)


def _expand_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node, with aliases expanded. YAMLError if there are too many levels or values, as in endless aliases."""
    unvisited = [(root, 1)]
    count = 0
    while unvisited:
        node, level = unvisited.pop()
        count += 1
        if level > _MAX_LEVELS:
            raise _build_error(f"more than {_MAX_LEVELS} levels: an alias may contain itself", node)
        if count > _MAX_VALUES:
            raise _build_error(f"more than {_MAX_VALUES} values", node)
        yield node
        for child in reversed(_list_children(node)):
            unvisited.append((child, level + 1))


def _list_children(node: yaml.Node) -> list[yaml.Node]:
    """The keys and values of a mapping, or the items of a sequence."""
    if isinstance(node, yaml.ScalarNode):
        return []
    if not isinstance(node, yaml.MappingNode):
        return list(node.value)
    children: list[yaml.Node] = []
    for key_node, value_node in node.value:
        children += [key_node, value_node]
    return children


def _construct_values(loader: Any, root: yaml.Node, nodes: list[yaml.Node]) -> Any:
    """The content of a document. YAMLError if a value does not fit its tag."""
    for node in nodes:
        if node.tag == _INT_TAG and len(node.value) > _MAX_DIGITS:
            raise _build_error(f"a number of {len(node.value)} digits; at most {_MAX_DIGITS} are read", node)
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
        except _CONSTRUCTOR_ERRORS as error:
            raise _build_error(f"{shorten_value(repr(node.value))} cannot be read as {kind}", node) from error


def _describe_syntax_error(path: Path, text: bytes, error: yaml.YAMLError) -> Finding:
    """The file and line with the problem, and the column if it is known."""
    mark: yaml.Mark | None = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it is not YAML"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count(b"\n", 0, error.position) + 1
        remedy = "" if "character" in problem else ": it is not UTF-8; save it as UTF-8"
        return Finding("", f"{problem}{remedy}", file=str(path), line=line)
    if match := _UNKNOWN_TAG_PATTERN.search(problem):
        problem = f"a value cannot have the tag !!{match[1]}: write it without one"
    opening_mark = getattr(error, "context_mark", None)
    context = str(getattr(error, "context", None))  # such as `while scanning a quoted scalar`
    if opening_mark and _OPEN_QUOTE_PROBLEM in problem and "quoted" in context:
        problem = "the quote that opens here is not closed"
        mark = opening_mark
    template = _TEMPLATE_PATTERN.search(text)
    remedy = next((remedy for words, remedy in _SYNTAX_REMEDIES.items() if words in problem), "")
    if template:
        remedy = _RENDER_FIX.format(mark=template[0].strip().decode())
    if mark:
        return Finding("", f"{problem} (column {mark.column + 1})", remedy, file=str(path), line=mark.line + 1)
    return Finding("", problem, remedy, file=str(path))


class _RepeatedKey(NamedTuple):
    """The path of a key, and the lines of its first and second appearance, counted from 1."""

    key_path: str
    first_line: int
    line: int
    has_same_value: bool

    def describe(self, file: str) -> Finding:
        """The finding, as a warning if the value is the same."""
        problem = f"the key {shorten_value(self.key_path)} appears here a second time, after line {self.first_line}"
        if self.has_same_value:
            return Finding("", f"{problem}, with the same value", "remove one", "warning", file=file, line=self.line)
        remedy = "write it once, with all that belongs to it: kubectl would use only the last one"
        return Finding("", problem, remedy, file=file, line=self.line)


def _list_repeated_keys(root: yaml.Node, nodes: list[yaml.Node]) -> list[_RepeatedKey]:
    """Keys that appear twice in one mapping, of which other YAML readers silently use the last one."""
    repeated_keys: dict[_RepeatedKey, None] = {}  # ordered; a mapping with several aliases is reported once
    for node in nodes:
        if not isinstance(node, yaml.MappingNode):
            continue
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in pairs:
                first_key, first_value = pairs[key_node.value]
                key_path = f"{_find_key_path(root, node) or ''}.{key_node.value}".removeprefix(".")
                lines = (first_key.start_mark.line + 1, key_node.start_mark.line + 1)
                has_same_value = yaml.serialize(first_value) == yaml.serialize(value_node)
                repeated_keys[_RepeatedKey(key_path, *lines, has_same_value)] = None
            pairs[key_node.value] = (key_node, value_node)
    return list(repeated_keys)


def _find_key_path(node: yaml.Node, target: yaml.Node) -> str | None:
    """The path of a node below another one, such as `spec.tasks[0]`; "" for that node itself, None if not below."""
    if node is target:
        return ""
    children: list[tuple[str, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key_node.value), value) for key_node, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(f"[{index}]", value) for index, value in enumerate(node.value)]
    for key, child in children:
        key_path = _find_key_path(child, target)
        if key_path is not None:
            separator = "." if key_path and not key_path.startswith("[") else ""
            return f"{key}{separator}{key_path}"
    return None


def merge_overrides(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged key by key, any other value is replaced.

    A dot in a key of `changes` separates nested keys; in deeper keys, such as labels, a dot is part of the key.
    """
    merged = dict(base)
    for dotted_key, value in changes.items():
        change: Any = value
        for key in reversed(dotted_key.split(".")):
            change = {key: change}
        merged = merge_mappings(merged, change)
    return merged


def merge_mappings(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `change`: nested mappings are merged key by key, any other value is replaced."""
    merged = dict(base)
    for key, value in change.items():
        if isinstance(value, dict):
            previous = merged.get(key)
            merged[key] = merge_mappings(previous if isinstance(previous, dict) else {}, value)
        else:
            merged[key] = value
    return merged
