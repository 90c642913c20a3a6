"""One cell: a job of `torchyard run` is stopped in the middle, and what is reported is compared with the truth."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.stop.cells import EXPECTED, GRACE_S, SLOW_SAVE_S, TOO_LONG_SAVE_S, Cell, Result
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.model.run import Report
from torchyard.run.folder import RunFolder

PROGRAM = Path(__file__).with_name("program.py")
_VERBS = "from torchyard.cli.console import main; main()"
_FIRST_STEPS = 80  # the first save was two seconds before, which is more than the tolerance for clocks
_ARRIVAL_TIMEOUT_S = 240.0
_END_TIMEOUT_S = 240.0
_RUN_S = 60.0  # deadlines.run of a job that its deadline stops: it must have started long before
_END_MARGIN_S = 20.0  # of a stop, besides the grace


class StopTrial:
    """Plays a cell in its own folder; `play` returns its result. TimeoutError if the job does not start or end."""

    def __init__(self, cell: Cell, folder: Path, options: Mapping[str, Any], env: dict[str, str]) -> None:
        """`options`: of the launcher. `env`: additional variables of the launcher's process."""
        self.cell = cell
        self.runs = folder / "runs"
        self.runs.mkdir(parents=True)
        self.truth = folder / "truth"
        self.truth.touch()
        self.profile = folder / "stopped.yaml"
        self.profile.write_text(yaml.safe_dump(self._build_profile(options)))
        self._env = dict(os.environ) | {"TORCHYARD_RUNS": str(self.runs)} | env
        self._log = folder / "output"

    def _build_profile(self, options: Mapping[str, Any]) -> dict[str, Any]:
        deadlines: dict[str, Any] = {"grace": GRACE_S}
        if self.cell.way == "deadline":
            deadlines.update(run=_RUN_S, notice=GRACE_S)
        return {
            "about": "a job that is stopped",
            "launcher": "baremetal",
            "program": str(PROGRAM),
            "args": [self.cell.save, str(self.truth), str(SLOW_SAVE_S), str(TOO_LONG_SAVE_S)],
            "nodes": 2,
            "deadlines": deadlines,
            "options": dict(options),
        }

    def play(self) -> Result:
        launcher = self._launch("run", str(self.profile))
        try:
            self._await_steps(_FIRST_STEPS)
            launcher, asked_at = self._stop(launcher)
            launcher.wait(_END_TIMEOUT_S)
            stop_s = time.monotonic() - asked_at
            return self._judge(stop_s)
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait(_END_TIMEOUT_S)

    def _launch(self, *words: str) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _VERBS, *words], env=self._env, stdout=log, stderr=log, start_new_session=True
            )

    def _stop(self, launcher: "subprocess.Popen[bytes]") -> tuple["subprocess.Popen[bytes]", float]:
        """Stop the job in the cell's way; return the process that ends the run, and when the stop was asked for."""
        match self.cell.way:
            case "interrupt":
                launcher.send_signal(signal.SIGINT)
            case "terminate":
                launcher.send_signal(signal.SIGTERM)
            case "deadline":
                self._await(lambda: self._folder.read_record().find_stop(1), "the deadline")
            case "lost-launcher":
                self._kill(launcher)
                launcher = self._launch("attach", self._folder.name)
                self._await_attached()
                launcher.send_signal(signal.SIGINT)
            case "twice":
                launcher.send_signal(signal.SIGINT)
                self._await(lambda: self._folder.read_record().find_stop(1), "the stop")
                asked_at = time.monotonic()
                launcher.kill()  # its watchdog continues the stop
                launcher.wait()
                self._await(self._folder.report, "the report")
                return launcher, asked_at
        return launcher, time.monotonic()

    def _kill(self, launcher: "subprocess.Popen[bytes]") -> None:
        launcher.kill()
        launcher.wait()

    def _await_attached(self) -> None:
        """Wait until the second process waits for the job."""

        def is_waiting() -> bool:
            record = self._folder.read_record()
            return record.count_starts() > 1 and any(event.get("name") == "wait" for event in record.launches[-1])

        self._await(is_waiting, "the second process")

    @property
    def _folder(self) -> RunFolder:
        (path,) = self.runs.glob("stopped-*")
        return RunFolder(path)

    def _await_steps(self, count: int) -> None:
        self._await(lambda: self._read_truth("step") >= count, f"{count} steps")

    def _await(self, condition: Callable[[], object], description: str) -> None:
        deadline = time.monotonic() + _ARRIVAL_TIMEOUT_S
        while True:
            with contextlib.suppress(ValueError):  # the run has no folder yet
                if condition():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {description}: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)

    def _read_truth(self, event: str) -> int:
        """The last step with an event, `step` or `saved`; 0 if there is none."""
        last_step = 0
        for line in self.truth.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == event and number.isdigit():
                last_step = max(last_step, int(number))
        return last_step

    def _judge(self, stop_s: float) -> Result:
        report = self._folder.report()
        if report is None:
            return Result(self.cell, "", stop_s, ("there is no report",))
        problems = list(list_problems(self.cell, report, self._folder, self._read_truth("step")))
        if self.cell.save in ("none", "no-handler", "quick") and stop_s > GRACE_S + _END_MARGIN_S:
            problems.append(f"the stop took {stop_s:.1f} s")
        return Result(self.cell, report.sentence, stop_s, tuple(problems))


def list_problems(cell: Cell, report: Report, folder: RunFolder, last_step: int) -> list[str]:
    """What is wrong in a report. `last_step`: of the program."""
    expected = EXPECTED[cell.save]
    problems = []
    if report.leftovers:
        problems.append(f"left: {', '.join(report.leftovers)}")
    if report.end != ("failed" if cell.way == "deadline" else "stopped"):
        problems.append(f"the end is {report.end}")
    saved_work = report.collected.saved_work if report.collected else None
    if bool(expected.sentence) != bool(saved_work) or expected.sentence not in report.sentence:
        problems.append("the sentence is wrong")
    is_saved = saved_work is not None and saved_work.lost_s == 0
    if is_saved is not expected.is_saved:
        problems.append("the work is reported as saved" if is_saved else "the work is not reported as saved")
    checkpoint = select_resume_checkpoint(folder.checkpoints())
    if (checkpoint is not None) is not expected.has_resume_point:
        problems.append(f"the run continues from {checkpoint.path if checkpoint else 'the start'}")
    if checkpoint and checkpoint.state != "complete":
        problems.append(f"the checkpoint is {checkpoint.state}")
    if checkpoint and expected.is_saved and (checkpoint.step is None or checkpoint.step < last_step - 1):
        problems.append(f"the run continues from step {checkpoint.step}, and step {last_step} was the last")
    return problems
