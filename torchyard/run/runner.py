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
        self.outlets = RunNotifier(profile, run_id, self.folder, reporter.link)
        self.began = time.time()
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.left: list[str] = []
        self.open: tuple[int, Plan] | None = None
        self.plan: Plan | None = None
        self.archive = RunArchive(self.folder.path, self._check_owner, None)
        self.may_run = False  # whether a job may be running: only its own end or a user may end it
        self._do = steps or StepFunctions()

    # --- one attempt

    def attempt(self, number: int) -> Attempt:
        """Run one attempt, from its plan to its teardown; steps that an earlier process has done are not repeated."""
        self.reporter.check_cancelled()
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        intent = self.folder.intent(number) or self._prepare(run)
        self.open, self.plan = (number, intent.plan), intent.plan
        secrets.remember_secrets(intent.plan)
        outcome = self.folder.outcome(number) or self._execute(number, intent)
        return self.close(number, intent.plan, outcome)

    def _prepare(self, run: Run) -> AttemptPlan:
        """The plan of a new attempt, checked and saved before anything is started."""
        chosen = avoid_failed_machines(self.profile, self.attempts)
        try:
            plan = self._check(chosen, run)
        except (ProfileError, PreflightError) as error:
            if chosen is self.profile:
                raise
            get_log().warning(
                "avoid_failed leaves too few machines, so the next attempt may use failed ones again: %s", error
            )
            plan = self._check(self.profile, run)
        intent = AttemptPlan(plan=backend_of(plan).prepare(), deadlines=self.profile.deadlines)
        self.folder.save_intent(run.attempt, intent)
        return intent

    def _check(self, profile: Profile, run: Run) -> Plan:
        plan = make_plan(profile, run, self.reporter)
        others = check_notifications(profile, run.attempt == 1)
        self._step("preflight", lambda: check_plan(plan, self._do, self.reporter, others), describe_checks)
        return plan

    def _execute(self, number: int, intent: AttemptPlan) -> Outcome:
        """Submit the job, or attach to the one that an earlier process submitted, and wait for its end."""
        plan, since = intent.plan, find_submission_time(self.folder.events())
        if plan.probe and since is None:
            try:
                self._step("rendezvous", lambda: self._do.rendezvous(plan), str)
            except RendezvousError as error:
                return describe_dead_store(error)
        handle = self._step("submit", lambda: self._do.submit(plan, intent.deadlines, since), describe_submission)
        self.may_run = True
        self.outlets.open(number)
        progress = Progress(plan.job, self.profile.metrics, self.reporter, self.outlets.add_row)
        watch, describe = self.outlets.watch_status, partial(describe_outcome, handle=handle)

        def tell_hang(news: HangUpdate) -> None:
            shown = secrets.mask_model(news)
            self.reporter.show_page("hang", lambda: render_hang_page(plan.job, shown))
            self.outlets.tell_hang(shown)

        outcome: Outcome = self._step("wait", lambda: self._do.wait(handle, progress, watch, tell_hang), describe)
        progress.close()
        with contextlib.suppress(FolderError):  # the next process asks the supervisors again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""

        def read() -> Attempt:
            found = self._do.collect(plan, outcome, self.profile.metrics)
            return secrets.mask_model(Attempt(number=number, outcome=outcome, collected=found))

        attempt = self._step("collect", read, describe_logs)
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):
            self.folder.save_ended(attempt)
        self.may_run = False
        self.left += self._step("teardown", lambda: self.remove(plan), lambda left: ", ".join(left) or "nothing left")
        self.open = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """Tear an attempt down; returns what is left. A teardown that fails does not change how the job ended."""
        self._check_owner()
        try:
            return self._do.teardown(plan, end_run=False)
        except RunInUseError:
            raise
        except TorchyardError as error:
            return (str(error),)

    def _step(self, name: str, work: Callable[[], T], detail: Callable[[T], str]) -> T:
        """Do one step: journalled when it starts and when it is done, and timed for the report.

        RunInUseError if another process has taken the run over.
        """
        self._check_owner()
        self.folder.note("step", name=name)
        began = time.monotonic()
        result = work()
        done = Step(name=name, seconds=time.monotonic() - began, detail=detail(result))
        self.folder.note("did", **done.model_dump())
        self.steps.append(done)
        return result

    def _check_owner(self) -> None:
        if self.plan:
            backend_of(self.plan).check_owner()

    def _try_all(self, first: int) -> RunEnd:
        """Run attempts, from the latest one on, while the budget lasts and the cause is worth another."""
        latest = max([first, *self.folder.attempts()])
        self.may_run = has_possible_job(self.folder.events())
        past = [self.folder.ended(number) for number in range(first, latest)]
        self.attempts = [attempt for attempt in past if attempt]
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
                takeover.learn_past(self.folder, self.profile, self.run_id, self.archive)
            self.archive.start(self.profile)
            how = choose_entry(self.folder.events(), self.reporter.was_asked_again)
            first = self._first_attempt(how)
            facts = history.list_start_facts(self.profile, self.folder)
            self.folder.note("start", entry=how, run=self.run_id, count=self.reporter.count, first=first, **facts)
            if how not in ("echo", "give-up"):
                return self._go_on(how, first)
            self.reporter.flush()
            return self._give_up() if how == "give-up" else self._echo(self.folder.last("end"))

    def _first_attempt(self, how: EntryMode) -> int:
        """The first attempt of the budget: a new one, or the first one of the process before."""
        begun = self.folder.attempts()
        return (begun[-1] if begun else 0) + 1 if how == "fresh" else int(self.folder.last("start").get("first", 1))

    def _go_on(self, how: EntryMode, first: int) -> RunEnd:
        """Take the run to its end; a watchdog takes over if this process dies."""
        then = (*self.reporter.watchdog, "LOST", str(self.folder.path))
        guard = Watchdog(("-I", "-S", str(watchdog.__file__), self.profile.on_launcher_lost, *then))
        with SignalHold() as signals, hold_folder_lease(self.folder, self.profile.deadlines.lease):
            self._remember()
            try:
                end = self._reopen() if how == "finish" else protect_run(self, lambda: self._try_all(first), signals)
                signals.begin()
                guard.send("ending")
                report = RunFinisher(self).finish(*end)
            except RunInUseError as error:
                self.folder.note("end", end="moved", by="flow", sentence=str(error))
                guard.send("done")
                raise
            except DetachedError as error:
                self.folder.note("left", sentence=str(error))
                get_log().warning("%s; see %s/journal", error, self.folder.path)
                raise
            guard.send("done")
        return RunEnd(report.end, report.sentence)

    def _remember(self) -> None:
        """Read from the journal what earlier processes did, for the report."""
        events = self.folder.events()
        self.began, self.steps = history.find_start_time(events, self.began), history.list_past_steps(events)
        if sentence := history.describe_last_loss(self.steps):
            get_log().warning("%s", sentence)

    def _reopen(self) -> RunEnd:
        """Reopen the attempt that an earlier process may have left open; returns the end that it was coming to."""
        begun, past = self.folder.attempts(), self.folder.last("ending")
        intent = self.folder.intent(begun[-1]) if begun else None
        if intent:
            self.open, self.plan = (begun[-1], intent.plan), intent.plan
        return RunEnd(past["end"], past["sentence"])

    def _echo(self, end: dict[str, Any]) -> RunEnd:
        self.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
        get_log().info("this run has ended already: %s", end["sentence"])
        self.outlets.repeat_end()
        return RunEnd(end["end"], end["sentence"])

    def _give_up(self) -> RunEnd:
        sentence = describe_loop(self.folder.lease_left(), f"{self.folder.path}/journal")
        self.folder.note("end", end="gave-up", by="flow", sentence=sentence)
        get_log().error("%s", sentence)
        self.outlets.tell_end("gave-up", sentence)
        return RunEnd("gave-up", sentence)
