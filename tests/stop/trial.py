"""One cell: a job is stopped in the middle, and what is reported is compared with the truth."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.chaos.world import find_processes, kill_all
from tests.stop.cells import EXPECTED, Cell, Result
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.model.checkpoint import Checkpoint
from torchyard.model.run import Attempt, Report
from torchyard.run.folder import RunFolder

PROGRAM = Path(__file__).with_name("program.py")
_VERBS = "from torchyard.cli.console import main; main()"
_FIRST_STEPS = 80  # the first save was two seconds before, which is more than the tolerance for clocks
_ARRIVAL_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 400.0
# Between the start and the notice of a job that its deadline stops: it must have saved before, on a busy machine too.
_TRAINING_S = 60.0
_TRAINING_IN_PODS_S = 120.0
_END_MARGIN_S = 60.0  # of a stop, besides the grace: a stop that waits for nothing is found on a busy machine too


class Truth(NamedTuple):
    """What the program did.

    starts, saved_steps: of all attempts, in order.
    last_step: of the first attempt; 0 if there was none.
    host: the last one of rank 0, in a cluster its pod; empty if it has not started.
    """

    starts: list[int]
    saved_steps: list[int]
    last_step: int
    host: str = ""


def read_truth(path: Path) -> Truth:
    """Read the file that the program writes; its last line may be incomplete."""
    starts: list[int] = []
    saved_steps: list[int] = []
    last_step = 0
    host = ""
    for line in path.read_text().splitlines():
        event, _, value = line.partition(" ")
        if event == "host":
            host = value
        elif not value.isdigit():
            continue
        elif event == "start":
            starts.append(int(value))
        elif event == "saved":
            saved_steps.append(int(value))
        elif len(starts) == 1:
            last_step = int(value)
    return Truth(starts, saved_steps, last_step, host)


class StopTrial:
    """Plays a cell in its own folder with `torchyard run`; `play` returns its result.

    TimeoutError if the job does not start or end. Subclasses run it elsewhere, and stop it in other ways.
    """

    def __init__(self, cell: Cell, folder: Path, changes: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """`changes`: of the profile. `env`: additional variables of the launcher's process."""
        self.cell = cell
        self.runs = folder / "runs"
        self.runs.mkdir(parents=True)
        self.folder = folder
        self.truth_path = folder / "truth"
        self.truth_path.touch()
        self.profile = folder / "stopped.yaml"
        self.env = {"TORCHYARD_RUNS": str(self.runs)} | dict(env)
        self.profile.write_text(yaml.safe_dump(self.build_profile() | dict(changes)))
        self._log = folder / "output"
        self._lock = threading.Lock()  # guards `_is_closed`: nothing is launched once it is set
        self._is_closed = False

    def build_profile(self) -> dict[str, Any]:
        """The profile of the job on plain machines; in a cluster, `changes` has more."""
        deadlines: dict[str, Any] = {"grace": self.cell.grace_s, "start": "4m"}
        if self.cell.way == "deadline":
            training_s = _TRAINING_IN_PODS_S if self.cell.is_in_cluster else _TRAINING_S
            deadlines["run"] = training_s + self.cell.grace_s
            deadlines["notice"] = self.cell.grace_s
        hang_step = _FIRST_STEPS if self.cell.way == "hang" else 0
        return {
            "about": "a job that is stopped",
            "launcher": "baremetal",
            "program": str(PROGRAM),
            "args": [self.cell.save, str(self.truth_path), str(self.cell.save_s), str(hang_step)],
            "nodes": 2,
            "deadlines": deadlines,
            "on_hang": "restart" if self.cell.way == "hang" else "report",
            "attempts": 2,
        }

    def play(self) -> Result:
        launcher = self._launch("run", str(self.profile))
        try:
            self.await_steps()
            launcher, asked_at = self._stop(launcher)
            launcher.wait(_END_TIMEOUT_S)
            return self.judge(time.monotonic() - asked_at)
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait(_END_TIMEOUT_S)
            self.close()

    def close(self) -> None:
        """Kill every process of the run on this machine: launchers, watchdogs, supervisors and ranks.

        It may be called by another thread than `play`, and more than once.
        """
        with self._lock:
            self._is_closed = True
        variable = f"TORCHYARD_RUNS={self.runs}"
        while find_processes(variable):  # one that was being started is killed in the next round
            kill_all(variable)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the matrix is being stopped")

    def _launch(self, *arguments: str) -> "subprocess.Popen[bytes]":
        env = dict(os.environ) | self.env
        with self._lock, self._log.open("ab") as log:
            self._check_open()
            return subprocess.Popen(
                [sys.executable, "-c", _VERBS, *arguments], env=env, stdout=log, stderr=log, start_new_session=True
            )

    def _stop(self, launcher: "subprocess.Popen[bytes]") -> tuple["subprocess.Popen[bytes]", float]:
        """Stop the job in the cell's way; return the process that ends the run, and when the stop was asked for."""
        match self.cell.way:
            case "interrupt":
                launcher.send_signal(signal.SIGINT)
            case "terminate":
                launcher.send_signal(signal.SIGTERM)
            case "deadline":
                self.await_stop_request()
            case "lost-launcher":
                _kill(launcher)
                launcher = self._launch("attach", self.run_folder.name)
                self._await_attached()
                launcher.send_signal(signal.SIGINT)
            case "twice":
                launcher.send_signal(signal.SIGINT)
                self.await_stop_request()
                asked_at = time.monotonic()
                _kill(launcher)  # its watchdog continues the stop
                self.await_condition(self.run_folder.report, "the report")
                return launcher, asked_at
            case "hang":
                pass  # the judge of hangs ends the attempt
            case _:
                self.disrupt()
        return launcher, time.monotonic()

    def disrupt(self) -> None:
        """Stop the job in a way that only the location has."""
        raise NotImplementedError(self.cell.way)

    def await_stop_request(self) -> None:
        self.await_condition(lambda: self.run_folder.read_record().find_stop(1), "the request to stop")

    def _await_attached(self) -> None:
        """Wait until the second process waits for the job."""

        def is_waiting() -> bool:
            record = self.run_folder.read_record()
            return record.count_starts() > 1 and any(event.get("name") == "wait" for event in record.launches[-1])

        self.await_condition(is_waiting, "the second process")

    @property
    def run_folder(self) -> RunFolder:
        (path,) = self.runs.glob("stopped-*")
        return RunFolder(path)

    def await_steps(self) -> None:
        """Wait until the job has trained for long enough to be stopped, and a checkpoint was seen if there is one."""
        self.await_condition(lambda: read_truth(self.truth_path).last_step >= _FIRST_STEPS, f"{_FIRST_STEPS} steps")

    def await_condition(self, condition: Callable[[], object], description: str) -> None:
        """Poll until it is true. TimeoutError names what was waited for, and the end of the launcher's output.

        RuntimeError once the trial is closed.
        """
        deadline = time.monotonic() + _ARRIVAL_TIMEOUT_S
        while True:
            self._check_open()
            with contextlib.suppress(ValueError):  # the run has no folder yet
                if condition():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {description}: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)

    def judge(self, stop_s: float) -> Result:
        """The result of the cell, whose run has ended."""
        report = self.run_folder.report()
        if report is None:
            return Result(self.cell, "", stop_s, ("there is no report",))
        problems = list_problems(self.cell, report, self.run_folder.checkpoints(), read_truth(self.truth_path))
        is_fast = self.cell.save in ("none", "no-handler", "quick") and not self.cell.has_next_attempt
        if is_fast and stop_s > self.cell.grace_s + _END_MARGIN_S:
            problems.append(f"the stop took {stop_s:.1f} s")
        return Result(self.cell, find_stop_sentence(report), stop_s, tuple(problems))


def _kill(launcher: "subprocess.Popen[bytes]") -> None:
    launcher.kill()
    launcher.wait()


def find_stop_sentence(report: Report) -> str:
    """The sentence about the stopped attempt's work; the report's own if the run ended with it."""
    first = report.attempts[0] if report.attempts else None
    saved_work = first.collected.saved_work if first else None
    if len(report.attempts) > 1 and saved_work:
        return saved_work.sentence
    return report.sentence


def list_problems(cell: Cell, report: Report, checkpoints: Sequence[Checkpoint], truth: Truth) -> list[str]:
    """What is wrong in a report. `checkpoints`: those that the run's folder lists."""
    problems = []
    if report.leftovers:
        problems.append(f"left: {', '.join(report.leftovers)}")
    if not report.attempts:
        return [*problems, f"there was no attempt: {report.sentence}"]
    if cell.has_next_attempt:
        problems += _list_problems_of_next_attempt(cell, report, truth)
    else:
        expected_end = "failed" if cell.way == "deadline" else "stopped"
        if cell.way == "cancel":
            expected_end = "cancelled"
        if report.end != expected_end:
            problems.append(f"the end is {report.end}")
        problems += _list_problems_of_resume_point(cell, checkpoints, truth)
    return problems + _list_problems_of_stop(cell, report, report.attempts[0])


def _list_problems_of_stop(cell: Cell, report: Report, attempt: Attempt) -> list[str]:
    """What is wrong in what is reported of the stopped attempt."""
    expected = EXPECTED[cell.save]
    problems = []
    saved_work = attempt.collected.saved_work
    sentence = find_stop_sentence(report)
    if bool(expected.sentence) != bool(saved_work) or expected.sentence not in sentence:
        problems.append("the sentence is wrong")
    is_saved = saved_work is not None and saved_work.lost_s == 0
    if is_saved is not expected.is_saved:
        problems.append("the work is reported as saved" if is_saved else "the work is not reported as saved")
    return problems


def _list_problems_of_resume_point(cell: Cell, checkpoints: Sequence[Checkpoint], truth: Truth) -> list[str]:
    """What is wrong in the checkpoint from which the run could be continued."""
    expected = EXPECTED[cell.save]
    checkpoint = select_resume_checkpoint(checkpoints)
    problems = []
    if (checkpoint is not None) is not expected.has_resume_point:
        problems.append(f"the run continues from {checkpoint.path if checkpoint else 'the start'}")
    if checkpoint and checkpoint.state != "complete":
        problems.append(f"the checkpoint is {checkpoint.state}")
    if checkpoint and expected.is_saved and (checkpoint.step is None or checkpoint.step < truth.last_step - 1):
        problems.append(f"the run continues from step {checkpoint.step}, and step {truth.last_step} was the last")
    return problems


def _list_problems_of_next_attempt(cell: Cell, report: Report, truth: Truth) -> list[str]:
    """What is wrong in the attempt that followed the stop: it must start from the last complete checkpoint, and end."""
    problems = []
    if report.end != "succeeded" or len(report.attempts) != 2:
        problems.append(f"the end is {report.end} after {len(report.attempts)} attempts")
    if len(truth.starts) != 2:
        return [*problems, f"the program started at the steps {truth.starts}"]
    expected = EXPECTED[cell.save]
    first_step = 0
    if expected.is_saved:
        first_step = truth.last_step - 1
    elif expected.has_resume_point:
        first_step = truth.saved_steps[0]
    if truth.starts[1] < first_step:
        problems.append(f"the program continued from step {truth.starts[1]}, and step {truth.last_step} was the last")
    if truth.starts[1] not in (0, *truth.saved_steps):
        problems.append(f"the program continued from step {truth.starts[1]}, which was not saved")
    return problems
