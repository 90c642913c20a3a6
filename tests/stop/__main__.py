"""`make stop`: jobs whose programs save in every way, stopped in every way; prints whether the reports are true.

    python -m tests.stop [--only TEXT ...] [--skip TEXT ...] [--list] [--jobs N] [--folder FOLDER]

Jobs run on this machine, behind ssh, through Prefect, and in pods of the test cluster, which is started if it does not
run. The exit code is 1 if a report is wrong: if it claims a save that is not complete, misses one that is, or if the
run continues, or would continue, from another checkpoint than the last complete one.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.world import World
from tests.cluster import nodes
from tests.cluster.e2e import cluster
from tests.cluster.kueue import ensure_kueue
from tests.cluster.plane import Plane
from tests.processes import sshd
from tests.processes.sshd import Hosts
from tests.stop.cells import EXCLUSIVE_WAYS, POD_LOCATIONS, Cell, Location, Result, list_cells
from tests.stop.pods import PodTrial, StopNamespace
from tests.stop.prefect_flow import PrefectTrial
from tests.stop.trial import StopTrial
from tests.support.caller import forget_caller
from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm, render_table


class StopMatrix(Matrix[Cell, Result]):
    """Plays each cell in its own folder of `folder`, one cell per wave.

    As a context manager it starts what the locations of its cells need, and at its exit ends that and all processes of
    cells that are still played: after SIGTERM or Ctrl-C, the threads that play them end with this process.
    """

    def __init__(self, folder: Path, cells: list[Cell]) -> None:
        super().__init__(len(cells))
        self.folder = folder
        self.locations = {cell.location for cell in cells}
        self._needs_kueue = any(cell.way == "kueue" for cell in cells)
        self._stack = ExitStack()
        self._hosts: Hosts | None = None
        self._world: World | None = None
        self._namespace: StopNamespace | None = None
        self._trials: list[StopTrial] = []
        self._is_closing = False

    def __enter__(self) -> "StopMatrix":
        with ExitStack() as stack:
            if "ssh" in self.locations:
                self._hosts = Hosts(self.folder / "hosts")
                stack.callback(self._hosts.stop)
                self._hosts.start()
            if self.locations.intersection(POD_LOCATIONS):
                stack.enter_context(cluster())
                if self._needs_kueue:
                    ensure_kueue(Plane.current())
                self._namespace = stack.enter_context(StopNamespace().open())
            stack.callback(self._close_trials)  # after the worker, which starts their processes, and before their hosts
            if "prefect" in self.locations:
                self._world = stack.enter_context(World(self.folder / "world"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._stack.close()

    def play_wave(self, lane: int, wave: tuple[Cell, ...]) -> None:
        for cell in wave:
            self.run_guarded(cell, partial(self._play_cell, cell))

    def report(self, result: Result) -> None:
        """As in Matrix; nothing once the matrix is closing, which breaks the cells that are still played."""
        if not self._is_closing:
            super().report(result)

    def _play_cell(self, cell: Cell) -> None:
        with self._lock:
            if self._is_closing:
                return
            trial = self._create_trial(cell)
            self._trials.append(trial)
        self.report(trial.play())

    def _close_trials(self) -> None:
        with self._lock:
            trials = list(self._trials)
        for trial in trials:
            trial.close()

    def _create_trial(self, cell: Cell) -> StopTrial:
        folder = self.folder / "-".join(str(cell).split())
        match cell.location:
            case "local":
                return StopTrial(cell, folder, {}, {})
            case "ssh":
                assert self._hosts
                hosts = [{"host": name, "address": address} for name, address in self._hosts.addresses.items()]
                options: dict[str, Any] = {"hosts": hosts, "python": sys.executable}
                return StopTrial(cell, folder, {"options": options}, {"TORCHYARD_SSH": self._hosts.ssh})
            case "prefect":
                assert self._world
                return PrefectTrial(cell, folder, self._world)
            case _:
                assert self._namespace
                return PodTrial(cell, folder, self._namespace)

    def build_failure(self, cell: Cell, message: str) -> Result:
        return Result(cell, "", problems=(f"not played: {message}",))


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = build_parser("tests.stop", __doc__, jobs=2)
    parser.add_argument("--folder", type=Path, help="where the cells are played; a new folder of it for each")
    return parser.parse_args(argv)


def list_playable_cells() -> list[Cell]:
    """The cells without those that this machine cannot play."""
    obstacles: dict[Location, str | None] = {"ssh": sshd.find_obstacle()}
    for location in POD_LOCATIONS:
        obstacles[location] = nodes.describe_obstacle()
    for location, obstacle in obstacles.items():
        if obstacle:
            print(f"without {location}: {obstacle}")
    return [cell for cell in list_cells() if not obstacles.get(cell.location)]


def render_figures(results: list[Result]) -> str:
    """A table: for each location and way, how many reports are true, and how long the stops took."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.cell.location, result.cell.way), []).append(result)
    rows = []
    for (location, way), group in groups.items():
        true_count = sum(not result.problems for result in group)
        longest_s = max(result.stop_s for result in group)
        rows.append((location, way, f"{true_count} of {len(group)}", f"{longest_s:.0f} s"))
    return render_table(("location", "stopped by", "true reports", "longest stop"), rows)


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    forget_caller()
    cells = choose_cells(list_playable_cells(), args)
    if args.list:
        print("\n".join(map(str, cells)))
        return 0
    exit_on_sigterm()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="torchyard-stop-"))
    print(f"{len(cells)} cells in {folder}", flush=True)
    with StopMatrix(folder, cells) as matrix:
        matrix.play([(cell,) for cell in cells if cell.way not in EXCLUSIVE_WAYS], args.jobs)
        matrix.play([(cell,) for cell in cells if cell.way in EXCLUSIVE_WAYS], 1)
    wrong_results = [result for result in matrix.results if result.problems]
    print(f"\n{render_figures(matrix.results)}\n")
    print(f"{len(matrix.results) - len(wrong_results)} of {len(cells)} reports are true")
    return 1 if wrong_results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
