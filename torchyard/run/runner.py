"""One process that carries one run: from wherever the run is, attempt after attempt, to its end."""

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchyard.backend import backend_of
from torchyard.common import secrets
from torchyard.common.log import log
from torchyard.launchers import registry
from torchyard.machines.processes import Guard
from torchyard.model.errors import (
    FolderError,
    LeftError,
    OwnedError,
    PreflightError,
    ProfileError,
    RendezvousError,
    TorchyardError,
)
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Check
from torchyard.model.run import Attempt, Collected, End, Failure, Handle, Outcome, Run, Status, Step
from torchyard.run import history, takeover, watchdog
from torchyard.run.ending import Ending
from torchyard.run.folder import Intent, RunFolder
from torchyard.run.folder_lease import held, renewed_at
from torchyard.run.next_attempt import avoiding
from torchyard.run.progress import Progress
from torchyard.run.report import checks_detail, logs_detail, submit_detail, success, wait_detail
from torchyard.run.reporter import Reporter
from torchyard.run.resume import LOSSES, Entry, entry, may_run, submitted_at
from torchyard.run.signals import STOPS, Hold, stopper
from torchyard.steps.collect import collect
from torchyard.steps.preflight import preflight
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

T = TypeVar("T")
Ended = tuple[End, str]  # and the sentence that says why


class Steps(NamedTuple):
    """The six steps of an attempt. Another orchestrator gives its own: Prefect its tasks."""

    preflight: Callable[..., tuple[Check, ...]] = preflight
    rendezvous: Callable[..., str | None] = ensure_rendezvous
    submit: Callable[..., Handle] = submit
    wait: Callable[..., Outcome] = wait
    collect: Callable[..., Collected] = collect
    teardown: Callable[..., tuple[str, ...]] = teardown


class Runner:
    """Carries one run. Each attempt goes preflight, rendezvous, submit, wait, collect, teardown.

    `run` looks at the journal first: a new run begins, one that lost its process is attached to, one that was ending is
    ended, and one that has ended says so again. Whatever happens then becomes an end with a sentence.
    """

    def __init__(self, profile: Profile, run_id: str, reporter: Reporter, steps: Steps | None = None) -> None:
        self.profile, self.run_id, self.reporter = profile, run_id, reporter
        self.folder = RunFolder.of(profile, run_id)
        self.began = time.time()
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.left: list[str] = []
        self.open: tuple[int, Plan] | None = None
        self.plan: Plan | None = None
        self.may_run = False  # a job that nothing but its own end, or a person, may end
        self._do = steps or Steps()

    # --- one attempt

    def attempt(self, number: int) -> Attempt:
        """One try, from its plan to its teardown; steps that an earlier process has done are not done again."""
        self.reporter.check_cancelled()
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        intent = self.folder.intent(number) or self._prepare(run)
        self.open, self.plan = (number, intent.plan), intent.plan
        secrets.learn(intent.plan)
        outcome = self.folder.outcome(number) or self._execute(number, intent)
        return self.close(number, intent.plan, outcome)

    def _prepare(self, run: Run) -> Intent:
        """The plan of a new attempt, checked and written down before anything is started."""
        chosen = avoiding(self.profile, self.attempts)
        try:
            plan = self._check(chosen, run)
        except (ProfileError, PreflightError) as error:
            if chosen is self.profile:
                raise
            log().warning("avoid_failed leaves too little, so the next attempt may meet what failed again: %s", error)
            plan = self._check(self.profile, run)
        intent = Intent(plan=backend_of(plan).prepare(), deadlines=self.profile.deadlines)
        self.folder.save_intent(run.attempt, intent)
        return intent

    def _check(self, profile: Profile, run: Run) -> Plan:
        plan = backend_of(registry.launcher(profile.launcher).plan(profile, run)).locate()
        self._step("preflight", lambda: self._do.preflight(plan), checks_detail)
        return plan

    def _execute(self, number: int, intent: Intent) -> Outcome:
        """Submit, or attach where an earlier process has done that, and wait for the end."""
        plan, since = intent.plan, submitted_at(self.folder.events())
        if plan.probe and since is None:
            try:
                self._step("rendezvous", lambda: self._do.rendezvous(plan), str)
            except RendezvousError as error:
                return _unserved(error)
        handle = self._step("submit", lambda: self._do.submit(plan, intent.deadlines, since), submit_detail)
        self.may_run = True
        progress = Progress(plan.job, self.profile.metrics, self.reporter)
        outcome = self._step("wait", lambda: self._do.wait(handle, progress), lambda end: wait_detail(end, handle))
        progress.close()
        with contextlib.suppress(FolderError):  # the next process asks the keepers again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""

        def read() -> Attempt:
            collected = self._do.collect(plan, outcome, self.profile.metrics)
            return secrets.hide(Attempt(number=number, outcome=outcome, collected=collected))

        attempt = self._step("collect", read, logs_detail)
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):
            self.folder.save_ended(attempt)
        self.may_run = False
        self.left += self._step("teardown", lambda: self.remove(plan), lambda left: ", ".join(left) or "nothing left")
        self.open = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """What is left of an attempt: where that cannot be told, how the job ended counts all the same."""
        self._check_owner()
        try:
            return self._do.teardown(plan, end_run=False)
        except OwnedError:
            raise
        except TorchyardError as error:
            return (str(error),)

    def _step(self, name: str, work: Callable[[], T], detail: Callable[[T], str]) -> T:
        """Do one step: journalled before it begins and once it is done, timed for the report.

        OwnedError where another process has taken the run over.
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

    # --- the attempts

    def _try_all(self, first: int) -> Ended:
        """Attempt after attempt, from the latest one on, while the budget lasts and the cause is worth another."""
        latest = max([first, *self.folder.attempts()])
        self.may_run = may_run(self.folder.events())
        past = [self.folder.ended(number) for number in range(first, latest)]
        self.attempts = [attempt for attempt in past if attempt]
        last = first + self.profile.attempts - 1
        for number in range(latest, last + 1):
            attempt = self.attempt(number)
            if attempt.outcome.status.state == "succeeded":
                return "succeeded", success(attempt)
            failure = attempt.collected.failure
            assert failure is not None
            if not failure.retry or number == last:
                return "failed", failure.sentence
            log().warning("attempt %d failed, and the cause is worth another: %s", number, failure.sentence)
        raise AssertionError("attempts is at least 1")

    # --- the run, from its beginning to its end

    def run(self) -> Ended:
        """From wherever the run is to its end.

        OwnedError where another process carries it. LeftError where this process cannot go on and the job can.
        """
        with self.folder.owned(), self.reporter:
            if self.reporter.count > 1:
                takeover.adopt(self.folder, self.profile, self.run_id)
            how = entry(self.folder.events(), self.reporter.was_asked_again)
            first = self._first_attempt(how)
            facts = {"host": socket.gethostname(), "lost_at": renewed_at(self.folder)}
            self.folder.note("start", entry=how, run=self.run_id, count=self.reporter.count, first=first, **facts)
            if how not in ("echo", "give-up"):
                return self._go_on(how, first)
            self.reporter.flush()
            return self._give_up() if how == "give-up" else self._echo(self.folder.last("end"))

    def _first_attempt(self, how: Entry) -> int:
        """The first attempt of the budget: a new one, or where the budget of the process before began."""
        begun = self.folder.attempts()
        return (begun[-1] if begun else 0) + 1 if how == "fresh" else int(self.folder.last("start").get("first", 1))

    def _go_on(self, how: Entry, first: int) -> Ended:
        """Bring the run to its end; a watchdog does so where this process cannot."""
        then = (*self.reporter.watchdog, "LOST", str(self.folder.path))
        guard = Guard(("-I", "-S", str(Path(watchdog.__file__)), self.profile.on_launcher_lost, *then))
        with Hold() as signals, held(self.folder, self.profile.deadlines.lease):
            self._remember()
            try:
                end = self._reopen() if how == "finish" else self.protect(lambda: self._try_all(first), signals)
                signals.begin()
                guard.tell("ending")
                report = Ending(self).finish(*end)
            except OwnedError as error:
                self.folder.note("end", end="moved", by="flow", sentence=str(error))
                guard.tell("done")
                raise
            except LeftError as error:
                self.folder.note("left", sentence=str(error))
                log().error("%s; see %s/journal", error, self.folder.path)
                raise
            guard.tell("done")
        return report.end, report.sentence

    def _remember(self) -> None:
        """Take over what the journal tells of the processes before this one, for the report."""
        events = self.folder.events()
        self.began, self.steps = history.began(events, self.began), history.past_steps(events)
        if sentence := history.lost(self.steps):
            log().warning("%s", sentence)

    def _reopen(self) -> Ended:
        """The end that an earlier process was bringing about, and the attempt that it may have left open."""
        begun, past = self.folder.attempts(), self.folder.last("ending")
        intent = self.folder.intent(begun[-1]) if begun else None
        if intent:
            self.open, self.plan = (begun[-1], intent.plan), intent.plan
        return past["end"], past["sentence"]

    def protect(self, work: Callable[[], Ended], signals: Hold) -> Ended:
        """Whatever happens becomes an end with a sentence: what comes after must come.

        LeftError where what happened says nothing of the job, and the job may run: it is left alone.
        """
        stops: tuple[type[BaseException], ...] = (*STOPS, *self.reporter.stops)
        try:
            return work()
        except OwnedError:
            raise
        except TorchyardError as error:
            return self._fail_or_leave(str(error), error)
        except stops as stop:
            if self.reporter.is_void(stop):
                return self.protect(work, signals)
            signals.begin()
            if self.reporter.is_cancelled():
                return "cancelled", "cancelled through Prefect"
            return "stopped", f"stopped by {stopper(stop)}"
        except Exception as error:
            log().exception("a fault in torchyard itself")
            return self._fail_or_leave(f"a fault in torchyard itself: {type(error).__name__}: {error}", error)

    def _fail_or_leave(self, sentence: str, error: Exception) -> Ended:
        if self.may_run:
            raise LeftError(sentence) from error
        return "failed", sentence

    def _echo(self, end: dict[str, Any]) -> Ended:
        self.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
        log().info("this run has ended already: %s", end["sentence"])
        return end["end"], end["sentence"]

    def _give_up(self) -> Ended:
        lease = max(self.folder.lease_left(), 0)
        sentence = (
            f"given up: {LOSSES} processes that carried this run were lost in a row at the same step; the job, if any, "
            f"lives on for {lease:.0f} s; see {self.folder.path}/journal, mend the cause, then retry this run"
        )
        self.folder.note("end", end="gave-up", by="flow", sentence=sentence)
        log().error("%s", sentence)
        return "gave-up", sentence


def _unserved(error: RendezvousError) -> Outcome:
    """The end of an attempt whose store does not serve."""
    known = Failure(cause="rendezvous-store", sentence=str(error), retry=error.retry)
    return Outcome(status=Status(state="failed", reason=str(error), failure=known), exits={})
