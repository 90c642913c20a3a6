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
KEPT_WINDOWS = 12
_MAX_CARRY_CHARS = MAX_RECORD_BYTES + 500  # an unfinished line, with a prefix
_COLOUR = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\u00[01][0-9a-fA-F]|\\u007[fF]|\\[nrtbf]")  # no name has one
_CLOCK_WINDOW_S = 300.0


class Window(NamedTuple):
    """What share of a window a rank has waited in collectives, and when its record arrived."""

    arrived: float
    waited: float


class _Delay:
    """The least difference between a node's clock and ours, so that a log that comes late is not taken for new.

    It is forgotten after ten minutes at most, because a clock may be set.
    """

    def __init__(self) -> None:
        self._since, self._now, self._before = -math.inf, math.inf, math.inf

    def measure(self, at: float, arrived: float) -> float:
        """How many seconds later than the fastest record this one has arrived."""
        if arrived - self._since >= _CLOCK_WINDOW_S:
            self._since, self._before, self._now = arrived, self._now, math.inf
        self._now = min(self._now, arrived - at)
        return arrived - at - min(self._now, self._before)


class BlackBox:
    """The latest record of each rank. `clock` is monotonic; the nodes' own clocks may differ."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.world = 0
        self.latest: dict[int, RankRecord] = {}
        self.windows: dict[int, deque[Window]] = {}
        self._clock = clock
        self._said: dict[int, float] = {}
        self._carry: dict[str, str] = {}
        self._delays: dict[str, _Delay] = {}

    def feed(self, node: str, text: str) -> bool:
        """Take what a node has printed; true if it says more than that healthy ranks are healthy."""
        text = self._carry.pop(node, "") + text
        end = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
        is_news = [self._keep(node, record) for record in parse_records(text)]
        if RECORD_PREFIX.strip() in end and len(end) <= _MAX_CARRY_CHARS and parse_line(end) is None:
            self._carry[node] = end
        return any(is_news)

    def ages(self) -> dict[int, float]:
        """How many seconds ago each rank's latest record was true, at least."""
        now = self._clock()
        return {rank: max(now - said, 0.0) for rank, said in self._said.items()}

    def _keep(self, node: str, record: RankRecord) -> bool:
        arrived = self._clock()
        before = self.latest.get(record.rank)
        if record.world != self.world or (before and before.pid != record.pid):
            self._forget(record.world)
        self.latest[record.rank] = record.model_copy(update={"node": node})
        self._said[record.rank] = arrived - self._delays.setdefault(node, _Delay()).measure(record.at, arrived)
        if record.kind == "pulse":
            self.windows.setdefault(record.rank, deque(maxlen=KEPT_WINDOWS)).append(Window(arrived, record.waited))
        return record.kind != "pulse" or before is None or before.kind != "pulse"

    def _forget(self, world: int) -> None:
        """The workers have been started again: what has ended was of those before."""
        self.world = world
        for rank in [each for each, its in self.latest.items() if its.kind == "end" or each >= world]:
            del self.latest[rank], self._said[rank]
        self.windows.clear()


def parse_records(text: str) -> Iterator[RankRecord]:
    """The records among the lines of a log; what is torn, malformed or too long is no record."""
    if RECORD_PREFIX in text:
        yield from (record for line in re.split(r"[\r\n]", text) if (record := parse_line(line)))


def parse_line(line: str) -> RankRecord | None:
    """The record of a line, with whatever a launcher has put before its mark."""
    _, mark, text = line.partition(RECORD_PREFIX)
    text = _COLOUR.sub("", text).strip() if mark else ""
    if not text or len(text.encode(errors="replace")) > MAX_RECORD_BYTES or _CONTROL.search(text):
        return None
    try:
        record = RankRecord.model_validate_json(text)
    except (ValidationError, ValueError):  # ValueError: a lone surrogate
        return None
    return record if _is_sane(record) else None


def _is_sane(record: RankRecord) -> bool:
    numbers = (record.at, record.stalled_s, record.usual_s, record.blind_s, record.waited)
    return 0 <= record.rank < record.world <= MAX_RANKS and all(math.isfinite(each) and each >= 0 for each in numbers)
