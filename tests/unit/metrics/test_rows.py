"""The rows of a long run: thinned evenly, counted, and the last of each key."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.metrics.registry import READERS
from torchyard.metrics.rows import Rows
from torchyard.model.run import MAX_ROWS, Metrics


def long_run(count: int) -> Metrics:
    return READERS["json-lines"](json.dumps({"step": step, "loss": 1 / step}) for step in range(1, count + 1))


def test_run_of_any_length_keeps_as_many_rows() -> None:
    """A long run's rows are thinned evenly, the first and last are kept, and the count is that of all rows."""
    metrics = long_run(10 * MAX_ROWS + 7)
    steps = [int(row["step"] or 0) for row in metrics.rows]
    gaps = {later - earlier for earlier, later in pairwise(steps[:-1])}
    assert MAX_ROWS // 2 <= len(steps) <= MAX_ROWS
    assert (steps[0], steps[-1], len(gaps)) == (1, 10 * MAX_ROWS + 7, 1)
    assert all(row["loss"] == 1 / step for row, step in zip(metrics.rows, steps, strict=True))
    assert (metrics.count, metrics.summary) == (10 * MAX_ROWS + 7, {"rows": 10 * MAX_ROWS + 7})


def test_run_that_fits_keeps_every_row() -> None:
    """Up to the limit every row is kept, and no count is reported."""
    metrics = long_run(MAX_ROWS)
    assert (len(metrics.rows), metrics.count, metrics.summary) == (MAX_ROWS, 0, {})


def test_memory_does_not_grow_with_the_steps() -> None:
    """Ten times the steps take no more memory."""
    peaks = []
    for count in (3 * MAX_ROWS, 30 * MAX_ROWS):
        tracemalloc.start()
        long_run(count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_resumed_run_does_not_start_a_second_curve() -> None:
    """Steps that are repeated after a resume replace the kept ones; dropped steps are not added again."""
    steps = [*range(3 * MAX_ROWS), *range(MAX_ROWS, 3 * MAX_ROWS + 5)]
    metrics = READERS["json-lines"](f'{{"step": {step}, "at": {position}}}' for position, step in enumerate(steps))
    steps_kept = [int(row["step"] or 0) for row in metrics.rows]
    assert steps_kept == sorted(set(steps_kept))
    assert (steps_kept[-1], metrics.count) == (3 * MAX_ROWS + 4, 3 * MAX_ROWS + 5)
    assert all(int(row["at"] or 0) >= 3 * MAX_ROWS for row in metrics.rows if int(row["step"] or 0) >= MAX_ROWS)


def test_best_of_a_long_run_is_not_lost() -> None:
    """The highest bandwidth is in the summary even if its row was not kept."""
    lines = [f"| {1.0 + (trial == 4321):.2f}GBps | 0.50GBps |" for trial in range(9 * MAX_ROWS)]
    metrics = READERS["allreduce-bench"](["| busbw | algbw |", *lines])
    assert len(metrics.rows) <= MAX_ROWS
    assert metrics.summary["max_busbw"] == 2.0


@given(st.lists(st.integers(0, 60), max_size=200), st.sampled_from([2, 5, 9]))
def test_kept_row_is_the_last_of_its_key(values: list[int], max_rows: int) -> None:
    """In any order of keys, a kept row is the last one of its key, the first key is kept, and memory is bounded."""
    last: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchyard.metrics.rows.MAX_ROWS", max_rows)
        rows = Rows()
        for position, value in enumerate(values):
            rows.put(("step", value), {"step": value, "at": position})
            last[value] = position
    kept_rows = rows.all()
    assert len(kept_rows) <= max_rows
    assert not values or kept_rows[0]["step"] == values[0]
    assert all(row["at"] == last[int(row["step"] or 0)] for row in kept_rows)
