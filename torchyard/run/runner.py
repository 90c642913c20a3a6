"""Runs one run in one process: from its current state, attempt after attempt, to its end and its report."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar, assert_never

from torchyard.backends import job_of, owner_of
from torchyard.common import secrets
from torchyard.common.log import get_log
from torchyard.common.text import format_duration
from torchyard.machines.processes import Watchdog
from torchyard.model.errors import (
    ClusterError,
    DetachedError,
    FolderError,
    HostError,
    PreflightError,
    ProfileError,
    RendezvousError,
    RunInUseError,
    TorchyardError,
    list_findings,
)
from torchyard.model.event import (
    AttemptStarted,
    BadLossRead,
    JobEvent,
    RankFailed,
    ReportWritten,
    RowsRead,
    RunStarted,
    StatusRead,
    StopRequested,
    StopWithdrawn,
    WaitEnded,
)
from torchyard.model.finding import Finding, describe_checks
from torchyard.model.hang import HangUpdate
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines, Profile
from torchyard.model.run import (
    Attempt,
    End,
    EndedRun,
    Handle,
    LogFile,
    Outcome,
    Report,
    Run,
    RunEnd,
    Step,
)
from torchyard.run import history, takeover, watchdog
from torchyard.run.control import RunControl
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.folder_lease import hold_folder_lease
from torchyard.run.next_attempt import avoid_failed_machines, find_resume_point, may_try_again
from torchyard.run.preview import check_plan, choose_port, make_plan
from torchyard.run.result import build_report, describe_end
from torchyard.run.resume import EntryMode, choose_entry, describe_loop
from torchyard.run.services import Archive, NoArchive, RunServices, Sinks
from torchyard.run.signals import STOP_EXCEPTIONS, SignalHold, describe_stop, protect_run, report_internal_error
from torchyard.run.stop import StopCountdown, record_stop, stop_job
from torchyard.steps.details import (
    describe_leftovers,
    describe_logs,
    describe_outcome,
    describe_submission,
    describe_success,
)
from torchyard.steps.rendezvous import describe_dead_store
from torchyard.steps.step_functions import StepFunctions

T = TypeVar("T")
_LIVE_QUERY_INTERVAL_S = 10.0  # between two queries whether an attempt's processes have ended
_PREFLIGHT_INTERVAL_S = 10.0  # between two preflights of an attempt that waits for its machines
_CANCEL_POLL_INTERVAL_S = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would delay

_ABSENT_LOG_REASON = "it was read on another machine, which was lost before the log was archived"


class OpenAttempt(NamedTuple):
    """An attempt that is not torn down yet: its number in the run, from 1 on, and its saved plan and deadlines."""

    number: int
    plan: Plan
    deadlines: Deadlines


class Runner:
    """Take one run to its end: `run_pipeline` shows the steps of its attempts.

    `run` owns the run's folder, reads its journal and chooses how to start (`choose_entry`):

        fresh      start a new attempt
        attach     the last process was lost: continue with its attempt
        finish     the last process was lost while it was ending the run: end it
        echo       the run has ended: report the same end again
        give-up    its processes are lost repeatedly: stop

    From there on every error and signal becomes an end with a sentence (`protect_run`), and `finish` records the end,
    tears down what is open and writes the report. Before each step, and before a teardown, the owner is checked again.

    Events. What happens is emitted to the sinks of `services`, which show, record and send it (torchyard/sinks).

    Threads. All methods are called by the thread that called `run`. Other threads renew the folder's lease, copy the
    folder to the archive, and send messages and metrics; `run` tells them to stop before it returns, and waits for the
    last copy and the last messages. A watchdog process takes over if this process dies.

    Errors. `run` raises RunInUseError if another process owns the run, and DetachedError if this process cannot
    continue while the job may be running (`may_run`): the job then keeps running until its lease expires.

    Example: `create_runner(load_profile("digits-local"), run_id, LocalControl()).run()` (torchyard/assembly.py)
    """

    def __init__(
        self,
        profile: Profile,
        run_id: str,
        control: RunControl,
        services: RunServices,
        steps: StepFunctions | None = None,
    ) -> None:
        self.profile = profile
        self.run_id = run_id
        self.control = control
        self.folder = RunFolder.of(profile, run_id)
        self.services = services
        self.sinks = Sinks(self.services.sinks)
        self.archive: Archive = NoArchive()  # until the run is started
        self.started_at = time.time()  # of the run's first process, once the journal is read
        self.may_run = False  # whether a job may be running: only its own end or a user may end it
        self.plan: Plan | None = None  # of the latest attempt
        self.open_attempt: OpenAttempt | None = None
        self._step_functions = steps or StepFunctions()
        self._first_number = 1  # of the first attempt of the budget
        self._second_interrupt = threading.Event()  # a second Ctrl-C, while the job is being stopped

        # For the report.
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.leftovers: list[str] = []

    # --- the pipeline

    def run_pipeline(self, first_number: int) -> RunEnd:
        """Run attempts, each of six steps, until one succeeds or its failure is not worth another; return the end.

        `first_number`: of the attempt to start with, which an earlier process may have started. A step that such a
        process has finished is not repeated: its method returns what was recorded.
        """
        for number in itertools.count(first_number):
            attempt = self.preflight(number)
            outcome = self.folder.outcome(number)
            if outcome is None:
                try:
                    self.ensure_rendezvous(attempt)
                    handle = self.submit(attempt)
                    outcome = self.wait(attempt, handle)
                except RendezvousError as error:
                    outcome = describe_dead_store(error)
                    self._save_outcome(number, outcome)
            ended = self.collect(attempt, outcome)
            leftovers = self.teardown(attempt)
            if not may_try_again(self.attempts, self.profile, first_number=self._first_number):
                return _build_end(ended)
            live_processes = self._await_processes(attempt, leftovers)
            if live_processes:
                return _build_blocked_end(ended, live_processes)
        raise AssertionError("there is always another number")

    def preflight(self, number: int) -> OpenAttempt:
        """Check the plan of an attempt and save it before anything is started; return the attempt, which is open now.

        The attempt of an earlier process keeps its plan. ProfileError or PreflightError if the profile cannot run,
        FolderError if the plan cannot be saved.
        """
        self.control.check_cancelled()
        attempt_plan = self.folder.attempt_plan(number)
        if attempt_plan is None:
            resume = find_resume_point(self.folder, self.profile, self.attempts)
            if resume:
                get_log().info("attempt %d continues from %s", number, resume.path)
            run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path), resume=resume)
            plan = self._check_new_plan(run)
            attempt_plan = AttemptPlan(plan=job_of(plan).prepare(), deadlines=self.profile.deadlines)
            self.folder.save_attempt_plan(number, attempt_plan)
        self.open_attempt = OpenAttempt(number, attempt_plan.plan, attempt_plan.deadlines)
        self.plan = attempt_plan.plan
        secrets.remember_secrets(attempt_plan.plan)
        return self.open_attempt

    def _check_new_plan(self, run: Run) -> Plan:
        """The plan of a new attempt after its preflight, which a later attempt repeats until it passes."""
        return self._await_preflight(run) if self.attempts else self._check_plan(self.profile, run)

    def _await_preflight(self, run: Run) -> Plan:
        """The plan of a later attempt, whose preflight is repeated until it passes, for as long as `deadlines.start`.

        The first attempt has passed it: what fails now, such as room on a drained node or a controller that starts
        again, may return. After the time, the error of the last preflight is raised.
        """
        wait_s = self.profile.deadlines.start
        deadline = time.monotonic() + wait_s
        last_message = ""
        while True:
            try:
                return self._check_later_plan(run)
            except (PreflightError, ClusterError, HostError) as error:
                if time.monotonic() >= deadline:
                    raise
                message = str(error)
            if message != last_message:
                text = "attempt %d cannot start yet, and waits, at most %s (deadlines.start): %s"
                get_log().warning(text, run.attempt, format_duration(wait_s), message)
                last_message = message
            self._pause_until(min(time.monotonic() + _PREFLIGHT_INTERVAL_S, deadline))

    def _check_later_plan(self, run: Run) -> Plan:
        """The plan of a later attempt, which avoids the failed machines if enough others are left. Preflight's errors.

        A check that could not be made, because a server or a host does not answer, does not show that they are too few.
        """
        adjusted_profile = avoid_failed_machines(self.profile, self.attempts)
        if adjusted_profile is self.profile:
            return self._check_plan(self.profile, run)
        try:
            return self._check_plan(adjusted_profile, run)
        except ProfileError as error:  # the first attempt was planned: what fails is the avoidance
            reason = str(error)
        except PreflightError as error:
            if not any(finding.lacks_room for finding in list_findings(error)):
                raise
            reason = str(error)
        plan = self._check_plan(self.profile, run)
        text = "avoid_failed leaves too few machines, so the next attempt may use failed ones again: %s"
        get_log().warning(text, reason)
        return plan

    def _check_plan(self, profile: Profile, run: Run) -> Plan:
        """The plan of a profile after its preflight. PreflightError if a check failed."""

        def check_run(run: Run) -> Plan:
            plan = make_plan(profile, run, self.sinks)
            self._run_step(
                "preflight",
                lambda: check_plan(plan, self._step_functions, self.sinks, is_first_attempt=run.attempt == 1),
                describe_checks,
            )
            return plan

        return choose_port(run, check_run)

    def ensure_rendezvous(self, attempt: OpenAttempt) -> None:
        """Start what a job that is not submitted yet needs before it, such as its store. RendezvousError."""
        if attempt.plan.has_store and self.folder.read_record().submitted_at is None:
            self._run_step(
                "rendezvous",
                lambda: self._step_functions.rendezvous(attempt.plan),
                _describe_store,
            )

    def submit(self, attempt: OpenAttempt) -> Handle:
        """Submit the job, or attach to the one that an earlier process has submitted."""
        submitted_at = self.folder.read_record().submitted_at
        handle = self._run_step(
            "submit",
            lambda: self._step_functions.submit(attempt.plan, attempt.deadlines, submitted_at),
            describe_submission,
        )
        self.may_run = True
        return handle

    def wait(self, attempt: OpenAttempt, handle: Handle) -> Outcome:
        """Wait for the end of the job; its rows, states and hangs are emitted meanwhile; a cancel ends the wait."""
        self.sinks.emit(AttemptStarted(attempt.number, attempt.plan.job))
        has_started = False

        def take(event: JobEvent) -> None:
            nonlocal has_started
            match event:
                case RowsRead():
                    self.control.check_cancelled()
                    self.sinks.emit(event._replace(rows=tuple(map(secrets.mask_row, event.rows))))
                case StatusRead():
                    if event.status.state == "running" and not has_started:
                        has_started = True
                        self.folder.record_event("running", attempt=attempt.number, waited_s=round(event.waited_s, 1))
                    self.sinks.emit(event._replace(status=secrets.mask_model(event.status)))
                case BadLossRead():
                    self.sinks.emit(BadLossRead(secrets.mask_model(event.bad_loss)))
                case StopRequested():
                    record_stop(self.folder, attempt.number, event.stop)
                case StopWithdrawn():
                    self.folder.record_event("stop-withdrawn", attempt=attempt.number)
                case HangUpdate():
                    self.sinks.emit(secrets.mask_model(event))
                case RankFailed():
                    self.sinks.emit(event._replace(lines=tuple(map(secrets.mask_text, event.lines))))
                case _:
                    assert_never(event)

        outcome: Outcome = self._run_step(
            "wait", lambda: self._step_functions.wait(handle, take), partial(describe_outcome, handle=handle)
        )
        self.sinks.emit(WaitEnded())
        self._save_outcome(attempt.number, outcome)
        return outcome

    def _save_outcome(self, number: int, outcome: Outcome) -> None:
        """Save an attempt's outcome for the next process. If that fails, the next process observes or ends it again."""
        with contextlib.suppress(FolderError):
            self.folder.save_outcome(number, outcome)

    def collect(self, attempt: OpenAttempt, outcome: Outcome) -> Attempt:
        """Read the logs of the ended job; return the attempt as the report shows it.

        What an earlier process has recorded of them is returned as it is: it may have been the last one that had them.
        """
        recorded = self.attempts[-1] if self.attempts else None
        if recorded and recorded.number == attempt.number and recorded.outcome == secrets.mask_model(outcome):
            self.may_run = False
            return recorded

        def collect_attempt() -> Attempt:
            self.archive.await_logs(attempt.number)  # of a job whose end an earlier process has seen
            collected = self._step_functions.collect(attempt.plan, outcome)
            return secrets.mask_model(Attempt(number=attempt.number, outcome=outcome, collected=collected))

        ended = self._run_step("collect", collect_attempt, describe_logs)
        self.attempts = [earlier for earlier in self.attempts if earlier.number < attempt.number]
        self.attempts.append(ended)
        with contextlib.suppress(FolderError):  # the next process collects again
            self.folder.save_checkpoints(ended.number, ended.collected.checkpoints)
            self.folder.save_ended(ended)
        saved_work = ended.collected.saved_work
        if saved_work:
            get_log().info("%s", saved_work.sentence)
        self.may_run = False
        return ended

    def teardown(self, attempt: OpenAttempt, *, is_removed: bool = False) -> tuple[str, ...]:
        """Remove everything of the attempt, which is then no longer open; return its leftovers, empty if none.

        `is_removed`: it is proven that nothing remains, so the step is only recorded.
        """
        leftovers = self._run_step(
            "teardown", lambda: () if is_removed else self.remove(attempt.plan), describe_leftovers
        )
        self.leftovers += leftovers
        self.open_attempt = None
        return leftovers

    def _await_processes(self, attempt: OpenAttempt, leftovers: tuple[str, ...]) -> list[str]:
        """Wait until no process of a removed attempt can run: the next one shares its hosts, files and checkpoints.

        `leftovers`: of its teardown. A host that cannot be reached is queried until its processes have ended with their
        lease. Returns the processes that may run even then; empty if the next attempt may start.
        """
        if not leftovers:
            return []
        job = job_of(attempt.plan)
        wait_s = attempt.deadlines.lease + attempt.deadlines.grace
        live_processes = job.list_live_processes(ended_after_s=wait_s)
        deadline = time.monotonic() + wait_s
        if live_processes:
            message = "the next attempt starts once the processes of this one have ended, in %.0f s at the latest: %s"
            get_log().warning(message, wait_s, "; ".join(live_processes))
        while live_processes and time.monotonic() < deadline:
            self._check_owner()
            self._pause_until(min(time.monotonic() + _LIVE_QUERY_INTERVAL_S, deadline))
            live_processes = job.list_live_processes(ended_after_s=wait_s)
        if not live_processes:  # what its hosts still have can be fetched now, if they answer
            self.leftovers = [leftover for leftover in self.leftovers if leftover not in leftovers]
            self.leftovers += self.remove(attempt.plan)
        return live_processes

    def _pause_until(self, deadline: float) -> None:
        """Wait until `deadline`, in monotonic seconds; a cancel ends the wait."""
        while time.monotonic() < deadline:
            self.control.check_cancelled()
            time.sleep(min(_CANCEL_POLL_INTERVAL_S, max(0.0, deadline - time.monotonic())))

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
            owner_of(self.plan).check()

    def _load_attempts(self, first: int) -> int:
        """Read what earlier processes have recorded, and reopen their last attempt; return its number.

        `first`: the number of the first attempt of the budget, which is returned if it was not started.
        """
        self.may_run = self.folder.read_record().has_possible_job
        latest = max([first, *self.folder.attempts()])
        ended_attempts = [self.folder.ended(number) for number in range(first, latest + 1)]
        self.attempts = [_mark_absent_logs(attempt) for attempt in ended_attempts if attempt]
        attempt_plan = self.folder.attempt_plan(latest)
        if attempt_plan:
            self.open_attempt = OpenAttempt(latest, attempt_plan.plan, attempt_plan.deadlines)
            self.plan = attempt_plan.plan
            secrets.remember_secrets(attempt_plan.plan)
        return latest

    # --- the run, from its start to its end

    def run(self) -> EndedRun:
        """Take the run from its current state to its end; return the end, with the report of a run that ended here.

        RunInUseError if another process owns it. DetachedError if this process cannot continue and the job can, which
        is every error of a run that has begun, until its end is recorded. A Ctrl-C or SIGTERM that arrives before the
        steps of a new run, when nothing is started, is raised as it is.
        """
        with self._detach_at_error():
            return self._run()

    @contextlib.contextmanager
    def _detach_at_error(self) -> Iterator[None]:
        """Raise each error of the block as a DetachedError, if the run has begun and its end is not recorded.

        So is a Ctrl-C or SIGTERM outside of `protect_run`, before the job could be stopped. An orchestrator gets its
        stop as it is, because it decides what follows.
        """
        stops: tuple[type[BaseException], ...] = (*STOP_EXCEPTIONS, *self.control.stops)
        try:
            yield
        except (RunInUseError, DetachedError):
            raise
        except Exception as error:
            if not self._may_be_left():
                raise
            reason = str(error) if isinstance(error, TorchyardError) else report_internal_error(error)
            raise DetachedError(reason) from error
        except stops as stop:
            if self.control.is_automatic or not self._may_be_left():
                raise
            raise DetachedError(f"stopped by {describe_stop(stop)}") from stop

    def _may_be_left(self) -> bool:
        """Whether the run has begun, here or in an earlier process, and may not have ended."""
        has_begun = self.control.count > 1 or self.plan is not None
        return has_begun and not self._has_recorded_end()

    @contextlib.contextmanager
    def _journal_departure(self) -> Iterator[None]:
        """Record in the journal that this process leaves the run to the next one, if the block raises DetachedError."""
        try:
            with self._detach_at_error():
                yield
        except DetachedError as error:
            self.folder.record_event("left", sentence=str(error))
            get_log().warning("%s; see %s/journal", error, self.folder.path)
            raise

    def _has_recorded_end(self) -> bool:
        """Whether the journal proves that the run has ended."""
        try:
            return self.folder.read_record().end not in ("", "moved")
        except FolderError:
            return False

    def _run(self) -> EndedRun:
        """Own the run, bring its past up to date, and take it to its end, if it has not ended. Errors as for `run`."""
        is_resumed = self.control.count > 1
        archive = self.services.open_archive(self.folder.path, self._check_owner, is_resumed=is_resumed)
        with self.folder.owned(), self.control, archive as self.archive:
            if is_resumed:
                takeover.fetch_past(self.folder, self.profile, self.run_id, self.archive)
            self.archive.start(self.profile)
            entry_mode = choose_entry(
                self.folder.read_record(),
                self.control.is_retry_requested,
                time.time(),
                is_automatic=self.control.is_automatic,
            )
            first = self._find_first_attempt(entry_mode)
            start_fields = history.build_start_fields(self.profile, self.folder)
            self.folder.record_event(
                "start",
                entry=entry_mode,
                run=self.run_id,
                flow_run=self.control.flow_run_id,
                count=self.control.count,
                first=first,
                **start_fields,
            )
            with self._journal_departure():
                if entry_mode not in ("echo", "give-up"):
                    return self._run_to_end(entry_mode, first)
                return self._give_up() if entry_mode == "give-up" else self._repeat_end()

    def _find_first_attempt(self, entry_mode: EntryMode) -> int:
        """The first attempt of the budget: a new one, or the first one of the previous process."""
        if entry_mode != "fresh":
            return int(self.folder.read_record().last_start.get("first", 1))
        numbers = self.folder.attempts()
        return numbers[-1] + 1 if numbers else 1

    def _run_to_end(self, entry_mode: EntryMode, first: int) -> EndedRun:
        """Take the run to its end; a watchdog takes over if this process dies."""
        takeover_command = (*self.control.watchdog, "LOST", str(self.folder.path))
        watchdog_process = Watchdog(
            ("-I", "-S", str(watchdog.__file__), self.profile.on_launcher_lost, *takeover_command)
        )
        self.sinks.emit(RunStarted())
        with SignalHold() as signals, hold_folder_lease(self.folder, self.profile.deadlines.lease):
            self._load_history()
            self._first_number = first
            number = first
            if entry_mode == "fresh":
                with contextlib.suppress(FolderError):  # the report of this start replaces it
                    self.folder.remove_report()
            else:  # outside of `protect_run`: until the open attempt is known, its job could not be stopped
                number = self._load_attempts(first)
            try:
                if entry_mode == "finish":
                    end = self._read_ending()
                else:
                    end = protect_run(self, lambda: self.run_pipeline(number), signals)
                signals.ignore_signals()
                signals.call_at_interrupt(self._second_interrupt.set)
                watchdog_process.send("ending")
                report = self.finish(*end)
            except RunInUseError as error:
                self.folder.record_event("end", end="moved", by="flow", sentence=str(error))
                watchdog_process.send("done")
                raise
            watchdog_process.send("done")
        return EndedRun(report.end, report.sentence, report)

    def _load_history(self) -> None:
        """Read from the journal what earlier processes did, for the report."""
        record = self.folder.read_record()
        self.started_at = history.find_start_time(record, self.started_at)
        self.steps = history.list_past_steps(record)
        loss = history.describe_last_loss(self.steps)
        if loss:
            get_log().warning("%s", loss)

    def _read_ending(self) -> RunEnd:
        """The end that an earlier process was coming to when it was lost: this one has begun already."""
        ending = self.folder.read_record().find_last("ending")
        return RunEnd(ending["end"], ending["sentence"])

    def _repeat_end(self) -> EndedRun:
        """Report the recorded end again: sinks send the messages about it that could not be sent before."""
        end = self.folder.read_record().find_last("end")
        ended_at = end.get("ended_at", end["at"])
        self.folder.record_event("end", end=end["end"], by="flow", sentence=end["sentence"], ended_at=ended_at)
        get_log().info("this run has ended already: %s", end["sentence"])
        with contextlib.suppress(FolderError):  # without its report, nothing can be sent about it
            report = self.folder.report()
            if report:
                self.sinks.end(report)
        return EndedRun(end["end"], end["sentence"])

    def _give_up(self) -> EndedRun:
        """End a run whose processes are lost repeatedly; its job is not touched."""
        sentence = describe_loop(self.folder.remaining_lease_s(), f"{self.folder.path}/journal")
        self.folder.record_event("end", end="gave-up", by="flow", sentence=sentence)
        get_log().error("%s", sentence)
        record = self.folder.read_record()
        report = build_report(
            self.folder,
            self.profile.name,
            RunEnd("gave-up", sentence),
            started_at=history.find_start_time(record, self.started_at),
            steps=history.list_past_steps(record),
            attempts=(),  # the one that may still run has no end
        )
        self.sinks.end(secrets.mask_model(report))
        return EndedRun("gave-up", sentence)

    # --- the end, with signals ignored

    def finish(self, end: End, sentence: str, findings: tuple[Finding, ...] = ()) -> Report:
        """Record the end, tear down what is still open, write the report, and show it. The caller ignores signals.

        A run that succeeded ends as failed if its number became worse and its profile asks for that.
        `findings`: what prevented the next attempt; empty if nothing did.
        RunInUseError if another process owns the run by now.
        """
        collected = self.attempts[-1].collected if self.attempts else None
        trend, history_file = self.services.judge(self.profile, self.folder.path, end, collected, self.started_at)
        if trend and trend.verdict == "worse" and self.profile.trend and self.profile.trend.on_regression == "fail":
            end = "failed"
            sentence = f"{trend.sentence}; see {history_file}"
        self._record_ending(end, sentence)
        if self.open_attempt:
            self._stop_attempt(self.open_attempt, sentence)
        sentence = describe_end(end, sentence, self.attempts)
        report = build_report(
            self.folder,
            self.profile.name,
            RunEnd(end, sentence, findings),
            started_at=self.started_at,
            steps=self.steps,
            attempts=self.attempts,
        )
        self._release()
        additions = {
            "trend": trend,
            "history": history_file,
            "archive": self.archive.describe(),
            "leftovers": self._list_leftovers(),
        }
        report = secrets.mask_model(report.model_copy(update=additions))
        self._save_report(report)  # before the end is recorded: after it no process does what this one has not done
        self.folder.record_event("end", end=end, by="flow", sentence=report.sentence)
        report = report.model_copy(update={"unsent": self.sinks.end(report)})
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
        """Save the report and emit it."""
        self._save_report(report)
        self.sinks.emit(ReportWritten(report))

    def _save_report(self, report: Report) -> None:
        """Write the report. If it cannot be written, that is an error in the log: the run has ended in any case."""
        try:
            self.folder.save_report(report)
        except FolderError as error:
            get_log().error("the report is not on disk: %s", error)

    def _record_ending(self, end: End, sentence: str) -> None:
        """Record the end for the next process, in the journal and where another machine can read it."""
        sentence = secrets.mask_text(sentence)
        self.folder.record_event("ending", end=end, sentence=sentence)
        if self.open_attempt:
            owner_of(self.open_attempt.plan).record_ending(end, sentence)

    def _stop_attempt(self, attempt: OpenAttempt, reason: str) -> None:
        """End an attempt that is still open: stop its job unless that has ended, remove it, and collect its logs."""
        job = job_of(attempt.plan)
        outcome = self.folder.outcome(attempt.number)
        if outcome:
            leftovers = self.remove(attempt.plan)  # before the logs are read: others wait for the machines
        else:
            countdown = StopCountdown(
                job.kill,
                self._second_interrupt,
                grace_s=attempt.deadlines.grace,
                is_interactive=not self.control.flow_run_id,
            )
            with countdown:
                attempt_plan = AttemptPlan(plan=attempt.plan, deadlines=attempt.deadlines)
                outcome = stop_job(self.folder, attempt.number, attempt_plan, reason)
                leftovers = self.remove(attempt.plan)  # on machines this stops the job
            if not leftovers:  # else the job may still run
                self._save_outcome(attempt.number, outcome)
        self.leftovers += leftovers
        try:
            self.collect(attempt, outcome)
        except RunInUseError:
            raise
        except Exception as error:  # the end is decided: a log that cannot be read must not prevent it for ever
            is_expected = isinstance(error, (TorchyardError, OSError))
            reason = str(error) if is_expected else report_internal_error(error)
            self.leftovers.append(f"the logs of {attempt.plan.job} cannot be read: {reason}")
        self.teardown(attempt, is_removed=not leftovers)

    def _release(self) -> None:
        """Stop renewing the lease, and release the run if nothing is left; leftovers are for the sweep."""
        if not self.plan:
            return
        owner = owner_of(self.plan)
        owner.abandon()
        try:
            if not self.leftovers:
                owner.release()
        except TorchyardError as error:
            self.leftovers.append(str(error))


def _mark_absent_logs(attempt: Attempt) -> Attempt:
    """The attempt, whose logs are incomplete if the machine that has read them was another one, and kept them."""
    logs: list[LogFile] = []
    for log in attempt.collected.logs:
        is_lost = log.lines > 0 and not log.lost and _is_absent(log.path)
        logs.append(log.model_copy(update={"lost": _ABSENT_LOG_REASON}) if is_lost else log)
    collected = attempt.collected.model_copy(update={"logs": tuple(logs)})
    return attempt.model_copy(update={"collected": collected})


def _is_absent(path: str) -> bool:
    """Whether a file does not exist; False if that cannot be found out."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _build_end(attempt: Attempt) -> RunEnd:
    """The end of a run whose last attempt this is."""
    if attempt.outcome.status.state == "succeeded":
        return RunEnd("succeeded", describe_success(attempt))
    assert attempt.collected.failure is not None
    return RunEnd("failed", attempt.collected.failure.sentence)


def _build_blocked_end(attempt: Attempt, live_processes: list[str]) -> RunEnd:
    """The end of a run whose next attempt would share hosts or files with processes of this one."""
    end = _build_end(attempt)
    blocked = "another attempt is not started, because processes of this one may still run"
    return RunEnd(end.end, f"{end.sentence}; {blocked}: {'; '.join(live_processes)}")


def _describe_store(url: str | None) -> str:
    """The result of the step before the job. `url`: of the rendezvous store; None if other objects were created."""
    return url or "the objects beside the job exist"
