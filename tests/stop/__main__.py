"""`make stop`: jobs whose programs save in every way, stopped in every way; prints whether the reports are true.

    python -m tests.stop [--only TEXT ...] [--skip TEXT ...] [--list] [--jobs N] [--folder FOLDER]

The exit code is 1 if a report is wrong: if it claims a save that is not complete, misses one that is, or would continue
from a torn checkpoint.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.processes import sshd
from tests.processes.sshd import Hosts
from tests.stop.cells import Cell, Result, list_cells
from tests.stop.trial import StopTrial
from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm


class StopMatrix(Matrix[Cell, Result]):
    """Plays each cell in its own folder of `folder`, one cell per wave. `hosts`: None if no cell needs ssh."""

    def __init__(self, folder: Path, hosts: Hosts | None, total: int) -> None:
        super().__init__(total)
        self.folder = folder
        self._hosts = hosts

    def play_wave(self, lane: int, wave: tuple[Cell, ...]) -> None:
        for cell in wave:
            self.run_guarded(cell, partial(self._play_cell, cell))

    def _play_cell(self, cell: Cell) -> None:
        self.report(self._create_trial(cell).play())

    def _create_trial(self, cell: Cell) -> StopTrial:
        folder = self.folder / "-".join(str(cell).split())
        options: dict[str, Any] = {}
        env: dict[str, str] = {}
        if cell.location == "ssh":
            assert self._hosts
            hosts = [{"host": name, "address": address} for name, address in self._hosts.addresses.items()]
            options = {"hosts": hosts, "python": sys.executable}
            env = {"TORCHYARD_SSH": self._hosts.ssh}
        return StopTrial(cell, folder, options, env)

    def build_failure(self, cell: Cell, message: str) -> Result:
        return Result(cell, "", problems=(f"not played: {message}",))


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = build_parser("tests.stop", __doc__, jobs=2)
    parser.add_argument("--folder", type=Path, help="where the cells are played; a new folder of it for each")
    return parser.parse_args(argv)


def list_playable_cells() -> list[Cell]:
    """The cells without those that this machine cannot play."""
    obstacle = sshd.find_obstacle()
    if obstacle:
        print(f"without ssh: {obstacle}")
    return [cell for cell in list_cells() if cell.location != "ssh" or not obstacle]


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    cells = choose_cells(list_playable_cells(), args)
    if args.list:
        print("\n".join(map(str, cells)))
        return 0
    exit_on_sigterm()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="torchyard-stop-"))
    print(f"{len(cells)} cells in {folder}", flush=True)
    with ExitStack() as stack:
        hosts = None
        if any(cell.location == "ssh" for cell in cells):
            hosts = Hosts(folder / "hosts")
            stack.callback(hosts.stop)
            hosts.start()
        matrix = StopMatrix(folder, hosts, len(cells))
        matrix.play([(cell,) for cell in cells], args.jobs)
    wrong_results = [result for result in matrix.results if result.problems]
    print(f"\n{len(matrix.results) - len(wrong_results)} of {len(cells)} reports are true")
    return 1 if wrong_results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
