"""The matrix of `make chaos`: what it plays, and what it counts as wrong."""

import pytest

from tests.chaos.cells import COLUMNS, FAULTS, STEPS, Cell, Result, absent, all_cells, right
from tests.chaos.table import row, table

HIT = Cell("volcano", "submit", "reset")


def test_every_cell_is_played_or_has_a_reason() -> None:
    """No cell is left out without a reason."""
    expected_cells = {Cell(column, step, fault) for column in COLUMNS for step in STEPS for fault in FAULTS}
    assert {cell for cell in expected_cells if not absent(cell)} == set(all_cells())


@pytest.mark.parametrize("fault", ["flow KILL", "worker TERM", "500 burst", "401 burst", "black hole"])
def test_what_nobody_meant_costs_no_attempt(fault: str) -> None:
    """A run with a fault between launcher and job ends Completed, in the same attempt."""
    for step in STEPS:
        assert right(Cell("volcano", step, fault)) == right(HIT)


@pytest.mark.parametrize("changes", [{"doubles": 1}, {"left": ("pods a",)}, {"lost": 2}, {"other": ("2 attempts",)}])
def test_what_should_not_be_makes_a_cell_wrong(changes: dict[str, object]) -> None:
    """A double submit, a leftover or a lost line is wrong, however well the run ended."""
    good = Result(HIT, "Completed", "2 of 2 pods succeeded")
    assert "ok" in row(good)
    assert "WRONG" in row(good._replace(**changes))  # type: ignore[arg-type]


def test_table_shows_end_and_fault() -> None:
    """A launcher's table has a row for each fault that was played, with the end at its step."""
    (line,) = (line for line in table([Result(HIT, "Completed", "")]).splitlines() if line.startswith("| reset"))
    assert line.split("|")[4].strip() == "Completed"
