"""docs/extend.md shows the package of examples/launcher as it is."""

from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT

PAGE = (ROOT / "docs" / "extend.md").read_text()
PACKAGE = ROOT / "examples" / "launcher"


@pytest.mark.parametrize(
    "path", [*sorted(PACKAGE.glob("*.py")), PACKAGE / "pyproject.toml"], ids=lambda path: path.name
)
def test_page_shows_the_file(path: Path) -> None:
    """The page contains every file of the example, unchanged."""
    language = "toml" if path.suffix == ".toml" else "python"
    assert f"```{language}\n{path.read_text()}```" in PAGE


def test_launcher_is_short() -> None:
    """A complete launcher has at most 60 lines."""
    assert len((PACKAGE / "torchyard_processes.py").read_text().splitlines()) <= 60
