"""One process that carries one run along the line, from wherever the run is to its end."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYetError
from typing import TypeVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate

from tasks.collect import collect
from tasks.preflight import preflight
from tasks.rendezvous import ensure_rendezvous
from tasks.reporter import Reporter
from tasks.submit import submit
from tasks.teardown import release, teardown
from tasks.wait import wait
from torchyard.common import secrets
from torchyard.common.escaping import paragraph
from torchyard.common.log import log
from torchyard.launchers import registry
from torchyard.model.errors import (
    FolderError,
    OwnedError,
    PreflightError,
    ProfileError,
    RendezvousError,
    TorchyardError,
)
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Attempt, End, Failure, Outcome, Report, Run, Status, Step
from torchyard.run import history
from torchyard.run.folder import Intent, RunFolder
from torchyard.run.next_attempt import avoiding
from torchyard.run.report import (
    SENTENCE,
    as_markdown,
    as_text,
    checks_detail,
    logs_detail,
    submit_detail,
    success,
    wait_detail,
)
from torchyard.run.resume import may_run, submitted_at
from torchyard.steps.progress import Progress

T = TypeVar("T")
PAGE_TIMEOUT_S = 10.0  # that Prefect may take for the report: the end of the run does not wait longer


class Line:
    """One process that carries one run along the line."""

    def __init__(self, profile: Profile, run_id: str) -> None:
        self.profile, self.run_id = profile, run_id
        self.folder, self.reporter = RunFolder.of(profile, run_id), Reporter(run_id)
        self.began = time.time()
        self.steps: list[Step] = []
        self.attempts: list[Attempt] = []
        self.left: list[str] = []
        self.open: tuple[int, Plan] | None = None
        self.plan: Plan | None = None
        self.may_run = False  # a job that nothing but its own end, or a person, may end

    # --- the line

    def remember(self) -> None:
        """Take over what the journal tells of the processes before this one, for the report."""
        events = self.folder.events()
        self.began, self.steps = history.began(events, self.began), history.past_steps(events)
        if sentence := history.lost(self.steps):
            log().warning("%s", sentence)

    def go(self, first: int) -> tuple[End, str]:
        """Attempt after attempt, from the latest one on, while the budget lasts and there is a cause worth another."""
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

    def attempt(self, number: int) -> Attempt:
        """One try, from its plan to its teardown; steps that an earlier process has done are not done again."""
        self.reporter.check_cancelled()
        run = Run(id=self.run_id, attempt=number, folder=str(self.folder.path))
        intent = self.folder.intent(number) or self.prepare(run)
        self.open, self.plan = (number, intent.plan), intent.plan
        secrets.learn(intent.plan)
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
        intent = Intent(plan=permit(plan), deadlines=self.profile.deadlines)
        self.folder.save_intent(run.attempt, intent)
        return intent

    def check(self, profile: Profile, run: Run) -> Plan:
        """The plan of an attempt, once everything is there that it needs."""
        plan = locate(registry.launcher(profile.launcher).plan(profile, run))
        self.step("preflight", lambda: preflight(plan), checks_detail)
        return plan

    def execute(self, number: int, intent: Intent) -> Outcome:
        """Submit, or attach where an earlier process has done that, and wait for the end."""
        since = submitted_at(self.folder.events())
        if intent.plan.probe and since is None:
            try:
                self.step("rendezvous", lambda: ensure_rendezvous(intent.plan), str)
            except RendezvousError as error:
                return unserved(error)
        handle = self.step("submit", lambda: submit(intent.plan, intent.deadlines, since), submit_detail)
        self.may_run = True
        progress = Progress(intent.plan.job, self.profile.metrics, self.reporter, self.reporter.check_cancelled)
        outcome = self.step("wait", lambda: wait(handle, progress), lambda end: wait_detail(end, handle))
        progress.close()
        with contextlib.suppress(FolderError):  # whoever comes back asks the keepers again
            self.folder.save_outcome(number, outcome)
        return outcome

    def close(self, number: int, plan: Plan, outcome: Outcome) -> Attempt:
        """Collect, then tear down: after a success, a failure and a signal alike."""

        def read() -> Attempt:
            collected = collect(plan, outcome, self.profile.metrics)
            return secrets.hide(Attempt(number=number, outcome=outcome, collected=collected))

        attempt = self.step("collect", read, logs_detail)
        self.attempts.append(attempt)
        with contextlib.suppress(FolderError):
            self.folder.save_ended(attempt)
        self.may_run = False
        self.left += self.step("teardown", lambda: self.remove(plan), lambda left: ", ".join(left) or "nothing left")
        self.open = None
        return attempt

    def remove(self, plan: Plan) -> tuple[str, ...]:
        """What is left of an attempt: where that cannot be told, how the job ended counts all the same."""
        self.check_owner()
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
        except OwnedError:
            raise
        except TorchyardError as error:
            self.left.append(str(error))

    def step(self, name: str, work: Callable[[], T], detail: Callable[[T], str]) -> T:
        """Do one step: journalled before it begins and once it is done, timed for the report.

        OwnedError where another process has taken the run over.
        """
        self.check_owner()
        self.folder.note("step", name=name)
        began = time.monotonic()
        result = work()
        done = Step(name=name, seconds=time.monotonic() - began, detail=detail(result))
        self.folder.note("did", **done.model_dump())
        self.steps.append(done)
        return result

    def check_owner(self) -> None:
        """OwnedError where the Lease of the run in its cluster belongs to another process by now."""
        if isinstance(self.plan, ManifestPlan):
            from torchyard.cluster.lease_renewal import renewer

            renewer().check(self.plan)

    # --- the end

    def say_ending(self, end: End, sentence: str) -> None:
        """Write down what the next process shall make of it. OwnedError where another one carries the run by now."""
        sentence = secrets.mask(sentence)
        self.folder.note("ending", end=end, sentence=sentence)
        if self.open and isinstance(self.open[1], ManifestPlan):
            from torchyard.cluster import lease

            try:
                lease.tell_ending(self.open[1], end, sentence)
            except OwnedError:
                raise
            except TorchyardError as error:
                log().debug("the Lease does not say how the run ends: %s", error)

    def release(self) -> None:
        """Nobody need look after the run any more; what is left of it is the sweep's."""
        if isinstance(self.plan, ManifestPlan):
            from torchyard.cluster.lease_renewal import renewer

            renewer().drop(self.plan)
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
        report = secrets.hide(report)
        self.folder.note("end", end=end, by="flow", sentence=report.sentence)
        self.release()
        log().info("\n%s", as_text(report))
        try:
            self.folder.save_report(report)
        except FolderError as error:
            log().error("the report is not on disk: %s", error)
        self.publish(report)
        return report

    def publish(self, report: Report) -> None:
        """Show the report in Prefect; a server that is away costs the page, not the report."""
        said = paragraph(report.sentence, SENTENCE)
        about = {"key": f"report-{report.profile}", "type": "markdown", "description": said}
        page = ArtifactCreate(data=as_markdown(report), flow_run_id=self.run_id, **about)

        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(page)

        try:
            self.reporter.send("report", call).result(PAGE_TIMEOUT_S)
        except NotYetError:
            log().warning("the report is not in Prefect: no answer for %.0f s", PAGE_TIMEOUT_S)
        except Exception as error:
            log().warning("the report is not in Prefect: %s", error)


def unserved(error: RendezvousError) -> Outcome:
    """The end of an attempt whose store does not serve."""
    known = Failure(cause="rendezvous-store", sentence=str(error), retry=error.retry)
    return Outcome(status=Status(state="failed", reason=str(error), failure=known), exits={})


def locate(plan: Plan) -> Plan:
    """The plan, tied to the cluster that the kubeconfig names today: whoever comes back must find the job there."""
    if isinstance(plan, CommandPlan):
        return plan
    from torchyard.cluster import create

    return create.located(plan)


def permit(plan: Plan) -> Plan:
    """The plan without what the job does without and this user may not make."""
    if isinstance(plan, CommandPlan):
        return plan
    from torchyard.cluster import create

    return create.permitted(plan)
