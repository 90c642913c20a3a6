"""The matrix for readers: one line per cell, and one table per launcher, also published in Prefect."""

import os

from scripts.api import YardError, open_prefect_client
from tests.chaos.cells import COLUMNS, FAULTS, STEPS, Cell, Result, absent


def row(result: Result) -> str:
    verdict = flat("WRONG: " + "; ".join(result.faults) if result.faults else "ok", 400)
    counts = f"{result.doubles} {len(result.left)} {result.lost}"
    return f"{result.cell} {result.end:<10} {result.seconds:6.1f} s  {counts}  {verdict} | {flat(result.sentence, 110)}"


def flat(text: str, most: int) -> str:
    """A text on one line, without the bars that would end a table cell."""
    return " ".join(text.replace("|", "/").split())[:most]


def table(done: list[Result]) -> str:
    """A table for each launcher, with a row per fault and a column per step; cells show the end and what is wrong."""
    by_cell = {result.cell: result for result in done}
    parts = []
    for column in COLUMNS:
        if any(result.cell.column == column for result in done):
            head = f"| {column} |" + "".join(f" {step} |" for step in STEPS) + "\n|---|" + "---|" * len(STEPS)
            asked = {result.cell.fault for result in done if result.cell.column == column}
            faults = [name for name in FAULTS if name in asked]
            lines = [
                f"| {name} |" + "".join(f" {shown(Cell(column, step, name), by_cell)} |" for step in STEPS)
                for name in faults
            ]
            parts.append("\n".join([head, *lines]))
    return "\n\n".join([*parts, legend()])


def shown(cell: Cell, by_cell: dict[Cell, Result]) -> str:
    result = by_cell.get(cell)
    if result is None:
        return "-" if absent(cell) else "not run"
    return flat(f"**{result.end}**: {'; '.join(result.faults)}", 200) if result.faults else result.end


def legend() -> str:
    reasons = {absent(Cell(column, step, fault)): None for column in COLUMNS for fault in FAULTS for step in STEPS}
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
        print(f"the table is not in Prefect: {error}")
