"""`make chaos`: every fault at every step of a run, in a cluster and on this machine; prints a table.

    python -m tests.chaos [--only TEXT ...] [--skip TEXT ...] [--list] [--jobs N] [--postgres] [--keep]

A cell starts a run through Prefect's API, waits for its step, injects its fault, and does not intervene again. It
passes if the run ends as `cells.get_expected_end` defines, nothing was submitted twice, nothing remains and no line is
lost. A fault that hits more than one run (of a worker, a machine, the API server) hits all its cells at once.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.chaos.cells import FAULTS, Cell, Result, list_cells
from tests.chaos.job import ClusterTrial, LeaseTrial
from tests.chaos.machine import ArchiveTrial, ClockTrial, MachineTrial, SshTrial
from tests.chaos.namespace import ChaosNamespace
from tests.chaos.outage import interrupt_component
from tests.chaos.shared import ContainerTrial
from tests.chaos.table import publish, render_tables
from tests.chaos.trial import Trial
from tests.chaos.world import World
from tests.cluster.plane import ClusterError
from tests.processes.postgres import create_database, run_postgres
from tests.support.caller import forget_cluster
from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm, run_all

Wave = tuple[Cell, ...]
WIDTH = 2  # parallel runs per world
MACHINE_TRIALS: dict[str, type[Trial]] = {  # of faults that need more than two agents on this machine
    "archive unmounted": ArchiveTrial,
    "clock ahead": ClockTrial,
    "shared folder": ContainerTrial,
    "ssh cut": SshTrial,
}


class ChaosMatrix(Matrix[Cell, Result]):
    """Plays cells in worlds and in the cluster's namespace.

    Each lane uses one world; each cell of a wave has its own thread. `namespace` is None if no cell needs the cluster.
    """

    def __init__(self, worlds: list[World], namespace: ChaosNamespace | None, total: int) -> None:
        super().__init__(total)
        self.worlds = worlds
        self.namespace = namespace

    def play_wave(self, lane: int, wave: Wave) -> None:
        """Bring every cell to its step, inject the fault into all of them, and wait for their ends."""
        world = self.worlds[lane % len(self.worlds)]
        arrived: list[Trial] = []
        run_all([partial(self._start_trial, self.create_trial(world, cell), arrived) for cell in wave])
        if arrived:
            self.run_guarded(arrived[0].cell, partial(self._inject_fault, world, wave[0].fault, arrived))
        run_all([partial(self._finish_trial, trial) for trial in arrived])
        if wave[0].fault.startswith("machine lost") and arrived:
            world.restore_machine()

    def build_failure(self, cell: Cell, message: str) -> Result:
        return Result(cell, "not played", "", other_problems=(message,))

    def create_trial(self, world: World, cell: Cell) -> Trial:
        if cell.launcher == "baremetal":
            return MACHINE_TRIALS.get(cell.fault, MachineTrial)(world, cell)
        assert self.namespace
        if cell.fault == "lost Lease":
            return LeaseTrial(world, cell, self.namespace)
        return ClusterTrial(world, cell, self.namespace)

    def _start_trial(self, trial: Trial, arrived: list[Trial]) -> None:
        if self.run_guarded(trial.cell, trial.start_run):
            arrived.append(trial)
        else:
            self.run_guarded(trial.cell, trial.clean_up)

    def _inject_fault(self, world: World, fault: str, trials: list[Trial]) -> None:
        target, _, signal_name = fault.partition(" ")
        match FAULTS[fault].scope:
            case "run":
                for trial in trials:
                    self.run_guarded(trial.cell, trial.inject_fault)
            case "cluster":
                assert self.namespace
                interrupt_component(
                    self.namespace.plane, fault, [trial for trial in trials if isinstance(trial, ClusterTrial)]
                )
            case "world" if fault.startswith("machine lost"):
                world.lose_machine()
                for trial in trials:
                    self.run_guarded(trial.cell, trial.move_to_other_machine)
            case "world" if fault == "power cut":
                world.cut_power()
            case _:
                world.strike(target, signal_name)

    def _finish_trial(self, trial: Trial) -> None:
        self.run_guarded(trial.cell, lambda: self.report(trial.watch_end()))
        self.run_guarded(trial.cell, trial.clean_up)

    def list_correct_cells(self) -> set[Cell]:
        """The cells that have results, all of them without a problem."""
        return {result.cell for result in self.results} - {result.cell for result in self.results if result.problems}


def group_waves(cells: list[Cell], scope: str) -> Iterator[Wave]:
    """Group the cells whose fault has this scope into those that are hit together.

    A fault of a run hits one cell. Another fault hits all cells of one launcher, except on plain machines, where a step
    cannot be held until the other runs have reached theirs.
    """
    struck_cells = [cell for cell in cells if FAULTS[cell.fault].scope == scope]
    if scope == "run":
        yield from ((cell,) for cell in struck_cells)
    else:
        single_cells = [cell for cell in struck_cells if cell.launcher == "baremetal"]
        held_cells = [cell for cell in struck_cells if cell not in single_cells]
        yield from (tuple(group) for _, group in groupby(held_cells, lambda cell: (cell.launcher, cell.fault)))
        yield from ((cell,) for cell in single_cells)


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = build_parser("tests.chaos", __doc__, jobs=2)
    parser.add_argument("--postgres", action="store_true", help="keep the servers' data in a PostgreSQL, not in SQLite")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    forget_cluster()
    cells = choose_cells(list_cells(), args)
    if args.list:
        print("\n".join(str(cell) for cell in cells))
        return 0
    exit_on_sigterm()
    # A shell starts background commands with SIGINT ignored, and so would the launchers that the cells interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="torchyard-chaos-"))
    print(f"{len(cells)} cells in {folder}", flush=True)
    with ExitStack() as stack:
        try:
            namespace = ChaosNamespace() if any(cell.launcher != "baremetal" for cell in cells) else None
        except ClusterError as error:
            sys.exit(f"{error}; `--only baremetal` needs none")
        if namespace:
            stack.callback(namespace.close)
        world_names = [f"world-{lane}" for lane in range(min(args.jobs, len(cells)))]
        address = stack.enter_context(run_postgres()) if args.postgres else ""
        worlds = [World(folder / name, create_database(address, name) if address else "") for name in world_names]
        run_all([partial(stack.enter_context, world) for world in worlds])
        matrix = ChaosMatrix(worlds, namespace, len(cells))
        matrix.play(group_waves(cells, "run"), WIDTH * len(worlds))
        matrix.play(group_waves(cells, "world"), len(worlds))
        matrix.play(group_waves(cells, "cluster"), 1)
    correct_count = len(matrix.list_correct_cells())
    text = f"{render_tables(matrix.results)}\n{correct_count} of {len(cells)} cells as expected"
    print(f"\n{text}")
    publish(text)
    if not args.keep and correct_count == len(cells):
        shutil.rmtree(folder)
    return 0 if correct_count == len(cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
