"""The driver of the matrices: which cells are played, in which threads, and what becomes of their errors."""

import os
import signal
import threading
from typing import NamedTuple

import pytest

from tests.tools.matrix import Matrix, build_parser, choose_cells, exit_on_sigterm, flatten, render_table, run_all


class SampleCell(NamedTuple):
    """A cell of the matrix of these tests."""

    launcher: str
    fault: str

    def __str__(self) -> str:
        return f"{self.launcher:<10} {self.fault}"


class SampleMatrix(Matrix[SampleCell, str]):
    """Reports each cell with the lane and the wave that played it; a cell named `broken` raises."""

    def __init__(self, total: int, lanes: int = 1) -> None:
        super().__init__(total)
        self.lanes_met = threading.Barrier(lanes)

    def play_wave(self, lane: int, wave: tuple[SampleCell, ...]) -> None:
        self.lanes_met.wait(60)
        for cell in wave:
            self.run_guarded(cell, lambda cell=cell: self.play_cell(cell, len(wave)))  # type: ignore[misc]

    def play_cell(self, cell: SampleCell, wave_size: int) -> None:
        if cell.fault == "broken":
            raise ValueError("no fault of this name")
        self.report(f"{cell.launcher} {cell.fault} in a wave of {wave_size}")

    def build_failure(self, cell: SampleCell, message: str) -> str:
        return f"{cell.launcher} {cell.fault}: {message}"


VOLCANO = SampleCell("volcano", "reset")
BROKEN = SampleCell("volcano", "broken")
MACHINES = SampleCell("baremetal", "reset")


def test_every_wave_is_played_once() -> None:
    """Each wave is played by one lane, with all of its cells."""
    matrix = SampleMatrix(3)
    matrix.play([(VOLCANO, MACHINES), (VOLCANO,)], lanes=1)
    assert matrix.results == [
        "volcano reset in a wave of 2",
        "baremetal reset in a wave of 2",
        "volcano reset in a wave of 1",
    ]


def test_lanes_play_at_the_same_time() -> None:
    """Two lanes play two waves in parallel: each waits until the other has started."""
    matrix = SampleMatrix(2, lanes=2)
    matrix.play([(VOLCANO,), (MACHINES,)], lanes=2)
    assert sorted(matrix.results) == ["baremetal reset in a wave of 1", "volcano reset in a wave of 1"]


def test_error_of_a_cell_is_its_result() -> None:
    """A cell that raises is reported as failed, and the other cells are played."""
    matrix = SampleMatrix(2)
    matrix.play([(BROKEN,), (VOLCANO,)], lanes=1)
    assert matrix.results == [
        "volcano broken: ValueError: no fault of this name",
        "volcano reset in a wave of 1",
    ]


def test_result_is_printed_with_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    """A result is printed as soon as it is reported, with its number and the number of all cells."""
    SampleMatrix(12).report("volcano reset")
    assert capsys.readouterr().out == "  1/12 volcano reset\n"


def test_first_error_is_raised_after_all_have_ended() -> None:
    """An error of one function does not end the others; it is raised when all have ended."""
    finished = []

    def fail() -> None:
        raise RuntimeError("cannot start")

    with pytest.raises(RuntimeError, match="cannot start"):
        run_all([fail, lambda: finished.append("second")])
    assert finished == ["second"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param([], [VOLCANO, BROKEN, MACHINES], id="all"),
        pytest.param(["--only", "volcano reset", "baremetal"], [VOLCANO, MACHINES], id="only"),
        pytest.param(["--skip", "broken"], [VOLCANO, MACHINES], id="skip"),
        pytest.param(["--only", "volcano", "--skip", "broken"], [VOLCANO], id="both"),
    ],
)
def test_cells_are_chosen_by_their_line(argv: list[str], expected: list[SampleCell]) -> None:
    """A text matches a cell's line with single spaces; `--skip` removes cells that `--only` has chosen."""
    args = build_parser("sample", None, jobs=1).parse_args(argv)
    assert choose_cells([VOLCANO, BROKEN, MACHINES], args) == expected


def test_cell_of_a_table_is_one_line_without_bars() -> None:
    """A text in a table has no line break and no bar, which would end the cell, and is cut."""
    assert flatten("left: a|b\n  and c", 12) == "left: a/b an"
    assert render_table(["fault", "end"], [["reset", "Completed"]]) == (
        "| fault | end |\n| --- | --- |\n| reset | Completed |"
    )


def test_second_sigterm_does_not_interrupt_the_removal() -> None:
    """The first SIGTERM is an exit with 143, and another one is ignored: what was started is being removed."""
    previous_handler = signal.getsignal(signal.SIGTERM)
    try:
        exit_on_sigterm()
        with pytest.raises(SystemExit) as raised:
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    assert raised.value.code == 143
