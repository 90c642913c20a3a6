"""The verdicts of torchyard on a job's lines, live or in a replay."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torchyard.diagnosis.hang.records import BlackBox
from torchyard.model.hang import HangUpdate, Straggler
from torchyard.model.plan import CommandPlan, HostScript, Process
from torchyard.steps.hang_monitor import HangMonitor

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
    half second of that clock, by the monitor of a run with `on_hang: restart`. `straggler` is the last one that was
    found; `restarted_at_s` is when the attempt would have been ended, in seconds since the cell's start, None if never.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._box = BlackBox(lambda: self._now)
        self._folder = tempfile.TemporaryDirectory(prefix="torchyard-hang-files-")
        node = Process(
            name="node-0",
            script=HostScript(host="localhost", argv=()),
            folder=self._folder.name,
            log=str(Path(self._folder.name, "attempt-1", "node-0", "log")),
            copies_log=False,
            spec=None,
            grace=0,
        )
        plan = CommandPlan(
            launcher="baremetal", job="matrix", label="matrix", processes=(node,), on_hang="restart", requires=()
        )
        self._monitor = HangMonitor(plan, self._ignore_update, clock=lambda: self._now)
        self._last: tuple[object, ...] = ()
        self.verdicts: list[Verdict] = []
        self.straggler: Straggler | None = None
        self.restarted_at_s: float | None = None

    def process_line(self, line: Line) -> None:
        self.advance_to(line.time_s)
        self._box.process_text(line.node, line.text + "\n")

    def advance_to(self, now: float) -> None:
        """Check at each half second up to `now`, in seconds since the cell's start."""
        while self._now + _CHECK_INTERVAL_S <= now:
            self._now += _CHECK_INTERVAL_S
            self._check()

    def _check(self) -> None:
        status = self._monitor.check(self._box)
        if status and self.restarted_at_s is None:
            self.restarted_at_s = self._now
        self.straggler = self._monitor.straggler
        hang = self._monitor.hang
        state = (hang.kind, hang.ranks, hang.location) if hang else ()
        if hang and state != self._last:
            self.verdicts.append(Verdict(self._now, hang.kind, hang.ranks, hang.location, hang.sentence))
        self._last = state

    def _ignore_update(self, update: HangUpdate) -> None:
        """The verdicts are read after each check."""


def replay(lines: Iterable[Line]) -> VerdictRecorder:
    """The verdicts on recorded lines."""
    recorder = VerdictRecorder()
    last_line_at = 0.0
    for line in lines:
        recorder.process_line(line)
        last_line_at = line.time_s
    recorder.advance_to(last_line_at + 2 * _CHECK_INTERVAL_S)  # the last line counts, too
    return recorder
