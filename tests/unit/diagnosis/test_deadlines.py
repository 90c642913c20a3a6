"""When a job is late, and when that cannot be known: facts and a clock in, a verdict out."""

import pytest

from torchyard.diagnosis.deadlines import (
    _LOG_GRACE_S,
    _MAX_ARRIVAL_S,
    _MAX_GAP_S,
    ArrivalTimer,
    DeadlineMonitor,
    ProgressSample,
)
from torchyard.model.profile import Deadlines

LIMITS = Deadlines(start=60, run=1000, silence=100)
SEES = ProgressSample(at=0.0, known=True, heard=True, started=True, lines=0)


def attached(age: float) -> DeadlineMonitor:
    return DeadlineMonitor(LIMITS, age, 0.0)


def judged(look: ProgressSample, seconds: float, deadline: DeadlineMonitor | None = None, begin: float = 0.0) -> str:
    """The deadline that has passed after so many seconds of identical samples, two per second."""
    deadline = deadline or DeadlineMonitor(LIMITS, 0.0, begin)
    for number in range(int(seconds * 2) + 1):
        late = deadline.judge(look._replace(at=begin + number / 2))
        if late:
            return late.cause
    return ""


@pytest.mark.parametrize(
    ("look", "seconds", "late"),
    [
        (SEES._replace(started=False), 59, ""),
        (SEES._replace(started=False), 61, "start-deadline"),
        (SEES, 99, ""),
        (SEES, 102, "silence"),
    ],
)
def test_deadlines_of_a_job_that_is_seen(look: ProgressSample, seconds: float, late: str) -> None:
    """The deadlines of a job that is seen and heard since its submit are exact to the second."""
    assert judged(look, seconds) == late


def test_old_run_is_not_silent_when_it_is_attached_to() -> None:
    """Silence before the attach does not count: the whole limit must pass after it."""
    assert judged(SEES, 99, attached(900)) == ""


@pytest.mark.parametrize("blind", [{"known": False}, {"heard": False}])
def test_start_is_judged_only_where_all_is_known(blind: dict[str, bool]) -> None:
    """The start is not judged while a state or a log is still missing: the job may have started long ago."""
    unsure = SEES._replace(started=False, **blind)
    assert judged(unsure, 300, attached(600)) == ""


def test_start_does_not_judge_what_has_run() -> None:
    """A job that has run once, and waits again, is not late for its start."""
    deadline = DeadlineMonitor(LIMITS, 600, 0.0)
    deadline.judge(SEES)
    assert judged(SEES._replace(started=False), 90, deadline) == ""


def test_start_of_an_attached_run_is_still_judged() -> None:
    """A job that has not started by its deadline is late as soon as that is known."""
    assert judged(SEES._replace(started=False), 1, attached(61)) == "start-deadline"


def test_log_that_is_still_on_its_way_is_not_silent() -> None:
    """The silence clock stops while a stream is broken or behind, and goes on once all are heard again."""
    deadline = DeadlineMonitor(LIMITS, 0, 0.0)
    assert judged(SEES, 60, deadline) == ""
    assert judged(SEES._replace(heard=False), 300, deadline, begin=60.5) == ""
    assert judged(SEES, 39, deadline, begin=361) == ""
    assert judged(SEES, 3, deadline, begin=400.5) == "silence"


def test_stream_that_is_opened_anew_does_not_hide_a_hang() -> None:
    """Streams are reopened all the time; a short gap does not reset the silence before it."""
    deadline = DeadlineMonitor(LIMITS, 0, 0.0)
    judged(SEES, 95, deadline)
    deadline.judge(SEES._replace(at=95.5, heard=False))
    assert judged(SEES, 3 + _LOG_GRACE_S, deadline, begin=96) == "silence"


def test_backlog_has_time_to_come_before_it_is_missed() -> None:
    """Just after a stream is reopened its backlog is still on its way, so the job does not count as silent."""
    deadline = DeadlineMonitor(LIMITS, 0, 0.0)
    judged(SEES, 99, deadline)
    deadline.judge(SEES._replace(at=99.5, heard=False))
    assert judged(SEES, _LOG_GRACE_S - 1, deadline, begin=100) == ""


def test_lines_that_arrive_end_the_silence() -> None:
    """What counts is that a line has arrived here, whatever its stamp."""
    deadline = DeadlineMonitor(LIMITS, 0, 0.0)
    judged(SEES, 95, deadline)
    assert judged(SEES._replace(lines=1), 95, deadline, begin=95.5) == ""
    assert judged(SEES._replace(lines=1), 10, deadline, begin=191) == "silence"


def test_process_that_was_stopped_has_heard_nothing_meanwhile() -> None:
    """After a long gap between two samples nothing is judged until the events of that time have arrived."""
    deadline = DeadlineMonitor(LIMITS, 0, 0.0)
    judged(SEES, 90, deadline)
    after = 90 + _MAX_GAP_S + 2000
    assert deadline.judge(SEES._replace(at=after)) is None
    assert judged(SEES._replace(lines=1), _LOG_GRACE_S - 1, deadline, begin=after + 0.5) == ""


def test_run_deadline_counts_from_the_submit_and_is_judged_where_the_job_is_seen() -> None:
    """The run deadline also holds for an attached run, but not while the job is not seen: it may have ended."""
    assert judged(SEES._replace(known=False), 80, attached(5000)) == ""
    assert judged(SEES, 1, attached(5000)) == "run-deadline"


# --- what is still arriving


@pytest.mark.parametrize(
    ("quiet", "sizes", "over"),
    [(60, [1] * 59, False), (60, [1] * 62, True), (60, list(range(300)), False), (0.5, [1, 1], True)],
)
def test_what_arrives_is_waited_for(quiet: float, sizes: list[int], over: bool) -> None:
    """Logs are waited for while they grow, and for the quiet seconds after their last growth."""
    arrival = ArrivalTimer(quiet, 0.0)
    found = [arrival.is_over(float(at), size) for at, size in enumerate(sizes)]
    assert (any(found), found[-1]) == (over, over)


def test_server_that_is_away_is_waited_for() -> None:
    """The quiet seconds begin when the server answers again, and the whole wait is bounded."""
    arrival = ArrivalTimer(60, 0.0)
    assert not any(arrival.is_over(float(at), 1, away=True) for at in range(600))
    assert not arrival.is_over(650.0, 1)
    assert arrival.is_over(661.0, 1)
    assert arrival.is_over(_MAX_ARRIVAL_S + 1, 2)
