"""The driver of a matrix (`make chaos`, `make hang`): chooses its cells, plays them in parallel and prints the results.

A cell is one case of a matrix; its text is one line, by which the command line chooses it. A wave is the cells that are
played together, in most matrices one cell. A lane is a thread that plays one wave after another.
"""

import argparse
import queue
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

CellT = TypeVar("CellT")
ResultT = TypeVar("ResultT")


class Matrix(ABC, Generic[CellT, ResultT]):
    """Plays waves, and collects and prints the results of their cells.

    Results are reported by several threads; `_lock` guards `results` and stdout. An error in a cell becomes the result
    of this cell and does not end the others.
    """

    def __init__(self, total: int) -> None:
        """`total`: the number of cells that will be played."""
        self.total = total
        self.results: list[ResultT] = []
        self._lock = threading.Lock()

    @abstractmethod
    def play_wave(self, lane: int, wave: tuple[CellT, ...]) -> None:
        """Play the cells of a wave and report their results; `lane` is the number of the thread, from 0."""

    @abstractmethod
    def build_failure(self, cell: CellT, message: str) -> ResultT:
        """The result of a cell that could not be played; `message` names the error."""

    def play(self, waves: Iterable[tuple[CellT, ...]], lanes: int) -> None:
        """Play all waves, `lanes` of them in parallel."""
        pending_waves: queue.Queue[tuple[CellT, ...]] = queue.Queue()
        for wave in waves:
            pending_waves.put(wave)
        run_all([partial(self._play_lane, lane, pending_waves) for lane in range(lanes)])

    def _play_lane(self, lane: int, pending_waves: "queue.Queue[tuple[CellT, ...]]") -> None:
        while True:
            try:
                wave = pending_waves.get_nowait()
            except queue.Empty:
                return
            self.play_wave(lane, wave)

    def run_guarded(self, cell: CellT, operation: Callable[[], object]) -> bool:
        """Run an operation of a cell; if it raises an error, report the cell as failed and return False."""
        try:
            operation()
        except Exception as error:
            self.report(self.build_failure(cell, f"{type(error).__name__}: {error}"))
            return False
        return True

    def report(self, result: ResultT) -> None:
        """Keep a result, and print it with its number."""
        with self._lock:
            self.results.append(result)
            print(f"{len(self.results):>3}/{self.total} {result}", flush=True)


def run_all(operations: Sequence[Callable[[], object]]) -> None:
    """Run all functions in parallel, wait until they end, and raise the first error of any of them."""
    errors: list[BaseException] = []

    def run(operation: Callable[[], object]) -> None:
        try:
            operation()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(operation,), daemon=True) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- the command line


def build_parser(prog: str, description: str | None, *, jobs: int) -> argparse.ArgumentParser:
    """A parser with the options of every matrix; `jobs` is the default of `--jobs`."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=[], nargs="+", metavar="TEXT", help="only cells with one of these texts")
    parser.add_argument("--skip", default=[], nargs="+", metavar="TEXT", help="no cells with one of these texts")
    parser.add_argument("--list", action="store_true", help="print the cells, and play none")
    parser.add_argument("--jobs", type=int, default=jobs, help=f"number of parallel lanes (default: {jobs})")
    return parser


def choose_cells(cells: Iterable[CellT], args: argparse.Namespace) -> list[CellT]:
    """The cells whose line contains one of the texts of `--only`, if there are any, and none of those of `--skip`."""
    selected = []
    for cell in cells:
        line = flatten(str(cell))
        is_included = not args.only or any(text in line for text in args.only)
        if is_included and not any(text in line for text in args.skip):
            selected.append(cell)
    return selected


def exit_on_sigterm() -> None:
    """Turn a SIGTERM into SystemExit, so that what the matrix has started is removed; another one is ignored."""

    def exit_once(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)

    signal.signal(signal.SIGTERM, exit_once)


# --- the table


def flatten(text: str, max_length: int | None = None) -> str:
    """A text on one line of at most `max_length` characters, without the bars that would end a table cell."""
    return " ".join(text.replace("|", "/").split())[:max_length]


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
