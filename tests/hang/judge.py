"""What torchyard tells of a job's lines, live or by replay."""

from collections.abc import Iterable
from typing import NamedTuple

from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stragglers import find_straggler
from torchyard.model.hang import Straggler

_CHECK_INTERVAL_S = 0.5


class Line(NamedTuple):
    """A line of a node's log, and when it came: seconds since the cell's start."""

    time_s: float
    node: str
    text: str


class Verdict(NamedTuple):
    """What is told, and since when: seconds since the cell's start."""

    time_s: float
    kind: str
    ranks: tuple[int, ...]
    location: str
    sentence: str


class VerdictRecorder:
    """Feeds a job's lines to torchyard, on the clock of the lines, and keeps what it says whenever that changes."""

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
        """Judge at each half second up to now."""
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
    """What would have been told of recorded lines."""
    recorder, last_line_at = VerdictRecorder(), 0.0
    for line in lines:
        recorder.process_line(line)
        last_line_at = line.time_s
    recorder.advance_to(last_line_at + 2 * _CHECK_INTERVAL_S)  # the last line counts, too
    return recorder
