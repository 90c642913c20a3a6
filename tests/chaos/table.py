"""The matrix as text: one line per cell, and one table per launcher, which is also published in Prefect."""

import itertools
import os

from scripts.api import YardError, open_prefect_client
from tests.chaos.cells import FAULTS, LAUNCHERS, STEPS, Cell, Result, explain_absence


def format_row(result: Result) -> str:
    verdict = flatten("WRONG: " + "; ".join(result.problems) if result.problems else "ok", 400)
    counts = f"{result.double_submits} {len(result.leftovers)} {result.lost_lines}"
    return (
        f"{result.cell} {result.end:<10} {result.seconds:6.1f} s  {counts}  {verdict} | {flatten(result.sentence, 110)}"
    )


def flatten(text: str, max_length: int) -> str:
    """A text on one line of at most `max_length` characters, without the bars that would end a table cell."""
    return " ".join(text.replace("|", "/").split())[:max_length]


def render_table(results: list[Result]) -> str:
    """A table for each launcher, with a row per fault and a column per step; cells show the end and the problems."""
    by_cell = {result.cell: result for result in results}
    tables = []
    for launcher in LAUNCHERS:
        if any(result.cell.launcher == launcher for result in results):
            header = f"| {launcher} |" + "".join(f" {step} |" for step in STEPS) + "\n|---|" + "---|" * len(STEPS)
            played_faults = {result.cell.fault for result in results if result.cell.launcher == launcher}
            faults = [name for name in FAULTS if name in played_faults]
            lines = [
                f"| {name} |" + "".join(f" {format_cell(Cell(launcher, step, name), by_cell)} |" for step in STEPS)
                for name in faults
            ]
            tables.append("\n".join([header, *lines]))
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
