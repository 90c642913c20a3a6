"""The black box: the lines of all nodes' recorders as the latest record of each rank."""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pydantic import ValidationError

from torchyard.model.hang import RECORD_PREFIX, RankRecord

MAX_RECORD_BYTES = 4_000
MAX_RANKS = 100_000
MAX_WINDOWS = 12
_MAX_PARTIAL_LINE_CHARS = MAX_RECORD_BYTES + 500  # an unfinished line, with a prefix
_COLOUR = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\u00[01][0-9a-fA-F]|\\u007[fF]|\\[nrtbf]")  # no name has one
_CLOCK_WINDOW_S = 300.0


class Window(NamedTuple):
    """What share of a window a rank has waited in collectives, and when its record arrived."""

    arrived_at: float
    waited_share: float


class _LogDelay:
    """The least difference between a node's clock and ours, so that a log that comes late is not taken for new.

    It is forgotten after ten minutes at most, because a clock may be set.
    """

    def __init__(self) -> None:
        self._window_started_at, self._min_offset_s, self._previous_min_offset_s = -math.inf, math.inf, math.inf

    def measure(self, recorded_at: float, arrived_at: float) -> float:
        """How many seconds later than the fastest record this one has arrived."""
        if arrived_at - self._window_started_at >= _CLOCK_WINDOW_S:
            self._window_started_at, self._previous_min_offset_s, self._min_offset_s = (
                arrived_at,
                self._min_offset_s,
                math.inf,
            )
        self._min_offset_s = min(self._min_offset_s, arrived_at - recorded_at)
        return arrived_at - recorded_at - min(self._min_offset_s, self._previous_min_offset_s)


class BlackBox:
    """The latest record of each rank. `clock` is monotonic; the nodes' own clocks may differ."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.world = 0
        self.latest: dict[int, RankRecord] = {}
        self.windows: dict[int, deque[Window]] = {}
        self._clock = clock
        self._record_times: dict[int, float] = {}
        self._partial_lines: dict[str, str] = {}
        self._delays: dict[str, _LogDelay] = {}

    def process_text(self, node: str, text: str) -> bool:
        """Take what a node has printed; true if it says more than that healthy ranks are healthy."""
        text = self._partial_lines.pop(node, "") + text
        partial_line = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
        changes = [self._add_record(node, record) for record in parse_records(text)]
        if (
            RECORD_PREFIX.strip() in partial_line
            and len(partial_line) <= _MAX_PARTIAL_LINE_CHARS
            and parse_line(partial_line) is None
        ):
            self._partial_lines[node] = partial_line
        return any(changes)

    def get_record_ages(self) -> dict[int, float]:
        """How many seconds ago each rank's latest record was true, at least."""
        now = self._clock()
        return {rank: max(now - record_time, 0.0) for rank, record_time in self._record_times.items()}

    def _add_record(self, node: str, record: RankRecord) -> bool:
        arrived_at = self._clock()
        previous = self.latest.get(record.rank)
        if record.world != self.world or (previous and previous.pid != record.pid):
            self._forget_previous_workers(record.world)
        self.latest[record.rank] = record.model_copy(update={"node": node})
        self._record_times[record.rank] = arrived_at - self._delays.setdefault(node, _LogDelay()).measure(
            record.at, arrived_at
        )
        if record.kind == "pulse":
            self.windows.setdefault(record.rank, deque(maxlen=MAX_WINDOWS)).append(Window(arrived_at, record.waited))
        return record.kind != "pulse" or previous is None or previous.kind != "pulse"

    def _forget_previous_workers(self, world: int) -> None:
        """The workers have been started again: what has ended was of those before."""
        self.world = world
        for rank in [rank for rank, record in self.latest.items() if record.kind == "end" or rank >= world]:
            del self.latest[rank], self._record_times[rank]
        self.windows.clear()


def parse_records(text: str) -> Iterator[RankRecord]:
    """The records among the lines of a log; what is torn, malformed or too long is no record."""
    if RECORD_PREFIX in text:
        yield from (record for line in re.split(r"[\r\n]", text) if (record := parse_line(line)))


def parse_line(line: str) -> RankRecord | None:
    """The record of a line, with whatever a launcher has put before its mark."""
    _, prefix, text = line.partition(RECORD_PREFIX)
    text = _COLOUR.sub("", text).strip() if prefix else ""
    if not text or len(text.encode(errors="replace")) > MAX_RECORD_BYTES or _CONTROL.search(text):
        return None
    try:
        record = RankRecord.model_validate_json(text)
    except (ValidationError, ValueError):  # ValueError: a lone surrogate
        return None
    return record if _has_valid_numbers(record) else None


def _has_valid_numbers(record: RankRecord) -> bool:
    numbers = (record.at, record.stalled_s, record.usual_s, record.blind_s, record.waited)
    return 0 <= record.rank < record.world <= MAX_RANKS and all(
        math.isfinite(number) and number >= 0 for number in numbers
    )
