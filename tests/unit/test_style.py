"""The rules of style that a count can hold (CONTRIBUTING.md); tests/tools/style.py measures and explains them."""

from pathlib import Path

import pytest

from tests.tools.style import list_files, measure
from torchyard.common.project_root import ROOT

# Vague names in percent of all bound names. Tests may have more of them: each is read alone.
MAX_VAGUE_SHARE = {
    "torchyard": 1.0,
    "flows": 1.0,
    "tasks": 1.0,
    "programs": 1.0,
    "examples": 1.0,
    "scripts": 2.0,
    "tests": 2.0,
}
MAX_PACKED_PER_THOUSAND = 1.5
MAX_SPLATS_PER_THOUSAND = 0.5
FOLDERS = pytest.mark.parametrize("folder", MAX_VAGUE_SHARE)


@FOLDERS
def test_names_describe_their_values(folder: str) -> None:
    """Nearly every parameter and local variable has a name that describes its value."""
    measured = measure(list_files(ROOT / folder))
    assert measured.vague_share <= MAX_VAGUE_SHARE[folder], measured.vague_names.most_common(20)


@FOLDERS
def test_attributes_describe_their_values(folder: str) -> None:
    """No attribute of an object has a vague name."""
    assert measure(list_files(ROOT / folder)).vague_attributes == []


@FOLDERS
def test_each_line_assigns_one_value(folder: str) -> None:
    """`a, b = x, y` is rare: a reader looks for one name at the start of a line."""
    measured = measure(list_files(ROOT / folder))
    assert measured.packed_per_thousand <= MAX_PACKED_PER_THOUSAND, "\n".join(measured.packed_assignments)


@FOLDERS
def test_dicts_are_built_step_by_step(folder: str) -> None:
    """A dict is built and then extended under an `if`; `{**a, ...}` is rare."""
    measured = measure(list_files(ROOT / folder))
    assert measured.splats_per_thousand <= MAX_SPLATS_PER_THOUSAND, "\n".join(measured.dict_splats)


@FOLDERS
def test_no_conditional_is_nested(folder: str) -> None:
    """No conditional expression contains another one."""
    assert measure(list_files(ROOT / folder)).nested_conditionals == []


def test_vague_names_are_counted(tmp_path: Path) -> None:
    """A parameter and a local variable count once in each function, an attribute at each assignment."""
    file = tmp_path / "sample.py"
    file.write_text(
        "def f(each, rows):\n"
        "    found, rest = rows, {**each}\n"
        "    for each in rows:\n"
        "        found = 1 if each else 2 if rest else 3\n"
        "\n"
        "\n"
        "class A:\n"
        "    def g(self, path):\n"
        "        self._said = path\n"
    )
    measured = measure([file])
    assert (measured.bound_names, dict(measured.vague_names)) == (5, {"each": 1, "found": 1})
    assert measured.vague_share == 40.0
    assert measured.vague_attributes == [f"{file}:9"]
    assert measured.packed_assignments == measured.dict_splats == [f"{file}:2"]
    assert measured.nested_conditionals == [f"{file}:4"]
