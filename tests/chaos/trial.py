"""One cell, played: a run that is brought to a step, gets a fault there, and is then left alone until its end."""

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
from torchyard.model.run import Attempt
from torchyard.run.folder import RunFolder

ARRIVAL = 300.0  # seconds until the step is reached; seven runs may begin at once
END = 300.0  # seconds from the fault to the run's end
HEED = 8.0  # seconds that a process may take to notice the fault
DEADLINES = {"start": "3m", "run": "8m", "silence": "4m", "lease": "6m", "grace": "5s"}


class Trial(ABC):
    """One cell, without what depends on its launcher."""

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
        """The run's folder on the machine that owns it now."""
        return RunFolder(self.world.runs[self.machine] / self.name)

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The profile."""

    @abstractmethod
    def arrive(self) -> None:
        """Wait for the step; raises TimeoutError if it is not reached."""

    @abstractmethod
    def hit(self) -> None:
        """Inject a fault that only this launcher has."""

    @abstractmethod
    def doubles(self) -> int:
        """How often something was started twice."""

    @abstractmethod
    def left(self) -> list[str]:
        """What is left over of the run after its end."""

    @abstractmethod
    def lost(self) -> int:
        """How many printed lines are missing or duplicated in the logs."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything of the trial, whatever its result."""

    # --- the play

    def reach(self) -> None:
        """Start the run, and wait for the step."""
        self.profile.write_text(yaml.safe_dump(self.document()))
        self.run_id = self.world.begin(self.profile)
        self.arrive()

    def strike(self) -> None:
        """Inject a fault that hits only this run."""
        target, _, how = self.cell.fault.partition(" ")
        if self.cell.fault == "cancel":
            self.cancel()
        elif target == "flow":
            os.kill(self.carrier, SIGNALS[how])
        else:
            self.hit()

    def move(self) -> None:
        """Mark the lost machine's run as Crashed, as the automation does after two minutes without heartbeat."""
        self.machine = "other"
        if self.ended():  # too early: the automation would not mark an ended run
            self.missed = ("the run had ended before it was struck",)
            return
        self.world.set_state(self.run_id, "CRASHED", name="Crashed", message="no heartbeat for 120 s")

    def watch(self) -> Result:
        """Release what was held, wait for the end and judge it."""
        began = time.monotonic()
        self.struck.set()
        self.let_go()
        try:
            state = until("the end", self.ended, END, 0.5)
        except TimeoutError as error:
            state = {"name": "no end", "message": str(error)}
        seconds = time.monotonic() - began
        with contextlib.suppress(TimeoutError):  # a watchdog may still report to a busy server
            until("silence", lambda: not self.remains(), 20, 1.0)
        counted = (self.doubles(), tuple(self.remains()), self.lost())
        return Result(self.cell, state["name"], state["message"] or "", seconds, *counted, self.wrong(state))

    def let_go(self) -> None:
        """Release what is held, after the flow process has noticed the fault if that hits a process."""
        if self.cell.fault == "cancel" or self.cell.fault.startswith(("flow", "worker")):
            with contextlib.suppress(TimeoutError):
                until("the fault is felt", self.felt, HEED)
        self.unplug()

    def felt(self) -> bool:
        return bool(self.folder.last("ending")) or not Path(f"/proc/{self.carrier}").exists()

    @property
    def carrier(self) -> int:
        """The id of the process that owns the run."""
        return int(self.folder.last("start")["pid"])

    def cancel(self) -> None:
        self.world.set_state(self.run_id, "CANCELLING")

    def come(self, what: str, found: Callable[[], object]) -> None:
        """Wait for a sign of the step; raises RuntimeError if the run ends before it."""

        def seen() -> object:
            if found():
                return True
            if report := self.folder.report():
                raise RuntimeError(f"no {what}, the run ended: {report.sentence}")
            return False

        until(what, seen, ARRIVAL)

    def at(self, step: str) -> bool:
        """Whether the run's journal says that it is in this step."""
        events = self.folder.events()
        return bool(events) and events[-1].get("name") == step

    # --- collect sends no request to hold: a pipe blocks its last action, recording how the attempt ended

    @property
    def pipe(self) -> Path:
        return self.folder.attempt(1) / "ended.part"

    def plug(self) -> None:
        self.come("a plan", self.folder.attempts)
        os.mkfifo(self.pipe)
        self.come("collect", lambda: self.at("collect"))
        time.sleep(0.3)

    def unplug(self) -> None:
        """Remove the pipe; a process that still waits on it continues, as if the disk had been full."""
        if self.pipe.is_fifo():
            away = self.pipe.rename(self.truth / "pipe")
            reader = os.open(away, os.O_RDONLY | os.O_NONBLOCK)
            time.sleep(0.3)
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 1 << 20)
            os.close(reader)

    # --- judging the end

    def ended(self) -> Any:
        """The run's state if it is final, else None: a run named Crashed will be resumed."""
        state = self.world.get(f"/flow_runs/{self.run_id}")["state"]
        stays = state["type"] in ("COMPLETED", "FAILED", "CANCELLED") or (
            state["type"] == "CRASHED" and state["name"] != "Crashed"
        )
        return state if stays else None

    def wrong(self, state: dict[str, Any]) -> tuple[str, ...]:
        """How the end differs from the right one."""
        wanted, report = right(self.cell), self.folder.report()
        found = [*self.missed]
        if state["name"] not in wanted.names or wanted.says not in (state["message"] or ""):
            found.append(f"ended {state['name']}, not {' or '.join(wanted.names)} {wanted.says}".strip())
        counted = [each for each in report.attempts if not self.is_missed(each)] if report else []
        if report and len(counted) not in wanted.attempts and report.end == "succeeded":
            found.append(f"{len(report.attempts)} attempts")
        if report and report.leftovers:
            found.append(f"the report says left: {', '.join(report.leftovers)}")
        return tuple(found)

    def is_missed(self, attempt: Attempt) -> bool:
        """Whether the job's controller overlooked an attempt when its API server restarted, and the run says so."""
        failure = attempt.outcome.status.failure
        return self.cell.fault == "API server restart" and failure is not None and failure.cause == "controller-silent"

    def remains(self) -> list[str]:
        """Processes with the run's label or folder, and whatever else is left over."""
        marks = (f"TORCHYARD_JOB={self.name}/", f"/{self.name}")
        return [f"process {pid}" for pid in holders(*marks)] + self.left()

    def finish(self) -> None:
        """End everything that a wrong cell may have left running, so that it does not disturb the others."""
        try:
            if self.run_id and not until("the state", lambda: [self.ended()], 240)[0]:
                self.world.set_state(self.run_id, "FAILED", message="given up by the matrix", name="Failed")
                kill_all(f"/{self.name}", self.run_id)
        finally:
            self.close()
