"""The line, for one profile: load, plan, preflight, rendezvous, submit, wait, collect, teardown, report."""

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from tasks import guard, shell
from tasks.cli import add_overrides, read_overrides
from tasks.collect import collect
from tasks.comeback import LOSSES, Entry, entry
from tasks.errors import FolderError, OwnedError, TorchyardError
from tasks.folder import Intent, RunFolder
from tasks.launchers import registry
from tasks.model import Attempt, End, Outcome, Report, Run, Status, Step
from tasks.plan import CommandPlan, Plan
from tasks.preflight import preflight
from tasks.profile import load_profile
from tasks.progress import Progress
from tasks.rendezvous import ensure_rendezvous
from tasks.report import as_markdown, as_text, checks_detail, logs_detail, submit_detail, success, wait_detail
from tasks.signals import STOPS, CancelRequested, Hold, cancelling, stopper
from tasks.spec import Profile
from tasks.step import log
from tasks.submit import submit
from tasks.sweep import ended
from tasks.teardown import teardown
from tasks.wait import wait

T = TypeVar("T")
HEED = 6.0  # seconds between two looks whether the run was cancelled
GUARD = str(Path(guard.__file__))


@flow(name="train")
def train(profile: str, overrides: dict[str, Any] | None = None) -> State[Any]:
    """Train what a profile says, from preflight to the report.

    Args:
        profile: A name from `torchyard profiles`, or the path of a YAML file.
        overrides: Keys of the profile to change for this run, such as {"nodes": 4, "deadlines.run": "2h"}.
    """
    try:
        chosen = load_profile(profile, overrides)
        return Line(chosen, str(flow_run.id)).carry()
    except OwnedError as error:
        return leave(error)
    except TorchyardError as error:
        log().error("%s", error)
        return Failed(message=str(error))


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
        self.heeded = time.monotonic()

    # --- the two ends of a process

    def carry(self) -> State[Any]:
        """From wherever the run is to its end."""
        with self.folder.owned():
            how = entry(self.folder.events(), time.time())
            past = self.folder.last("ending")
            first = self.first(how)
            self.folder.note("start", entry=how, run=self.run_id, count=flow_run.run_count, first=first)
            if how == "echo":
                return self.echo(self.folder.last("end"))
            if how == "give-up":
                return self.give_up()
            watcher = self.guard()
            with Hold() as signals:
                if how == "finish":
                    self.open = self.latest()
                    end, sentence = past["end"], past["sentence"]
                else:
                    end, sentence = self.protect(lambda: self.go(first), signals)
                signals.begin()
                watcher.tell("ending")
                self.folder.note("ending", end=end, sentence=sentence)
                report = self.finish(end, sentence)
                watcher.tell("done")
            return ended(report.end, report.sentence)

    def first(self, how: Entry) -> int:
        """The first attempt of the budget: a new one, or where the budget of the process before began."""
        begun = self.folder.attempts()
        return (begun[-1] if begun else 0) + 1 if how == "fresh" else int(self.folder.last("start").get("first", 1))

    def latest(self) -> tuple[int, Plan] | None:
        """The attempt that an earlier process may have left open."""
        begun = self.folder.attempts()
        intent = self.folder.intent(begun[-1]) if begun else None
        return (begun[-1], intent.plan) if intent else None

    def protect(self, work: Callable[[], tuple[End, str]], signals: Hold) -> tuple[End, str]:
        """Whatever happens becomes an end with a sentence: what comes after must come."""
        try:
            return work()
        except TorchyardError as error:
            return "failed", str(error)
        except STOPS as stop:
            signals.begin()
            if cancelling(self.run_id):
                return "cancelled", "cancelled through Prefect"
            return "stopped", f"stopped by {stopper(stop)}"
        except Exception as error:
            log().exception("a fault in torchyard itself")
            return "failed", f"a fault in torchyard itself: {type(error).__name__}: {error}"

    def guard(self) -> shell.Guard:
        finish = (sys.executable, "-m", "tasks.sweep", "LOST", str(self.folder.path))
        return shell.Guard(("-I", "-S", GUARD, self.profile.on_launcher_lost, *finish))

    def echo(self, end: dict[str, Any]) -> State[Any]:
        self.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
        log().info("this run has ended already: %s", end["sentence"])
        return ended(end["end"], end["sentence"])

    def give_up(self) -> State[Any]:
        lease = max(self.folder.lease_left(), 0)
        sentence = (
            f"given up: {LOSSES} processes that carried this run were lost in a row at the same step; the job, if any, "
            f"lives on for {lease:.0f} s; see {self.folder.path}/journal, mend the cause, then retry this run"
        )
        self.folder.note("end", end="gave-up", by="flow", sentence=sentence)
        log().error("%s", sentence)
        return ended("gave-up", sentence)

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
        self.open = number, intent.plan
        outcome = self.folder.outcome(number) or self.execute(number, intent)
        return self.close(number, intent.plan, outcome)

    def prepare(self, run: Run) -> Intent:
        plan = locate(registry.launcher(self.profile.launcher).plan(self.profile, run))
        self.step("preflight", lambda: preflight(plan), checks_detail)
        intent = Intent(plan=plan, deadlines=self.profile.deadlines)
        self.folder.save_intent(run.attempt, intent)
        return intent

    def execute(self, number: int, intent: Intent) -> Outcome:
        self.renew()
        if intent.plan.probe:
            self.step("rendezvous", lambda: ensure_rendezvous(intent.plan), str)
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
        self.left += self.step("teardown", lambda: teardown(plan), lambda left: ", ".join(left) or "nothing left")
        self.open = None
        return attempt

    def abandon(self, number: int, plan: Plan, why: str) -> None:
        """End an attempt in the middle: stop it first, then read what it left."""
        stopped = Outcome(status=Status(state="failed", reason=why), cause="stopped", exits={})
        try:
            self.left += teardown(plan)
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
        publish(report)
        try:
            self.folder.save_report(report)
        except FolderError as error:
            log().error("the report is not on disk: %s", error)
        return report


def locate(plan: Plan) -> Plan:
    """The plan, tied to the cluster that the kubeconfig names today: whoever comes back must find the job there."""
    if isinstance(plan, CommandPlan):
        return plan
    from tasks import objects

    return objects.located(plan)


def leave(error: OwnedError) -> State[Any]:
    """End this process without touching the run: its owner will say how it ended."""
    log().warning("%s", error)
    logging.shutdown()
    os._exit(0)


def publish(report: Report) -> None:
    """Say the report, and show it in Prefect; a server that is away costs the page, not the report."""
    log().info("\n%s", as_text(report))
    try:
        create_markdown_artifact(as_markdown(report), key=f"report-{report.profile}", description=report.sentence)
    except Exception as error:
        log().warning("the report is not in Prefect: %s", error)


def main(words: Sequence[str]) -> int:
    """`python flows/train.py PROFILE [--set KEY=VALUE ...]`: the same flow, without a deployment."""
    parser = argparse.ArgumentParser(prog="flows/train.py", description=main.__doc__)
    parser.add_argument("profile")
    add_overrides(parser)
    asked = parser.parse_args(words)
    end = train(asked.profile, read_overrides(asked.set), return_state=True)
    if not end.is_completed():
        print(f"{end.name}: {end.message}", file=sys.stderr)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
