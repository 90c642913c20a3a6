"""Logs of any size: counted in blocks, their last lines read from the end, a long run's rows thinned."""

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Planned
from torchyard.common.log_lines import read_line, read_new_lines
from torchyard.metrics.registry import READERS
from torchyard.metrics.rows import Rows
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import MAX_ROWS, Metrics
from torchyard.steps import log_tail
from torchyard.steps.log_reader import read_rank_zero
from torchyard.steps.log_tail import LogTails, count_lines

STAMP = "2026-11-21T08:00:47.123Z node-0 | "
PIECES = st.sampled_from([STAMP.encode() + b"[default0]:x", b"\n", b"\r"])
BYTES = st.lists(st.binary(max_size=40) | PIECES, max_size=30)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that every line is cut somewhere."""
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", 7)


@given(BYTES, st.integers(1, 12))
def test_last_lines_are_those_of_the_whole_file(tmp_path_factory: Any, pieces: list[bytes], count: int) -> None:
    """Whatever a file holds, its end read backwards is the end of the file read forwards; a torn last line is none."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"\n".join(pieces))
    whole = [read_line(text, "a") for text, _ in read_new_lines(path, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_tail, "BLOCK_BYTES", 7)
        assert LogTails({"a": str(path)}).last("a", count) == whole[-count:]
        assert count_lines(str(path)) == len(whole)


def test_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    """A pod that never began has no file, and that is no error."""
    assert (count_lines(str(tmp_path / "a")), LogTails({"a": str(tmp_path / "a")})["a"]) == (0, [])


def test_long_end_is_bounded(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of any length cost no more than the bytes that a node may have."""
    monkeypatch.setattr(log_tail, "_MAX_TOTAL_BYTES", 100)
    monkeypatch.setattr(log_tail, "_MIN_NODE_BYTES", 100)
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%060d\n" % each for each in range(50)))
    assert [int(line.text) for line in LogTails({"a": str(path)})["a"]] == [49]


def test_many_nodes_share_the_lines(tmp_path: Path) -> None:
    """Of a thousand nodes fewer lines each are read than of two."""
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 6000)
    few, many = ({str(node): str(path) for node in range(count)} for count in (2, 1000))
    assert (len(LogTails(few)["1"]), len(LogTails(many)["1"])) == (
        log_tail._MAX_NODE_LINES,
        log_tail._MAX_TOTAL_LINES // 1000,
    )


# --- what rank 0 printed


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    return planned(nodes=2)


def write(plan: ManifestPlan, node: str, *said: str) -> None:
    path = Path(plan.nodes[node])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(f"{each}\n".encode(errors="surrogateescape") for each in said))


def test_rank_zero_is_read_among_garbage(plan: ManifestPlan) -> None:
    """Other ranks, the agent, torn lines and bytes that are no text do not hide what rank 0 says, nor add to it."""
    first = f"{STAMP}I1 api.py:5]   group_rank=1"
    write(plan, "worker-0", first, f"{STAMP}[default0]:not mine", "[default0]:nor this")
    said = [f"{STAMP}[default0]:one", f"{STAMP}[default1]:no", "[default0]:torn", "\udcff\udcfe", f"{STAMP}agent"]
    write(plan, "worker-1", f"{STAMP}[default0]:early", f"{STAMP}   group_rank=0", *said, f"{STAMP}[default00]:two")
    assert list(read_rank_zero(plan)) == ["one", "torn", "two"]


@pytest.mark.parametrize("line", [f"{STAMP}a | b", "torn", "2026-11-21T08:00:47+00:00 n | a", f"{STAMP}", ""])
def test_text_of_a_line_needs_no_time(plan: ManifestPlan, line: str) -> None:
    """What a line says is the same whether its time is read or not."""
    plain = plan.model_copy(update={"ranks": "placed"})
    write(plan, "worker-0", line)
    assert list(read_rank_zero(plain)) == [read_line(line, "worker-0").text]


# --- the rows of a long run


def long_run(count: int) -> Metrics:
    return READERS["json-lines"](json.dumps({"step": step, "loss": 1 / step}) for step in range(1, count + 1))


def test_run_of_any_length_keeps_as_many_rows() -> None:
    """A long run's rows are thinned evenly, first and last kept, and none is invented; the count says all."""
    metrics = long_run(10 * MAX_ROWS + 7)
    steps = [int(row["step"] or 0) for row in metrics.rows]
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert MAX_ROWS // 2 <= len(steps) <= MAX_ROWS
    assert (steps[0], steps[-1], len(gaps)) == (1, 10 * MAX_ROWS + 7, 1)
    assert all(row["loss"] == 1 / step for row, step in zip(metrics.rows, steps, strict=True))
    assert (metrics.count, metrics.summary) == (10 * MAX_ROWS + 7, {"rows": 10 * MAX_ROWS + 7})


def test_run_that_fits_is_kept_whole() -> None:
    """Up to the limit every row is there, and nothing is said of a count."""
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


def test_resumed_run_does_not_begin_a_second_curve() -> None:
    """Steps that are told again after a resume replace the kept ones; those that were dropped stay dropped."""
    steps = [*range(3 * MAX_ROWS), *range(MAX_ROWS, 3 * MAX_ROWS + 5)]
    metrics = READERS["json-lines"](f'{{"step": {step}, "at": {at}}}' for at, step in enumerate(steps))
    kept = [int(row["step"] or 0) for row in metrics.rows]
    assert kept == sorted(set(kept))
    assert (kept[-1], metrics.count) == (3 * MAX_ROWS + 4, 3 * MAX_ROWS + 5)
    assert all(int(row["at"] or 0) >= 3 * MAX_ROWS for row in metrics.rows if int(row["step"] or 0) >= MAX_ROWS)


def test_best_of_a_long_run_is_not_lost() -> None:
    """The highest bandwidth counts, though its row was not kept."""
    lines = [f"| {1.0 + (trial == 4321):.2f}GBps | 0.50GBps |" for trial in range(9 * MAX_ROWS)]
    metrics = READERS["allreduce-bench"](["| busbw | algbw |", *lines])
    assert len(metrics.rows) <= MAX_ROWS
    assert metrics.summary["max_busbw"] == 2.0


@given(st.lists(st.integers(0, 60), max_size=200), st.sampled_from([2, 5, 9]))
def test_rows_hold_what_came_last(values: list[int], most: int) -> None:
    """In whatever order keys come: a kept row is the last that its key had, the first one stays, memory is bounded."""
    last: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchyard.metrics.rows.MAX_ROWS", most)
        rows = Rows()
        for at, value in enumerate(values):
            rows.put(("step", value), {"step": value, "at": at})
            last[value] = at
    kept = rows.all()
    assert len(kept) <= most
    assert not values or kept[0]["step"] == values[0]
    assert all(row["at"] == last[int(row["step"] or 0)] for row in kept)
