"""docs/reuse.md shows the examples, and lists what torchyard.tasks exports."""

import re
from pathlib import Path

import pytest

import torchyard.tasks
from torchyard.common.project_root import ROOT

PAGE = (ROOT / "docs" / "reuse.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_page_shows_the_example(path: Path) -> None:
    """Each example, which a test runs, is an unchanged block of the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert path.read_text() in blocks


def test_page_lists_the_exports() -> None:
    """The table has a row for each function of torchyard.tasks, and its one import names them."""
    table = PAGE.partition("## The result")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    functions = {name for name in torchyard.tasks.__all__ if name[0].islower()}
    assert rows == functions
    names, *_ = re.findall(r"^from torchyard.tasks import \((.*?)\)$", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\w+", names)) == functions - {"read_result"}


def test_errors_of_the_table_can_be_imported() -> None:
    """A flow can import the errors that the table lists from torchyard.tasks."""
    names = set(re.findall(r"`(\w+Error)`", PAGE.partition("## The result")[0])) - {"OSError"}
    assert names
    assert names <= set(torchyard.tasks.__all__)
