"""Waiting for a job of pods, on a fake API server: slow logs, servers that are away, and trouble of one's own."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.fake_objects import Object
from torchyard.cluster import create, log_follower
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.log_follower import LogFollower
from torchyard.common.own_trouble import is_own_trouble
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome
from torchyard.pods import lease_record, seal
from torchyard.steps import wait as waiting
from torchyard.steps.wait import wait

NODES = ("worker-0", "worker-1")
STAMP = b"2026-01-01T00:00:00.%03dZ "


class Job:
    """A Volcano job of two pods, moved by the test."""

    def __init__(self, server: FakeApi, plan: ManifestPlan) -> None:
        self.server, self.plan = server, plan
        create.create_job(plan)
        for node in NODES:
            self.set_pod(node, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        self.set_job("Running")

    def name(self, node: str) -> str:
        return f"{self.plan.job}-{node}"

    def log(self, node: str = "worker-0") -> list[str]:
        """What is on disk of a log, without stamps."""
        path = Path(self.plan.nodes[node])
        return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []

    def set_pod(self, node: str, phase: str, state: Object) -> None:
        owner = {"uid": self.job()["metadata"]["uid"]}
        about: Object = {"name": self.name(node), "uid": f"uid-{node}", "labels": dict(self.plan.labels)}
        about["ownerReferences"] = [owner]
        status = {"phase": phase, "containerStatuses": [{"name": self.plan.container, "state": state}]}
        spec = {"restartPolicy": "Never", "containers": [{"name": self.plan.container}]}
        self.server.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status})

    def job(self) -> Object:
        found = self.server.find(self.plan.main["apiVersion"], "Job", self.plan.job)
        assert found
        return found

    def set_job(self, phase: str) -> None:
        self.server.put({**self.job(), "status": {"state": {"phase": phase}}})

    def end(self, code: int = 0) -> None:
        phase, ended = ("Failed", "Failed") if code else ("Succeeded", "Completed")
        for node in NODES:
            self.set_pod(node, phase, {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:01:00Z"}})
        self.set_job(ended)

    def wait(self, age: float = 0.0, pulse: Callable[[list[str]], None] = lambda _: None, **limits: float) -> Outcome:
        handle = Handle(plan=self.plan, deadlines=Deadlines(**limits), created=not age, submitted_at=1.0, age=age)
        return wait(handle, pulse)


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    return Job(fake_api, planned(nodes=2))


def lines(count: int) -> list[bytes]:
    return [STAMP % number + b"line %d\n" % number for number in range(count)]


def slowly(
    count: int, pause: float, stays: Callable[[], Any] = lambda: True, first: Sequence[bytes] = ()
) -> Callable[[], Iterator[bytes]]:
    """A log that comes line by line, as long as something is so; the `first` ones at once."""

    def pour() -> Iterator[bytes]:
        yield from first
        for line in lines(count):
            time.sleep(pause)
            if not stays():
                return
            yield line

    return pour


def after(seconds: float, *work: Callable[[], Any]) -> None:
    """Do something a little later."""

    def go() -> None:
        time.sleep(seconds)
        for each in work:
            each()

    threading.Thread(target=go, daemon=True).start()


def until(found: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- attached late


def test_old_job_with_a_backlog_is_attached_to_and_lives(job: Job) -> None:
    """A run that is older than its deadlines, the log of which takes seconds to come, is neither late nor silent."""
    job.server.logs[job.name("worker-0")] = slowly(20, 0.1)
    after(2.5, job.end)
    assert job.wait(age=5000, start=60, silence=1).status.state == "succeeded"


def test_log_that_cannot_be_asked_for_is_not_silent(job: Job) -> None:
    """Where a kubelet is away nobody knows what its pod says: the clock of silence stands."""
    job.server.fail("GET", "/log", 500)
    after(3, job.server.heal, job.end)
    assert job.wait(silence=1).status.state == "succeeded"


def test_job_that_ended_while_nobody_looked_is_not_late(job: Job) -> None:
    """Its end counts, though it is read long after the run deadline, and after the API server was away."""
    job.end()
    job.server.fail("GET", "/pods", 0)
    after(1.5, job.server.heal)
    assert job.wait(age=5000, run=100).status.state == "succeeded"


def test_job_that_hangs_is_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is seen and heard, and nothing is said."""
    monkeypatch.setattr(waiting, "_LOG_SILENCE_S", 0.5)
    for node in NODES:
        job.server.logs[job.name(node)] = slowly(10_000, 60, first=lines(1))
    assert job.wait(silence=1).cause == "silence"
    assert job.server.find(job.plan.main["apiVersion"], "Job", job.plan.job) is None


# --- slow logs at the end


def test_log_is_waited_for_while_it_comes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that comes slowly is read to its end, and meanwhile the wait says that it lives."""
    monkeypatch.setattr(waiting, "_LOG_SILENCE_S", 0.8)
    job.server.logs[job.name("worker-0")] = slowly(20, 0.1)
    job.end()
    pulses = list[list[str]]()
    outcome = job.wait(pulse=pulses.append)
    assert (outcome.lost, len(job.log())) == ({}, 20)
    assert len(pulses) > 10


def test_failed_job_is_not_deleted_before_its_logs_are_read(job: Job) -> None:
    """The end of a failed job's log says why: its pods stay until that is here."""

    def is_there() -> bool:
        return not job.server.requests("DELETE", job.plan.job)

    job.server.logs[job.name("worker-1")] = slowly(20, 0.05, stays=is_there)
    job.end(code=1)
    outcome = job.wait()
    assert (outcome.status.state, outcome.lost, len(job.log("worker-1"))) == ("failed", {}, 20)
    assert not is_there()


def test_api_server_that_is_away_at_the_end_is_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that nobody can give now is read when the API server is back, however long that takes."""
    monkeypatch.setattr(log_follower, "_MAX_RETRY_DELAY_S", 0.3)
    job.server.logs[job.name("worker-0")] = b"".join(lines(5))
    job.server.fail("GET", "/log", 0)
    with ClusterWatch(job.plan) as watch:
        job.end()
        until(lambda: watch.changes(0.1) is False and watch.seen["Pod/worker-0"]["status"]["phase"] == "Succeeded")
        job.server.fail("GET", ".", 0)
        job.server.cut()
        until(lambda: watch.changes(0.05) is not None and not watch.known())
        after(2.5, job.server.heal)
        assert (watch.settle(1.0), watch.lost(), len(job.log())) == (True, {}, 5)


def test_person_may_end_the_reading(job: Job) -> None:
    """A cancel is heeded while a slow log is read."""
    job.server.logs[job.name("worker-0")] = slowly(10_000, 0.1)
    job.end()
    began = time.monotonic()

    def pulse(_: list[str]) -> None:
        if time.monotonic() - began > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.wait(pulse=pulse)


# --- trouble of one's own


def test_removed_run_folder_ends_nothing(job: Job) -> None:
    """The folder of a living run is removed: the job goes on, and its log is written anew, from its first line."""
    job.server.logs[job.name("worker-0")] = b"".join(lines(3))

    def remove() -> None:
        until(lambda: len(job.log()) == 3)
        shutil.rmtree(job.plan.folder)
        job.server.logs[job.name("worker-0")] = b"".join(lines(6))
        job.end()

    after(0, remove)
    outcome = job.wait()
    assert (outcome.status.state, job.log()) == ("succeeded", [f"line {number}" for number in range(6)])


def test_thread_that_cannot_start_is_started_later(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a thread for a log the job is still watched, and the log is read once there is one."""
    job.server.logs[job.name("worker-0")] = b"".join(lines(3))
    start, seen_running = LogFollower.start, threading.Event()

    def start_late(self: LogFollower) -> None:
        if not seen_running.is_set():
            raise RuntimeError("can't start new thread")
        start(self)

    def pulse(_: list[str]) -> None:
        if "after" in caplog.text:  # the wait has said that the job runs
            seen_running.set()

    caplog.set_level("INFO")
    monkeypatch.setattr(LogFollower, "start", start_late)
    after(3, job.end)
    outcome = job.wait(pulse=pulse)
    assert (outcome.status.state, outcome.lost, len(job.log())) == ("succeeded", {}, 3)
    assert caplog.text.count("cannot follow every log: can't start new thread") == 1


@pytest.mark.parametrize(
    ("error", "own"),
    [(OSError(24, "x"), True), (RuntimeError("can't start new thread"), True), (RuntimeError("x"), False)],
)
def test_own_trouble_is_told_from_faults(error: Exception, own: bool) -> None:
    """A fault of the program is no trouble that passes."""
    assert is_own_trouble(error) is own


def test_outcome_is_in_the_lease_before_anything_is_deleted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes back in the middle of the end must not begin anew."""
    monkeypatch.setattr(seal, "get_run_key", lambda _: "the run's own")
    job.end(code=1)
    job.wait()
    held = job.server.find(lease_record.LEASE_API, lease_record.LEASE_KIND, job.plan.run)
    assert held
    outcome = lease_record.read_outcome(held, "the run's own")
    assert outcome
    assert outcome.status.state == "failed"
