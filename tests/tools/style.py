"""Measures how the code is written: `python -m tests.tools.style [FOLDER ...]` prints one column for each folder.

A bound name is a parameter or a local variable, counted once in each function. A vague name is one that does not
describe its value, such as `found` or `each`; a reader cannot search for it or infer its type. tests/unit/test_style.py
holds each folder to GOALS.
"""

import ast
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# Pronouns, participles and fillers. Words to which the field gives a meaning (end, first, rest, lost) are left out.
_VAGUE_NAMES = """
    about again alone answer answers apart around asked asks at away bad begun behind below beside both brought
    called chosen cut deaf doubled due each every everything facts found fresh given gone good had happens has
    heard held here how inside instead it its judged kept known lack lacks late legs life lives made meant meets
    mine more most mute named need needs news nobody nothing old others ours over own picture place places plain
    promise said same says seat seats seen several shown sign some spared strange such sure taken tell terms
    theirs there these thing things this those through together told torn toward twice usual waits wanted was
    what where which who whole whose why wild word words worn wrong young
"""
VAGUE_NAMES = frozenset(_VAGUE_NAMES.split())
# Names of attributes that had several types or none that a reader could infer.
VAGUE_ATTRIBUTES = VAGUE_NAMES | {
    "looked",
    "looked_at",
    "begun",
    "deaf_at",
    "blind_at",
    "otherwise",
    "vital",
    "do",
    "owed",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


class Measurement(NamedTuple):
    """The measurements of some files: counts, and the places behind them for an error message."""

    lines: int
    bound_names: int
    vague_names: Counter[str]
    vague_attributes: list[str]
    packed_assignments: list[str]
    dict_splats: list[str]
    nested_conditionals: list[str]

    @property
    def vague_share(self) -> float:
        """The share of bound names that describe nothing, in percent."""
        return 100 * self.vague_names.total() / max(self.bound_names, 1)

    @property
    def packed_per_thousand(self) -> float:
        """Packed assignments (`a, b = x, y`) per 1,000 lines that are not blank."""
        return 1000 * len(self.packed_assignments) / max(self.lines, 1)

    @property
    def splats_per_thousand(self) -> float:
        """Splats in a dict display (`{**a, ...}`) per 1,000 lines that are not blank."""
        return 1000 * len(self.dict_splats) / max(self.lines, 1)


def measure(paths: list[Path]) -> Measurement:
    names: Counter[str] = Counter()
    attributes: list[str] = []
    packed: list[str] = []
    splats: list[str] = []
    nested: list[str] = []
    lines = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines += sum(bool(line.strip()) for line in text.splitlines())
        for node in ast.walk(ast.parse(text)):
            location = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, _FUNCTIONS):
                names.update(_list_bound_names(node))
            elif _is_vague_attribute(node):
                attributes.append(location)
            elif _is_packed_assignment(node):
                packed.append(location)
            elif isinstance(node, ast.Dict) and None in node.keys:
                splats.append(location)
            elif isinstance(node, ast.IfExp) and _has_inner_conditional(node):
                nested.append(location)
    vague = Counter({name: count for name, count in names.items() if name in VAGUE_NAMES})
    return Measurement(lines, names.total(), vague, attributes, packed, splats, nested)


def _list_bound_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """The parameters and local variables of a function, without `self`, `cls` and `_`."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {parameter.arg for parameter in parameters if parameter is not None}
    for node in _walk_scope(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names - {"self", "cls", "_"}


def _walk_scope(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes inside it."""
    pending: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while pending:
        node = pending.pop()
        if not isinstance(node, _SCOPES):
            yield node
            pending.extend(ast.iter_child_nodes(node))


def _is_vague_attribute(node: ast.AST) -> bool:
    """Whether this assigns an attribute of `self` whose name, without underscores around it, is vague."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and node.attr.strip("_") in VAGUE_ATTRIBUTES
    )


def _is_packed_assignment(node: ast.AST) -> bool:
    """Whether this is `a, b = x, y`. Unpacking one value (`a, b = pair`) is not."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def _has_inner_conditional(node: ast.IfExp) -> bool:
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


class Rates(NamedTuple):
    """What a folder has of each, or the most that it may have; see Measurement for the units."""

    vague_share: float
    packed_per_thousand: float
    splats_per_thousand: float
    nested_conditionals: float
    vague_attributes: float


GOALS = Rates(1.0, 1.5, 0.5, 0, 0)
TEST_GOALS = GOALS._replace(vague_share=2.0)  # tests may have more vague names: each is read alone


def get_goals(folder: str) -> Rates:
    return TEST_GOALS if folder.startswith(("tests", "scripts")) else GOALS


def measure_rates(paths: list[Path]) -> Rates:
    """The measurements of some files, the shares rounded up."""
    measured = measure(paths)
    return Rates(
        _round_up(measured.vague_share),
        _round_up(measured.packed_per_thousand),
        _round_up(measured.splats_per_thousand),
        len(measured.nested_conditionals),
        len(measured.vague_attributes),
    )


def _round_up(value: float) -> float:
    return math.ceil(value * 10) / 10


def list_folders() -> dict[str, list[Path]]:
    """The files of each measured folder; those directly in a folder with measured subfolders are `FOLDER/*.py`."""
    folders: dict[str, list[Path]] = {}
    for parent in ("torchyard", "tests/unit", "tests"):
        folders[f"{parent}/*.py"] = sorted((ROOT / parent).glob("*.py"))
        for path in sorted((ROOT / parent).iterdir()):
            files = list_files(path) if path.is_dir() else []
            if files and path != ROOT / "tests" / "unit":
                folders[str(path.relative_to(ROOT))] = files
    for name in ("flows", "tasks", "programs", "examples", "scripts"):
        folders[name] = list_files(ROOT / name)
    return folders


def main(argv: list[str]) -> int:
    folders = {argument: list_files(Path(argument)) for argument in argv} or list_folders()
    print(f"{'folder':<28}{'lines':>8}{'vague':>8}{'packed':>8}{'splats':>8}{'nested':>8}  attributes, top names")
    for folder, files in folders.items():
        measured = measure(files)
        top = ", ".join(f"{name} {count}" for name, count in measured.vague_names.most_common(8))
        print(
            f"{folder:<28}{measured.lines:>8,}{measured.vague_share:>7.1f}%{measured.packed_per_thousand:>8.1f}"
            f"{measured.splats_per_thousand:>8.1f}{len(measured.nested_conditionals):>8}"
            f"  {len(measured.vague_attributes)}, {top or 'none'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
