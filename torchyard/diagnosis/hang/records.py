"""The black box: the latest record of each rank, from the lines that the nodes' recorders print into the logs."""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from torchyard.model.hang import RECORD_PREFIX, NodePulse, RankRecord

MAX_RECORD_BYTES = 4_000  # a recorder prints at most 3,900
MAX_RANKS = 100_000
MAX_WINDOWS = 12  # of each rank
_MAX_PARTIAL_LINE_CHARS = MAX_RECORD_BYTES + 500  # an unfinished line, with a prefix
_COLOUR = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]")
# Control codes, raw or escaped: no name that a recorder reports contains one.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\u00[01][0-9a-fA-F]|\\u007[fF]|\\[nrtbf]")
_LINE: TypeAdapter[RankRecord | NodePulse] = TypeAdapter(RankRecord | NodePulse, config=ConfigDict(defer_build=True))
_CLOCK_WINDOW_S = 300.0  # over which the smallest delay is measured


class Window(NamedTuple):
    """How long a rank has waited in collectives in one window.

    arrived_at: when the record arrived, in seconds of our clock.
    waited_share: the share of the window that the rank spent waiting, 0 to 1.
    """

    arrived_at: float
    waited_share: float


class _LogDelay:
    """How late a node's records arrive, so that a log that is delivered late does not count as new.

    The smallest difference between a node's clock and ours stands for no delay. It is forgotten after two windows of
    `_CLOCK_WINDOW_S`, because a clock may be set.
    """

    def __init__(self) -> None:
        self._window_started_at = -math.inf
        self._min_offset_s = math.inf
        self._previous_min_offset_s = math.inf  # of the window before

    def measure(self, recorded_at: float, arrived_at: float) -> float:
        """Return how many seconds longer than the fastest record this one took to arrive.

        `recorded_at` is by the node's clock, `arrived_at` by ours.
        """
        if arrived_at - self._window_started_at >= _CLOCK_WINDOW_S:
            self._window_started_at = arrived_at
            self._previous_min_offset_s = self._min_offset_s
            self._min_offset_s = math.inf
        offset_s = arrived_at - recorded_at
        self._min_offset_s = min(self._min_offset_s, offset_s)
        return offset_s - min(self._min_offset_s, self._previous_min_offset_s)


class BlackBox:
    """The latest record of each rank, and its last windows of waiting.

    `process_text` takes the text of each node's log in order, in pieces of any size; lines that are not valid records
    are ignored. `latest`, `windows` and `world`, the number of ranks, are then current. If the workers were restarted
    (another process id or number of ranks), the ended ranks and the windows of the previous ones are forgotten.

    Times are of `clock`, in seconds: the nodes' own clocks may differ from it and from each other.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.world = 0
        self.latest: dict[int, RankRecord] = {}
        self.windows: dict[int, deque[Window]] = {}
        self._clock = clock
        self._record_times: dict[int, float] = {}  # when each latest record was made, by our clock
        self._partial_lines: dict[str, str] = {}  # by node: the start of a record whose end has not been read
        self._delays: dict[str, _LogDelay] = {}  # by node

    def process_text(self, node: str, text: str) -> bool:
        """Process the next text of a node's log; return whether more is new than that healthy ranks are healthy."""
        text = self._partial_lines.pop(node, "") + text
        last_line = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
        changes = [self._add_record(node, record) for record in parse_records(text)]
        is_short = len(last_line) <= _MAX_PARTIAL_LINE_CHARS  # else it is dropped: memory stays bounded
        if is_short and RECORD_PREFIX.strip() in last_line and not parse_line(last_line):
            self._partial_lines[node] = last_line
        return any(changes)

    def count_collectives(self, rank: int) -> int | None:
        """The collectives that a rank has completed, in all its groups; None if its record does not show them."""
        record = self.latest.get(rank)
        if record is None or not record.groups:
            return None
        return sum(progress.completed for progress in record.groups.values())

    def count_all_collectives(self) -> int:
        """The collectives that the ranks have completed, each counted once for each rank that reports it."""
        return sum(self.count_collectives(rank) or 0 for rank in self.latest)

    def get_last_collectives(self) -> dict[int, float]:
        """When each rank last called or completed a collective, in seconds since the epoch by its node's clock.

        Without the ranks whose latest record shows no collective.
        """
        times: dict[int, float] = {}
        for rank, record in self.latest.items():
            count = record.collectives or sum(progress.enqueued for progress in record.groups.values())
            if count:
                times[rank] = record.timestamp - record.stalled_s
        return times

    def get_record_ages(self) -> dict[int, float]:
        """How many seconds ago each rank's latest record was made, at least."""
        now = self._clock()
        return {rank: max(now - record_time, 0.0) for rank, record_time in self._record_times.items()}

    def _add_record(self, node: str, record: RankRecord) -> bool:
        """Store a record; return False for the pulse of a rank whose previous record was a pulse, too."""
        arrived_at = self._clock()
        previous = self.latest.get(record.rank)
        if record.world != self.world or (previous and previous.pid != record.pid):
            self._forget_previous_workers(record.world)
        updates: dict[str, object] = {"node": node}
        if previous and previous.pid == record.pid and record.stack_id and record.stack_id == previous.stack_id:
            updates["stack"] = record.stack or previous.stack
        self.latest[record.rank] = record.model_copy(update=updates)
        delay_s = self._delays.setdefault(node, _LogDelay()).measure(record.timestamp, arrived_at)
        self._record_times[record.rank] = arrived_at - delay_s
        if record.kind == "pulse":
            windows = self.windows.setdefault(record.rank, deque(maxlen=MAX_WINDOWS))
            windows.append(Window(arrived_at, record.waiting_share))
        return record.kind != "pulse" or previous is None or previous.kind != "pulse"

    def _forget_previous_workers(self, world: int) -> None:
        """The workers were restarted, in a job of `world` ranks: an end that was reported is of the previous ones."""
        self.world = world
        for rank, record in list(self.latest.items()):
            if record.kind == "end" or rank >= world:
                del self.latest[rank]
                del self._record_times[rank]
        self.windows.clear()


def parse_records(text: str) -> Iterator[RankRecord]:
    """Yield the records among the lines of a log; lines that are incomplete, malformed or too long are skipped."""
    if RECORD_PREFIX not in text:
        return
    for line in re.split(r"[\r\n]", text):
        yield from parse_line(line)


def parse_line(line: str) -> list[RankRecord]:
    """The records of a line, whatever a launcher has put before its prefix; empty if it is malformed or too long.

    A line holds one rank's record, or the pulse of all healthy ranks of a node.
    """
    text = read_record_text(line)
    if text is None:
        return []
    try:
        record = _LINE.validate_json(text)
        records = record.build_records() if isinstance(record, NodePulse) else [record]
    except (ValidationError, ValueError):  # ValueError: a lone surrogate, or a group without its numbers
        return []
    return [record for record in records if _has_valid_numbers(record)]


def read_record_text(line: str) -> str | None:
    """The JSON of a recorder's line; None if the line has none, or one that no recorder prints.

    A recorder's JSON is not too long, and contains no control codes.
    """
    _, prefix, text = line.partition(RECORD_PREFIX)
    if not prefix:
        return None
    text = _COLOUR.sub("", text).strip()
    if not text or len(text.encode(errors="replace")) > MAX_RECORD_BYTES or _CONTROL.search(text):
        return None
    return text


def _has_valid_numbers(record: RankRecord) -> bool:
    """Whether the rank is in its job, and all times are finite: JSON's reader accepts NaN and Infinity."""
    if not 0 <= record.rank < record.world <= MAX_RANKS:
        return False
    numbers = (
        record.timestamp,
        record.stalled_s,
        record.typical_pause_s,
        record.frozen_s,
        record.waiting_share,
        record.idle_s,
        record.longest_idle_s,
        record.raised_after or 0.0,
    )
    return all(math.isfinite(number) and number >= 0 for number in numbers)
