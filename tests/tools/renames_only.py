"""`python -m tests.tools.renames_only [COMMIT] [PATH ...]`: proves that a change of Python files only renames.

Each changed file of the work tree is compared with its version in COMMIT (default: HEAD), node by node of the syntax
tree. Comments, docstrings and formatting may differ; constants, operators and the structure must not. Inside one
function the old and the new names must map one to one: two old names that become one are a collision; one old name that
becomes two is printed too, because it is right only where one name had two meanings.

Attributes, keywords and functions are listed, because their uses elsewhere must follow: mypy --strict finds those that
were forgotten. Exit code 1 if anything but names has changed.
"""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOCALS = (ast.Name, ast.arg, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_NAME_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Name: ("id",),
    ast.arg: ("arg",),
    ast.keyword: ("arg",),
    ast.Attribute: ("attr",),
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.alias: ("name", "asname"),
    ast.ExceptHandler: ("name",),
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
    ast.MatchMapping: ("rest",),
    ast.Global: ("names",),
    ast.Nonlocal: ("names",),
    ast.ImportFrom: ("module",),
}
_IGNORED_FIELDS = frozenset({"ctx", "type_comment", "kind"})


class Rename(NamedTuple):
    """A name that other files may use, and the name that replaced it; `node` is the kind of syntax node."""

    node: str
    old: str
    new: str


class Comparison:
    """Compares two versions of one file and collects what differs.

    `differences` are changes of more than names, `ambiguities` local names that do not map one to one, `renames` the
    names that other files may use, with the number of places.
    """

    def __init__(self, path: str) -> None:
        self.differences: list[str] = []
        self.ambiguities: list[str] = []
        self.renames: Counter[Rename] = Counter()
        self._path = path

    def compare(self, before: ast.AST, after: ast.AST) -> None:
        self._compare_nodes(before, after, {})

    def _compare_nodes(self, before: ast.AST, after: ast.AST, local_names: dict[str, str]) -> None:
        """Compare two nodes. `local_names` maps the old local names of the enclosing function to the new ones."""
        if type(before) is not type(after):
            self._add_difference(after, type(before).__name__, type(after).__name__)
            return
        if isinstance(before, _FUNCTIONS):
            local_names = {}
        name_fields = _NAME_FIELDS.get(type(before), ())
        for field in name_fields:
            self._compare_names(before, after, field, local_names)
        for field in before._fields:
            if field not in name_fields and field not in _IGNORED_FIELDS:
                self._compare_values(getattr(before, field, None), getattr(after, field, None), after, local_names)

    def _compare_names(self, before: ast.AST, after: ast.AST, field: str, local_names: dict[str, str]) -> None:
        old_name = getattr(before, field)
        new_name = getattr(after, field)
        if isinstance(before, _LOCALS) and isinstance(old_name, str) and isinstance(new_name, str):
            self._record_local(old_name, new_name, local_names, getattr(after, "lineno", 0))
        elif old_name != new_name:
            self.renames[Rename(type(before).__name__, str(old_name), str(new_name))] += 1

    def _record_local(self, old_name: str, new_name: str, local_names: dict[str, str], line: int) -> None:
        previous = local_names.setdefault(old_name, new_name)
        if previous != new_name:
            self.ambiguities.append(f"{self._path}:{line}: {old_name} became {previous} and {new_name} in one function")
            local_names[old_name] = new_name
        sources = sorted(name for name, target in local_names.items() if target == new_name)
        if len(sources) > 1:
            self.ambiguities.append(f"{self._path}:{line}: COLLISION: {' and '.join(sources)} both became {new_name}")

    def _compare_values(self, before: object, after: object, parent: ast.AST, local_names: dict[str, str]) -> None:
        if isinstance(before, ast.AST) and isinstance(after, ast.AST):
            self._compare_nodes(before, after, local_names)
        elif isinstance(before, list) and isinstance(after, list):
            old_items = _drop_docstring(before)
            new_items = _drop_docstring(after)
            if len(old_items) != len(new_items):
                self._add_difference(parent, f"{len(old_items)} items", f"{len(new_items)} items")
            for old_item, new_item in zip(old_items, new_items, strict=False):
                self._compare_values(old_item, new_item, parent, local_names)
        elif before != after:
            self._add_difference(parent, repr(before), repr(after))

    def _add_difference(self, node: ast.AST, old: str, new: str) -> None:
        self.differences.append(f"{self._path}:{getattr(node, 'lineno', '?')}: {old} became {new}")


def _drop_docstring(body: list[object]) -> list[object]:
    """The nodes of a body without its docstring."""
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def list_changed_files(commit: str, paths: list[str]) -> list[str]:
    """The Python files below `paths` that exist in both versions and differ."""
    argv = ["git", "diff", "--name-only", "--diff-filter=M", commit, "--", *(paths or ["*.py"])]
    changed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in changed if path.endswith(".py")]


def main(argv: list[str]) -> int:
    commit = "HEAD"
    if argv and not Path(argv[0]).exists():
        commit = argv[0]
        argv = argv[1:]
    differences: list[str] = []
    ambiguities: list[str] = []
    renames: Counter[Rename] = Counter()
    paths = list_changed_files(commit, argv)
    for path in paths:
        argv_show = ["git", "show", f"{commit}:{path}"]
        old_text = subprocess.run(argv_show, capture_output=True, text=True, check=True).stdout
        comparison = Comparison(path)
        comparison.compare(ast.parse(old_text), ast.parse(Path(path).read_text()))
        differences += comparison.differences
        ambiguities += comparison.ambiguities
        renames += comparison.renames
    unique_ambiguities = list(dict.fromkeys(ambiguities))
    for line in [*differences, *unique_ambiguities]:
        print(line)
    for rename, count in renames.most_common():
        print(f"renamed {rename.node:12} {rename.old} -> {rename.new} ({count})")
    print(f"{len(paths)} files: {len(differences)} changes of more than names, {len(unique_ambiguities)} ambiguities")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
