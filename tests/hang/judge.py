"""The verdicts of torchyard on a job's lines, live or in a replay."""

from collections.abc import Iterable
from typing import NamedTuple

from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stragglers import find_straggler
from torchyard.model.hang import Straggler

_CHECK_INTERVAL_S = 0.5


class Line(NamedTuple):
    """A line of a node's log. time_s: its arrival, in seconds since the cell's start."""

    time_s: float
    node: str
    text: str


class Verdict(NamedTuple):
    """A reported hang. time_s: when it was first reported, in seconds since the cell's start."""

    time_s: float
    kind: str
    ranks: tuple[int, ...]
    location: str
    sentence: str


class VerdictRecorder:
    """Feeds a job's lines to torchyard, on the clock of the lines, and records every change of its verdict.

    Call `process_line` for each line in order of arrival, and `advance_to` while no line arrives. A check runs at each
    half second of that clock. `straggler` is the last one that was found.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._box = BlackBox(lambda: self._now)
        self._last: tuple[object, ...] = ()
        self.verdicts: list[Verdict] = []
        self.straggler: Straggler | None = None

    def process_line(self, line: Line) -> None:
        self.advance_to(line.time_s)
        self._box.process_text(line.node, line.text + "\n")

    def advance_to(self, now: float) -> None:
        """Check at each half second up to `now`, in seconds since the cell's start."""
        while self._now + _CHECK_INTERVAL_S <= now:
            self._now += _CHECK_INTERVAL_S
            self._check()

    def _check(self) -> None:
        box = self._box
        nodes = {rank: record.node for rank, record in box.latest.items()}
        self.straggler = find_straggler(box.windows, nodes) or self.straggler
        hang = detect_hang(box.latest, box.world, box.get_record_ages())
        state = (hang.kind, hang.ranks, hang.location) if hang else ()
        if hang and state != self._last:
            self.verdicts.append(Verdict(self._now, hang.kind, hang.ranks, hang.location, hang.sentence))
        self._last = state


def replay(lines: Iterable[Line]) -> VerdictRecorder:
    """The verdicts on recorded lines."""
    recorder = VerdictRecorder()
    last_line_at = 0.0
    for line in lines:
        recorder.process_line(line)
        last_line_at = line.time_s
    recorder.advance_to(last_line_at + 2 * _CHECK_INTERVAL_S)  # the last line counts, too
    return recorder
