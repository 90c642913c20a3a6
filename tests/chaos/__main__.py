"""`make chaos`: every fault at every step of a run, in a cluster and on this machine; prints a table.

    python -m tests.chaos [--only TEXT] [--skip TEXT] [--jobs N] [--keep]

A cell starts a run through Prefect's API, waits for its step, injects its fault, and then touches nothing more. It
passes if the run ends as `cells.right` says, nothing was submitted twice, nothing is left over and no line is lost. A
fault that hits more than one run (of a worker, a machine, the API server) hits all its cells at once.
"""

import argparse
import queue
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.caller import forget_cluster
from tests.chaos.cells import FAULTS, Cell, Result, all_cells
from tests.chaos.job import Job
from tests.chaos.machine import Machine
from tests.chaos.outage import away
from tests.chaos.space import Space
from tests.chaos.table import publish, row, table
from tests.chaos.trial import Trial
from tests.chaos.world import World
from tests.cluster.plane import ClusterError
from tests.postgres import create_database, running_postgres

Wave = tuple[Cell, ...]
WIDTH = 2  # parallel runs per world


class Matrix:
    """The worlds, the cluster, and the results so far."""

    def __init__(self, worlds: list[World], space: Space | None, total: int) -> None:
        self.worlds, self.space, self.total = worlds, space, total
        self.done: list[Result] = []
        self._saying = threading.Lock()

    def play(self, waves: Iterable[Wave], lanes: int) -> None:
        """Play all waves, this many in parallel."""
        todo: queue.Queue[Wave] = queue.Queue()
        for wave in waves:
            todo.put(wave)
        run_all([partial(self._lane, self.worlds[lane % len(self.worlds)], todo) for lane in range(lanes)])

    def _lane(self, world: World, todo: "queue.Queue[Wave]") -> None:
        while True:
            try:
                wave = todo.get_nowait()
            except queue.Empty:
                return
            self.wave(world, wave)

    def wave(self, world: World, wave: Wave) -> None:
        """Bring every cell to its step, inject the fault into all at once, and wait for their ends."""
        arrived: list[Trial] = []
        run_all([partial(self._arrive, self.trial(world, cell), arrived) for cell in wave])
        if arrived:
            self._try(arrived[0].cell, partial(self._strike, world, wave[0].fault, arrived))
        run_all([partial(self._end, each) for each in arrived])
        if wave[0].fault.startswith("machine lost") and arrived:
            world.find_machine()

    def trial(self, world: World, cell: Cell) -> Trial:
        if cell.column == "baremetal":
            return Machine(world, cell)
        assert self.space
        return Job(world, cell, self.space)

    def _arrive(self, trial: Trial, arrived: list[Trial]) -> None:
        if self._try(trial.cell, trial.reach):
            arrived.append(trial)
        else:
            self._try(trial.cell, trial.finish)

    def _strike(self, world: World, fault: str, trials: list[Trial]) -> None:
        target, _, how = fault.partition(" ")
        match FAULTS[fault].strikes:
            case "run":
                for trial in trials:
                    self._try(trial.cell, trial.strike)
            case "cluster":
                assert self.space
                away(self.space.plane, fault, [trial for trial in trials if isinstance(trial, Job)])
            case "world" if fault.startswith("machine lost"):
                world.lose_machine()
                for trial in trials:
                    trial.move()
            case "world" if fault == "power cut":
                world.cut_power()
            case _:
                world.strike(target, how)

    def _end(self, trial: Trial) -> None:
        self._try(trial.cell, lambda: self.say(trial.watch()))
        self._try(trial.cell, trial.finish)

    def _try(self, cell: Cell, work: Callable[[], object]) -> bool:
        """Do part of a cell; if it raises, the cell is wrong, and the others go on. True if it did not."""
        try:
            work()
        except Exception as error:
            self.say(Result(cell, "not played", "", other=(f"{type(error).__name__}: {error}",)))
            return False
        return True

    def good(self) -> set[Cell]:
        """The cells that were played without a wrong result."""
        return {each.cell for each in self.done} - {each.cell for each in self.done if each.faults}

    def say(self, result: Result) -> None:
        with self._saying:
            self.done.append(result)
            print(f"{len(self.done):>3}/{self.total} {row(result)}", flush=True)


def run_all(work: Sequence[Callable[[], object]]) -> None:
    """Run all functions in parallel, wait until they end, and raise what one of them has raised."""
    errors: list[BaseException] = []

    def run(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def waves(cells: list[Cell], strikes: str) -> Iterator[Wave]:
    """The cells that are hit together: all of one launcher and fault, or each alone if its step cannot be held."""
    found = [cell for cell in cells if FAULTS[cell.fault].strikes == strikes]
    if strikes == "run":
        yield from ((cell,) for cell in found)
    else:
        alone = [cell for cell in found if cell.column == "baremetal"]
        held = [cell for cell in found if cell not in alone]
        yield from (tuple(each) for _, each in groupby(held, lambda cell: (cell.column, cell.fault)))
        yield from ((cell,) for cell in alone)


def chosen(only: list[str], skip: list[str]) -> list[Cell]:
    """The cells whose line contains one of the texts in `only`, and none of those in `skip`."""
    lines = {cell: " ".join(str(cell).split()) for cell in all_cells()}
    some = [cell for cell, line in lines.items() if not only or any(text in line for text in only)]
    return [cell for cell in some if not any(text in lines[cell] for text in skip)]


def read(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=[], nargs="+", help="only cells with one of these texts, e.g. 'volcano running'"
    )
    parser.add_argument("--skip", default=[], nargs="+", help="no cells with one of these texts, e.g. 'API server'")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel worlds")
    parser.add_argument("--postgres", action="store_true", help="keep the servers' data in a PostgreSQL, not in SQLite")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    asked = read(words)
    forget_cluster()
    cells = chosen(asked.only, asked.skip)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="torchyard-chaos-"))
    print(f"{len(cells)} cells in {folder}", flush=True)
    with ExitStack() as stack:
        try:
            space = Space() if any(cell.column != "baremetal" for cell in cells) else None
        except ClusterError as error:
            sys.exit(f"{error}; `--only baremetal` needs none")
        if space:
            stack.callback(space.close)
        lanes = [f"world-{lane}" for lane in range(min(asked.jobs, len(cells)))]
        address = stack.enter_context(running_postgres()) if asked.postgres else ""
        worlds = [World(folder / name, create_database(address, name) if address else "") for name in lanes]
        run_all([partial(stack.enter_context, world) for world in worlds])
        matrix = Matrix(worlds, space, len(cells))
        matrix.play(waves(cells, "run"), WIDTH * len(worlds))
        matrix.play(waves(cells, "world"), len(worlds))
        matrix.play(waves(cells, "cluster"), 1)
    good = len(matrix.good())
    told = f"{table(matrix.done)}\n{good} of {len(cells)} cells as expected"
    print(f"\n{told}")
    publish(told)
    if not asked.keep and good == len(cells):
        shutil.rmtree(folder)
    return 0 if good == len(cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
