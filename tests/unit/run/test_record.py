"""What a run's journal says, for every module that asks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.journals import NOW, process_events
from torchyard.run.record import JobRecord, JournalEvent, RunRecord

MOVED: list[dict[str, Any]] = [{"event": "start", "entry": "moved", "at": 1.0}]
WAITED = process_events("preflight", "submit", "wait")
WAITED_SINCE = NOW - 1.0


@pytest.mark.parametrize(
    ("launches", "submitted_at", "may_run"),
    [
        ([], None, False),
        ([process_events("preflight", "submit")], None, False),
        ([process_events("preflight", "submit"), process_events()], None, True),
        ([WAITED, process_events()], WAITED_SINCE, True),
        ([WAITED, process_events("submit", "wait", lasting=-40.0), process_events()], WAITED_SINCE, True),
        ([process_events("submit", "wait", "collect", "teardown"), process_events()], None, False),
        ([process_events("submit", "wait", "teardown", "submit"), process_events()], None, True),
        ([process_events("submit", "wait", end="swept", by="sweep"), process_events()], None, False),
        ([WAITED, process_events(end="gave-up"), process_events()], WAITED_SINCE, True),
        ([MOVED], None, True),
    ],
)
def test_journal_shows_whether_a_job_may_run(
    launches: list[list[dict[str, Any]]], submitted_at: float | None, may_run: bool
) -> None:
    """A job may still run if an earlier process submitted it and it was neither torn down nor ended since."""
    events = [event for launch in launches for event in launch]
    record = RunRecord(events)
    assert (record.submitted_at, record.has_possible_job) == (submitted_at, may_run)


def test_job_exists_until_its_teardown_is_done() -> None:
    """No process attaches to a job whose teardown has begun, and the job may exist until the teardown is done."""
    events = process_events("submit", "wait", lasting=0.0)
    running = {"event": "running", "at": NOW, "waited_s": 1.0}
    assert RunRecord(events).job == JobRecord(NOW, is_submitted=True)
    assert RunRecord([*events, running]).job == JobRecord(NOW, is_submitted=True, has_started=True)
    removing = RunRecord([*events, running, {"event": "step", "name": "teardown", "at": NOW}])
    assert (removing.job, removing.submitted_at) == (JobRecord(NOW, True, True, True), None)
    removed = RunRecord([*removing.events, {"event": "step-end", "name": "teardown", "at": NOW}])
    assert (removed.job, removed.submitted_at) == (None, None)


@pytest.mark.parametrize(
    ("starts", "count"),
    [
        ([], 0),
        ([{"entry": "moved"}], 0),
        ([{"entry": "fresh", "count": 1}, {"entry": "attach", "count": 2}], 2),
        ([{"entry": "fresh", "count": 1}, {"entry": "echo", "count": 2}], 1),
    ],
)
def test_process_that_reports_an_end_again_is_not_active(starts: list[JournalEvent], count: int) -> None:
    """The last process that took the run on is known by its count, whatever repeated its end since."""
    assert RunRecord([{"event": "start", "at": NOW, **start} for start in starts]).active_count == count


@pytest.mark.parametrize(
    ("last", "end", "is_lost"),
    [
        ([], "", True),
        ([{"event": "left", "at": NOW, "sentence": "no disk"}], "", True),
        ([{"event": "end", "at": NOW, "end": "failed"}], "failed", False),
        ([{"event": "end", "at": NOW, "end": "moved"}], "moved", False),
        ([{"event": "end", "at": NOW, "end": "failed"}, {"event": "start", "at": NOW}], "", True),
    ],
)
def test_run_without_an_end_is_lost(last: list[JournalEvent], end: str, is_lost: bool) -> None:
    """Only the last event is the end of a run: an end before another start is that of an earlier launch."""
    record = RunRecord([*process_events("wait"), *last])
    assert (record.end, record.is_lost) == (end, is_lost)


def test_ending_of_an_earlier_launch_does_not_count() -> None:
    """A run that was started again has not the ending of an earlier launch."""
    ending = {"event": "ending", "at": NOW, "end": "cancelled"}
    assert RunRecord([*process_events("wait"), ending]).ending == ending
    assert RunRecord([*process_events("wait"), ending, *process_events()]).ending == {}


def test_starts_are_counted_by_their_entry() -> None:
    """Every process of a run is counted, or those that started in one way."""
    starts: list[JournalEvent] = [
        {"event": "start", "at": NOW, "entry": entry} for entry in ("fresh", "attach", "fresh")
    ]
    record = RunRecord([*starts, {"event": "step", "name": "wait", "at": NOW}])
    assert (record.count_starts(), record.count_starts("fresh"), record.count_starts("finish")) == (3, 2, 0)


@pytest.mark.parametrize(
    ("kinds", "asked_at"),
    [
        ("", None),
        ("stop", 1.0),
        ("stop stop", 1.0),
        ("stop stop-withdrawn", None),
        ("stop stop-withdrawn stop stop", 3.0),
    ],
)
def test_stop_is_the_first_one_that_was_not_withdrawn(kinds: str, asked_at: float | None) -> None:
    """The grace of a job counts from the first request to stop it, and a request that was withdrawn has none."""
    events: list[JournalEvent] = [{"event": "stop", "attempt": 1, "author": "hang", "asked_at": 0.5, "grace_s": 30.0}]
    for number, kind in enumerate(kinds.split(), start=1):
        events.append({"event": kind, "attempt": 2, "author": "hang", "asked_at": float(number), "grace_s": 30.0})
    stop = RunRecord(events).find_stop(2)
    assert (stop and stop.asked_at) == asked_at


def test_empty_journal_says_nothing() -> None:
    """A run without a readable line has no end, no job and no start."""
    record = RunRecord([])
    assert (record.end, record.is_lost, record.job, record.last_start, record.launches) == ("", False, None, {}, [])
    assert (record.run_id, record.flow_run_id, record.ending, record.has_possible_job) == ("", "", {}, False)


# --- random journals, beside a definition by the whole list


EVENTS = st.one_of(
    st.fixed_dictionaries({"event": st.just("start"), "entry": st.sampled_from(["fresh", "attach", "moved"])}),
    st.fixed_dictionaries(
        {
            "event": st.sampled_from(["step", "step-end"]),
            "name": st.sampled_from(["preflight", "submit", "wait", "collect", "teardown"]),
        }
    ),
    st.fixed_dictionaries({"event": st.sampled_from(["running", "ending", "left"])}),
    st.fixed_dictionaries(
        {"event": st.just("end"), "end": st.sampled_from(["succeeded", "failed", "swept", "gave-up", "moved"])}
    ),
)


def is_gone(event: JournalEvent) -> bool:
    has_ended = event["event"] == "end" and event["end"] not in ("gave-up", "moved")
    return has_ended or (event["event"], event.get("name")) == ("step-end", "teardown")


def take_after_last(events: list[JournalEvent], *, or_teardown: bool) -> list[JournalEvent]:
    """The events after the last one that ended the job, or that began its teardown."""
    indexes = [
        index
        for index, event in enumerate(events)
        if is_gone(event) or (or_teardown and (event["event"], event.get("name")) == ("step", "teardown"))
    ]
    return events[indexes[-1] + 1 :] if indexes else events


def find_step(events: list[JournalEvent], name: str) -> int | None:
    return next(
        (index for index, event in enumerate(events) if (event["event"], event.get("name")) == ("step", name)), None
    )


@given(st.lists(EVENTS, max_size=12))
def test_random_journal_is_read_as_a_list(drawn: list[dict[str, Any]]) -> None:
    """Event after event, the same is found as by searching the whole journal backwards."""
    events = [{"at": float(index)} | event for index, event in enumerate(drawn)]
    record = RunRecord(events)
    assert (record.job is None) == (find_step(take_after_last(events, or_teardown=False), "submit") is None)

    current = take_after_last(events, or_teardown=True)
    submit = find_step(current, "submit")
    is_waited_for = submit is not None and find_step(current[submit:], "wait") is not None
    assert record.submitted_at == (current[submit]["at"] if submit is not None and is_waited_for else None)

    starts = [index for index, event in enumerate(current) if event["event"] == "start"]
    is_left = any(current[index]["entry"] == "moved" for index in starts)
    assert record.has_possible_job == (is_left or (submit is not None and any(index > submit for index in starts)))
