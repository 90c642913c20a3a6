"""The cells of runs on this machine: real agents, ranks and etcd, as processes."""

import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.trial import ARRIVAL, DEADLINES, Trial
from tests.chaos.world import SIGNALS, until
from torchyard.agents.torchrun import first_port
from torchyard.common.project_root import ROOT
from torchyard.host.state import list_listening_ports, read_state
from torchyard.model.run import Run

TICK = ROOT / "tests" / "programs" / "tick.py"


class Machine(Trial):
    """Two agents with one rank each; a slow interpreter makes preflight long enough to be hit."""

    def document(self) -> dict[str, Any]:
        stubborn = ["--stubborn"] if self.cell.step == "teardown" else []
        slow = self.truth / "python"
        slow.write_text(f'#!/bin/sh\nsleep 3\nexec {sys.executable} "$@"\n')
        slow.chmod(0o755)
        return {
            "about": str(self.cell),
            "launcher": "baremetal",
            "program": str(TICK),
            "args": [f"--truth={self.truth}", *stubborn],
            "nodes": 2,
            "rendezvous": "etcd-v2" if self.cell.store else "c10d",
            "deadlines": DEADLINES,
            "attempts": 2,
            "metrics": "json-lines",
            "options": {"python": str(slow)} if self.cell.step == "preflight" else {},
        }

    def arrive(self) -> None:
        """Wait for the step; for `teardown` the run is cancelled before the fault."""
        match self.cell.step:
            case "collect":
                self.plug()
            case "preflight":
                self.come("preflight", lambda: self.at("preflight"))
            case "pending":
                self.come("agents", lambda: self.at("wait") and self.agent("node-1"))
            case _:
                self.come("training", lambda: len(self.told()) == 2 and min(self.told().values()) >= 5)
        if self.cell.step == "teardown":
            self.cancel()
            until("teardown", lambda: self.folder.last("ending"), ARRIVAL)

    def told(self) -> dict[str, int]:
        """How many lines each rank has printed."""
        return {path.name: len(path.read_text().splitlines()) for path in self.truths()}

    def truths(self) -> list[Path]:
        return list(self.truth.glob("[0-9]*-[0-9]*-[0-9]*"))

    def agent(self, block: str) -> int:
        state = read_state(str(self.folder.attempt(1) / block))
        return int(state["agent"]) if state else 0

    def hit(self) -> None:
        target, how = self.cell.fault.split()
        os.kill(self.victim(target), SIGNALS[how])

    def victim(self, target: str) -> int:
        """The process that gets the signal; if there are two, the one of node 1."""
        if target == "rank":
            return next(int(name.rpartition("-")[2]) for name in self.told() if name.startswith("1-1-"))
        return self.agent({"agent": "node-1", "etcd": "etcd"}[target])

    def doubles(self) -> int:
        starts = [name.rpartition("-")[0] for name in self.told()]
        return len(starts) - len(set(starts))

    def left(self) -> list[str]:
        """The run's ports on which a process still listens."""
        firsts = [first_port(Run(id=self.run_id, attempt=number, folder="")) for number in (1, 2)]
        ports = {first + more for first in firsts for more in (0, 1)}
        return [f"port {port}" for port in ports & list_listening_ports()]

    def lost(self) -> int:
        logs = "".join(path.read_text() for path in self.folder.path.glob("attempt-*/node-*/log"))
        kept = [line.partition("]:")[2] for line in logs.splitlines()]
        printed = [line for path in self.truths() for line in path.read_text().splitlines()]
        return len(set(printed) - set(kept)) + sum(kept.count(line) > 1 for line in set(printed))

    def close(self) -> None:
        """Nothing to do: such a run has only processes."""
