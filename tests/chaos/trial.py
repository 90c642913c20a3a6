"""One cell: a run that is brought to a step, gets a fault there, and continues without interventions to its end."""

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.cells import Cell, Result, get_expected_end
from tests.chaos.world import SIGNALS, World, find_processes, kill_all, wait_until
from torchyard.model.run import Attempt
from torchyard.run.folder import RunFolder

ARRIVAL_TIMEOUT_S = 300.0  # seconds until the step is reached; up to seven runs may start at the same time
END_TIMEOUT_S = 300.0  # seconds from the fault to the run's end
NOTICE_TIMEOUT_S = 8.0  # seconds that a process may take to notice the fault
DEADLINES = {"start": "3m", "run": "8m", "silence": "4m", "lease": "6m", "grace": "5s"}


class Trial(ABC):
    """One cell; subclasses add the parts that depend on its launcher.

    The matrix calls, each once and in this order: `start_run`, `inject_fault` (or, for a fault of the world,
    `move_to_other_machine`), `watch_end`, and always `clean_up`. TimeoutError if the step or the end is not reached.
    """

    def __init__(self, world: World, cell: Cell) -> None:
        self.world = world
        self.cell = cell
        self.truth_folder = (
            world.folder / "truth" / "-".join((cell.launcher, cell.step, *cell.fault.replace(",", "").split())).lower()
        )
        self.truth_folder.mkdir(parents=True)
        self.profile = self.truth_folder / "chaos.yaml"
        self.machine = "worker"
        self.problems: tuple[str, ...] = ()
        self.is_fault_injected = threading.Event()
        self.run_id = ""
        self.env: dict[str, str] = {}  # that the run's flow processes get

    @property
    def name(self) -> str:
        return f"chaos-{self.run_id.replace('-', '')[-8:]}"

    @property
    def folder(self) -> RunFolder:
        """The run's folder on the machine that owns it now."""
        return RunFolder(self.world.runs_folders[self.machine] / self.name)

    @abstractmethod
    def build_profile(self) -> dict[str, Any]:
        """The profile."""

    @abstractmethod
    def wait_for_step(self) -> None:
        """Wait for the step; raises TimeoutError if it is not reached."""

    @abstractmethod
    def inject_launcher_fault(self) -> None:
        """Inject a fault that only this launcher has."""

    @abstractmethod
    def count_doubles(self) -> int:
        """The number of jobs or ranks that were started twice."""

    @abstractmethod
    def list_leftovers(self) -> list[str]:
        """Objects and ports of the run that remain, as text."""

    @abstractmethod
    def count_lost_lines(self) -> int:
        """The number of printed lines that are missing or duplicated in the logs."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything of the trial, after any result."""

    # --- playing the cell

    def start_run(self) -> None:
        """Start the run, and wait for the step."""
        self.write_profile()
        self.run_id = self.world.create_run(self.profile, self.env)
        self.wait_for_step()

    def write_profile(self) -> None:
        self.profile.write_text(yaml.safe_dump(self.build_profile()))

    def inject_fault(self) -> None:
        """Inject a fault that hits only this run."""
        target, _, signal_name = self.cell.fault.partition(" ")
        if self.cell.fault == "cancel":
            self.cancel()
        elif target == "flow":
            os.kill(self.owner_pid, SIGNALS[signal_name])
        else:
            self.inject_launcher_fault()

    def move_to_other_machine(self) -> None:
        """Mark the lost machine's run as Crashed, as the automation does after two minutes without heartbeat."""
        self.machine = "other"
        if self.get_final_state():  # too early: the automation would not mark an ended run
            self.problems = ("the run had ended before it was struck",)
            return
        self.world.set_state(self.run_id, "CRASHED", name="Crashed", message="no heartbeat for 120 s")

    def watch_end(self) -> Result:
        """Release all held requests and files, wait for the end, and return the result."""
        started_at = time.monotonic()
        self.is_fault_injected.set()
        self.release()
        try:
            state = wait_until("the end", self.get_final_state, END_TIMEOUT_S, 0.5)
        except TimeoutError as error:
            state = {"name": "no end", "message": str(error)}
        seconds = time.monotonic() - started_at
        with contextlib.suppress(TimeoutError):  # a watchdog may still report to a busy server
            wait_until("silence", lambda: not self.list_remains(), 20, 1.0)
        counts = (self.count_doubles(), tuple(self.list_remains()), self.count_lost_lines())
        return Result(self.cell, state["name"], state["message"] or "", seconds, *counts, self.list_problems(state))

    def release(self) -> None:
        """Release all held requests and files; first wait until the flow process has noticed a fault that hits it."""
        if self.cell.fault == "cancel" or self.cell.fault.startswith(("flow", "worker")):
            with contextlib.suppress(TimeoutError):
                wait_until("the fault is felt", self.is_fault_noticed, NOTICE_TIMEOUT_S)
        self.unblock_collect()

    def is_fault_noticed(self) -> bool:
        return bool(self.folder.read_record().find_last("ending")) or not Path(f"/proc/{self.owner_pid}").exists()

    @property
    def owner_pid(self) -> int:
        """The id of the process that owns the run."""
        return int(self.folder.read_record().last_start["pid"])

    def cancel(self) -> None:
        self.world.set_state(self.run_id, "CANCELLING")

    def wait_for(self, description: str, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; raises RuntimeError if the run ends before that."""

        def is_reached() -> object:
            if condition():
                return True
            report = self.folder.report()
            if report:
                raise RuntimeError(f"no {description}, the run ended: {report.sentence}")
            return False

        wait_until(description, is_reached, ARRIVAL_TIMEOUT_S)

    def is_in_step(self, step: str) -> bool:
        """Whether the run's journal shows that this step has begun, and not ended."""
        return self.is_last_step(step) and self.list_step_events()[-1]["event"] == "step"

    def is_last_step(self, step: str) -> bool:
        """Whether no step after this one has begun."""
        events = self.list_step_events()
        return bool(events) and events[-1].get("name") == step

    def list_step_events(self) -> list[dict[str, Any]]:
        """The begins and the ends of the run's steps, from its journal."""
        return [event for event in self.folder.events() if event["event"] in ("step", "step-end")]

    # --- collect sends no request that can be held: a pipe blocks its last action, the record of the attempt's end

    @property
    def pipe(self) -> Path:
        return self.folder.attempt(1) / "ended.part"

    def block_collect(self) -> None:
        self.wait_for("a plan", self.folder.attempts)
        os.mkfifo(self.pipe)
        self.wait_for("collect", lambda: self.is_last_step("collect"))  # it may end before it is seen
        time.sleep(0.3)

    def unblock_collect(self) -> None:
        """Remove the pipe; a process that still waits on it continues, as if the disk had been full."""
        if self.pipe.is_fifo():
            interrupt_component = self.pipe.rename(self.truth_folder / "pipe")
            reader = os.open(interrupt_component, os.O_RDONLY | os.O_NONBLOCK)
            time.sleep(0.3)
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 1 << 20)
            os.close(reader)

    # --- judging the end

    def get_final_state(self) -> Any:
        """The run's state if it is final; None if not, as a run named Crashed is resumed."""
        state = self.world.get(f"/flow_runs/{self.run_id}")["state"]
        is_final = state["type"] in ("COMPLETED", "FAILED", "CANCELLED") or (
            state["type"] == "CRASHED" and state["name"] != "Crashed"
        )
        return state if is_final else None

    def list_problems(self, state: dict[str, Any]) -> tuple[str, ...]:
        """The differences between the end and the expected one, as text."""
        expected = get_expected_end(self.cell)
        report = self.folder.report()
        problems = [*self.problems]
        if state["name"] not in expected.names or expected.text not in (state["message"] or ""):
            problems.append(f"ended {state['name']}, not {' or '.join(expected.names)} {expected.text}".strip())
        attempts = [attempt for attempt in report.attempts if not self.is_overlooked(attempt)] if report else []
        if report and len(attempts) not in expected.attempts and report.end == "succeeded":
            problems.append(f"{len(report.attempts)} attempts")
        if report and report.leftovers:
            problems.append(f"leftovers in the report: {', '.join(report.leftovers)}")
        return tuple(problems)

    def is_overlooked(self, attempt: Attempt) -> bool:
        """Whether the run reports that the job's controller overlooked an attempt when its API server restarted."""
        failure = attempt.outcome.status.failure
        return self.cell.fault == "API server restart" and failure is not None and failure.cause == "controller-silent"

    def list_remains(self) -> list[str]:
        """Processes with the run's label or folder, and the other leftovers, as text."""
        marks = (f"TORCHYARD_JOB={self.name}/", f"/{self.name}")
        return [f"process {pid}" for pid in find_processes(*marks)] + self.list_leftovers()

    def clean_up(self) -> None:
        """End all processes and objects of the run, so that a wrong cell does not disturb the others."""
        try:
            if self.run_id and not wait_until("the state", lambda: [self.get_final_state()], 240)[0]:
                self.world.set_state(self.run_id, "FAILED", message="given up by the matrix", name="Failed")
                kill_all(f"/{self.name}", self.run_id)
        finally:
            self.close()
