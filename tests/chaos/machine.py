"""The cells of runs on this machine, with real agents, ranks and etcd as processes."""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.trial import ARRIVAL_TIMEOUT_S, DEADLINES, Trial
from tests.chaos.world import SIGNALS, wait_until
from torchyard.agents.torchrun import first_port
from torchyard.common.project_root import ROOT
from torchyard.host.state import list_listening_ports, read_state
from torchyard.model.run import Run

TICK = ROOT / "tests" / "programs" / "tick.py"


class MachineTrial(Trial):
    """Two agents with one rank each; a slow interpreter makes preflight long enough for a fault."""

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
        logged_lines = [line.partition("]:")[2] for line in logs.splitlines()]
        printed = list(itertools.chain(*(path.read_text().splitlines() for path in self.list_truth_files())))
        return len(set(printed) - set(logged_lines)) + sum(logged_lines.count(line) > 1 for line in set(printed))

    def close(self) -> None:
        """Do nothing: such a run has only processes."""
