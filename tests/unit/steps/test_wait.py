"""Waiting for a job of local processes: attaching late, wrong clocks, and local errors of the launcher."""

import resource
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.builders.rank_records import build_record
from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.job_events import take_rows, take_status
from tests.doubles.pod_jobs import NODES, Job, build_lines, run_later
from tests.doubles.scripted_jobs import JOINED_TEXT, OLD_LINE, Make, wait_briefly
from tests.inputs.nccl_lines import list_socket_lines
from tests.support.waiting import wait_until
from torchyard.diagnosis import deadlines
from torchyard.kube import retry
from torchyard.model.event import JobEvent, RankFailed, RowsRead, StatusRead, StopRequested, StopWithdrawn
from torchyard.model.hang import RECORD_PREFIX, GroupProgress
from torchyard.model.hardware import Expect
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome, Row, Status
from torchyard.steps import wait as wait_module
from torchyard.steps.log_reader import JobLogReader
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import FabricMonitor, wait


def append_lines(path: Path, timestamp: str, texts: Iterable[str]) -> None:
    """Append a line with this time stamp five times per second."""
    for text in texts:
        time.sleep(0.2)
        with path.open("a") as file:
            file.write(f"{timestamp} node-0 | {text}\n")


def test_attached_run_gets_the_whole_silence_limit(job: Make) -> None:
    """An attached run whose age and last line exceed its deadlines gets the whole silence limit from the attach on."""
    assert wait_briefly(job(tenths=7), age_s=5000).status.state == "succeeded"


def test_age_of_an_attached_job_comes_from_its_host(process: CommandPlan) -> None:
    """The journal of an attached run may be of a wrong clock: only the age that its host reports expires a deadline."""
    submit(process, Deadlines())
    handle = submit(process, Deadlines(run=3600.0), submitted_at=1.0)
    polls = 0

    def count_polls(_: tuple[Row, ...]) -> None:
        nonlocal polls
        polls += 1
        if polls == 10:
            teardown(process)

    assert wait(handle, take_rows(count_polls)).cause != "run-deadline"


def test_node_whose_clock_is_behind_is_not_silent(job: Make) -> None:
    """Lines that arrive end the silence, even if their time stamps are old."""
    plan = job(tenths=22)
    thread = threading.Thread(
        target=append_lines, args=(Path(plan.processes[0].log), "2026-01-01T00:00:00Z", ["text"] * 11)
    )
    thread.start()
    assert wait_briefly(plan).status.state == "succeeded"
    thread.join()


@pytest.mark.parametrize(("calls_per_record", "state"), [(1, "succeeded"), (0, "failed")])
def test_job_that_completes_collectives_is_not_silent(job: Make, calls_per_record: int, state: str) -> None:
    """A job that prints nothing is silent unless the records of its ranks show that they complete collectives."""
    plan = job(tenths=22)
    records: list[str] = []
    for index in range(11):
        count = 100 + calls_per_record * index
        record = build_record(0, kind="pulse", groups={"0": GroupProgress(enqueued=count, completed=count)})
        records.append(RECORD_PREFIX + record.model_dump_json())
    log = Path(plan.processes[0].log)
    thread = threading.Thread(target=append_lines, args=(log, "2026-01-01T00:00:00Z", records))
    thread.start()
    assert wait_briefly(plan).status.state == state
    thread.join()


def test_node_whose_clock_is_ahead_can_be_silent(job: Make) -> None:
    """A line with a time stamp in the future counts from its arrival, so silence is still detected."""
    plan = job(tenths=100)
    Path(plan.processes[0].log).write_text(OLD_LINE.replace("2026", "2099") % JOINED_TEXT)
    assert wait_briefly(plan).cause == "silence"


def test_job_that_never_starts_expires_its_start_deadline(job: Make) -> None:
    """The start deadline expires if the complete logs show that no node has joined."""
    assert wait_briefly(job(tenths=100, log="text")).cause == "start-deadline"


@pytest.mark.parametrize("tenths", [100, 0])
def test_loss_that_is_nan_ends_the_job(job: Make, tenths: int) -> None:
    """With `on_nan: fail` a job whose loss is nan has failed: one that runs ends, and one that has ended as well."""
    plan = job(tenths=tenths).model_copy(update={"metrics": "json-lines", "on_nan": "fail"})
    lines = (f"{JOINED_TEXT} group_rank=0", '[default0]:{"epoch": 1, "loss": NaN}')
    Path(plan.processes[0].log).write_text("".join(OLD_LINE % line for line in lines))
    outcome = wait_briefly(plan)
    assert outcome.status.failure
    assert (outcome.status.state, outcome.status.failure.cause) == ("failed", "loss-nan")
    assert outcome.bad_loss
    assert outcome.bad_loss.row == "epoch 1: loss nan"


def test_lines_of_rank_zero_are_passed_on(job: Make) -> None:
    """The events of reads have the lines that rank 0 printed, each once, without those of other ranks and the agent."""
    plan = job(tenths=3)
    lines = (
        f"{JOINED_TEXT} group_rank=0",
        "[default0]:step 1",
        "[default0]:step 2",
        "[default1]:other",
        "[default0]: ",
    )
    Path(plan.processes[0].log).write_text("".join(OLD_LINE % line for line in lines))
    events: list[JobEvent] = []
    wait(Handle(plan=plan, deadlines=Deadlines(), created=True, submitted_at=1.0), events.append)
    printed = [line for event in events if isinstance(event, RowsRead) for line in event.lines]
    assert printed == ["step 1", "step 2", " "]


def test_each_status_is_passed_on_with_the_time_since_the_submit(job: Make) -> None:
    """The callback gets the seconds since the submit by an earlier process, and its errors do not end the wait."""
    statuses: list[tuple[str, float]] = []

    def record_status(status: Status, waited_s: float) -> None:
        statuses.append((status.state, waited_s))
        raise ValueError("an error of the callback")

    deadlines = Deadlines(start=1000.0, silence=5.0)
    handle = Handle(plan=job(tenths=7), deadlines=deadlines, created=False, submitted_at=1.0, age_s=100.0)
    assert wait(handle, take_status(record_status)).status.state == "succeeded"
    assert {state for state, _ in statuses} >= {"running"}
    assert min(waited_s for _, waited_s in statuses) >= 100


# --- the network


@pytest.mark.parametrize("on_fabric", ["fail", "report"])
def test_unexpected_network_is_reported_immediately(
    fake_api: FakeApi, planned: Planned, caplog: pytest.LogCaptureFixture, on_fabric: str
) -> None:
    """The first line that proves TCP in place of RDMA is reported while the job runs, and may end it (`on_fabric`)."""
    settings = {"expect": Expect(transport="roce"), "on_fabric": on_fabric}
    pods = Job(fake_api, planned(nodes=2).model_copy(update=settings))
    log_lines = [b"2026-01-01T00:00:00Z " + line.encode() + b"\n" for line in list_socket_lines("gpu-1")]
    fake_api.logs[pods.get_pod_name("worker-0")] = b"".join(log_lines)
    if on_fabric == "report":
        run_later(0, partial(wait_until, lambda: "the network is" in caplog.text), pods.end)
    outcome = pods.wait()
    assert caplog.text.count("the network is not-rdma: TCP over eth0 on worker-0, not roce") == 1
    if on_fabric == "report":
        assert outcome.status.state == "succeeded"
    else:
        assert outcome.status.failure
        assert outcome.status.failure.cause == "fabric-not-rdma"
        assert "via NET/Socket/0" in str(outcome.status.failure.line)


def test_network_is_checked_by_the_poll_that_reads_the_line(plan: ManifestPlan) -> None:
    """An unexpected network is detected by the poll that reads its line."""
    plan = plan.model_copy(update={"expect": Expect(transport="roce")})
    path = Path(plan.nodes["worker-0"])
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in list_socket_lines("gpu-1")[:-1]))
    logs = JobLogReader(plan)
    monitor = FabricMonitor(plan.model_copy(update={"on_fabric": "fail"}))
    logs.read()
    assert monitor.check(logs) is None
    with path.open("a") as file:
        file.write(f"{list_socket_lines('gpu-1')[-1]}\n")
    logs.read()
    failed_status = monitor.check(logs)
    assert failed_status
    assert failed_status.state == "failed"


# --- local errors of the launcher


def test_wait_retries_until_descriptors_are_free(job: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Without free descriptors the wait reports the error once, and starts when some are free."""
    plan = job(tenths=3)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def free_descriptors() -> None:
        wait_until(lambda: "Too many open files" in caplog.text)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    threading.Thread(target=free_descriptors).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert wait_briefly(plan).status.state == "succeeded"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("Too many open files (retrying; the job is not affected)") == 1


# --- a verdict about a job that cannot be stopped


@pytest.fixture
def unstoppable(fake_api: FakeApi, planned: Planned, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that runs and prints nothing, and whose deletion is refused with 503 until `heal`."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(deadlines, "LOG_GRACE_S", 0.5)
    monkeypatch.setattr(wait_module, "CONTINUES_AFTER_S", 2.0)
    job = Job(fake_api, planned(nodes=2))
    fake_api.fail("DELETE", "/jobs/", 503)

    def print_one_line(pod_name: str) -> Iterator[bytes]:
        yield from build_lines(1)
        while is_pod_running(fake_api, pod_name):
            time.sleep(0.05)

    for node in NODES:
        name = job.get_pod_name(node)
        fake_api.logs[name] = partial(print_one_line, name)
    return job


def is_pod_running(fake_api: FakeApi, name: str) -> bool:
    pod = fake_api.find("v1", "Pod", name)
    return pod is not None and pod["status"]["phase"] == "Running"


def wait_silent(job: Job, events: list[JobEvent]) -> Outcome:
    limits = Deadlines(silence=1.0, run=120.0)
    return wait(Handle(plan=job.plan, deadlines=limits, created=True, submitted_at=1.0), events.append)


def test_job_that_recovers_while_it_cannot_be_stopped_continues(unstoppable: Job, fake_api: FakeApi) -> None:
    """A silent job that prints again before its stop succeeds is not stopped later, and no record of a stop remains."""
    events: list[JobEvent] = []
    pod_name = unstoppable.get_pod_name("worker-0")

    def print_after_the_first_stop() -> Iterator[bytes]:
        first_line, *lines = build_lines(200)
        yield first_line
        wait_until(lambda: fake_api.find_requests("DELETE", "/jobs/"))
        for line in lines:
            if not is_pod_running(fake_api, pod_name):
                return
            yield line
            time.sleep(0.2)

    def finish_after_withdrawal() -> None:
        wait_until(lambda: any(isinstance(event, StopWithdrawn) for event in events))
        fake_api.heal()
        unstoppable.end()

    fake_api.logs[pod_name] = print_after_the_first_stop
    threading.Thread(target=finish_after_withdrawal).start()
    outcome = wait_silent(unstoppable, events)
    assert (outcome.status.state, outcome.cause, outcome.stop) == ("succeeded", None, None)
    stops = [type(event) for event in events if isinstance(event, StopRequested | StopWithdrawn)]
    assert stops == [StopRequested, StopWithdrawn]
    assert unstoppable.get_job()["metadata"].get("deletionTimestamp") is None


def test_job_that_stays_silent_is_stopped_once_that_is_possible(unstoppable: Job, fake_api: FakeApi) -> None:
    """A verdict that still stands when the API server accepts the deletion again ends the job."""

    def heal_after_the_second_stop() -> None:
        wait_until(lambda: len(fake_api.find_requests("DELETE", "/jobs/")) > 2)  # a stop requests it twice
        fake_api.heal()

    threading.Thread(target=heal_after_the_second_stop).start()
    assert wait_silent(unstoppable, []).cause == "silence"
    assert fake_api.find(unstoppable.plan.main["apiVersion"], "Job", unstoppable.plan.job) is None


def test_deletion_whose_response_was_lost_has_its_own_cause(unstoppable: Job, fake_api: FakeApi) -> None:
    """A job that its stop has deleted, although the response was an error, was not deleted by another user."""

    def delete_unanswered() -> None:
        wait_until(lambda: fake_api.find_requests("DELETE", "/jobs/"))
        kind = f"{unstoppable.plan.main['apiVersion']}/jobs"
        fake_api.objects.delete(ObjectKey(kind, "default", unstoppable.plan.job), {})

    threading.Thread(target=delete_unanswered).start()
    outcome = wait_silent(unstoppable, [])
    assert (outcome.status.state, outcome.cause) == ("failed", "silence")


def test_lost_worker_is_reported_before_its_agent_ends(job: Make) -> None:
    """A killed worker is reported once torchrun's log line is read, while torchrun itself still runs."""
    log_line = (
        "E1123 10:00:00.123000 17 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 16890) of binary: python"
    )
    plan = job(tenths=15, log=f"{JOINED_TEXT}\n2026-01-01T00:00:00Z node-0 | {log_line}")
    events: list[JobEvent] = []
    wait(Handle(plan=plan, deadlines=Deadlines(), created=True, submitted_at=1.0), events.append)
    kinds = [event for event in events if isinstance(event, RankFailed | StatusRead)]
    failures = [event for event in kinds if isinstance(event, RankFailed)]
    assert failures == [RankFailed("node-0", local_rank=1, rank=None, exit_code=-9, has_ended=True, lines=())]
    last_status = kinds[-1]
    assert isinstance(last_status, StatusRead)
    assert last_status.status.state == "succeeded"  # the agent of this job ends with 0, after the report


def test_words_of_a_rank_in_a_pod_are_reported_while_the_pods_run(fake_api: FakeApi, planned: Planned) -> None:
    """The traceback in a pod's log is an event while all pods run; they end only after it."""
    pods = Job(fake_api, planned(nodes=2))
    texts = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "ValueError: bad sample")
    lines = [f"2026-01-01T00:00:00Z [default0]:[rank1]: {text}\n" for text in texts]
    fake_api.logs[pods.get_pod_name("worker-1")] = "".join(lines).encode()
    failures: list[RankFailed] = []

    def emit(event: JobEvent) -> None:
        if isinstance(event, RankFailed):
            failures.append(event)
            pods.end(code=1)

    outcome = wait(Handle(plan=pods.plan, deadlines=Deadlines(run=30.0), created=True, submitted_at=1.0), emit)
    assert outcome.cause is None  # the pods have ended, not the deadline
    assert failures == [RankFailed("worker-1", 0, 1, exit_code=None, has_ended=False, lines=texts)]
