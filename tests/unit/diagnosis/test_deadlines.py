"""DeadlineMonitor: which deadline expires, and when none may. ArrivalTimer: how long logs are waited for."""

import pytest

from torchyard.diagnosis.deadlines import ArrivalTimer, DeadlineMonitor, JobSnapshot
from torchyard.model.profile import Deadlines

LIMITS = Deadlines(start=60, run=1000, silence=100)
RUNNING = JobSnapshot(time=0.0, states_known=True, logs_current=True, started=True, line_count=0)
PENDING = RUNNING._replace(started=False)


@pytest.fixture
def monitor() -> DeadlineMonitor:
    """The monitor of a job that was submitted at time 0."""
    return DeadlineMonitor(LIMITS, job_age_s=0.0, now=0.0)


def attach(job_age_s: float) -> DeadlineMonitor:
    """The monitor of a job that was submitted some time before it is attached to, at time 0."""
    return DeadlineMonitor(LIMITS, job_age_s=job_age_s, now=0.0)


def poll(monitor: DeadlineMonitor, snapshot: JobSnapshot, duration_s: float, start: float = 0.0) -> str | None:
    """Poll twice a second from `start` on; return the cause of the first deadline that expires; None if none does."""
    for index in range(int(duration_s * 2) + 1):
        expired = monitor.check(snapshot._replace(time=start + index / 2))
        if expired:
            return expired.cause
    return None


@pytest.mark.parametrize(
    ("snapshot", "duration_s", "cause"),
    [
        pytest.param(PENDING, 59, None, id="within deadlines.start"),
        pytest.param(PENDING, 61, "start-deadline", id="after deadlines.start"),
        pytest.param(RUNNING, 99, None, id="within deadlines.silence"),
        pytest.param(RUNNING, 102, "silence", id="after deadlines.silence"),
    ],
)
def test_deadline_expires_after_its_limit(
    monitor: DeadlineMonitor, snapshot: JobSnapshot, duration_s: float, cause: str | None
) -> None:
    assert poll(monitor, snapshot, duration_s) == cause


def test_silence_before_the_attach_does_not_count() -> None:
    """The whole limit must pass after the attach."""
    assert poll(attach(900.0), RUNNING, 99) is None


@pytest.mark.parametrize(("age_s", "cause"), [(10.0, None), (1001.0, "run-deadline")])
def test_age_that_the_host_reports_replaces_the_first_one(age_s: float, cause: str | None) -> None:
    """An age that was computed from another clock, or was not known, is corrected by the first report of the host."""
    for first_age_s in (0.0, 86400.0):
        snapshot = RUNNING._replace(time=1.0, job_age_s=age_s)
        expired = attach(first_age_s).check(snapshot)
        assert (expired.cause if expired else None) == cause


@pytest.mark.parametrize("gap", [{"states_known": False}, {"logs_current": False}], ids=["state", "log"])
def test_start_is_not_checked_while_the_job_is_not_fully_observed(gap: dict[str, bool]) -> None:
    """A job that was submitted 600 s ago may have started long ago: the missing state or log would show it."""
    assert poll(attach(600.0), PENDING._replace(**gap), 300) is None


def test_job_that_has_started_once_is_not_late_for_its_start() -> None:
    """A job that has run and is pending again has met its start deadline."""
    monitor = attach(600.0)
    monitor.check(RUNNING)
    assert poll(monitor, PENDING, 90) is None


def test_start_deadline_counts_from_the_submit() -> None:
    """A job that was submitted 61 s before the attach is late at once."""
    assert poll(attach(61.0), PENDING, 1) == "start-deadline"


def test_log_gap_pauses_silence_without_resetting_it(monitor: DeadlineMonitor) -> None:
    """60 s of silence, a gap of 300 s and 39 s of silence are 99 s of silence; 3 s later the limit of 100 s is over."""
    assert poll(monitor, RUNNING, 60) is None
    assert poll(monitor, RUNNING._replace(logs_current=False), 300, start=60.5) is None
    assert poll(monitor, RUNNING, 39, start=361.0) is None
    assert poll(monitor, RUNNING, 3, start=400.5) == "silence"


def test_short_log_gap_does_not_hide_a_hang(monitor: DeadlineMonitor) -> None:
    """Streams are reopened all the time: 95 s of silence before one count, once the grace of 10 s is over."""
    poll(monitor, RUNNING, 95)
    monitor.check(RUNNING._replace(time=95.5, logs_current=False))
    assert poll(monitor, RUNNING, 13, start=96.0) == "silence"


def test_silence_is_not_checked_while_a_backlog_may_arrive(monitor: DeadlineMonitor) -> None:
    """For 10 s after a stream is reopened, the lines written during the gap are still arriving."""
    poll(monitor, RUNNING, 99)
    monitor.check(RUNNING._replace(time=99.5, logs_current=False))
    assert poll(monitor, RUNNING, 9, start=100.0) is None


def test_new_line_resets_the_silence(monitor: DeadlineMonitor) -> None:
    """The time at which a line arrives counts, not its timestamp."""
    poll(monitor, RUNNING, 95)
    assert poll(monitor, RUNNING._replace(line_count=1), 95, start=95.5) is None
    assert poll(monitor, RUNNING._replace(line_count=1), 10, start=191.0) == "silence"


def test_completed_collective_resets_the_silence(monitor: DeadlineMonitor) -> None:
    """A program that prints nothing is not silent while its ranks complete collectives."""
    poll(monitor, RUNNING, 95)
    assert poll(monitor, RUNNING._replace(collective_count=8), 95, start=95.5) is None
    assert poll(monitor, RUNNING._replace(collective_count=8), 10, start=191.0) == "silence"


def test_suspension_of_the_monitor_is_not_silence(monitor: DeadlineMonitor) -> None:
    """After more than 10 s between two polls nothing is checked until the events of that time have arrived."""
    poll(monitor, RUNNING, 90)
    assert monitor.check(RUNNING._replace(time=2100.0)) is None
    assert poll(monitor, RUNNING._replace(line_count=1), 9, start=2100.5) is None


def test_run_deadline_is_checked_only_while_the_states_are_known() -> None:
    """A job whose state is not known may have ended; one whose state is known is late at once after an attach."""
    assert poll(attach(5000.0), RUNNING._replace(states_known=False), 80) is None
    assert poll(attach(5000.0), RUNNING, 1) == "run-deadline"


# --- the logs of an ended job


@pytest.mark.parametrize(
    ("idle_timeout_s", "sizes", "is_expired"),
    [
        pytest.param(60, [1] * 59, False, id="idle for less"),
        pytest.param(60, [1] * 62, True, id="idle for longer"),
        pytest.param(60, list(range(300)), False, id="growing"),
        pytest.param(0.5, [1, 1], True, id="short timeout"),
    ],
)
def test_timer_expires_after_the_last_growth(idle_timeout_s: float, sizes: list[int], is_expired: bool) -> None:
    timer = ArrivalTimer(idle_timeout_s, 0.0)
    results = [timer.is_expired(float(second), size) for second, size in enumerate(sizes)]
    assert (any(results), results[-1]) == (is_expired, is_expired)


def test_idle_time_does_not_run_while_the_sender_is_unreachable() -> None:
    """The 60 s begin when the sender responds again, at 599 s."""
    timer = ArrivalTimer(60, 0.0)
    assert not any(timer.is_expired(float(second), 1, is_unreachable=True) for second in range(600))
    assert not timer.is_expired(650.0, 1)
    assert timer.is_expired(661.0, 1)


def test_wait_for_logs_is_bounded() -> None:
    """Logs that still grow after two hours are given up."""
    timer = ArrivalTimer(60, 0.0)
    assert not timer.is_expired(7199.0, 1)
    assert timer.is_expired(7201.0, 2)
