"""The matrix of `make chaos`: its cells, and the results that are wrong."""

import pytest

from tests.chaos.cells import FAULTS, LAUNCHERS, STEPS, Cell, Result, explain_absence, get_expected_end, list_cells
from tests.chaos.table import render_tables

HIT = Cell("volcano", "submit", "reset")


def test_every_cell_is_run_or_has_a_reason() -> None:
    """A cell that is left out has a reason."""
    expected_cells = {Cell(launcher, step, fault) for launcher in LAUNCHERS for step in STEPS for fault in FAULTS}
    assert {cell for cell in expected_cells if not explain_absence(cell)} == set(list_cells())


@pytest.mark.parametrize("fault", ["flow KILL", "worker TERM", "500 burst", "401 burst", "black hole"])
def test_accidental_fault_costs_no_attempt(fault: str) -> None:
    """A run with an accidental fault between launcher and job ends Completed, in the same attempt."""
    for step in STEPS:
        assert get_expected_end(Cell("volcano", step, fault)) == get_expected_end(HIT)


@pytest.mark.parametrize(
    "changes",
    [{"double_submits": 1}, {"leftovers": ("pods a",)}, {"lost_lines": 2}, {"other_problems": ("2 attempts",)}],
)
def test_double_submit_leftover_or_lost_line_is_wrong(changes: dict[str, object]) -> None:
    """A double submit, a leftover or a lost line makes a cell wrong, even if the run succeeded."""
    result = Result(HIT, "Completed", "2 of 2 pods succeeded")
    assert "ok" in str(result)
    assert "WRONG" in str(result._replace(**changes))  # type: ignore[arg-type]


def test_table_shows_end_and_fault() -> None:
    """A launcher's table has a row for each injected fault, with the end of the run in the column of its step."""
    tables = render_tables([Result(HIT, "Completed", "")])
    (line,) = (line for line in tables.splitlines() if line.startswith("| reset"))
    assert line.split("|")[4].strip() == "Completed"
