"""Runs one run in one process: from its current state, attempt after attempt, to its end."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torchyard.archive.copier import RunArchive, open_run_archive
from torchyard.backend import backend_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.machines.processes import Watchdog
from torchyard.model.errors import (
    DetachedError,
    FolderError,
    PreflightError,
    ProfileError,
    RendezvousError,
    RunInUseError,
    TorchyardError,
)
from torchyard.model.hang import HangUpdate
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Attempt, Outcome, Run, RunEnd, Step
from torchyard.pages.hang import render_hang_page
from torchyard.pages.report import (
    describe_checks,
    describe_logs,
    describe_outcome,
    describe_submission,
    describe_success,
)
from torchyard.run import history, takeover, watchdog
from torchyard.run.finisher import RunFinisher
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.folder_lease import hold_folder_lease
from torchyard.run.next_attempt import avoid_failed_machines
from torchyard.run.notifications import RunNotifier, check_notifications
from torchyard.run.preview import check_plan, make_plan
from torchyard.run.progress import Progress
from torchyard.run.reporter import Reporter
from torchyard.run.resume import EntryMode, choose_entry, describe_loop, find_submission_time, has_possible_job
from torchyard.run.signals import SignalHold, protect_run
from torchyard.steps.line import StepFunctions
from torchyard.steps.rendezvous import describe_dead_store

T = TypeVar("T")


class Runner:
    """Takes one run to its end. An attempt is preflight, rendezvous, submit, wait, collect, teardown.

    `run` reads the journal first (`choose_entry`):
        fresh      start a new attempt
        attach     the last process was lost: go on with its attempt
        finish     the last process was lost while it was ending the run: end it
        echo       the run has ended: report the same end again
        give-up    its processes are lost again and again: stop
    From there on, whatever happens becomes an end with a sentence.

    Example: `Runner(load_profile("digits-local"), run_id, LocalReporter()).run()`
    """

    def __init__(self, profile: Profile, run_id: str, reporter: Reporter, steps: StepFunctions | None = None) -> None:
        self.profile, self.run_id, self.reporter = profile, run_id, reporter
        self.folder = RunFolder.of(profile, run_id)
        self.notifier = RunNotifier(profile, run_id, self.folder, reporter.link)
        self.started_at = time.time()
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.leftovers: list[str] = []
        self.open_attempt: tuple[int, Plan] | None = None
        self.plan: Plan | None = None
        self.archive = RunArchive(self.folder.path, self._check_owner, None)
        self.may_run = False  # whether a job may be running: only its own end or a user may end it
        self._step_functions = steps or StepFunctions()

    # --- one attempt

    def attempt(self, number: int) -> Attempt:
        """Run one attempt, from its plan to its teardown; steps that an earlier process has done are not repeated."""
        self.reporter.check_cancelled()
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        attempt_plan = self.folder.attempt_plan(number) or self._prepare(run)
        self.open_attempt, self.plan = (number, attempt_plan.plan), attempt_plan.plan
        secrets.remember_secrets(attempt_plan.plan)
        outcome = self.folder.outcome(number) or self._execute(number, attempt_plan)
        return self.close(number, attempt_plan.plan, outcome)

    def _prepare(self, run: Run) -> AttemptPlan:
        """The plan of a new attempt, checked and saved before anything is started."""
        adjusted_profile = avoid_failed_machines(self.profile, self.attempts)
        try:
            plan = self._check(adjusted_profile, run)
        except (ProfileError, PreflightError) as error:
            if adjusted_profile is self.profile:
                raise
            get_log().warning(
                "avoid_failed leaves too few machines, so the next attempt may use failed ones again: %s", error
            )
            plan = self._check(self.profile, run)
        attempt_plan = AttemptPlan(plan=backend_of(plan).prepare(), deadlines=self.profile.deadlines)
        self.folder.save_attempt_plan(run.attempt, attempt_plan)
        return attempt_plan

    def _check(self, profile: Profile, run: Run) -> Plan:
        plan = make_plan(profile, run, self.reporter)
        other_checks = check_notifications(profile, run.attempt == 1)
        self._run_step(
            "preflight", lambda: check_plan(plan, self._step_functions, self.reporter, other_checks), describe_checks
        )
        return plan

    def _execute(self, number: int, attempt_plan: AttemptPlan) -> Outcome:
        """Submit the job, or attach to the one that an earlier process submitted, and wait for its end."""
        plan, submitted_at = attempt_plan.plan, find_submission_time(self.folder.events())
        if plan.probe and submitted_at is None:
            try:
                self._run_step("rendezvous", lambda: self._step_functions.rendezvous(plan), str)
            except RendezvousError as error:
                return describe_dead_store(error)
        handle = self._run_step(
            "submit",
            lambda: self._step_functions.submit(plan, attempt_plan.deadlines, submitted_at),
            describe_submission,
        )
        self.may_run = True
        self.notifier.open(number)
        progress = Progress(plan.job, self.profile.metrics, self.reporter, self.notifier.add_row)
        on_status, describe = self.notifier.record_status, partial(describe_outcome, handle=handle)

        def publish_hang(update: HangUpdate) -> None:
            masked = secrets.mask_model(update)
            self.reporter.show_page("hang", lambda: render_hang_page(plan.job, masked))
            self.notifier.notify_hang(masked)

        outcome: Outcome = self._run_step(
            "wait", lambda: self._step_functions.wait(handle, progress, on_status, publish_hang), describe
        )
        progress.close()
        with contextlib.suppress(FolderError):  # the next process asks the supervisors again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""

        def read() -> Attempt:
            collected = self._step_functions.collect(plan, outcome, self.profile.metrics)
            return secrets.mask_model(Attempt(number=number, outcome=outcome, collected=collected))

        attempt = self._run_step("collect", read, describe_logs)
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):
            self.folder.save_ended(attempt)
        self.may_run = False
        self.leftovers += self._run_step(
            "teardown", lambda: self.remove(plan), lambda left: ", ".join(left) or "nothing left"
        )
        self.open_attempt = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """Tear an attempt down; returns what is left. A teardown that fails does not change how the job ended."""
        self._check_owner()
        try:
            return self._step_functions.teardown(plan, end_run=False)
        except RunInUseError:
            raise
        except TorchyardError as error:
            return (str(error),)

    def _run_step(self, name: str, operation: Callable[[], T], detail: Callable[[T], str]) -> T:
        """Do one step: journalled when it starts and when it is done, and timed for the report.

        RunInUseError if another process has taken the run over.
        """
        self._check_owner()
        self.folder.note("step", name=name)
        started_at = time.monotonic()
        result = operation()
        step = Step(name=name, seconds=time.monotonic() - started_at, detail=detail(result))
        self.folder.note("did", **step.model_dump())
        self.steps.append(step)
        return result

    def _check_owner(self) -> None:
        if self.plan:
            backend_of(self.plan).check_owner()

    def _try_all(self, first: int) -> RunEnd:
        """Run attempts, from the latest one on, while the budget lasts and the cause is worth another."""
        latest = max([first, *self.folder.attempts()])
        self.may_run = has_possible_job(self.folder.events())
        ended_attempts = [self.folder.ended(number) for number in range(first, latest)]
        self.attempts = [attempt for attempt in ended_attempts if attempt]
        last = first + self.profile.attempts - 1
        for number in range(latest, last + 1):
            attempt = self.attempt(number)
            if attempt.outcome.status.state == "succeeded":
                return RunEnd("succeeded", describe_success(attempt))
            failure = attempt.collected.failure
            assert failure is not None
            if not failure.retry or number == last:
                return RunEnd("failed", failure.sentence)
            get_log().warning("attempt %d failed, and its cause is worth another attempt: %s", number, failure.sentence)
        raise AssertionError("attempts is at least 1")

    # --- the run, from its beginning to its end

    def run(self) -> RunEnd:
        """Take the run from its current state to its end.

        RunInUseError if another process owns it. DetachedError if this process cannot go on and the job can.
        """
        archive = open_run_archive(self.folder.path, self._check_owner, resumes := self.reporter.count > 1)
        with self.folder.owned(), self.reporter, archive as self.archive:
            if resumes:
                takeover.fetch_past(self.folder, self.profile, self.run_id, self.archive)
            self.archive.start(self.profile)
            entry_mode = choose_entry(self.folder.events(), self.reporter.is_retry_requested)
            first = self._first_attempt(entry_mode)
            start_fields = history.build_start_fields(self.profile, self.folder)
            self.folder.note(
                "start", entry=entry_mode, run=self.run_id, count=self.reporter.count, first=first, **start_fields
            )
            if entry_mode not in ("echo", "give-up"):
                return self._run_to_end(entry_mode, first)
            self.reporter.flush()
            return self._give_up() if entry_mode == "give-up" else self._repeat_end(self.folder.last("end"))

    def _first_attempt(self, entry_mode: EntryMode) -> int:
        """The first attempt of the budget: a new one, or the first one of the process before."""
        attempts = self.folder.attempts()
        return (
            (attempts[-1] if attempts else 0) + 1
            if entry_mode == "fresh"
            else int(self.folder.last("start").get("first", 1))
        )

    def _run_to_end(self, entry_mode: EntryMode, first: int) -> RunEnd:
        """Take the run to its end; a watchdog takes over if this process dies."""
        takeover_command = (*self.reporter.watchdog, "LOST", str(self.folder.path))
        watchdog_process = Watchdog(
            ("-I", "-S", str(watchdog.__file__), self.profile.on_launcher_lost, *takeover_command)
        )
        with SignalHold() as signals, hold_folder_lease(self.folder, self.profile.deadlines.lease):
            self._load_history()
            try:
                end = (
                    self._reopen()
                    if entry_mode == "finish"
                    else protect_run(self, lambda: self._try_all(first), signals)
                )
                signals.ignore_signals()
                watchdog_process.send("ending")
                report = RunFinisher(self).finish(*end)
            except RunInUseError as error:
                self.folder.note("end", end="moved", by="flow", sentence=str(error))
                watchdog_process.send("done")
                raise
            except DetachedError as error:
                self.folder.note("left", sentence=str(error))
                get_log().warning("%s; see %s/journal", error, self.folder.path)
                raise
            watchdog_process.send("done")
        return RunEnd(report.end, report.sentence)

    def _load_history(self) -> None:
        """Read from the journal what earlier processes did, for the report."""
        events = self.folder.events()
        self.started_at, self.steps = history.find_start_time(events, self.started_at), history.list_past_steps(events)
        if sentence := history.describe_last_loss(self.steps):
            get_log().warning("%s", sentence)

    def _reopen(self) -> RunEnd:
        """Reopen the attempt that an earlier process may have left open; returns the end that it was coming to."""
        attempts, past_end = self.folder.attempts(), self.folder.last("ending")
        attempt_plan = self.folder.attempt_plan(attempts[-1]) if attempts else None
        if attempt_plan:
            self.open_attempt, self.plan = (attempts[-1], attempt_plan.plan), attempt_plan.plan
        return RunEnd(past_end["end"], past_end["sentence"])

    def _repeat_end(self, end: dict[str, Any]) -> RunEnd:
        self.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
        get_log().info("this run has ended already: %s", end["sentence"])
        self.notifier.repeat_end()
        return RunEnd(end["end"], end["sentence"])

    def _give_up(self) -> RunEnd:
        sentence = describe_loop(self.folder.lease_left(), f"{self.folder.path}/journal")
        self.folder.note("end", end="gave-up", by="flow", sentence=sentence)
        get_log().error("%s", sentence)
        self.notifier.notify_end("gave-up", sentence)
        return RunEnd("gave-up", sentence)
