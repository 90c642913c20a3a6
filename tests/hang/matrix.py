"""`make hang`: jobs with every kind of hang, and healthy ones that look like it, under the black box; prints a table.

    python -m tests.hang.matrix [--classes NAME ...] [--seeds N] [--ranks N ...] [--jobs N] [--folder FOLDER]
        [--healthy-seconds S] [--python PYTHON]
    python -m tests.hang.matrix --judge FOLDER

A cell is a job on this machine. All lines of its nodes are kept in a folder with the moments of their arrival, and
judged by torchyard as they arrive; `--judge` judges recorded cells again. The exit code is 1 if a figure misses its
target.
"""

import argparse
import queue
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.hang.cells import NAMES, RANKS, ROOT_ONLY, Cell, list_cells
from tests.hang.figures import HEADER, Row, evaluate_row, summarize, tabulate_kinds
from tests.hang.places import find_missing_permission
from tests.hang.trial import Settings, Trial, read_cell, read_truth, replay_cell


class Matrix:
    """Plays cells, and collects and prints their rows. `_printing` guards both; each lane is a thread."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._settings = settings
        self.rows: list[Row] = []
        self._printing = threading.Lock()

    def play(self, cells: list[Cell], jobs: int) -> None:
        """Play all cells, `jobs` of them at the same time."""
        pending_cells: queue.Queue[Cell] = queue.Queue()
        for cell in cells:
            pending_cells.put(cell)
        lanes = [
            threading.Thread(target=self._play_lane, args=(lane, pending_cells), daemon=True) for lane in range(jobs)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    def _play_lane(self, lane: int, pending_cells: "queue.Queue[Cell]") -> None:
        while True:
            try:
                cell = pending_cells.get_nowait()
            except queue.Empty:
                return
            folder = self.folder / str(cell)
            try:
                Trial(cell, folder, lane, self._settings).play()
            except (OSError, RuntimeError) as error:
                self.report(Row(cell, float("inf"), problem=f"not played: {error}"))
            else:
                self.evaluate_recorded(folder)

    def evaluate_recorded(self, folder: Path) -> None:
        """Judge a recorded cell, and print its row."""
        cell, _ = read_cell(folder)
        self.report(evaluate_row(cell, read_truth(folder), replay_cell(folder)))

    def report(self, row: Row) -> None:
        with self._printing:
            self.rows.append(row)
            print(row, flush=True)


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.hang.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=" ".join(NAMES))
    parser.add_argument("--seeds", type=int, default=3, help="cells of each class")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="world sizes, which the seeds take in turn")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    defaults = Settings()
    parser.add_argument("--healthy-seconds", type=float, default=defaults.healthy_s, help="watch of a healthy job")
    parser.add_argument("--python", default=defaults.python, help="of the jobs: one with another version of torch")
    parser.add_argument("--folder", type=Path, help="where the cells are recorded; a new folder of it for each")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the cells that were recorded there")
    return parser.parse_args(argv)


def choose_cells(args: argparse.Namespace) -> list[Cell]:
    """The cells to play, without those that need root if this process does not have it."""
    missing = find_missing_permission()
    names = [name for name in args.classes if not missing or name not in ROOT_ONLY]
    if len(names) < len(args.classes):
        print(f"without {' and '.join(ROOT_ONLY)}: this machine {missing}")
    return list_cells(names, range(args.first_seed, args.first_seed + args.seeds), args.ranks)


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = args.judge or args.folder or Path(tempfile.mkdtemp(prefix="torchyard-hang-"))
    matrix = Matrix(folder, Settings(args.healthy_seconds, args.python))
    print(f"cells in {matrix.folder}\n{HEADER}", flush=True)
    if args.judge:
        for path in sorted(args.judge.glob("*/cell.json")):
            matrix.evaluate_recorded(path.parent)
    else:
        matrix.play(choose_cells(args), args.jobs)
    return print_figures(matrix.rows)


def print_figures(rows: list[Row]) -> int:
    """Print the figures and the missed targets; return the exit code, 1 if a target was missed."""
    if not rows:
        return 0
    figures = summarize(rows)
    problems = [f"{row.cell}: {row.problem}" for row in rows if row.problem]
    missed_targets = [f"missed: {name}" for name in figures.list_misses()]
    print("\n".join(["", *tabulate_kinds(rows), "", str(figures), *problems, *missed_targets]))
    return 1 if missed_targets else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
