"""Runner: which errors end a run, which leave its job running, and what the end of a run records and removes."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest

from tests.builders.hang_examples import HANG, RECORDS
from tests.builders.reports import attempt
from tests.conftest import RUN_ID, Planned, Write, load
from tests.doubles.fake_api import FakeApi
from tests.processes.lone_processes import build_lone_plan, build_lone_profile
from tests.support.waiting import wait_until
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.agents.torchrun import first_port
from torchyard.assembly import create_runner
from torchyard.backends import owner_of
from torchyard.cluster import lease, lease_renewal
from torchyard.common.project_root import ROOT
from torchyard.host.processes import find_labelled
from torchyard.kube.client import get_cluster_client
from torchyard.loading.profile import load_profile
from torchyard.machines.job import MachinesJob
from torchyard.machines.owner import MachinesOwner
from torchyard.machines.processes import Watchdog
from torchyard.model.errors import (
    ArchiveError,
    ClusterError,
    DetachedError,
    FolderError,
    HandedOverError,
    HostError,
    PreflightError,
    RendezvousError,
    RunInUseError,
)
from torchyard.model.event import EmitJobEvent, RowsRead, RunEvent, StatusRead
from torchyard.model.finding import Finding
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.profile import Deadlines, Profile
from torchyard.model.requirements import FreePort
from torchyard.model.run import (
    Attempt,
    Collected,
    End,
    Handle,
    LogFile,
    Metrics,
    Outcome,
    Report,
    Row,
    Run,
    RunEnd,
    Status,
)
from torchyard.model.trend import Trend
from torchyard.pages.report import render_text
from torchyard.pods import lease_record
from torchyard.run import runner as runner_module
from torchyard.run.control import LocalControl, Terminated
from torchyard.run.folder import AttemptPlan, RunFolder, list_run_folders, runs_folder
from torchyard.run.runner import OpenAttempt, Runner
from torchyard.run.services import NoArchive
from torchyard.run.signals import CancelRequested, SignalHold, protect_run
from torchyard.steps.hang_files import write_hang_files
from torchyard.steps.step_functions import StepFunctions
from torchyard.steps.submit import submit
from torchyard.tasks.flow_run.control import PrefectControl
from torchyard.trend.records import history_folder, read_history


@pytest.mark.parametrize("error", [HostError("h", "x", "y"), FolderError("x", "y"), ValueError("a fault of ours")])
@pytest.mark.parametrize("may_run", [True, False])
def test_error_ends_a_run_only_before_its_submit(write: Write, error: Exception, may_run: bool) -> None:
    """Before the submit an error ends the run; after it, the job keeps running."""
    runner = create_runner(load_profile(str(write())), RUN_ID, LocalControl())
    runner.may_run = may_run

    def raise_error() -> RunEnd:
        raise error

    if may_run:
        with pytest.raises(DetachedError):
            protect_run(runner, raise_error, SignalHold())
    else:
        assert protect_run(runner, raise_error, SignalHold()).end == "failed"


def test_no_step_starts_in_a_run_that_another_launcher_owns(
    planned: Planned, fake_api: FakeApi, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher whose Lease was taken over raises before it collects or tears down the job of the new owner."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.05)
    runner = create_runner(load(write()), RUN_ID, LocalControl())
    runner.plan = plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)
    taken_lease = lease.build_lease(plan, get_cluster_client(plan.cluster))
    taken_lease["spec"] = plan.lease["spec"] | {"holderIdentity": "elsewhere:/runs"}
    fake_api.put(taken_lease)
    outcome = Outcome(status=Status(state="succeeded", reason=""), exit_codes={})
    with pytest.raises(RunInUseError, match="taken it over"):
        wait_until(owner_of(plan).check)
    attempt = OpenAttempt(1, plan, Deadlines())
    for touch in (lambda: runner.collect(attempt, outcome), lambda: runner.remove(plan)):
        with pytest.raises(RunInUseError):
            touch()
    assert not runner.folder.events()
    assert not fake_api.find_requests("DELETE", "")


def test_lost_concurrency_slot_does_not_end_the_run(write: Write) -> None:
    """If Prefect cancels a flow because it cannot renew its concurrency slot, the run continues."""
    runner = create_runner(load(write()), RUN_ID, PrefectControl(RUN_ID))
    stops = [asyncio.CancelledError()]

    def run_once_cancelled() -> RunEnd:
        if stops:
            raise stops.pop()
        return RunEnd("succeeded", "done")

    with SignalHold() as signals:
        assert protect_run(runner, run_once_cancelled, signals) == RunEnd("succeeded", "done")


class ResumingControl(LocalControl):
    """An orchestrator that starts a stopped run again elsewhere, as Prefect does for an evicted pod."""

    def will_be_resumed(self) -> bool:
        return True


def test_run_that_is_resumed_elsewhere_is_not_torn_down(planned: Planned, fake_api: FakeApi, write: Write) -> None:
    """A stopped process whose run is resumed elsewhere keeps the job and hands its Lease over."""
    runner = create_runner(load(write()), RUN_ID, ResumingControl())
    runner.plan = plan = planned(cluster={"namespace": "default"})
    lease_renewal.hold_lease(plan)

    def interrupt() -> RunEnd:
        raise KeyboardInterrupt

    with SignalHold() as signals, pytest.raises(HandedOverError):
        protect_run(runner, interrupt, signals)
    assert lease_record.is_handed_over(lease.read_lease(get_cluster_client(plan.cluster), plan) or {})
    assert not fake_api.find_requests("DELETE", "")


def test_ready_binary_of_nccl_tests_is_run_as_it_is(write: Write, tmp_path: Path) -> None:
    """A program that is not a Python file, such as all_reduce_perf, gets its arguments, and its table is read."""
    binary = tmp_path / "all_reduce_perf"
    binary.write_text(f'#!/bin/sh\n[ "$*" = "-b 8 -g 1" ] && cat {ROOT}/tests/logs/posted-nccl-tests-single.txt\n')
    binary.chmod(0o755)
    profile = build_lone_profile(write).model_copy(
        update={"program": str(binary), "args": ("-b", "8", "-g", "1"), "metrics": "nccl-tests"}
    )
    runner = create_runner(profile, RUN_ID, LocalControl())
    assert runner.run().end == "succeeded"
    rows = runner.attempts[0].collected.metrics.rows
    assert [(row["size"], row["algbw"]) for row in rows] == [(8, 0.0), (4294967296, 664.33)]


def test_run_that_has_ended_reports_its_end_again(write: Write) -> None:
    """A second process of a run that has succeeded starts nothing, and reports the same end and sentence, no report."""
    profile = build_lone_profile(write, "print('hello')")
    first = create_runner(profile, RUN_ID, LocalControl())
    ended = first.run()
    second = create_runner(profile, RUN_ID, LocalControl(2, is_retry_requested=False))
    assert (ended.end, ended.report) == ("succeeded", first.folder.report())
    assert (second.run(), second.folder.attempts()) == (ended._replace(report=None), [1])
    assert [event["name"] for event in second.folder.events() if event["event"] == "step"] == [
        *("preflight", "submit", "wait", "collect", "teardown"),
    ]


def test_process_that_was_lost_while_it_ended_the_run_is_replaced(write: Write) -> None:
    """The next process ends the run with the end that was recorded, and tears its job down."""
    profile = build_lone_profile(write, "import time; time.sleep(600)")
    first = create_runner(profile, RUN_ID, LocalControl())
    first.folder.path.mkdir(parents=True)
    first.folder.record_event("start", entry="fresh", first=1)
    attempt = first.preflight(1)
    first.submit(attempt)
    first.folder.record_event("ending", end="cancelled", sentence="cancelled through Prefect")
    second = create_runner(profile, RUN_ID, LocalControl(2))
    ended = second.run()
    assert (ended.end, ended.sentence, second.leftovers) == ("cancelled", "cancelled through Prefect", [])
    assert isinstance(attempt.plan, CommandPlan)
    assert find_labelled(attempt.plan.label) == []


class CancelledControl(LocalControl):
    """Reports a cancel without a signal, as after the death of a worker, once `cancelled` is set."""

    cancelled = False

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise CancelRequested

    def is_cancelled(self) -> bool:
        return self.cancelled


def test_cancel_without_a_signal_ends_the_wait(write: Write) -> None:
    """A cancel is detected at each poll of the job, even without any line, and the job is torn down."""
    control = CancelledControl()

    def wait_for_cancel(handle: Handle, emit: EmitJobEvent) -> Outcome:
        emit(RowsRead(()))
        control.cancelled = True
        emit(RowsRead(()))
        raise AssertionError("the wait goes on")

    steps = StepFunctions()._replace(wait=wait_for_cancel)
    runner = create_runner(build_lone_profile(write, "import time; time.sleep(60)"), RUN_ID, control, steps)
    ended = runner.run()
    assert (ended.end, ended.sentence, runner.leftovers) == ("cancelled", "cancelled through Prefect", [])


def test_run_that_is_cancelled_while_its_next_process_starts_is_torn_down(write: Write) -> None:
    """A cancel that arrives before the next process reaches the job ends the job too, not only the run."""
    profile = build_lone_profile(write)
    lost = create_runner(profile, RUN_ID, LocalControl())
    lost.folder.path.mkdir(parents=True)
    lost.folder.record_event("start", entry="fresh", first=1)
    lost.submit(lost.preflight(1))
    control = CancelledControl(2)
    control.cancelled = True
    runner = create_runner(profile, RUN_ID, control)
    ended = runner.run()
    assert (ended.end, [ended.number for ended in runner.attempts]) == ("cancelled", [1])
    assert isinstance(runner.plan, CommandPlan)
    assert find_labelled(runner.plan.label) == []


def submit_nothing(plan: Plan, deadlines: Deadlines, submitted_at: float | None) -> Handle:
    return Handle(plan=plan, deadlines=deadlines, created=True, submitted_at=submitted_at or 1.0, age_s=0.0)


def fail_with(error: BaseException | None, cause: str = "node-lost") -> StepFunctions:
    """Steps that start nothing: the wait raises this error, or each attempt fails from a cause that may pass."""
    failed = attempt(1, cause)
    collected = failed.collected.model_copy(update={"logs": (LogFile(node="node-0", path="/r/node-0/log", lines=1),)})

    def wait_for_failure(handle: Handle, emit: EmitJobEvent) -> Outcome:
        if error:
            raise error
        return failed.outcome

    return StepFunctions(
        preflight=lambda plan, **_: (),
        submit=submit_nothing,
        wait=wait_for_failure,
        collect=lambda plan, outcome: collected,
        teardown=lambda plan, **_: (),
    )


def test_budget_of_attempts_counts_from_the_start_that_was_requested(write: Write) -> None:
    """A run whose attempts fail has as many as its profile allows, and as many again when it is started again."""
    profile = build_lone_profile(write).model_copy(update={"attempts": 2})
    numbers = []
    for count in (1, 2):
        runner = create_runner(profile, RUN_ID, LocalControl(count), fail_with(None))
        assert runner.run().end == "failed"
        numbers.append([ended.number for ended in runner.attempts])
    assert numbers == [[1, 2], [3, 4]]


def test_failure_of_the_store_is_recorded_before_its_logs_are_read(write: Write) -> None:
    """A process that is lost after the rendezvous store failed leaves that outcome to the next one."""

    def fail_to_submit(*_: object) -> Handle:
        raise RendezvousError("http://gpu1:2379", "it does not respond", "is it running there?")

    def lose_process(*_: object) -> Collected:
        raise Terminated

    steps = fail_with(None)._replace(submit=fail_to_submit, collect=lose_process)
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), steps)
    runner.folder.path.mkdir(parents=True)
    with pytest.raises(Terminated):
        runner.run_pipeline(1)
    outcome = runner.folder.outcome(1)
    assert outcome
    assert outcome.status.failure
    assert outcome.status.failure.cause == "rendezvous-store"


NO_ROOM = PreflightError((Finding("room for 2 pods", "found room for 1", lacks_room=True),))
NO_ANSWER = ClusterError("https://10.0.0.1", "GET /api", "connection refused", 0)


def run_with_preflights(
    write: Write, monkeypatch: pytest.MonkeyPatch, errors: Sequence[Exception | None], start_s: float
) -> tuple[Runner, int]:
    """A run of two attempts that fail, whose preflights raise these errors in turn, and then none; with their number.

    `start_s`: its deadline for the start.
    """
    monkeypatch.setattr(runner_module, "_PREFLIGHT_INTERVAL_S", 0.0)
    results = iter(errors)
    count = 0

    def check(plan: Plan, **_: object) -> tuple[Finding, ...]:
        nonlocal count
        count += 1
        error = next(results, None)
        if error:
            raise error
        return ()

    profile = build_lone_profile(write)
    profile = profile.model_copy(
        update={"attempts": 2, "deadlines": profile.deadlines.model_copy(update={"start": start_s})}
    )
    runner = create_runner(profile, RUN_ID, LocalControl(), fail_with(None)._replace(preflight=check))
    assert runner.run().end == "failed"
    return runner, count


def test_later_attempt_waits_until_its_preflight_passes(
    write: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is drained, or an API server that does not answer, delays the next attempt; each reason once."""
    runner, count = run_with_preflights(write, monkeypatch, [None, NO_ROOM, NO_ROOM, NO_ANSWER], 600)
    assert ([attempt.number for attempt in runner.attempts], count) == ([1, 2], 5)
    assert caplog.text.count("attempt 2 cannot start yet, and waits, at most 10 min 00 s (deadlines.start)") == 2
    assert caplog.text.count("found room for 1") == 1


NO_SERVER = PreflightError((Finding("cluster c", "https://10.0.0.1 does not respond: connection refused"),))


@pytest.mark.parametrize(
    ("errors", "avoided_hosts", "is_too_few"),
    [
        ([NO_SERVER, None], [["bad"], ["bad"]], False),
        ([NO_ANSWER, None], [["bad"], ["bad"]], False),
        ([NO_ROOM, None], [["bad"], []], True),
        ([NO_ROOM, NO_ROOM, None], [["bad"], [], ["bad"]], False),
    ],
)
def test_failed_machines_are_used_again_only_if_the_others_are_too_few(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    errors: list[Exception | None],
    avoided_hosts: list[list[str]],
    is_too_few: bool,
) -> None:
    """The failed machine is used if room lacks without it; a preflight that could not check anything is repeated."""
    monkeypatch.setattr(runner_module, "_PREFLIGHT_INTERVAL_S", 0.0)
    profile = build_lone_profile(write)
    avoiding = profile.model_copy(update={"options": {"avoid": ("bad",)}})
    monkeypatch.setattr(runner_module, "avoid_failed_machines", lambda *_: avoiding)
    results = iter(errors)
    checked_hosts: list[list[str]] = []

    def make_plan(checked: Profile, run: Run, *_: object) -> Plan:
        checked_hosts.append(list(checked.options.get("avoid", ())))
        return build_lone_plan(profile, Path(run.folder))

    def check(plan: Plan, **_: object) -> tuple[Finding, ...]:
        error = next(results)
        if error:
            raise error
        return ()

    monkeypatch.setattr(runner_module, "make_plan", make_plan)
    runner = create_runner(profile, RUN_ID, LocalControl(), fail_with(None)._replace(preflight=check))
    runner.folder.path.mkdir(parents=True)
    runner.attempts = [attempt(1, "node-lost")]
    runner.preflight(2)
    assert checked_hosts == avoided_hosts
    assert ("avoid_failed leaves too few machines" in caplog.text) == is_too_few


@pytest.mark.parametrize(("errors", "start_s", "count"), [([NO_ROOM], 600, 1), ([None, NO_ROOM], 0, 2)])
def test_preflight_that_fails_ends_the_run(
    write: Write, monkeypatch: pytest.MonkeyPatch, errors: list[Exception | None], start_s: float, count: int
) -> None:
    """The first attempt does not wait, and a later one no longer than its deadline; the sentence is the preflight's."""
    runner, actual_count = run_with_preflights(write, monkeypatch, errors, start_s)
    report = runner.folder.report()
    assert report
    assert (actual_count, report.sentence.splitlines()[0]) == (count, "preflight: 1 of 1 checks failed")


@pytest.mark.parametrize(("on_hang", "attempts"), [("restart", 2), ("fail", 1)])
def test_hang_gets_another_attempt_only_with_restart(write: Write, on_hang: str, attempts: int) -> None:
    """A hang is worth another attempt, but with `on_hang: fail` it ends the run."""
    profile = build_lone_profile(write).model_copy(update={"attempts": 2, "on_hang": on_hang})
    runner = create_runner(profile, RUN_ID, LocalControl(), fail_with(None, "rank-hangs"))
    assert runner.run().end == "failed"
    assert len(runner.attempts) == attempts


def leave_processes(
    monkeypatch: pytest.MonkeyPatch, write: Write, responses: list[list[str]], lease_s: float
) -> tuple[Runner, list[float]]:
    """A run of two attempts whose first teardown leaves processes, as each query in `responses` reports them.

    Returns also the argument of each query.
    """
    queries: list[float] = []

    def list_live_processes(_: MachinesJob, *, ended_after_s: float) -> list[str]:
        queries.append(ended_after_s)
        return responses[min(len(queries), len(responses)) - 1]

    monkeypatch.setattr(MachinesJob, "list_live_processes", list_live_processes)
    monkeypatch.setattr(runner_module, "_LIVE_QUERY_INTERVAL_S", 0.0)
    deadlines = Deadlines(lease=lease_s, grace=0.01)
    profile = build_lone_profile(write).model_copy(update={"attempts": 2, "deadlines": deadlines})
    steps = fail_with(None)._replace(teardown=lambda plan, **_: ("gpu1: reach it by ssh",) if not queries else ())
    return create_runner(profile, RUN_ID, LocalControl(), steps), queries


def test_next_attempt_waits_for_the_processes_of_the_last_one(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    """While a host does not answer, its processes may run, and share the checkpoints of the next attempt."""
    runner, queries = leave_processes(monkeypatch, write, [["gpu1: reach it by ssh"]] * 2 + [[]], lease_s=600.0)
    runner.run()
    assert (queries, len(runner.attempts), runner.leftovers) == ([600.01] * 3, 2, [])


@pytest.mark.parametrize(("last_response", "attempts"), [([], 2), (["gpu1: process 7"], 1)])
def test_lease_ends_the_wait_for_a_lost_host(
    monkeypatch: pytest.MonkeyPatch, write: Write, last_response: list[str], attempts: int
) -> None:
    """After the lease a host that does not answer runs nothing; a process that is known to run ends the run instead."""
    runner, _ = leave_processes(monkeypatch, write, [["gpu1: process 7"], last_response], lease_s=0.01)
    ended = runner.run()
    assert len(runner.attempts) == attempts
    assert ("may still run: gpu1: process 7" in ended.sentence) == (attempts == 1)


def test_held_port_is_replaced_by_the_run_itself(write: Write) -> None:
    """A run whose port another process holds takes the next one that follows from its id."""
    profile = build_lone_profile(write, "print('done')")
    taken_port = first_port(Run(id=RUN_ID, attempt=1, folder=""))
    with socket.create_server(("127.0.0.1", taken_port)):
        runner = create_runner(profile, RUN_ID, LocalControl())
        assert runner.run().end == "succeeded"
    attempt_plan = runner.folder.attempt_plan(1)
    assert attempt_plan
    ports = [item.port for item in attempt_plan.plan.requires if isinstance(item, FreePort)]
    assert ports == [first_port(Run(id=RUN_ID, attempt=1, port_try=1, folder=""))]


def test_held_port_that_a_user_has_chosen_is_an_error(write: Write) -> None:
    """A port that the profile sets is not replaced."""
    profile = build_lone_profile(write)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        chosen = profile.model_copy(update={"options": {"port": port}})
        assert f"port {port} on localhost" in create_runner(chosen, RUN_ID, LocalControl()).run().sentence


def test_resumed_run_keeps_its_budget(write: Write) -> None:
    """The process that resumes a run continues with the attempt of the lost one, and both share the budget."""
    profile = build_lone_profile(write).model_copy(update={"attempts": 3})
    lost = create_runner(profile, RUN_ID, LocalControl(), fail_with(None))
    lost.folder.path.mkdir(parents=True)
    lost.folder.record_event("start", entry="fresh", first=1)
    for number in (1, 2):
        lost.folder.save_attempt_plan(
            number, AttemptPlan(plan=build_lone_plan(profile, lost.folder.path), deadlines=Deadlines())
        )
    runner = create_runner(profile, RUN_ID, LocalControl(2), fail_with(None))
    runner.run()
    assert [ended.number for ended in runner.attempts] == [2, 3]


def test_next_attempt_continues_although_the_disk_was_full(write: Write) -> None:
    """Checkpoints of the last attempt that are not in the run's folder are those that this process has read."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl())
    runner.folder.path.mkdir(parents=True)
    ended = attempt(1, "node-lost")
    collected = ended.collected.model_copy(update={"checkpoints": (build_checkpoint("/c/step-5"),)})
    runner.attempts = [ended.model_copy(update={"collected": collected})]
    assert "/c/step-5" in runner.preflight(2).plan.model_dump_json()


def test_error_of_a_resumed_run_leaves_its_job(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot resume a run leaves its job running for the next process, whatever the reason is."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    runner.folder.record_event("step", name="submit")
    full = FolderError(str(runner.folder.path), "No space left on device")
    monkeypatch.setattr(RunFolder, "record_event", Mock(side_effect=full))
    with pytest.raises(DetachedError, match="No space left on device"):
        runner.run()


def test_journal_that_cannot_be_read_proves_no_end(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the journal fails during a resume, a job may run, so that the run does not end."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    monkeypatch.setattr(RunFolder, "attempts", Mock(side_effect=FolderError("x", "Stale file handle")))
    with pytest.raises(DetachedError, match="Stale file handle"):
        runner.run()
    assert runner.folder.read_record().is_lost


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "Resource temporarily unavailable"), FolderError("x", "Stale file handle")]
)
def test_error_before_the_steps_of_a_resumed_run_is_a_departure(
    write: Write, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A process that cannot start its watchdog leaves the job, and its journal says so: it did not die."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    monkeypatch.setattr(runner_module, "Watchdog", Mock(side_effect=error))
    with pytest.raises(DetachedError, match=r"Resource temporarily unavailable|Stale file handle"):
        runner.run()
    assert runner.folder.events()[-1]["event"] == "left"


@pytest.mark.parametrize(("stop", "text"), [(KeyboardInterrupt(), "Ctrl-C"), (Terminated(), "SIGTERM")])
def test_stop_while_a_user_attaches_leaves_the_job(
    write: Write, monkeypatch: pytest.MonkeyPatch, stop: BaseException, text: str
) -> None:
    """A Ctrl-C or SIGTERM before the job could be stopped says that the job keeps running, also in the journal."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    monkeypatch.setattr(runner_module, "Watchdog", Mock(side_effect=stop))
    with pytest.raises(DetachedError, match=f"stopped by {text}: .* the job keeps running"):
        runner.run()
    assert runner.folder.events()[-1]["event"] == "left"


@pytest.mark.parametrize(("count", "is_automatic"), [(1, False), (2, True)])
def test_stop_that_leaves_no_job_or_is_an_orchestrators_is_raised(
    write: Write, monkeypatch: pytest.MonkeyPatch, count: int, is_automatic: bool
) -> None:
    """A Ctrl-C before anything is started reports no job, and an orchestrator gets the exception that it has raised."""
    control = LocalControl(count)
    monkeypatch.setattr(control, "is_automatic", is_automatic)
    monkeypatch.setattr(runner_module, "Watchdog", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        create_runner(build_lone_profile(write), RUN_ID, control, fail_with(None)).run()


def test_user_may_attach_as_often_as_it_takes(write: Write) -> None:
    """Without an orchestrator each process is a user's: a run whose processes died three times is attached to."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(4), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    for _ in range(3):
        runner.folder.record_event("start", entry="attach", first=1)
    runner.run()
    assert runner.folder.read_record().last_start["entry"] == "attach"


def test_log_that_the_archive_does_not_send_ends_no_run(write: Write) -> None:
    """A run whose ended job's logs do not arrive from the archive is left to the next process, which reads them."""
    profile = build_lone_profile(write)
    runner = create_runner(profile, RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    plan = build_lone_plan(profile, runner.folder.path)
    runner.folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    runner.folder.save_outcome(1, attempt(1, "node-lost").outcome)
    archive = Mock(wraps=NoArchive())
    archive.await_logs.side_effect = ArchiveError("s3://x", "connection refused")
    runner.services = runner.services._replace(open_archive=lambda *_, **__: contextlib.nullcontext(archive))
    with pytest.raises(DetachedError, match="connection refused"):
        runner.run()
    archive.await_logs.assert_called_once_with(1)
    assert runner.folder.events()[-1]["event"] == "left"


def test_error_of_a_run_that_never_began_is_its_end(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first process that cannot write its folder has started nothing, and reports the error itself."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), fail_with(None))
    monkeypatch.setattr(RunFolder, "record_event", Mock(side_effect=FolderError("x", "No space left on device")))
    with pytest.raises(FolderError):
        runner.run()


def test_duration_of_a_resumed_run_counts_from_its_first_process(write: Write) -> None:
    """The report of a resumed run counts its seconds from the start of its first process."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(2), fail_with(None))
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1, at=time.time() - 3600)
    report = runner.run().report
    assert report
    assert 3600 <= report.seconds < 7200


@pytest.mark.parametrize(
    ("error", "messages"),
    [
        (None, ["ending", "done"]),
        (RunInUseError("x", "elsewhere:/runs"), ["done"]),
        (HostError("h", "wait", "no answer"), []),
    ],
)
def test_watchdog_is_released_by_the_end_of_a_run(
    write: Write, monkeypatch: pytest.MonkeyPatch, error: Exception | None, messages: list[str]
) -> None:
    """The watchdog is not needed after the end of a run, or its takeover; it takes over a job that is left running."""
    sent = []

    class RecordedWatchdog(Watchdog):
        """Sends nothing, so that it takes nothing over."""

        def __init__(self, argv: Iterable[str]) -> None:
            pass

        def send(self, message: Literal["ending", "done"]) -> None:
            sent.append(message)

    monkeypatch.setattr(runner_module, "Watchdog", RecordedWatchdog)
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), fail_with(error))
    with pytest.raises((RunInUseError, DetachedError)) if error else contextlib.nullcontext():
        runner.run()
    assert sent == messages


@pytest.mark.parametrize(
    ("error", "event", "end"),
    [
        (None, "end", "failed"),
        (RunInUseError("x", "elsewhere:/runs"), "end", "moved"),
        (HostError("h", "wait", "no answer"), "left", None),
    ],
)
def test_journal_ends_with_how_the_process_ends(
    write: Write, error: Exception | None, event: str, end: str | None
) -> None:
    """The journal's last event is the run's end, its move to another owner, or that its job is left running."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), fail_with(error))
    with pytest.raises((RunInUseError, DetachedError)) if error else contextlib.nullcontext():
        runner.run()
    last_event = runner.folder.events()[-1]
    assert (last_event["event"], last_event.get("end")) == (event, end)


def leave_ending_run(write: Write, end: End, outcome: Outcome | None) -> tuple[Runner, tuple[Attempt, ...]]:
    """The next process of a run of two attempts that was lost while it ended; with these attempts, as it had read them.

    `outcome`: of the last attempt, as it is recorded; None if it is not.
    """
    profile = build_lone_profile(write)
    steps = fail_with(None)._replace(collect=Mock(side_effect=AssertionError("the logs are read again")))
    runner = create_runner(profile, RUN_ID, LocalControl(2), steps)
    runner.folder.path.mkdir(parents=True)
    runner.folder.record_event("start", entry="fresh", first=1)
    attempts = (attempt(1, "node-lost"), attempt(2, "").model_copy(update={"collected": measured(200.0)}))
    for ended in attempts:
        plan = build_lone_plan(profile, runner.folder.path)
        runner.folder.save_attempt_plan(ended.number, AttemptPlan(plan=plan, deadlines=Deadlines()))
        runner.folder.save_ended(ended)
    if outcome:
        runner.folder.save_outcome(2, outcome)
    runner.folder.record_event("ending", end=end, sentence="done")
    return runner, attempts


def test_logs_that_an_earlier_process_has_read_are_not_read_again(write: Write) -> None:
    """The process that ends a lost run reports all its attempts as they were read: their logs may be nowhere now."""
    runner, attempts = leave_ending_run(write, "succeeded", attempt(2, "").outcome)
    report = runner.run().report
    assert report
    assert (report.end, report.attempts, report.leftovers) == ("succeeded", attempts, ())
    (record,) = read_history(Path(report.history)).records
    assert record.numbers["busbw"] == 200.0


def test_logs_are_read_if_the_job_has_ended_in_another_way(write: Write) -> None:
    """What a sweep that was killed has read of a job is replaced by what is read of its recorded end."""
    runner, _ = leave_ending_run(write, "failed", attempt(2, "node-lost").outcome)
    steps = fail_with(None)
    runner = create_runner(runner.profile, RUN_ID, LocalControl(2), steps)
    report = runner.run().report
    assert report
    assert [ended.outcome.status.state for ended in report.attempts] == ["failed", "failed"]


def test_log_that_only_a_lost_machine_had_is_incomplete(write: Write) -> None:
    """The report states which logs another machine has read and kept; one that cannot be looked for is not one."""
    runner, (_, ended) = leave_ending_run(write, "succeeded", attempt(2, "").outcome)
    (runner.folder.path / "loop").symlink_to("loop")
    (runner.folder.path / "here").write_text("")
    names = ("absent", "here", "loop", "empty")
    logs = [LogFile(node=name, path=str(runner.folder.path / name), lines=int(name != "empty")) for name in names]
    collected = ended.collected.model_copy(update={"logs": tuple(logs)})
    runner.folder.save_ended(ended.model_copy(update={"collected": collected}))
    report = runner.run().report
    assert report
    assert report.collected
    assert [log.node for log in report.collected.logs if log.lost] == ["absent"]


# --- the end of a run


@pytest.fixture
def runner(write: Write) -> Iterator[Runner]:
    """A run of one process that would sleep for a minute; the run is owned, and nothing is started yet."""
    runner = create_runner(build_lone_profile(write), RUN_ID, LocalControl())
    with runner.folder.owned():
        yield runner
    if runner.plan:
        runner.remove(runner.plan)


def test_end_is_in_the_journal_and_in_the_report(runner: Runner) -> None:
    """The journal gets `ending` and then `end`, and the returned report is the saved one."""
    report = runner.finish("failed", "it broke")
    assert [(event["event"], event["end"], event["sentence"]) for event in runner.folder.events()] == [
        ("ending", "failed", "it broke"),
        ("end", "failed", "it broke"),
    ]
    assert (runner.folder.report(), report.attempts, report.leftovers) == (report, (), ())


def test_recorded_end_has_its_report(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the journal has the end, the report is on disk: a process that is killed while it sends it loses nothing."""
    saved_at_end = []
    record_event = RunFolder.record_event

    def record(folder: RunFolder, event: str, **fields: object) -> None:
        if event == "end":
            saved_at_end.append(folder.report())
        record_event(folder, event, **fields)

    monkeypatch.setattr(RunFolder, "record_event", record)
    monkeypatch.setattr(runner.sinks, "end", lambda report: ("a message",))
    report = runner.finish("failed", "it broke")
    assert saved_at_end == [report.model_copy(update={"unsent": ()})]
    assert runner.folder.report() == report


def test_run_that_is_started_again_has_no_report_of_its_earlier_start(write: Write) -> None:
    """While a run that had ended runs again, its folder does not have the report of that end."""
    profile = build_lone_profile(write)
    first = create_runner(profile, RUN_ID, LocalControl(), fail_with(None))
    first.run()
    assert first.folder.report()
    reports = []

    def wait_for_end(handle: Handle, emit: EmitJobEvent) -> Outcome:
        reports.append(first.folder.report())
        return attempt(1, "node-lost").outcome

    create_runner(profile, RUN_ID, LocalControl(2), fail_with(None)._replace(wait=wait_for_end)).run()
    assert reports == [None]


def test_secret_in_the_sentence_is_masked(runner: Runner) -> None:
    """Neither the journal nor the report contains a secret that an error message quotes."""
    report = runner.finish("failed", "train.py --token=abc123 failed")
    assert (report.sentence.startswith("train.py --token="), report.sentence.endswith(" failed")) == (True, True)
    assert "abc123" not in report.model_dump_json() + (runner.folder.path / "journal").read_text()


def test_secrets_of_a_running_job_are_masked(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that rank 0 prints in a row, or that a pod's status quotes, reach no receiver of events."""
    row: Row = {"epoch": 1, "loss": 0.5, "resume": "s3://bucket/last.pt?token=abc123456"}
    status = Status(state="pending", reason="Failed to pull image: https://user:hunter2secret@registry/image")

    def wait_for_end(handle: Handle, emit: EmitJobEvent) -> Outcome:
        emit(RowsRead((row, {"epoch": 2, "loss": 0.4})))
        emit(StatusRead(status, 1.0))
        return attempt(1, "node-lost").outcome

    runner = create_runner(
        build_lone_profile(write), RUN_ID, LocalControl(), fail_with(None)._replace(wait=wait_for_end)
    )
    emitted: list[RunEvent] = []
    monkeypatch.setattr(runner.sinks, "emit", emitted.append)
    runner.run()
    rows, status_read = [event for event in emitted if isinstance(event, RowsRead | StatusRead)]
    assert isinstance(rows, RowsRead)
    assert isinstance(status_read, StatusRead)
    assert rows.rows == (row | {"resume": "s3://bucket/last.pt?token=****"}, {"epoch": 2, "loss": 0.4})
    assert status_read.status.reason == "Failed to pull image: https://user:****@registry/image"


def submit_attempt(runner: Runner) -> CommandPlan:
    """Start the run's first attempt without waiting for it."""
    attempt = runner.preflight(1)
    assert isinstance(attempt.plan, CommandPlan)
    submit(attempt.plan, attempt.deadlines)
    return attempt.plan


def test_open_attempt_is_stopped_before_it_is_read(runner: Runner) -> None:
    """An attempt that the run's end interrupts is stopped, collected and torn down, and its outcome is recorded."""
    plan = submit_attempt(runner)
    report = runner.finish("cancelled", "cancelled through Prefect")
    (attempt,) = report.attempts
    assert (attempt.outcome.cause, attempt.outcome.status.reason) == ("stopped", "cancelled through Prefect")
    assert report.leftovers == ()
    assert find_labelled(plan.label) == []
    assert runner.open_attempt is None
    assert runner.folder.outcome(1) == attempt.outcome


def test_hang_of_a_run_that_a_user_stops_is_in_the_report(runner: Runner) -> None:
    """The verdict that stood when the run was stopped, as a user does with a hanging run, is in its report."""
    submit_attempt(runner)
    write_hang_files(runner.folder.attempt(1), HANG, RECORDS)
    (attempt,) = runner.finish("stopped", "stopped by Ctrl-C").attempts
    assert attempt.outcome.hang == HANG


def test_lines_that_the_stop_has_lost_are_in_the_report(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of an interrupted attempt lists the logs whose last lines may be missing."""
    (name,) = submit_attempt(runner).nodes
    monkeypatch.setattr(MachinesJob, "stop_unwatched", lambda _: {name: "perhaps its end: no answer"})
    (attempt,) = runner.finish("stopped", "stopped by SIGTERM").attempts
    assert [(log.node, log.lost) for log in attempt.collected.logs] == [(name, "perhaps its end: no answer")]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("a fault of ours")])
def test_unreadable_log_does_not_prevent_the_end(write: Write, error: Exception) -> None:
    """A run that is stopped ends although the logs of its job cannot be read, and its report states that."""
    steps = fail_with(KeyboardInterrupt())._replace(collect=Mock(side_effect=error))
    report = create_runner(build_lone_profile(write), RUN_ID, LocalControl(), steps).run().report
    assert report
    assert (report.end, [step.name for step in report.steps][-1]) == ("stopped", "teardown")
    assert ["cannot be read" in leftover and str(error) in leftover for leftover in report.leftovers] == [True]


def test_report_that_cannot_be_saved_is_still_shown(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    """A report that cannot be written is an error in the log; the run's end stays as it was decided."""
    (runner.folder.path / "report.json").mkdir()
    report = runner.finish("succeeded", "2 of 2 agents ended with 0")
    assert (report.end, runner.folder.read_record().find_last("end")["end"]) == ("succeeded", "succeeded")
    assert "the report is not on disk: " in caplog.text


def test_run_that_cannot_be_released_is_in_the_report(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leftovers of a refused release are in the report, from the first one on that is saved."""
    submit_attempt(runner)

    def refuse(_: object) -> None:
        raise FolderError("runs/x", "Permission denied", "make it writable")

    monkeypatch.setattr(MachinesOwner, "release", refuse)
    report = runner.finish("cancelled", "cancelled through Prefect")
    assert ["Permission denied" in leftover for leftover in report.leftovers] == [True]
    assert runner.folder.report() == report


def finish_with(runner: Runner, busbw: float, end: End = "succeeded") -> Report:
    """Finish a run whose job printed this number."""
    runner.started_at += 1  # another run of the same profile
    runner.attempts = [attempt(1, "").model_copy(update={"collected": measured(busbw)})]
    return runner.finish(end, "2 of 2 agents ended with 0")


def measured(busbw: float) -> Collected:
    return Collected(logs=(), metrics=Metrics(rows=({"step": 1, "busbw": busbw},)), failure=None)


@pytest.mark.parametrize(("on_regression", "end"), [("fail", "failed"), ("report", "succeeded")])
def test_run_that_became_worse(runner: Runner, on_regression: Literal["fail", "report"], end: End) -> None:
    """A number below the band fails the run if `on_regression` is `fail`, and else is only reported."""
    trend = Trend(value="busbw", on_regression=on_regression)
    runner.profile = runner.profile.model_copy(update={"trend": trend})
    assert [finish_with(runner, 200.0).end for _ in range(6)] == ["succeeded"] * 6
    report = finish_with(runner, 150.0)
    trend_sentence = "busbw is 150, 25.0 % below 200, the median of the last 6 runs; 194 to 206 would be usual"
    assert (
        report.end,
        runner.folder.read_record().find_last("end")["end"],
        runner.folder.read_record().find_last("ending")["end"],
    ) == (end, end, end)
    assert (report.sentence == f"{trend_sentence}; see {report.history}") == (end == "failed")
    assert f"  trend        worse: {trend_sentence}\n" in render_text(report)
    assert finish_with(runner, 200.0).end == "succeeded"


def test_failed_run_is_recorded_and_stays_failed(runner: Runner) -> None:
    """A failed run is recorded in the history with its end, and not compared."""
    runner.profile = runner.profile.model_copy(update={"trend": Trend(value="busbw")})
    report = finish_with(runner, 1.0, "failed")
    (record,) = read_history(Path(report.history)).records
    assert (record.end, record.numbers, report.trend) == ("failed", {"step": 1.0, "busbw": 1.0}, None)


def test_history_is_not_listed_as_a_run(runner: Runner) -> None:
    """The history is stored in the runs folder, and is not listed as a run."""
    report = finish_with(runner, 1.0)
    assert Path(report.history).parent.parent == runs_folder()
    assert [folder.name for folder in list_run_folders()] == [runner.folder.name]


def test_unwritable_history_does_not_change_the_end(runner: Runner) -> None:
    """If the history cannot be written, the run ends as its job did."""
    history_folder(runs_folder()).write_text("")
    runner.profile = runner.profile.model_copy(update={"trend": Trend(value="busbw", on_regression="fail")})
    report = finish_with(runner, 1.0)
    assert (report.end, report.trend and report.trend.verdict) == ("succeeded", "unknown")
