"""When a job is late, and when that cannot be known: facts and a clock in, a verdict out."""

import pytest

from torchyard.diagnosis.deadlines import (
    _LOG_GRACE_S,
    _MAX_ARRIVAL_S,
    _SUSPENDED_AFTER_S,
    ArrivalTimer,
    DeadlineMonitor,
    JobSnapshot,
)
from torchyard.model.profile import Deadlines

LIMITS = Deadlines(start=60, run=1000, silence=100)
SEES = JobSnapshot(time=0.0, states_known=True, logs_current=True, started=True, line_count=0)


def attached(job_age_s: float) -> DeadlineMonitor:
    return DeadlineMonitor(LIMITS, job_age_s=job_age_s, now=0.0)


def judged(snapshot: JobSnapshot, duration_s: float, monitor: DeadlineMonitor | None = None, start: float = 0.0) -> str:
    """The deadline that has passed after so many seconds of identical samples, two per second."""
    monitor = monitor or DeadlineMonitor(LIMITS, job_age_s=0.0, now=start)
    for index in range(int(duration_s * 2) + 1):
        expired = monitor.check(snapshot._replace(time=start + index / 2))
        if expired:
            return expired.cause
    return ""


@pytest.mark.parametrize(
    ("snapshot", "duration_s", "cause"),
    [
        (SEES._replace(started=False), 59, ""),
        (SEES._replace(started=False), 61, "start-deadline"),
        (SEES, 99, ""),
        (SEES, 102, "silence"),
    ],
)
def test_deadlines_of_a_job_that_is_seen(snapshot: JobSnapshot, duration_s: float, cause: str) -> None:
    """The deadlines of a job that is seen and heard since its submit are exact to the second."""
    assert judged(snapshot, duration_s) == cause


def test_old_run_is_not_silent_when_it_is_attached_to() -> None:
    """Silence before the attach does not count: the whole limit must pass after it."""
    assert judged(SEES, 99, attached(900)) == ""


@pytest.mark.parametrize("gap", [{"states_known": False}, {"logs_current": False}])
def test_start_is_judged_only_where_all_is_known(gap: dict[str, bool]) -> None:
    """The start is not judged while a state or a log is still missing: the job may have started long ago."""
    pending = SEES._replace(started=False, **gap)
    assert judged(pending, 300, attached(600)) == ""


def test_start_does_not_judge_what_has_run() -> None:
    """A job that has run once, and waits again, is not late for its start."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=600, now=0.0)
    monitor.check(SEES)
    assert judged(SEES._replace(started=False), 90, monitor) == ""


def test_start_of_an_attached_run_is_still_judged() -> None:
    """A job that has not started by its deadline is late as soon as that is known."""
    assert judged(SEES._replace(started=False), 1, attached(61)) == "start-deadline"


def test_log_that_is_still_on_its_way_is_not_silent() -> None:
    """The silence clock stops while a stream is broken or behind, and goes on once all are heard again."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=0, now=0.0)
    assert judged(SEES, 60, monitor) == ""
    assert judged(SEES._replace(logs_current=False), 300, monitor, start=60.5) == ""
    assert judged(SEES, 39, monitor, start=361) == ""
    assert judged(SEES, 3, monitor, start=400.5) == "silence"


def test_stream_that_is_opened_anew_does_not_hide_a_hang() -> None:
    """Streams are reopened all the time; a short gap does not reset the silence before it."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=0, now=0.0)
    judged(SEES, 95, monitor)
    monitor.check(SEES._replace(time=95.5, logs_current=False))
    assert judged(SEES, 3 + _LOG_GRACE_S, monitor, start=96) == "silence"


def test_backlog_has_time_to_come_before_it_is_missed() -> None:
    """Just after a stream is reopened its backlog is still on its way, so the job does not count as silent."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=0, now=0.0)
    judged(SEES, 99, monitor)
    monitor.check(SEES._replace(time=99.5, logs_current=False))
    assert judged(SEES, _LOG_GRACE_S - 1, monitor, start=100) == ""


def test_lines_that_arrive_end_the_silence() -> None:
    """What counts is that a line has arrived here, whatever its stamp."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=0, now=0.0)
    judged(SEES, 95, monitor)
    assert judged(SEES._replace(line_count=1), 95, monitor, start=95.5) == ""
    assert judged(SEES._replace(line_count=1), 10, monitor, start=191) == "silence"


def test_process_that_was_stopped_has_heard_nothing_meanwhile() -> None:
    """After a long gap between two samples nothing is judged until the events of that time have arrived."""
    monitor = DeadlineMonitor(LIMITS, job_age_s=0, now=0.0)
    judged(SEES, 90, monitor)
    resumed_at = 90 + _SUSPENDED_AFTER_S + 2000
    assert monitor.check(SEES._replace(time=resumed_at)) is None
    assert judged(SEES._replace(line_count=1), _LOG_GRACE_S - 1, monitor, start=resumed_at + 0.5) == ""


def test_run_deadline_counts_from_the_submit_and_is_judged_where_the_job_is_seen() -> None:
    """The run deadline also holds for an attached run, but not while the job is not seen: it may have ended."""
    assert judged(SEES._replace(states_known=False), 80, attached(5000)) == ""
    assert judged(SEES, 1, attached(5000)) == "run-deadline"


# --- what is still arriving


@pytest.mark.parametrize(
    ("idle_timeout_s", "sizes", "has_expired"),
    [(60, [1] * 59, False), (60, [1] * 62, True), (60, list(range(300)), False), (0.5, [1, 1], True)],
)
def test_what_arrives_is_waited_for(idle_timeout_s: float, sizes: list[int], has_expired: bool) -> None:
    """Logs are waited for while they grow, and for the quiet seconds after their last growth."""
    timer = ArrivalTimer(idle_timeout_s, 0.0)
    results = [timer.is_expired(float(second), size) for second, size in enumerate(sizes)]
    assert (any(results), results[-1]) == (has_expired, has_expired)


def test_server_that_is_away_is_waited_for() -> None:
    """The quiet seconds begin when the server answers again, and the whole wait is bounded."""
    timer = ArrivalTimer(60, 0.0)
    assert not any(timer.is_expired(float(second), 1, is_unreachable=True) for second in range(600))
    assert not timer.is_expired(650.0, 1)
    assert timer.is_expired(661.0, 1)
    assert timer.is_expired(_MAX_ARRIVAL_S + 1, 2)
