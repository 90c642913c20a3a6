"""Runs one run in one process: from its current state, attempt after attempt, to its end and its report."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
from torchyard.model.run import Attempt, End, Outcome, Report, Run, RunEnd, Status, Step
from torchyard.model.trend import TrendVerdict
from torchyard.pages.hang import render_hang_page
from torchyard.pages.report import (
    describe_checks,
    describe_logs,
    describe_outcome,
    describe_submission,
    describe_success,
    render_text,
)
from torchyard.run import history, takeover, watchdog
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
from torchyard.trend.night import build_record, compare_run
from torchyard.trend.records import RunIdentity, history_path

T = TypeVar("T")


class Runner:
    """Take one run to its end. An attempt is preflight, rendezvous, submit, wait, collect, teardown.

    `run` owns the run's folder, reads its journal and chooses how to start (`choose_entry`):

        fresh      start a new attempt
        attach     the last process was lost: continue with its attempt
        finish     the last process was lost while it was ending the run: end it
        echo       the run has ended: report the same end again
        give-up    its processes are lost repeatedly: stop

    From there on every error and signal becomes an end with a sentence (`protect_run`), and `finish` records the end,
    tears down what is open and writes the report. Before each step, and before a teardown, the owner is checked again.

    Threads. All methods are called by the thread that called `run`. Other threads renew the folder's lease, copy the
    folder to the archive, and send messages and metrics; `run` tells them to stop before it returns, and waits for the
    last copy and the last messages. A watchdog process takes over if this process dies.

    Errors. `run` raises RunInUseError if another process owns the run, and DetachedError if this process cannot
    continue while the job may be running (`may_run`): the job then keeps running until its lease expires.

    Example: `Runner(load_profile("digits-local"), run_id, LocalReporter()).run()`
    """

    def __init__(self, profile: Profile, run_id: str, reporter: Reporter, steps: StepFunctions | None = None) -> None:
        self.profile = profile
        self.run_id = run_id
        self.reporter = reporter
        self.folder = RunFolder.of(profile, run_id)
        self.notifier = RunNotifier(profile, run_id, self.folder, reporter.link)
        self.archive = RunArchive(self.folder.path, self._check_owner, None)
        self.started_at = time.time()  # of the run's first process, once the journal is read
        self.may_run = False  # whether a job may be running: only its own end or a user may end it
        self.plan: Plan | None = None  # of the latest attempt
        self.open_attempt: tuple[int, Plan] | None = None  # an attempt that is not torn down yet, with its number
        self._step_functions = steps or StepFunctions()

        # For the report.
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.leftovers: list[str] = []

    # --- one attempt

    def attempt(self, number: int) -> Attempt:
        """Run one attempt, from its plan to its teardown; steps that an earlier process has done are not repeated."""
        self.reporter.check_cancelled()
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        attempt_plan = self.folder.attempt_plan(number) or self.prepare(run)
        self.open_attempt = (number, attempt_plan.plan)
        self.plan = attempt_plan.plan
        secrets.remember_secrets(attempt_plan.plan)
        outcome = self.folder.outcome(number) or self._execute(number, attempt_plan)
        return self.close(number, attempt_plan.plan, outcome)

    def prepare(self, run: Run) -> AttemptPlan:
        """Return the plan of a new attempt, checked and saved before anything is started.

        ProfileError or PreflightError if the profile cannot run, FolderError if the plan cannot be saved.
        """
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
        """Return the plan of a profile after its preflight. PreflightError if a check failed."""
        plan = make_plan(profile, run, self.reporter)
        other_checks = check_notifications(profile, is_first_attempt=run.attempt == 1)
        self._run_step(
            "preflight",
            lambda: check_plan(plan, self._step_functions, self.reporter, other_checks),
            describe_checks,
        )
        return plan

    def _execute(self, number: int, attempt_plan: AttemptPlan) -> Outcome:
        """Submit the job, or attach to the one that an earlier process submitted, and wait for its end."""
        plan = attempt_plan.plan
        functions = self._step_functions
        submitted_at = find_submission_time(self.folder.events())
        if plan.probe and submitted_at is None:
            try:
                self._run_step("rendezvous", lambda: functions.rendezvous(plan), str)
            except RendezvousError as error:
                return describe_dead_store(error)
        handle = self._run_step(
            "submit", lambda: functions.submit(plan, attempt_plan.deadlines, submitted_at), describe_submission
        )
        self.may_run = True
        self.notifier.open(number)
        progress = Progress(plan.job, self.profile.metrics, self.reporter, self.notifier.add_row)

        def publish_hang(update: HangUpdate) -> None:
            masked = secrets.mask_model(update)
            self.reporter.show_page("hang", lambda: render_hang_page(plan.job, masked))
            self.notifier.notify_hang(masked)

        outcome: Outcome = self._run_step(
            "wait",
            lambda: functions.wait(handle, progress, self.notifier.record_status, publish_hang),
            partial(describe_outcome, handle=handle),
        )
        progress.close()
        with contextlib.suppress(FolderError):  # the next process queries the supervisors again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""

        def collect_attempt() -> Attempt:
            collected = self._step_functions.collect(plan, outcome, self.profile.metrics)
            return secrets.mask_model(Attempt(number=number, outcome=outcome, collected=collected))

        attempt = self._run_step("collect", collect_attempt, describe_logs)
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):  # the next process collects again
            self.folder.save_ended(attempt)
        self.may_run = False
        leftovers = self._run_step("teardown", lambda: self.remove(plan), _describe_leftovers)
        self.leftovers += leftovers
        self.open_attempt = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """Tear an attempt down; return its leftovers, empty if there are none.

        A teardown that fails does not change how the job ended: its error is a leftover. RunInUseError if another
        process owns the run by now.
        """
        self._check_owner()
        try:
            return self._step_functions.teardown(plan, end_run=False)
        except RunInUseError:
            raise
        except TorchyardError as error:
            return (str(error),)

    def _run_step(self, name: str, operation: Callable[[], T], describe: Callable[[T], str]) -> T:
        """Run one step: journalled when it starts and when it is done, and timed for the report.

        RunInUseError if another process has taken the run over.
        """
        self._check_owner()
        self.folder.record_event("step", name=name)
        started_at = time.monotonic()
        result = operation()
        step = Step(name=name, seconds=time.monotonic() - started_at, detail=describe(result))
        self.folder.record_event("step-end", **step.model_dump())
        self.steps.append(step)
        return result

    def _check_owner(self) -> None:
        """RunInUseError if another process has taken the run over; nothing is checked before there is a plan."""
        if self.plan:
            backend_of(self.plan).check_owner()

    def _try_all(self, first: int) -> RunEnd:
        """Run attempts, from the latest one on, while the budget lasts and the cause is worth another attempt."""
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

    # --- the run, from its start to its end

    def run(self) -> RunEnd:
        """Take the run from its current state to its end.

        RunInUseError if another process owns it. DetachedError if this process cannot continue and the job can.
        """
        is_resumed = self.reporter.count > 1
        archive = open_run_archive(self.folder.path, self._check_owner, is_resumed=is_resumed)
        with self.folder.owned(), self.reporter, archive as self.archive:
            if is_resumed:
                takeover.fetch_past(self.folder, self.profile, self.run_id, self.archive)
            self.archive.start(self.profile)
            entry_mode = choose_entry(self.folder.events(), self.reporter.is_retry_requested)
            first = self._find_first_attempt(entry_mode)
            start_fields = history.build_start_fields(self.profile, self.folder)
            self.folder.record_event(
                "start", entry=entry_mode, run=self.run_id, count=self.reporter.count, first=first, **start_fields
            )
            if entry_mode not in ("echo", "give-up"):
                return self._run_to_end(entry_mode, first)
            self.reporter.flush()
            return self._give_up() if entry_mode == "give-up" else self._repeat_end(self.folder.last("end"))

    def _find_first_attempt(self, entry_mode: EntryMode) -> int:
        """The first attempt of the budget: a new one, or the first one of the previous process."""
        if entry_mode != "fresh":
            return int(self.folder.last("start").get("first", 1))
        numbers = self.folder.attempts()
        return numbers[-1] + 1 if numbers else 1

    def _run_to_end(self, entry_mode: EntryMode, first: int) -> RunEnd:
        """Take the run to its end; a watchdog takes over if this process dies."""
        takeover_command = (*self.reporter.watchdog, "LOST", str(self.folder.path))
        watchdog_process = Watchdog(
            ("-I", "-S", str(watchdog.__file__), self.profile.on_launcher_lost, *takeover_command)
        )
        with SignalHold() as signals, hold_folder_lease(self.folder, self.profile.deadlines.lease):
            self._load_history()
            try:
                if entry_mode == "finish":
                    end = self._reopen()
                else:
                    end = protect_run(self, lambda: self._try_all(first), signals)
                signals.ignore_signals()
                watchdog_process.send("ending")
                report = self.finish(*end)
            except RunInUseError as error:
                self.folder.record_event("end", end="moved", by="flow", sentence=str(error))
                watchdog_process.send("done")
                raise
            except DetachedError as error:
                self.folder.record_event("left", sentence=str(error))
                get_log().warning("%s; see %s/journal", error, self.folder.path)
                raise
            watchdog_process.send("done")
        return RunEnd(report.end, report.sentence)

    def _load_history(self) -> None:
        """Read from the journal what earlier processes did, for the report."""
        events = self.folder.events()
        self.started_at = history.find_start_time(events, self.started_at)
        self.steps = history.list_past_steps(events)
        loss = history.describe_last_loss(self.steps)
        if loss:
            get_log().warning("%s", loss)

    def _reopen(self) -> RunEnd:
        """Reopen the attempt that an earlier process may have left open; return the end that it had recorded."""
        numbers = self.folder.attempts()
        attempt_plan = self.folder.attempt_plan(numbers[-1]) if numbers else None
        if attempt_plan:
            self.open_attempt = (numbers[-1], attempt_plan.plan)
            self.plan = attempt_plan.plan
        ending = self.folder.last("ending")
        return RunEnd(ending["end"], ending["sentence"])

    def _repeat_end(self, end: dict[str, Any]) -> RunEnd:
        """Report the recorded end again, and send the messages about it that could not be sent before."""
        self.folder.record_event("end", end=end["end"], by="flow", sentence=end["sentence"])
        get_log().info("this run has ended already: %s", end["sentence"])
        self.notifier.repeat_end()
        return RunEnd(end["end"], end["sentence"])

    def _give_up(self) -> RunEnd:
        """End a run whose processes are lost repeatedly; its job is not touched."""
        sentence = describe_loop(self.folder.remaining_lease_s(), f"{self.folder.path}/journal")
        self.folder.record_event("end", end="gave-up", by="flow", sentence=sentence)
        get_log().error("%s", sentence)
        self.notifier.notify_end("gave-up", sentence)
        return RunEnd("gave-up", sentence)

    # --- the end, with signals ignored

    def finish(self, end: End, sentence: str) -> Report:
        """Record the end, tear down what is still open, write the report, and show it. The caller ignores signals.

        A run that succeeded ends as failed if its number became worse and its profile asks for that.
        RunInUseError if another process owns the run by now.
        """
        trend, history_file = self._compare(end)
        if trend and trend.verdict == "worse" and self.profile.trend and self.profile.trend.on_regression == "fail":
            end = "failed"
            sentence = f"{trend.sentence}; see {history_file}"
        self._record_ending(end, sentence)
        if self.open_attempt:
            number, plan = self.open_attempt
            self._stop_attempt(number, plan, sentence)
        report = Report(
            profile=self.profile.name,
            run=self.folder.name,
            end=end,
            sentence=sentence,
            seconds=time.time() - self.started_at,
            steps=tuple(self.steps),
            attempts=tuple(self.attempts),
            leftovers=self._list_leftovers(),
            folder=str(self.folder.path),
            trend=trend,
            history=str(history_file),
            archive=self.archive.describe(),
        )
        report = secrets.mask_model(report)
        self.folder.record_event("end", end=end, by="flow", sentence=report.sentence)
        self._release()
        report = report.model_copy(update={"leftovers": self._list_leftovers()})
        report = report.model_copy(update={"unsent": self.notifier.finish(report)})
        self._publish(report)
        missing = self.archive.settle()
        if missing:
            report = report.model_copy(update={"archive": missing})
            self._publish(report)
        return report

    def _list_leftovers(self) -> tuple[str, ...]:
        """The leftovers so far, each once, with secrets masked."""
        return tuple(dict.fromkeys(map(secrets.mask_text, self.leftovers)))

    def _publish(self, report: Report) -> None:
        """Log, save and show the report. A report that cannot be saved is an error in the log."""
        get_log().info("\n%s", render_text(report))
        try:
            self.folder.save_report(report)
        except FolderError as error:
            get_log().error("the report is not on disk: %s", error)
        self.reporter.show_report(report)

    def _compare(self, end: End) -> tuple[TrendVerdict | None, Path]:
        """Save the run's numbers and compare them with those of earlier runs.

        Returns the verdict, None if nothing is compared, and the path of the history.
        """
        runs = self.folder.path.parent
        identity = RunIdentity(self.folder.name, round(self.started_at, 3))
        collected = self.attempts[-1].collected if self.attempts else None
        record = build_record(self.profile, identity, end, collected)
        self.archive.save_record(record)
        return compare_run(runs, record), history_path(runs, record.key)

    def _record_ending(self, end: End, sentence: str) -> None:
        """Record the end for the next process, in the journal and where another machine can read it."""
        sentence = secrets.mask_text(sentence)
        self.folder.record_event("ending", end=end, sentence=sentence)
        if self.open_attempt:
            _, plan = self.open_attempt
            backend_of(plan).record_ending(end, sentence)

    def _stop_attempt(self, number: int, plan: Plan, reason: str) -> None:
        """End an open attempt early: stop it and read its last lines, remove it, and collect its logs."""
        outcome = self.folder.outcome(number)
        if not outcome:
            lost_lines = backend_of(plan).stop_unwatched()
            status = Status(state="failed", reason=reason)
            outcome = Outcome(status=status, cause="stopped", exit_codes={}, lost=lost_lines)
        self.leftovers += self.remove(plan)
        try:
            self.close(number, plan, outcome)
        except RunInUseError:
            raise
        except TorchyardError as error:
            self.leftovers.append(str(error))

    def _release(self) -> None:
        """Stop renewing the lease, and release the run if nothing is left; leftovers are for the sweep."""
        if not self.plan:
            return
        backend = backend_of(self.plan)
        backend.abandon_lease()
        try:
            if not self.leftovers:
                backend.release()
        except TorchyardError as error:
            self.leftovers.append(str(error))


def _describe_leftovers(leftovers: tuple[str, ...]) -> str:
    return ", ".join(leftovers) or "nothing left"
