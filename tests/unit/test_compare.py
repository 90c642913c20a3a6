"""docs/compare.md shows the stored measurements."""

import re

from tests.tools.compare import LAUNCHERS, NOT_COMPARED
from tests.tools.comparison_page import PAGE, PICTURE, load_result, render_page, render_table
from torchyard.charts.svg import GRAY, PALETTE


def test_page_has_the_measured_table() -> None:
    """The page's table, date and versions are those of compare.json."""
    text = PAGE.read_text()
    result = load_result()
    assert render_table(result) in text
    assert render_page(text, result) == text


def test_page_lists_launchers_that_are_not_compared() -> None:
    """The page and the result contain the script's list of launchers that are not compared, with reasons."""
    text = PAGE.read_text()
    assert load_result()["not_compared"] == NOT_COMPARED
    assert all(f"| {name} | {reason} |" in text for name, reason in NOT_COMPARED.items())


def test_every_launcher_has_a_row() -> None:
    """The result has the script's rows, in its order; a row without a measurement has a reason."""
    rows = load_result()["rows"]
    assert [row["launcher"] for row in rows] == [launcher.name for launcher in LAUNCHERS]
    assert all(row.get("not_measured") or row["death"] for row in rows)


def test_picture_fits_a_light_and_a_dark_page() -> None:
    """The picture has no background, and only the colours of charts that contrast with white and with black."""
    assert set(re.findall(r"#[0-9a-f]{6}\b", PICTURE.read_text())) == {PALETTE[0], GRAY}
