"""The cell of two containers that share one folder of runs: neither may signal the process numbers of the other."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos.cells import Cell, Result, get_expected_end
from tests.chaos.machine import TICK
from tests.chaos.trial import ARRIVAL_TIMEOUT_S, END_TIMEOUT_S, Trial
from tests.chaos.world import World, find_processes, wait_until
from tests.processes.containers import Container, find_obstacle, run_container
from torchyard.host.state import read_state
from torchyard.run.folder import RunFolder

LAUNCHER_CODE = "from torchyard.cli.console import main; main()"
LEASE_S = 30.0  # after which the program ends, because no launcher renews it
OBSERVED_S = 3.0  # for how long the program must print on after the teardown


class ContainerTrial(Trial):
    """A run in the container c1 loses its launcher; another one attaches in c2, and its user presses Ctrl-C.

    The run ends as stopped, and reports the program that it cannot end from c2. The program trains on until its lease
    has ended, and no process of c2 gets a signal. Runs without Prefect: `torchyard run` and `torchyard attach`.
    """

    def __init__(self, world: World, cell: Cell) -> None:
        super().__init__(world, cell)
        self.runs_folder = self.truth_folder / "runs"
        self._containers = ExitStack()
        self._second: Container
        self._stranger_pids: list[str] = []

    @property
    def name(self) -> str:
        paths = list(self.runs_folder.glob("*/journal"))
        return paths[0].parent.name if paths else "none"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.runs_folder / self.name)

    def build_profile(self) -> dict[str, Any]:
        return {
            "about": str(self.cell),
            "launcher": "baremetal",
            "agent": "none",
            "rendezvous": "env",
            "program": str(TICK),
            "args": [f"--truth={self.truth_folder}", "--ticks=6000"],
            "deadlines": {"lease": f"{LEASE_S:g}s", "grace": "2s"},
        }

    def start_run(self) -> None:
        obstacle = find_obstacle()
        if obstacle:
            raise RuntimeError(obstacle)
        self.write_profile()
        first = self._containers.enter_context(run_container("c1"))
        self._second = self._containers.enter_context(run_container("c2"))
        self._start_launcher(first, "run", str(self.profile))
        self.wait_for_step()

    def wait_for_step(self) -> None:
        wait_until("training", lambda: self._count_lines() >= 5, ARRIVAL_TIMEOUT_S)

    def _start_launcher(self, container: Container, *args: str) -> "subprocess.Popen[bytes]":
        environment = os.environ | {"TORCHYARD_RUNS": str(self.runs_folder)}
        argv = [sys.executable, "-c", LAUNCHER_CODE, *args]
        with (self.truth_folder / f"{args[0]}.log").open("ab") as log:
            return container.start(*argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _count_lines(self) -> int:
        """The number of lines that the program has printed."""
        return sum(len(path.read_text().splitlines()) for path in self.truth_folder.glob("1-0-*"))

    def inject_launcher_fault(self) -> None:
        """Kill the launcher with its watchdog, attach in the other container, and press Ctrl-C there."""
        for pid in find_processes(str(self.runs_folder)):
            if is_launcher(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # As if it had been lost a minute ago: until then the second launcher is refused.
        os.utime(self.folder.attempt(1) / "owner", (time.time() - 61,) * 2)
        state = read_state(str(self.folder.attempt(1) / "node-0"))
        self._stranger_pids = [str(state[role]) for role in ("supervisor", "agent")]
        script = "sleep 600 & " * int(self._stranger_pids[-1]) + "echo started; wait"
        strangers = self._second.start("sh", "-c", script, stdout=subprocess.PIPE)
        assert strangers.stdout
        strangers.stdout.readline()
        self._start_launcher(self._second, "attach", self.name)
        wait_until("the second launcher", lambda: self.folder.read_record().count_starts() == 2, ARRIVAL_TIMEOUT_S)
        self.wait_for("wait", lambda: self.is_in_step("wait"))
        (attached,) = [pid for pid in find_processes(str(self.runs_folder)) if is_launcher(pid, "attach")]
        os.kill(attached, signal.SIGINT)

    def watch_end(self) -> Result:
        started_at = time.monotonic()
        report = wait_until("the report", self.folder.report, END_TIMEOUT_S)
        problems: list[str] = []
        if report.end not in get_expected_end(self.cell).names:
            problems.append(f"ended {report.end}")
        if not any("in another PID namespace" in leftover for leftover in report.leftovers):
            problems.append("the program in the other container is not reported as left over")
        line_count = self._count_lines()
        time.sleep(OBSERVED_S)
        if self._count_lines() == line_count:
            problems.append("the program in the other container was ended")
        if not self._second.is_running(*self._stranger_pids):
            problems.append("a process of this container was killed")
        with contextlib.suppress(TimeoutError):
            wait_until("the lease", lambda: not self.list_remains(), 2 * LEASE_S, 1.0)
        seconds = time.monotonic() - started_at
        leftovers = tuple(self.list_remains())
        return Result(
            self.cell, report.end, report.sentence, seconds, leftovers=leftovers, other_problems=tuple(problems)
        )

    def count_doubles(self) -> int:
        return len(list(self.truth_folder.glob("1-0-*"))) - 1

    def list_leftovers(self) -> list[str]:
        return []

    def count_lost_lines(self) -> int:
        return 0

    def clean_up(self) -> None:
        self.close()

    def close(self) -> None:
        self._containers.close()


def is_launcher(pid: int, verb: str = "") -> bool:
    """Whether a process is a launcher (of this verb) or, without a verb, also its watchdog."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    is_watchdog = any(arg.endswith("watchdog.py") for arg in argv)
    is_verb = argv[1:3] == ["-c", LAUNCHER_CODE] and verb in ("", argv[3])
    return is_verb or (is_watchdog and not verb)
