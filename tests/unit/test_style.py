"""The measurable rules of style (CONTRIBUTING.md); tests/tools/style.py measures and explains them."""

from pathlib import Path

import pytest

from tests.tools.style import get_goals, list_folders, measure, measure_rates

FOLDERS = list_folders()


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_keeps_its_style(folder: str) -> None:
    """Names describe their values, and each line assigns one: no folder exceeds the goals."""
    measured = measure_rates(FOLDERS[folder])
    excess = [
        f"{name}: {value}, at most {limit}"
        for name, value, limit in zip(measured._fields, measured, get_goals(folder), strict=True)
        if value > limit
    ]
    assert excess == [], f"{folder}: python -m tests.tools.style {folder}"


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
