"""`torchyard ps`: the active runs, or all, as a table or as JSON; once, or refreshed until Ctrl-C."""

import gc
import shutil
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from torchyard.cli.documents import print_document
from torchyard.common.escaping import strip_control_codes
from torchyard.listing.all_sources import RunLister
from torchyard.listing.listed_run import ListedRun, RunList
from torchyard.listing.table import format_table

_WATCH_INTERVAL_S = 2.0
_CURSOR_HOME = "\x1b[H"
_CLEAR_LINE_END = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


def show_runs(*, with_finished: bool, context: str | None, as_json: bool) -> int:
    """Print the runs. Returns 1 if a source of them could not be read, which is reported on stderr; else 0.

    with_finished: also those that are over.
    context: of a cluster whose Leases are listed too, "" for the current one; None for no cluster.
    """
    run_list = RunLister(with_finished=with_finished, context=context).list_runs()
    if as_json:
        print_document(run_list)
    elif run_list.runs or with_finished:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(format_table(run_list.runs, time.time(), width=width)))
    else:
        print(_describe_no_run(context))
    for problem in run_list.problems:
        print(strip_control_codes(problem), file=sys.stderr)
    return 1 if run_list.problems else 0


def _describe_no_run(context: str | None) -> str:
    """That no run is active, where that was looked for, and where else there may be runs."""
    hint = "`torchyard ps --all` lists those that have ended"
    if context is not None:
        return f"no run is active; {hint}"
    return f"no run of this machine is active; {hint}, `torchyard ps --cluster` those in the cluster"


def watch_runs(*, with_finished: bool, context: str | None, as_json: bool) -> NoReturn:
    """Print the runs until Ctrl-C, which is raised as KeyboardInterrupt. Parameters as those of `show_runs`.

    A terminal shows the table, which is drawn again every `_WATCH_INTERVAL_S` seconds. Elsewhere, and as JSON, the list
    is printed whenever it has changed, as JSON one document a line.
    """
    gc.enable()  # disabled for the short verbs (console.py)
    lister = RunLister(with_finished=with_finished, context=context)
    printed: RunList | None = None
    while True:
        run_list = lister.list_runs()
        if sys.stdout.isatty() and not as_json:
            _draw_screen(run_list)
        elif printed is None or _drop_times(run_list) != _drop_times(printed):
            printed = run_list
            lines = [run_list.model_dump_json()] if as_json else _format_screen(run_list, width=None)
            print("\n".join(lines), flush=True)
        time.sleep(_WATCH_INTERVAL_S)


def _draw_screen(run_list: RunList) -> None:
    """Draw the list over the last one, without clearing the screen before, which would flicker."""
    size = shutil.get_terminal_size()
    lines = _format_screen(run_list, width=size.columns)
    max_lines = size.lines - 1  # the cursor needs the last one
    if len(lines) > max_lines:
        hidden_count = len(lines) - max_lines + 1
        lines = [*lines[: max_lines - 1], f"... {hidden_count} more"]
    text = f"{_CLEAR_LINE_END}\n".join([*lines, ""])
    print(f"{_CURSOR_HOME}{text}{_CLEAR_BELOW}", end="", flush=True)


def _format_screen(run_list: RunList, *, width: int | None) -> list[str]:
    """The time, the table, and what could not be read."""
    now = time.time()
    lines = [time.strftime("%H:%M:%S", time.localtime(now))]
    lines += format_table(run_list.runs, now, width=width)
    for problem in run_list.problems:
        lines.append(strip_control_codes(problem)[:width])
    return lines


def _drop_times(run_list: RunList) -> tuple[Sequence[ListedRun], Sequence[str]]:
    """What is news if it changes: everything but the estimates, which change with each reading."""
    rows: list[ListedRun] = []
    for row in run_list.runs:
        progress = row.progress and row.progress.model_copy(update={"updated_at": 0.0, "remaining_s": None})
        rows.append(row.model_copy(update={"progress": progress}))
    return rows, run_list.problems
