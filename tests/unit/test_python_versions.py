"""The oldest Python that each program of a job's host supports: its syntax, and its annotations at run time."""

import ast
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT

FOLDER = ROOT / "torchyard" / "host"
PATHS = sorted(FOLDER.rglob("*.py"))
# In the pods of old images; the others check the version before they import more.
FOR_3_6 = {
    FOLDER / "rdma_facts.py",
    FOLDER / "black_box" / "site" / "sitecustomize.py",
    FOLDER / "code" / "unpack.py",
}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_old_python_can_parse_the_file(path: Path) -> None:
    """The files for 3.6 are valid there, and so are the others in 3.8."""
    version = (3, 6) if path in FOR_3_6 else (3, 8)
    tree = ast.parse(path.read_text("utf-8"), feature_version=version)
    postpones = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    if version == (3, 6):
        assert not postpones, "annotations cannot be postponed before 3.7"
    if not postpones:
        assert [ast.unparse(node) for node in list_annotations(tree) if is_new_form(node)] == []


def list_annotations(tree: ast.AST) -> list[ast.expr]:
    """The annotations that Python evaluates when it imports a module, without `from __future__ import annotations`."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            annotations.append(node.returns)
    return [annotation for annotation in annotations if annotation]


def is_new_form(annotation: ast.expr) -> bool:
    """Whether an annotation contains `list[int]`, which needs 3.9, or `int | None`, which needs 3.10."""
    generics = {"list", "dict", "tuple", "set", "frozenset", "type"}
    for node in ast.walk(annotation):
        if isinstance(node, ast.BinOp):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in generics:
            return True
    return False
