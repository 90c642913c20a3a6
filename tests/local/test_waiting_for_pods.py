"""Waiting for a job of pods on a fake API server: slow logs, outages, and threads that cannot start."""

import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.pod_jobs import NODES, Job, build_lines, run_later, slow_log
from tests.support.waiting import wait_until
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.logs import log_follower
from torchyard.common.event_loop import LoopThread
from torchyard.model.run import Row
from torchyard.steps import wait as wait_module


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    return Job(fake_api, planned(nodes=2))


# --- attaching late


def test_attached_job_with_a_slow_log_is_not_ended(job: Job) -> None:
    """An attached job that is older than its deadlines, and whose log arrives slowly, is neither late nor silent."""
    job.fake_api.logs[job.get_pod_name("worker-0")] = slow_log(20, 0.1)
    run_later(2.5, job.end)
    assert job.wait(age_s=5000, start=60, silence=1).status.state == "succeeded"


def test_job_whose_log_cannot_be_read_is_not_silent(job: Job) -> None:
    """While a kubelet does not serve a pod's log, the silence deadline does not expire."""
    job.fake_api.fail("GET", "/log", 500)
    run_later(3, job.fake_api.heal, job.end)
    assert job.wait(silence=1).status.state == "succeeded"


def test_job_that_ended_unobserved_is_not_late(job: Job) -> None:
    """A job that ended unobserved is not late, even if its end is read after the run deadline and an outage."""
    job.end()
    job.fake_api.fail("GET", "/pods", 0)
    run_later(1.5, job.fake_api.heal)
    assert job.wait(age_s=5000, run=100).status.state == "succeeded"


def test_job_that_hangs_is_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose states and logs are current is ended for silence if it prints nothing."""
    monkeypatch.setattr(wait_module, "LOG_SILENCE_S", 0.5)
    for node in NODES:
        job.fake_api.logs[job.get_pod_name(node)] = slow_log(10_000, 60, first_lines=build_lines(1))
    assert job.wait(silence=1).cause == "silence"
    assert job.fake_api.find(job.plan.main["apiVersion"], "Job", job.plan.job) is None


# --- slow logs at the end


def test_slow_log_is_read_to_its_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow log is read to its end, and meanwhile the wait calls `on_poll`."""
    monkeypatch.setattr(wait_module, "LOG_SILENCE_S", 0.8)
    job.fake_api.logs[job.get_pod_name("worker-0")] = slow_log(20, 0.1)
    job.end()
    polls: list[tuple[Row, ...]] = []
    outcome = job.wait(on_poll=polls.append)
    assert (outcome.lost, len(job.read_log())) == ({}, 20)
    assert len(polls) > 10


def test_log_is_read_after_an_outage_at_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is unavailable during an outage is read once the API server responds again."""
    monkeypatch.setattr(log_follower, "MAX_RETRY_DELAY_S", 0.3)
    job.fake_api.logs[job.get_pod_name("worker-0")] = b"".join(build_lines(5))
    job.fake_api.fail("GET", "/log", 0)
    with ClusterWatch(job.plan) as watch:
        job.end()
        wait_until(
            lambda: (
                watch.poll(timeout_s=0.1) is False and watch.states["Pod/worker-0"]["status"]["phase"] == "Succeeded"
            )
        )
        job.fake_api.fail("GET", ".", 0)
        job.fake_api.cut()
        wait_until(lambda: watch.poll(timeout_s=0.05) is not None and not watch.is_fully_observed())
        run_later(2.5, job.fake_api.heal)
        assert (watch.drain_logs(idle_timeout_s=1.0), watch.lost_logs(), len(job.read_log())) == (True, {}, 5)


# --- faults of the launcher itself


def test_thread_that_cannot_start_is_started_later(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If no thread can be started for a log, the job is watched nevertheless, and the log is read later."""
    job.fake_api.logs[job.get_pod_name("worker-0")] = b"".join(build_lines(3))
    original_start = LoopThread.start_task
    seen_running = threading.Event()

    def start_late(self: LoopThread, coroutine: Coroutine[Any, Any, None]) -> None:
        if not seen_running.is_set():
            coroutine.close()
            raise RuntimeError("can't start new thread")
        original_start(self, coroutine)

    def note_running(_: tuple[Row, ...]) -> None:
        if "after" in caplog.text:  # the wait has logged that the job runs
            seen_running.set()

    caplog.set_level("INFO")
    monkeypatch.setattr(LoopThread, "start_task", start_late)
    run_later(3, job.end)
    outcome = job.wait(on_poll=note_running)
    assert (outcome.status.state, outcome.lost, len(job.read_log())) == ("succeeded", {}, 3)
    assert caplog.text.count("cannot follow every log: can't start new thread") == 1
