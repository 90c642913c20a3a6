"""One cell, played: a run that is brought to a step, struck there, and then left alone until its end."""

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.cells import Cell, Result, right
from tests.chaos.world import SIGNALS, World, holders, kill_all, until
from torchyard.run.folder import RunFolder

ARRIVAL = 300.0  # seconds until the step is reached; seven runs may begin at once
END = 300.0  # seconds from the fault to the run's end
HEED = 8.0  # seconds that a process may take to notice that it was struck
DEADLINES = {"start": "3m", "run": "8m", "silence": "4m", "lease": "6m", "grace": "5s"}


class Trial(ABC):
    """What every launcher's cells have in common."""

    def __init__(self, world: World, cell: Cell) -> None:
        self.world, self.cell = world, cell
        self.truth = (
            world.folder / "truth" / "-".join((cell.column, cell.step, *cell.fault.replace(",", "").split())).lower()
        )
        self.truth.mkdir(parents=True)
        self.profile = self.truth / "chaos.yaml"
        self.machine = "worker"
        self.missed: tuple[str, ...] = ()
        self.struck = threading.Event()
        self.run_id = ""

    @property
    def name(self) -> str:
        return f"chaos-{self.run_id.replace('-', '')[-8:]}"

    @property
    def folder(self) -> RunFolder:
        """The run's folder, on the machine that carries it now."""
        return RunFolder(self.world.runs[self.machine] / self.name)

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The profile."""

    @abstractmethod
    def arrive(self) -> None:
        """Wait for the step; TimeoutError where it does not come."""

    @abstractmethod
    def hit(self) -> None:
        """What strikes this launcher alone."""

    @abstractmethod
    def doubles(self) -> int:
        """How often something was started that ran already."""

    @abstractmethod
    def left(self) -> list[str]:
        """What is there of the run that should not be, after its end."""

    @abstractmethod
    def lost(self) -> int:
        """How many printed lines are in no log, or twice."""

    @abstractmethod
    def close(self) -> None:
        """Nothing of the trial stays, however it went."""

    # --- the play

    def reach(self) -> None:
        """Begin the run, and wait for the step."""
        self.profile.write_text(yaml.safe_dump(self.document()))
        self.run_id = self.world.begin(self.profile)
        self.arrive()

    def strike(self) -> None:
        """What strikes this run and no other."""
        target, _, how = self.cell.fault.partition(" ")
        if self.cell.fault == "cancel":
            self.cancel()
        elif target == "flow":
            os.kill(self.carrier, SIGNALS[how])
        else:
            self.hit()

    def move(self) -> None:
        """The machine is lost, which nobody tells: say what the automation says after two minutes without heartbeat."""
        self.machine = "other"
        if self.ended():  # by its own haste: nobody would say this of it
            self.missed = ("the run had ended before it was struck",)
            return
        self.world.set_state(self.run_id, "CRASHED", name="Crashed", message="no heartbeat for 120 s")

    def watch(self) -> Result:
        """Let go of what was held, wait for the end and look back."""
        began = time.monotonic()
        self.struck.set()
        self.let_go()
        try:
            state = until("the end", self.ended, END, 0.5)
        except TimeoutError as error:
            state = {"name": "no end", "message": str(error)}
        seconds = time.monotonic() - began
        with contextlib.suppress(TimeoutError):  # a guard may still be telling a busy server, and a kubelet be killing
            until("silence", lambda: not self.remains(), 20, 1.0)
        counted = (self.doubles(), tuple(self.remains()), self.lost())
        return Result(self.cell, state["name"], state["message"] or "", seconds, *counted, self.wrong(state))

    def let_go(self) -> None:
        """Once the flow process has noticed the fault, where it is one that strikes a process."""
        if self.cell.fault == "cancel" or self.cell.fault.startswith(("flow", "worker")):
            with contextlib.suppress(TimeoutError):
                until("the fault is felt", self.felt, HEED)
        self.unplug()

    def felt(self) -> bool:
        return bool(self.folder.last("ending")) or not Path(f"/proc/{self.carrier}").exists()

    @property
    def carrier(self) -> int:
        """The process that carries the run."""
        return int(self.folder.last("start")["pid"])

    def cancel(self) -> None:
        self.world.set_state(self.run_id, "CANCELLING")

    def come(self, what: str, found: Callable[[], object]) -> None:
        """Wait for a sign of the step; RuntimeError where the run ends before it."""

        def seen() -> object:
            if found():
                return True
            if report := self.folder.report():
                raise RuntimeError(f"no {what}, the run ended: {report.sentence}")
            return False

        until(what, seen, ARRIVAL)

    def at(self, step: str) -> bool:
        """Whether the run's journal says that it is in a step."""
        events = self.folder.events()
        return bool(events) and events[-1].get("name") == step

    # --- collect, which asks nobody: its last act, writing down how the attempt ended, is held by a pipe

    @property
    def pipe(self) -> Path:
        return self.folder.attempt(1) / "ended.part"

    def plug(self) -> None:
        self.come("a plan", self.folder.attempts)
        os.mkfifo(self.pipe)
        self.come("collect", lambda: self.at("collect"))
        time.sleep(0.3)

    def unplug(self) -> None:
        """Take the pipe away; whoever still waits there goes on, as if the disk had been full."""
        if self.pipe.is_fifo():
            away = self.pipe.rename(self.truth / "pipe")
            reader = os.open(away, os.O_RDONLY | os.O_NONBLOCK)
            time.sleep(0.3)
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 1 << 20)
            os.close(reader)

    # --- looking back

    def ended(self) -> Any:
        """The state, once it is one that stays: a run that is merely Crashed is on its way back."""
        state = self.world.get(f"/flow_runs/{self.run_id}")["state"]
        stays = state["type"] in ("COMPLETED", "FAILED", "CANCELLED") or (
            state["type"] == "CRASHED" and state["name"] != "Crashed"
        )
        return state if stays else None

    def wrong(self, state: dict[str, Any]) -> tuple[str, ...]:
        """How the end is not the right one."""
        wanted, report = right(self.cell), self.folder.report()
        found = [*self.missed]
        if state["name"] not in wanted.names or wanted.says not in (state["message"] or ""):
            found.append(f"ended {state['name']}, not {' or '.join(wanted.names)} {wanted.says}".strip())
        if report and len(report.attempts) not in wanted.attempts and report.end == "succeeded":
            found.append(f"{len(report.attempts)} attempts")
        if report and report.left:
            found.append(f"the report says left: {', '.join(report.left)}")
        return tuple(found)

    def remains(self) -> list[str]:
        """Processes that carry the run's label or folder, and what else is left."""
        marks = (f"TORCHYARD_JOB={self.name}/", f"/{self.name}")
        return [f"process {pid}" for pid in holders(*marks)] + self.left()

    def finish(self) -> None:
        """End what a wrong cell may have left running, so that it does not disturb the others."""
        try:
            if self.run_id and not until("the state", lambda: [self.ended()], 60)[0]:
                self.world.set_state(self.run_id, "FAILED", message="given up by the matrix", name="Failed")
                kill_all(f"/{self.name}", self.run_id)
        finally:
            self.close()
