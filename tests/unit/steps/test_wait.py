"""Waiting for a job of local processes: attaching late, wrong clocks, and the launcher's own trouble."""

import resource
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.nccl_lines import socket_node
from tests.pod_jobs import Job, after
from tests.scripted_jobs import JOINED, OLD, Make, waited
from torchyard.model.hardware import Expect
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Status
from torchyard.steps.log_reader import JobLogReader
from torchyard.steps.wait import _FabricMonitor, wait


def append_lines(path: Path, timestamp: str, line_count: int) -> None:
    """Add a line with this stamp five times per second."""
    for _ in range(line_count):
        time.sleep(0.2)
        with path.open("a") as file:
            file.write(f"{timestamp} node-0 | text\n")


def test_old_run_is_attached_to_and_lives(job: Make) -> None:
    """An attached run whose age and last line exceed its deadlines gets the whole silence limit from now on."""
    assert waited(job(tenths=7), age=5000).status.state == "succeeded"


def test_clock_of_a_node_that_is_behind_is_not_silence(job: Make) -> None:
    """Lines that arrive end the silence, even if their stamps are old."""
    plan = job(tenths=22)
    thread = threading.Thread(target=append_lines, args=(Path(plan.processes[0].log), "2026-01-01T00:00:00Z", 11))
    thread.start()
    assert waited(plan).status.state == "succeeded"
    thread.join()


def test_clock_of_a_node_that_is_ahead_hides_no_hang(job: Make) -> None:
    """A line with a stamp in the future counts from its arrival, so a hang is still found."""
    plan = job(tenths=100)
    Path(plan.processes[0].log).write_text(OLD.replace("2026", "2099") % JOINED)
    assert waited(plan).cause == "silence"


def test_job_that_never_starts_is_late(job: Make) -> None:
    """A job is late if it is known that no node has joined."""
    assert waited(job(tenths=100, log="text")).cause == "start-deadline"


def test_each_status_is_passed_on_with_the_time_since_the_submit(job: Make) -> None:
    """A job of 100 s before this process has waited so long; a callback that fails ends nothing."""
    statuses: list[tuple[str, float]] = []

    def record_status(status: Status, waited_s: float) -> None:
        statuses.append((status.state, waited_s))
        raise ValueError("a fault of whoever is told")

    deadlines = Deadlines(start=1000.0, silence=5.0)
    handle = Handle(plan=job(tenths=7), deadlines=deadlines, created=False, submitted_at=1.0, age_s=100.0)
    assert wait(handle, on_status=record_status).status.state == "succeeded"
    assert {state for state, _ in statuses} >= {"running"}
    assert min(waited_s for _, waited_s in statuses) >= 100


# --- the network


@pytest.mark.parametrize("on_fabric", ["fail", "report"])
def test_broken_promise_of_the_network_is_told_at_once(
    fake_api: FakeApi, planned: Planned, caplog: pytest.LogCaptureFixture, on_fabric: str
) -> None:
    """The first line that proves TCP in place of RDMA is reported while the job runs, and ends it if that is asked."""
    settings = {"expect": Expect(transport="roce"), "on_fabric": on_fabric}
    pods = Job(fake_api, planned(nodes=2).model_copy(update=settings))
    log_lines = [b"2026-01-01T00:00:00Z " + line.encode() + b"\n" for line in socket_node("gpu-1")]
    fake_api.logs[pods.name("worker-0")] = b"".join(log_lines)
    if on_fabric == "report":
        after(1.0, pods.end)
    outcome = pods.wait()
    assert caplog.text.count("the network is not-rdma: TCP over eth0 on worker-0, not roce") == 1
    if on_fabric == "report":
        assert outcome.status.state == "succeeded"
    else:
        assert outcome.status.failure
        assert outcome.status.failure.cause == "fabric-not-rdma"
        assert "via NET/Socket/0" in str(outcome.status.failure.line)


def test_network_is_judged_by_the_turn_that_reads_the_line(plan: ManifestPlan) -> None:
    """No later turn is needed: a broken promise is known as soon as its line is read, and is told once."""
    plan = plan.model_copy(update={"expect": Expect(transport="roce")})
    path = Path(plan.nodes["worker-0"])
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in socket_node("gpu-1")[:-1]))
    logs, monitor = JobLogReader(plan), _FabricMonitor(plan.model_copy(update={"on_fabric": "fail"}))
    logs.read()
    assert monitor.check(logs) is None
    with path.open("a") as file:
        file.write(f"{socket_node('gpu-1')[-1]}\n")
    logs.read()
    failed_status = monitor.check(logs)
    assert failed_status
    assert failed_status.state == "failed"


# --- the launcher's own trouble


def test_descriptors_that_are_used_up_are_waited_for(job: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Without free descriptors the wait starts once there are some, and says so once."""
    plan, limits = job(tenths=3), resource.getrlimit(resource.RLIMIT_NOFILE)
    threading.Timer(1.5, resource.setrlimit, (resource.RLIMIT_NOFILE, limits)).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert waited(plan).status.state == "succeeded"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("Too many open files; the job goes on, and it is tried again") == 1


def test_lost_worker_is_told_before_its_agent_ends(job: Make, caplog: pytest.LogCaptureFixture) -> None:
    """torchrun logs a killed worker at once, and ends some seconds later: the warning does not wait for that."""
    log_line = (
        "E1123 10:00:00.123000 17 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 16890) of binary: python"
    )
    waited(job(tenths=7, log=f"{JOINED}\n2026-01-01T00:00:00Z node-0 | {log_line}"))
    messages = [record.getMessage() for record in caplog.records if "says torchrun" in record.getMessage()]
    assert messages == ["node-0: local rank 1 was ended by SIGKILL, says torchrun"]
