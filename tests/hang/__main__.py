"""`make hang`: jobs with every kind of hang, and healthy ones that look like it, under the black box; prints a table.

    python -m tests.hang [--only TEXT ...] [--skip TEXT ...] [--list] [--classes NAME ...] [--seeds N] [--ranks N ...]
        [--jobs N] [--folder FOLDER] [--healthy-seconds S] [--python PYTHON] [--afterwards S]
        [--backend gloo|nccl]
    python -m tests.hang --judge FOLDER

A cell is a job on this machine. All lines of its nodes are kept in a folder with the moments of their arrival, and
judged by torchyard as they arrive; `--judge` judges recorded cells again. The exit code is 1 if a figure misses its
target. With `--backend nccl` all ranks share one GPU, each as a node of its own.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.hang.cells import DEVICE_ONLY, NAMES, RANKS, ROOT_ONLY, UNSEEN_WITH_NCCL, Cell, list_cells
from tests.hang.figures import HEADER, Row, evaluate_row, render_kinds, summarize
from tests.hang.frameworks import find_missing_program
from tests.hang.places import find_missing_permission
from tests.hang.trial import Settings, Trial, read_cell, read_truth, replay_cell
from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm
from torchyard.common.log import get_log


class HangMatrix(Matrix[Cell, Row]):
    """Plays each cell in its own folder of `folder`, one cell per wave."""

    def __init__(self, folder: Path, settings: Settings, total: int) -> None:
        super().__init__(total)
        self.folder = folder
        self._settings = settings

    def play_wave(self, lane: int, wave: tuple[Cell, ...]) -> None:
        for cell in wave:
            self.run_guarded(cell, partial(self._play_cell, cell, lane))

    def _play_cell(self, cell: Cell, lane: int) -> None:
        folder = self.folder / str(cell)
        Trial(cell, folder, lane, self._settings).play()
        self.evaluate_recorded(folder)

    def build_failure(self, cell: Cell, message: str) -> Row:
        return Row(cell, float("inf"), problem=f"not played: {message}")

    def evaluate_recorded(self, folder: Path) -> None:
        """Judge a recorded cell, and report its row."""
        cell, _ = read_cell(folder)
        self.report(evaluate_row(cell, read_truth(folder), replay_cell(folder)))


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = build_parser("tests.hang", __doc__, jobs=1)
    parser.add_argument("--classes", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=" ".join(NAMES))
    parser.add_argument("--seeds", type=int, default=3, help="cells of each class")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="world sizes, which the seeds take in turn")
    defaults = Settings()
    parser.add_argument("--healthy-seconds", type=float, default=defaults.healthy_s, help="watch of a healthy job")
    parser.add_argument("--python", default=defaults.python, help="of the jobs: one with another version of torch")
    parser.add_argument(
        "--afterwards", type=float, default=defaults.afterwards_s, help="watch after a verdict; 60 shows the restart"
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: on one GPU")
    parser.add_argument("--folder", type=Path, help="where the cells are recorded; a new folder of it for each")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge the cells that were recorded there")
    return parser.parse_args(argv)


def list_playable_cells(args: argparse.Namespace) -> list[Cell]:
    """The cells of these classes, without those that this machine, or its Python, cannot play."""
    missing = find_missing_permission()
    names = []
    for name in args.classes:
        reason = missing if name in ROOT_ONLY else find_missing_program(name, args.python)
        if name in DEVICE_ONLY and args.backend != "nccl":
            reason = "needs a GPU (--backend nccl)"
        if name in UNSEEN_WITH_NCCL and args.backend == "nccl":
            reason = "not visible with NCCL"
        if reason:
            print(f"without {name}: {reason}")
        else:
            names.append(name)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    return list_cells(names, seeds, args.ranks, args.backend)


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    recorded: dict[Cell, Path] = {}
    if args.judge:
        folders = [path.parent for path in sorted(args.judge.glob("*/cell.json"))]
        recorded = {read_cell(folder)[0]: folder for folder in folders}
    cells = choose_cells(recorded or list_playable_cells(args), args)
    if args.list:
        print("\n".join(str(cell) for cell in cells))
        return 0
    exit_on_sigterm()
    get_log().setLevel("ERROR")  # the monitors' warnings are in the rows
    folder = args.judge or args.folder or Path(tempfile.mkdtemp(prefix="torchyard-hang-"))
    matrix = HangMatrix(folder, Settings(args.healthy_seconds, args.python, args.afterwards), len(cells))
    print(f"{len(cells)} cells in {matrix.folder}\n{HEADER}", flush=True)
    if args.judge:
        for cell in cells:
            matrix.evaluate_recorded(recorded[cell])
    else:
        matrix.play([(cell,) for cell in cells], args.jobs)
    return print_figures(matrix.results)


def print_figures(rows: list[Row]) -> int:
    """Print the figures and the missed targets; return the exit code, 1 if a target was missed."""
    if not rows:
        return 0
    figures = summarize(rows)
    problems = [f"{row.cell}: {row.problem}" for row in rows if row.problem]
    missed_targets = [f"missed: {name}" for name in figures.list_misses()]
    print("\n".join(["", render_kinds(rows), "", str(figures), *problems, *missed_targets]))
    return 1 if missed_targets else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
