"""One process that carries one run along the line, from wherever the run is to its end."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from prefect.artifacts import create_markdown_artifact

from tasks import guard
from tasks.again import avoiding
from tasks.collect import collect
from tasks.errors import FolderError, OwnedError, PreflightError, ProfileError, RendezvousError, TorchyardError
from tasks.folder import Intent, RunFolder
from tasks.launchers import registry
from tasks.model import Attempt, End, Failure, Outcome, Report, Run, Status, Step
from tasks.plan import CommandPlan, ManifestPlan, Plan
from tasks.preflight import preflight
from tasks.progress import Progress
from tasks.rendezvous import ensure_rendezvous
from tasks.report import as_markdown, as_text, checks_detail, logs_detail, submit_detail, success, wait_detail
from tasks.signals import CancelRequested, cancelling
from tasks.spec import Profile
from tasks.step import log
from tasks.submit import submit
from tasks.teardown import release, teardown
from tasks.wait import wait

T = TypeVar("T")
HEED = 6.0  # seconds between two looks whether the run was cancelled
GUARD = str(Path(guard.__file__))


class Line:
    """One process that carries one run along the line."""

    def __init__(self, profile: Profile, run_id: str) -> None:
        self.profile, self.run_id = profile, run_id
        self.folder = RunFolder.of(profile, run_id)
        self.began = time.time()
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.left: list[str] = []
        self.open: tuple[int, Plan] | None = None
        self.plan: Plan | None = None
        self.heeded = time.monotonic()

    # --- the line

    def go(self, first: int) -> tuple[End, str]:
        """Attempt after attempt, from the latest one on, while the budget lasts and there is a cause worth another."""
        latest = max([first, *self.folder.attempts()])
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

    def attempt(self, number: int) -> Attempt:
        """One try, from its plan to its teardown; steps that an earlier process has done are not done again."""
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        intent = self.folder.intent(number) or self.prepare(run)
        self.open, self.plan = (number, intent.plan), intent.plan
        outcome = self.folder.outcome(number) or self.execute(number, intent)
        return self.close(number, intent.plan, outcome)

    def prepare(self, run: Run) -> Intent:
        chosen = avoiding(self.profile, self.attempts)
        try:
            plan = self.check(chosen, run)
        except (ProfileError, PreflightError) as error:
            if chosen is self.profile:
                raise
            log().warning("avoid_failed leaves too little, so the next attempt may meet what failed again: %s", error)
            plan = self.check(self.profile, run)
        intent = Intent(plan=plan, deadlines=self.profile.deadlines)
        self.folder.save_intent(run.attempt, intent)
        return intent

    def check(self, profile: Profile, run: Run) -> Plan:
        """The plan of an attempt, once everything is there that it needs."""
        plan = locate(registry.launcher(profile.launcher).plan(profile, run))
        self.step("preflight", lambda: preflight(plan), checks_detail)
        return plan

    def execute(self, number: int, intent: Intent) -> Outcome:
        self.renew()
        if intent.plan.probe:
            try:
                self.step("rendezvous", lambda: ensure_rendezvous(intent.plan), str)
            except RendezvousError as error:
                return unserved(error)
        handle = self.step("submit", lambda: submit(intent.plan, intent.deadlines), submit_detail)
        progress = Progress(intent.plan.job, self.profile.metrics, self.beat)
        outcome = self.step("wait", lambda: wait(handle, progress), wait_detail)
        progress.close()
        with contextlib.suppress(FolderError):  # whoever comes back asks the keepers again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""
        collected = self.step("collect", lambda: collect(plan, outcome, self.profile.metrics), lambda each: "")
        attempt = Attempt(number=number, outcome=outcome, collected=collected)
        self.steps[-1] = self.steps[-1].model_copy(update={"detail": logs_detail(attempt)})
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):
            self.folder.save_ended(attempt)
        self.left += self.step("teardown", lambda: self.remove(plan), lambda left: ", ".join(left) or "nothing left")
        self.open = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """What is left of an attempt: where that cannot be told, how the job ended counts all the same."""
        try:
            return teardown(plan, end_run=False)
        except OwnedError:
            raise
        except TorchyardError as error:
            return (str(error),)

    def abandon(self, number: int, plan: Plan, why: str) -> None:
        """End an attempt in the middle: stop it first, then read what it left."""
        stopped = Outcome(status=Status(state="failed", reason=why), cause="stopped", exits={})
        self.left += self.remove(plan)
        try:
            self.close(number, plan, self.folder.outcome(number) or stopped)
        except TorchyardError as error:
            self.left.append(str(error))

    def step(self, name: str, work: Callable[[], T], detail: Callable[[T], str]) -> T:
        """Do one step: journalled before it begins, timed for the report."""
        self.folder.note("step", name=name)
        began = time.monotonic()
        result = work()
        self.steps.append(Step(name=name, seconds=time.monotonic() - began, detail=detail(result)))
        return result

    def beat(self) -> None:
        """Every other second while the job runs: renew the lease, and heed a cancel that came without a signal."""
        self.renew()
        if time.monotonic() - self.heeded > HEED:
            self.heeded = time.monotonic()
            if cancelling(self.run_id, for_seconds=HEED / 2):
                raise CancelRequested

    def renew(self) -> None:
        self.folder.renew(self.profile.deadlines.lease)

    # --- the end

    def say_ending(self, end: End, sentence: str) -> None:
        """Write down what whoever must finish this shall make of it."""
        self.folder.note("ending", end=end, sentence=sentence)
        if self.open and isinstance(self.open[1], ManifestPlan):
            from tasks import lease

            with contextlib.suppress(TorchyardError):
                lease.tell_ending(self.open[1], end, sentence)

    def release(self) -> None:
        """Nobody need look after the run any more; what is left of it is the sweep's."""
        try:
            if self.plan and not self.left:
                release(self.plan)
        except TorchyardError as error:
            self.left.append(str(error))

    def finish(self, end: End, sentence: str) -> Report:
        """Tear down what is still open, write the report, and say it."""
        if self.open:
            self.abandon(*self.open, sentence)
        report = Report(
            profile=self.profile.name,
            run=self.folder.name,
            end=end,
            sentence=sentence,
            seconds=time.time() - self.began,
            steps=tuple(self.steps),
            attempts=tuple(self.attempts),
            left=tuple(dict.fromkeys(self.left)),
            folder=str(self.folder.path),
        )
        self.folder.note("end", end=end, by="flow", sentence=sentence)
        self.release()
        publish(report)
        try:
            self.folder.save_report(report)
        except FolderError as error:
            log().error("the report is not on disk: %s", error)
        return report


def unserved(error: RendezvousError) -> Outcome:
    """The end of an attempt whose store does not serve."""
    known = Failure(cause="rendezvous-store", sentence=str(error), retry=error.retry)
    return Outcome(status=Status(state="failed", reason=str(error), failure=known), exits={})


def locate(plan: Plan) -> Plan:
    """The plan, tied to the cluster that the kubeconfig names today: whoever comes back must find the job there."""
    if isinstance(plan, CommandPlan):
        return plan
    from tasks import objects

    return objects.located(plan)


def publish(report: Report) -> None:
    """Say the report, and show it in Prefect; a server that is away costs the page, not the report."""
    log().info("\n%s", as_text(report))
    try:
        create_markdown_artifact(as_markdown(report), key=f"report-{report.profile}", description=report.sentence)
    except Exception as error:
        log().warning("the report is not in Prefect: %s", error)
