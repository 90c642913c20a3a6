"""The matrix of `make hang`: the verdicts that its cells must get, and the figures of its rows."""

import math

import pytest

from tests.builders.rank_records import build_missing_rank_records
from tests.hang.cells import HANGS, NAMES, RANKS, STRAGGLERS, Cell, get_expected_verdict, list_cells
from tests.hang.faults import FAULTS
from tests.hang.figures import Row, Truth, evaluate_row, quantile, render_kinds, summarize
from tests.hang.healthy import STYLES
from tests.hang.judge import Line, Verdict, VerdictRecorder, replay
from torchyard.model.hang import RECORD_PREFIX, Straggler

SLEEP = Cell("sleep", 4, 1, 0)
PLAIN = Cell("plain", 4, 1, 0)
TRUTH = Truth(10.0, (53, 54))
REPORTED = Verdict(13.0, "missing-rank", (SLEEP.culprit,), "sleep (faults.py:53)", "rank 2 hangs")


def build_recorder(*verdicts: Verdict) -> VerdictRecorder:
    recorder = VerdictRecorder()
    recorder.verdicts = list(verdicts)
    return recorder


def test_every_class_has_a_program() -> None:
    """Each hang but the network's is a fault of the program, and each healthy name is a style of it."""
    assert set(HANGS) - {"network", "silent-node", "before-torch"} == set(FAULTS)
    assert set(NAMES) - set(HANGS) - set(STRAGGLERS) == set(STYLES)


def test_last_line_of_a_recording_is_evaluated() -> None:
    """A replay also reports the verdict on the last line of a recording."""
    lines = [
        f"{RECORD_PREFIX}{record.model_dump_json(exclude={'node'})}" for record in build_missing_rank_records().values()
    ]
    (verdict,) = replay(Line(5.0, f"node-{index // 2}", text) for index, text in enumerate(lines)).verdicts
    assert (verdict.kind, verdict.ranks) == ("missing-rank", (3,))


def test_every_cell_has_full_nodes() -> None:
    """Each node of each cell has the same number of ranks."""
    assert all(cell.ranks % cell.nodes == 0 for cell in list_cells(NAMES, range(9), RANKS))


def test_ranks_of_nccl_have_nodes_of_their_own() -> None:
    """With NCCL each rank is a node, because NCCL refuses two ranks of one host on one GPU."""
    assert all(cell.ranks == cell.nodes for cell in list_cells(NAMES, range(3), (2, 4), "nccl"))


def test_right_verdict_is_right() -> None:
    """A verdict with the right class, rank and line is right in all three; its delay is the time since the fault."""
    assert evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED)) == Row(SLEEP, 3.0, "rank 2 hangs", True, True, True)


@pytest.mark.parametrize(
    "change",
    [{"kind": "network"}, {"ranks": (SLEEP.culprit, 3 - SLEEP.culprit)}, {"time_s": 9.0}],
    ids=["class", "rank", "too early"],
)
def test_wrong_verdict_is_wrong(change: dict[str, object]) -> None:
    """A verdict with a wrong class or rank, or before the fault, is wrong, even after a right one."""
    assert evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED, REPORTED._replace(**change))).problem  # type: ignore[arg-type]


def test_unknown_class_is_not_wrong() -> None:
    """A verdict of unknown class, without ranks, is neither right nor wrong."""
    row = evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED._replace(kind="unknown", ranks=(), location="")))
    assert (row.has_class, row.has_ranks, row.has_line, row.problem) == (False, False, False, "")


def test_line_of_another_location_is_not_right() -> None:
    """Only a line at which the program injects the fault is right."""
    assert (
        evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED._replace(location="sleep (faults.py:55)"))).has_line is False
    )


def test_verdict_on_a_healthy_job_is_wrong() -> None:
    """Any verdict on a job without a hang is wrong."""
    assert evaluate_row(PLAIN, None, build_recorder(REPORTED)).problem
    assert not evaluate_row(PLAIN, None, build_recorder()).problem


def test_one_of_two_ranks_in_a_deadlock_is_enough() -> None:
    """A verdict may name one or both of the ranks that call two groups in opposite orders, and no third rank."""
    cell = Cell("groups", 4, 1, 0)
    first = cell.culprit
    second = (cell.culprit + 1) % 4
    third = (cell.culprit + 2) % 4
    assert get_expected_verdict(cell).allows_ranks([first, second])
    assert get_expected_verdict(cell).allows_ranks([second])
    assert not get_expected_verdict(cell).allows_ranks([first, third])
    assert not get_expected_verdict(cell).allows_ranks([])


def test_job_without_a_difference_between_ranks_has_no_culprit() -> None:
    """A job whose ranks are all outside of collectives has no culprit."""
    cell = Cell("outside", 4, 1, 0)
    assert get_expected_verdict(cell).allows_ranks([])
    assert not get_expected_verdict(cell).allows_ranks([cell.culprit])


def test_stragglers_are_counted_separately() -> None:
    """A verdict without the slow rank is a miss; a verdict with another rank is wrong."""
    cell = Cell("slow", 4, 1, 0)
    right_rank = build_recorder()
    wrong_rank = build_recorder()
    no_rank = build_recorder()
    right_rank.straggler = Straggler(rank=cell.culprit, node="node-0", lost_percent=20, lost_s=9, window_s=45)
    wrong_rank.straggler = right_rank.straggler.model_copy(update={"rank": (cell.culprit + 1) % 4})
    rows = [evaluate_row(cell, None, recorder) for recorder in (right_rank, wrong_rank, no_rank)]
    assert [(row.has_ranks, bool(row.problem)) for row in rows] == [(True, False), (False, True), (False, False)]
    assert "stragglers named >= 90 %" in summarize(rows).list_misses()


def test_unreported_hang_counts() -> None:
    """A hang without a verdict counts as not right, and makes the last quantile infinite; healthy jobs do not count."""
    figures = summarize(
        [
            evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED)),
            evaluate_row(SLEEP, TRUTH, build_recorder()),
            Row(PLAIN, math.inf),
        ]
    )
    assert (figures.hangs, figures.others, figures.ranks, figures.median_s) == (2, 1, 0.5, 3.0)
    assert math.isinf(figures.p95_s)
    assert "reported, p95 <= 20 s" in figures.list_misses()


def test_each_class_of_hang_has_its_own_line() -> None:
    """The line shows the cells, the median and the longest time, and the shares of right verdicts."""
    second = build_recorder(REPORTED._replace(time_s=15.0, location="x (a.py:1)"))
    rows = [
        evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED)),
        evaluate_row(SLEEP, TRUTH, second),
        Row(PLAIN, math.inf),
    ]
    assert render_kinds(rows).splitlines()[2:] == ["| sleep | 2 | 3.0 | 5.0 | 100% | 100% | 50% |"]


def test_right_rows_reach_all_targets() -> None:
    """Right verdicts after three seconds, and none on healthy jobs, reach all targets."""
    assert summarize([evaluate_row(SLEEP, TRUTH, build_recorder(REPORTED)), Row(PLAIN, math.inf)]).list_misses() == []


def test_quantile_is_a_value_of_the_list() -> None:
    """A quantile is one of the values, by the nearest rank."""
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.0, 0.5, 0.95)] == [1.0, 2.0, 4.0]
