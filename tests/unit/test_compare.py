"""The page about other launchers shows what was measured."""

from tests.compare import LAUNCHERS, NOT_COMPARED
from tests.comparison_page import PAGE, load_result, render_page, render_table


def test_page_has_the_table_that_was_measured() -> None:
    """The page's table, date and versions are those of compare.json."""
    text = PAGE.read_text()
    result = load_result()
    assert render_table(result) in text
    assert render_page(text, result) == text


def test_page_says_what_is_not_compared() -> None:
    """The page and the result have the script's list of what is not compared, and why."""
    text = PAGE.read_text()
    assert load_result()["not_compared"] == NOT_COMPARED
    assert all(f"| {name} | {reason} |" in text for name, reason in NOT_COMPARED.items())


def test_every_launcher_has_a_row() -> None:
    """The result has the script's rows, in its order; one that could not be measured says why."""
    rows = load_result()["rows"]
    assert [row["launcher"] for row in rows] == [one.name for one in LAUNCHERS]
    assert all(row.get("not_measured") or row["death"] for row in rows)
