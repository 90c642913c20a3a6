"""The file of a user's manifest: its objects, and the lines that findings about them are about."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from torchyard.loading.yaml_document import read_documents
from torchyard.model.errors import ProfileError
from torchyard.model.finding import FilePosition, Finding

_OBJECT_FIX = "write a mapping with apiVersion, kind and metadata, as kubectl takes it; `---` separates objects"
_INDEX_PATTERN = re.compile(r"\[(\d+)\]")


class ManifestFile(NamedTuple):
    """The objects of a manifest, the YAML node of each, which has line numbers, and warnings about the file."""

    path: Path
    objects: tuple[dict[str, Any], ...]
    nodes: tuple[yaml.Node, ...]
    warnings: tuple[Finding, ...]

    def locate(self, where: str) -> FilePosition | None:
        """The position for the `where` of a finding about an object: `Job train, spec.tasks[0].replicas`.

        An object in an AppWrapper has its wrapper before it: `AppWrapper train, Job train, spec.completions`. The line
        is that of the last key that the file has. None if `where` does not begin with the kind and name of an object.
        """
        first, *others = where.split(", ")
        node = next((node for node in self.nodes if _describe(node) == first), None)
        if node is None:
            return None
        line = node.start_mark.line
        for part in others:
            inner_node = next((inner for inner in _list_mappings(node) if _describe(inner) == part), None)
            if inner_node is None:  # the path of a key; the first one has the line
                line = _find_line(node, part)
                break
            node = inner_node
            line = node.start_mark.line
        return FilePosition(str(self.path), line + 1)


def read_manifest(path: Path, profile_name: str) -> ManifestFile:
    """Read the objects of a manifest. ProfileError if one of its documents is not a Kubernetes object."""
    objects: list[dict[str, Any]] = []
    nodes: list[yaml.Node] = []
    warnings: list[Finding] = []
    try:
        for content, root, repetitions in read_documents(path, profile_name, allow_repetitions=True):
            warnings += repetitions
            # Converted as for an API server, which reads JSON: there a key is always a string.
            obj = json.loads(json.dumps(content, allow_nan=False))
            if obj is None:
                continue
            if isinstance(obj, dict) and obj.get("kind") == "List" and isinstance(obj.get("items"), list):
                objects += obj["items"]  # as `kubectl get -o yaml` prints several objects
                nodes += _get_value(root, "items").value  # PyYAML has resolved merge keys (`<<`) in it
            else:
                objects.append(obj)
                nodes.append(root)
    except (TypeError, ValueError) as error:
        message = f"an object may contain only values that JSON supports: {error}"
        raise ProfileError(profile_name, (Finding("", message, file=str(path)),)) from error
    findings = []
    for number, (obj, node) in enumerate(zip(objects, nodes, strict=True), 1):
        fault = _find_object_fault(obj)
        if fault:
            line = node.start_mark.line + 1
            message = f"object {number} is not a Kubernetes object: {fault}"
            findings.append(Finding("", message, _OBJECT_FIX, file=str(path), line=line))
    if not objects:
        findings.append(Finding("", "it has no object", "write the job, and what it needs, in it", file=str(path)))
    if findings:
        raise ProfileError(profile_name, tuple(findings))
    return ManifestFile(path, tuple(objects), tuple(nodes), tuple(warnings))


def _find_object_fault(document: object) -> str | None:
    """Which field of every Kubernetes object is missing or has another type; None if there is no fault."""
    if not isinstance(document, dict):
        return "it is not a mapping"
    for key in ("apiVersion", "kind"):
        if not document.get(key) or not isinstance(document[key], str):
            return f"{key} is missing, or not a text"
    metadata = document.get("metadata")
    if not metadata or not isinstance(metadata, dict):
        return f"the {document['kind']} has no metadata"
    for keys, valid_type, noun in ((("name", "namespace"), str, "text"), (("labels", "annotations"), dict, "mapping")):
        for key in keys:
            if metadata.get(key) is not None and not isinstance(metadata[key], valid_type):
                return f"metadata.{key} of the {document['kind']} is not a {noun}"
    return None


# --- lines


def _describe(node: yaml.Node) -> str:
    """The kind and name of an object, as findings begin with it; empty if the node is another one."""
    kind = _get_value(node, "kind")
    name = _get_value(_get_value(node, "metadata"), "name")
    texts = [child.value for child in (kind, name) if isinstance(child, yaml.ScalarNode)]
    return " ".join(texts) if isinstance(kind, yaml.ScalarNode) else ""


def _list_mappings(node: yaml.Node) -> Iterator[yaml.Node]:
    """Every mapping in a node, which a strict reader has found to be of limited depth."""
    children: Sequence[yaml.Node] = ()
    if isinstance(node, yaml.MappingNode):
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    for child in children:
        if isinstance(child, yaml.MappingNode):
            yield child
        yield from _list_mappings(child)


def _get_value(node: yaml.Node | None, key: str) -> Any:
    """The value of a key of a mapping; None if there is none."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key_node, value in pairs if key_node.value == key), None)


def _find_line(node: yaml.Node, key_path: str) -> int:
    """The line, counted from 0, of a key path such as `spec.tasks[0].resources.limits.nvidia.com/gpu`.

    If the document does not have the path, the line of the part of it that the document has.
    """
    line = node.start_mark.line
    while key_path:
        match = _INDEX_PATTERN.match(key_path)
        if isinstance(node, yaml.SequenceNode) and match and int(match[1]) < len(node.value):
            node = node.value[int(match[1])]
            line = node.start_mark.line
            key_path = key_path[match.end() :].removeprefix(".")
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        # The longest key first, because a key may contain dots: `nvidia.com/gpu`.
        matching = [pair for pair in pairs if re.match(rf"{re.escape(str(pair[0].value))}(?=[.\[]|$)", key_path)]
        if not matching:
            return line
        key_node, node = max(matching, key=lambda pair: len(pair[0].value))
        line = key_node.start_mark.line
        key_path = key_path[len(key_node.value) :].removeprefix(".")
    return line
