"""The cells of runs on this machine, with real agents, ranks and etcd as processes."""

import itertools
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.cells import Cell
from tests.chaos.trial import ARRIVAL_TIMEOUT_S, DEADLINES, Trial
from tests.chaos.world import BIN, SIGNALS, World, wait_until
from tests.processes.sshd import Hosts, find_obstacle
from tests.tools.matrix import run_all
from torchyard.agents.torchrun import first_port
from torchyard.common.project_root import ROOT
from torchyard.host.state import list_listening_ports, read_state
from torchyard.model.run import Run

TICK = ROOT / "tests" / "programs" / "tick.py"
SILENCE_S = 15.0
CUT_S = 60.0  # seconds: ssh notices the cut after 30, and connects again and again
CLOCK_CODE = """
import os, time
real = time.time
time.time = lambda: real() + 86400 * os.path.exists("{switch}")
"""


class MachineTrial(Trial):
    """Two agents with one rank each; a slow interpreter makes preflight long enough for a fault."""

    line_prefix = "]:"  # torchrun's, before each line of a rank

    def build_profile(self) -> dict[str, Any]:
        stubborn = ["--stubborn"] if self.cell.step == "teardown" else []
        slow_python = self.truth_folder / "python"
        slow_python.write_text(f'#!/bin/sh\nsleep 3\nexec {sys.executable} "$@"\n')
        slow_python.chmod(0o755)
        return {
            "about": str(self.cell),
            "launcher": "baremetal",
            "program": str(TICK),
            "args": [f"--truth={self.truth_folder}", *stubborn],
            "nodes": 2,
            "rendezvous": "etcd-v2" if self.cell.needs_etcd else "c10d",
            "deadlines": DEADLINES,
            "attempts": 2,
            "metrics": "json-lines",
            "options": {"python": str(slow_python)} if self.cell.step == "preflight" else {},
        }

    def wait_for_step(self) -> None:
        """Wait for the step; for `teardown` the run is cancelled before the fault."""
        match self.cell.step:
            case "collect":
                self.block_collect()
            case "preflight":
                self.wait_for("preflight", lambda: self.is_in_step("preflight"))
            case "pending":
                self.wait_for("agents", lambda: self.is_in_step("wait") and self.read_agent_pid("node-1"))
            case _:
                self.wait_for(
                    "training",
                    lambda: len(self.count_printed_lines()) == 2 and min(self.count_printed_lines().values()) >= 5,
                )
        if self.cell.step == "teardown":
            self.cancel()
            wait_until("teardown", lambda: self.folder.read_record().find_last("ending"), ARRIVAL_TIMEOUT_S)

    def count_printed_lines(self) -> dict[str, int]:
        """The number of lines that each process of a rank has printed, by the name of its truth file."""
        return {path.name: len(path.read_text().splitlines()) for path in self.list_truth_files()}

    def list_truth_files(self) -> list[Path]:
        return list(self.truth_folder.glob("[0-9]*-[0-9]*-[0-9]*"))

    def read_agent_pid(self, node: str) -> int:
        state = read_state(str(self.folder.attempt(1) / node))
        return int(state["agent"]) if state else 0

    def inject_launcher_fault(self) -> None:
        target, signal_name = self.cell.fault.split()
        os.kill(self.find_victim(target), SIGNALS[signal_name])

    def find_victim(self, target: str) -> int:
        """The process that gets the signal; if there are two, the one of node 1."""
        if target == "rank":
            return next(int(name.rpartition("-")[2]) for name in self.count_printed_lines() if name.startswith("1-1-"))
        return self.read_agent_pid({"agent": "node-1", "etcd": "etcd"}[target])

    def count_doubles(self) -> int:
        starts = [name.rpartition("-")[0] for name in self.count_printed_lines()]
        return len(starts) - len(set(starts))

    def list_leftovers(self) -> list[str]:
        """The run's ports on which a process still listens."""
        first_ports = [first_port(Run(id=self.run_id, attempt=number, folder="")) for number in (1, 2)]
        ports = {first + offset for first in first_ports for offset in (0, 1)}
        return [f"port {port}" for port in ports & list_listening_ports()]

    def count_lost_lines(self) -> int:
        logs = "".join(path.read_text() for path in self.folder.path.glob("attempt-*/node-*/log"))
        logged_lines = [line.partition(self.line_prefix)[2] for line in logs.splitlines()]
        printed = list(itertools.chain(*(path.read_text().splitlines() for path in self.list_truth_files())))
        return len(set(printed) - set(logged_lines)) + sum(logged_lines.count(line) > 1 for line in set(printed))

    def close(self) -> None:
        """Do nothing: such a run has only processes."""


class ClockTrial(MachineTrial):
    """The launcher is killed, and the next one has a clock that is a day ahead."""

    def build_profile(self) -> dict[str, Any]:
        profile = super().build_profile()
        profile["args"].append("--ticks=400")
        return profile

    def start_run(self) -> None:
        (self.truth_folder / "sitecustomize.py").write_text(CLOCK_CODE.format(switch=self.truth_folder / "ahead"))
        python_path = filter(None, (str(self.truth_folder), os.environ.get("PYTHONPATH")))
        self.env["PYTHONPATH"] = os.pathsep.join(python_path)
        super().start_run()

    def inject_launcher_fault(self) -> None:
        (self.truth_folder / "ahead").touch()
        os.kill(self.owner_pid, signal.SIGKILL)


class ArchiveTrial(MachineTrial):
    """The archive's share is unmounted, which leaves its empty mount point, and the launcher is killed."""

    @property
    def archive(self) -> Path:
        return self.truth_folder / "archive"

    def start_run(self) -> None:
        self.env["TORCHYARD_ARCHIVE"] = self.archive.as_uri()
        subprocess.run([BIN / "torchyard", "archive", "init"], env=os.environ | self.env, check=True, cwd=ROOT)
        super().start_run()

    def inject_launcher_fault(self) -> None:
        self.archive.rename(self.truth_folder / "unmounted")
        self.archive.mkdir()
        os.kill(self.owner_pid, signal.SIGKILL)

    def list_leftovers(self) -> list[str]:
        written_paths = [f"{path} below the mount point" for path in self.archive.rglob("*")]
        return super().list_leftovers() + written_paths


class SshTrial(MachineTrial):
    """Two programs on hosts behind ssh, which lose the network for much longer than `deadlines.silence`."""

    line_prefix = " | "

    def __init__(self, world: World, cell: Cell) -> None:
        super().__init__(world, cell)
        self.hosts = Hosts(self.truth_folder / "hosts")

    def build_profile(self) -> dict[str, Any]:
        hosts = [{"host": name, "address": address} for name, address in self.hosts.addresses.items()]
        profile = super().build_profile() | {"agent": "none", "rendezvous": "env"}
        profile["args"].append("--ticks=1200")
        profile["deadlines"] = DEADLINES | {"silence": f"{SILENCE_S:g}s"}
        profile["options"] = {"hosts": hosts, "python": sys.executable}
        return profile

    def start_run(self) -> None:
        obstacle = find_obstacle()
        if obstacle:
            raise RuntimeError(obstacle)
        self.hosts.start()
        self.env["TORCHYARD_SSH"] = self.hosts.ssh
        super().start_run()

    def inject_launcher_fault(self) -> None:
        run_all([partial(self.hosts.unplug, name, CUT_S) for name in self.hosts.addresses])

    def list_leftovers(self) -> list[str]:
        leftovers: list[str] = [*super().list_leftovers(), *self.hosts.list_leftovers()]
        return leftovers

    def close(self) -> None:
        self.hosts.stop()
