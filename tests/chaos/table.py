"""The matrix as text: one table per launcher, which is also published in Prefect."""

import itertools
import os

from scripts.api import YardError, open_prefect_client
from tests.chaos.cells import FAULTS, LAUNCHERS, STEPS, Cell, Result, explain_absence
from tests.tools.matrix import flatten, render_table


def render_tables(results: list[Result]) -> str:
    """A table for each launcher, with a row per fault and a column per step; cells show the end and the problems."""
    by_cell = {result.cell: result for result in results}
    tables = []
    for launcher in LAUNCHERS:
        played_faults = {result.cell.fault for result in results if result.cell.launcher == launcher}
        rows = []
        for fault in FAULTS:
            if fault in played_faults:
                rows.append([fault, *(format_cell(Cell(launcher, step, fault), by_cell) for step in STEPS)])
        if rows:
            tables.append(render_table([launcher, *STEPS], rows))
    return "\n\n".join([*tables, render_legend()])


def format_cell(cell: Cell, by_cell: dict[Cell, Result]) -> str:
    result = by_cell.get(cell)
    if result is None:
        return "-" if explain_absence(cell) else "not run"
    return flatten(f"**{result.end}**: {'; '.join(result.problems)}", 200) if result.problems else result.end


def render_legend() -> str:
    cells = itertools.product(LAUNCHERS, FAULTS, STEPS)
    reasons = dict.fromkeys(explain_absence(Cell(launcher, step, fault)) for launcher, fault, step in cells)
    return "`-` means: " + "; ".join(reason for reason in reasons if reason)


def publish(text: str) -> None:
    """Create the artifact `chaos` in the Prefect server at PREFECT_API_URL; without that variable do nothing."""
    if not os.environ.get("PREFECT_API_URL"):
        return
    body = {"key": "chaos", "type": "markdown", "data": text, "description": "every fault at every step"}
    try:
        with open_prefect_client(timeout_s=10) as client:
            client.request("POST", "/artifacts/", json=body)
    except YardError as error:
        print(f"cannot publish the table in Prefect: {error}")
