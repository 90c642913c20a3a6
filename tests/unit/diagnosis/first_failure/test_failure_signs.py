"""Signs of failed ranks in growing logs: what is one, and what healthy programs print too."""

import logging
import traceback

import pytest

from tests.builders.rank_records import build_record
from torchyard.diagnosis.first_failure.failure_signs import FailureSign, FailureSignReader
from torchyard.model.run import LogLine

HEADER = "Traceback (most recent call last):"
LOST = "E1126 api.py:1002] failed (exitcode: {}) local_rank: {} (pid: 42) of binary: /usr/bin/python"
RANKS = "I1126 api.py:553]   global_ranks=[4, 5]"
RESTARTED = "I1126 api.py:715] [default] Starting worker group"


def read_signs(*texts: str) -> list[tuple[int | None, int | None, int | None]]:
    """Local rank, rank and exit code of each sign in the lines of one node."""
    reader = FailureSignReader()
    for second, text in enumerate(texts):
        reader.process_line(LogLine(float(second), "node-1", text))
    return [(failure_sign.local_rank, failure_sign.rank, failure_sign.exit_code) for failure_sign in reader.signs]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([f"[default1]:[rank5]: {HEADER}"], [(1, 5, None)]),
        ([f"[rank5]: {HEADER}"], [(None, 5, None)]),
        ([f"[rank1]:[rank5]: {HEADER}"], [(1, 5, None)]),  # torchrun --role=rank
        ([f"[default0]: 50%|#####  [default1]:[rank5]: {HEADER}"], [(1, 5, None)]),
        ([f"\x1b[31m[default1]:[rank5]: {HEADER}"], [(1, 5, None)]),
        ([RANKS, LOST.format(1, 1)], [(1, 5, 1)]),
        ([LOST.format(-9, 1)], [(1, None, -9)]),
        ([RANKS, f"[default1]:[rank5]: {HEADER}", LOST.format(1, 1)], [(1, 5, 1)]),
        ([RANKS, LOST.format(1, 1), LOST.format(-15, 0)], [(1, 5, 1), (0, 4, -15)]),
        ([RANKS, LOST.format(1, 1), RESTARTED], []),
    ],
)
def test_failed_rank_is_a_sign(texts: list[str], expected: list[tuple[int | None, int | None, int | None]]) -> None:
    """torch's hook names a rank with an uncaught exception, torchrun one that has ended; a new start ends both."""
    assert read_signs(*texts) == expected


def list_caught_tracebacks() -> list[str]:
    """What logging and traceback print about an exception that a program has caught, with the prefixes of runs."""
    try:
        raise ValueError("bad sample")
    except ValueError as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
    record = logging.LogRecord("trainer", logging.ERROR, "", 0, "caught", None, None)
    texts = [logging.Formatter("[rank1]: %(message)s").format(record), f"[rank1]:{lines[0]}", *lines]
    texts += [f"[default1]:2026-11-26 10:00:00 [ERROR] [rank1] {line}" for line in lines]
    return [*texts, *(f"[default1]:{line}" for line in lines), "[default1]:epoch 3"]


def test_caught_exception_is_not_a_sign() -> None:
    """Tracebacks that a logger or print_exc prints are no signs, nor is a worker's own line about a lost worker."""
    assert read_signs(RANKS, *list_caught_tracebacks(), f"[default1]:{LOST.format(1, 1)}") == []


def test_second_sign_of_a_process_is_one_change() -> None:
    """A process has one sign, of its first line; only its exit code changes it."""
    reader = FailureSignReader()
    header = LogLine(1.0, "node-0", f"[default0]:[rank0]: {HEADER}")
    changes = []
    for line in (header, header, LogLine(3.0, "node-0", RANKS.replace("4, 5", "0, 1"))):
        reader.process_line(line)
        changes.append(reader.change_count)
    reader.process_line(LogLine(4.0, "node-0", LOST.format(1, 0)))
    assert (changes, reader.change_count) == ([1, 1, 1], 2)
    assert [failure_sign.shown_at for failure_sign in reader.signs] == [1.0]


@pytest.mark.parametrize(("kind", "has_ended"), [("raised", False), ("end", True)])
def test_exception_that_the_recorder_reports_is_a_sign(kind: str, has_ended: bool) -> None:
    """Before torch prefixes tracebacks, a rank whose program an exception has ended; its exit code comes later."""
    reader = FailureSignReader()
    reader.process_line(LogLine(1.0, "node-1", RANKS))
    reader.process_record("node-1", build_record(5, kind=kind, timestamp=9.5, raised_after=9.0))
    expected = FailureSign("node-1", 1, 5, 9.0, has_ended=has_ended)
    assert reader.signs == [expected]
    reader.process_record("node-1", build_record(5, kind="end", timestamp=11.0, raised_after=9.0))
    assert reader.signs == [expected]
    reader.process_line(LogLine(11.0, "node-1", LOST.format(1, 1)))
    assert [(sign.rank, sign.exit_code) for sign in reader.signs] == [(5, 1)]


def test_exception_of_a_previous_worker_is_not_a_sign() -> None:
    """The end of a worker may be printed only after its agent has started the next ones."""
    reader = FailureSignReader()
    reader.process_line(LogLine(10.0, "node-1", RESTARTED))
    reader.process_record("node-1", build_record(5, kind="end", timestamp=10.2, raised_after=9.0))
    assert reader.signs == []


STOPPED = "W1126 api.py:1028] Sending process {} closing signal SIGTERM"


@pytest.mark.parametrize(
    ("ended_ranks", "expected"),
    [
        ({5: 9.9}, [(1, 5, True)]),  # rank 4 is being stopped
        ({5: 9.9, 4: 15.0}, [(1, 5, True)]),  # and ends later
        ({4: 10.1}, []),  # only the rank that was stopped has ended
        ({5: 3.0}, []),  # it had ended before, which may have been its success
        ({}, []),
    ],
)
@pytest.mark.parametrize("is_record_first", [True, False])
def test_rank_that_ended_before_the_others_were_stopped_is_a_sign(
    is_record_first: bool, ended_ranks: dict[int, float], expected: list[tuple[int, int, bool]]
) -> None:
    """Before torchrun reports it, a rank of which the recorder reports the end, and that torchrun has not stopped."""
    reader = FailureSignReader()
    reader.process_line(LogLine(1.0, "node-1", RANKS))
    stop = LogLine(10.0, "node-1", STOPPED.format(104))
    if not is_record_first:
        reader.process_line(stop)
    for rank, ended_at in ended_ranks.items():
        reader.process_record("node-1", build_record(rank, kind="end", timestamp=ended_at))
    reader.process_line(stop)
    assert [(sign.local_rank, sign.rank, sign.has_ended) for sign in reader.signs] == expected
    assert all(sign.exit_code is None for sign in reader.signs)
    reader.process_line(LogLine(11.0, "node-1", LOST.format(3, 1)))
    assert [(sign.rank, sign.exit_code) for sign in reader.signs] == [(5, 3)]
