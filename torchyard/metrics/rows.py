"""The rows of a run of any length: as many as a report and its plot need."""

from collections.abc import Callable
from typing import NamedTuple

from torchyard.model.run import MAX_ROWS, Metrics, Row, RowValue

RowKey = tuple[str, RowValue]  # the name and value of a row's key: ("epoch", 3)


class _Entry(NamedTuple):
    """A kept row, and its position among all rows, dropped ones included."""

    position: int
    row: Row


class Rows:
    """The rows of a run by key, in the order in which they first appeared, in bounded memory.

    `put` replaces the row of a repeated key, as a resumed program prints its last rows again; `add` always appends.

    At most MAX_ROWS rows are kept. Above that, every second one is dropped and the distance between kept rows
    (`_step`) doubles; the first and the last row are always kept. `on_drop` is called with each dropped row. Once rows
    were dropped, `put` ignores a number that is not above all earlier ones of its name: its row was dropped, and
    adding it again would start the curve a second time. `count` is the number of all rows, dropped ones included.
    """

    def __init__(self, on_drop: Callable[[Row], object] | None = None) -> None:
        self.count = 0
        self._on_drop = on_drop
        self._entries: dict[RowKey, _Entry] = {}
        self._last_key: RowKey | None = None
        self._step = 1
        self._highest: dict[str, float] = {}  # the highest number of each key's name

    def get(self, key: RowKey) -> Row | None:
        """The row of a key; None if there is none, or if it was dropped."""
        entry = self._entries.get(key)
        return entry.row if entry else None

    def put(self, key: RowKey, row: Row) -> None:
        """Add a row, or replace the one with the same key."""
        entry = self._entries.get(key)
        if entry:
            self._entries[key] = _Entry(entry.position, row)
        elif not self._was_dropped(key):
            self._add(key, row)

    def add(self, row: Row) -> None:
        """Add a row that no other one replaces."""
        self._add(("", self.count), row)

    def all(self) -> tuple[Row, ...]:
        return tuple(entry.row for entry in self._entries.values())

    def _add(self, key: RowKey, row: Row) -> None:
        # The previous row was kept only as the last one, unless its position is a multiple of the step.
        if self._last_key is not None and self._entries[self._last_key].position % self._step:
            self._drop(self._last_key)
        self._entries[key] = _Entry(self.count, row)
        self._last_key = key
        self.count += 1
        if len(self._entries) > MAX_ROWS:
            self._thin()

    def _thin(self) -> None:
        self._step *= 2
        for key, entry in list(self._entries.items()):
            if entry.position % self._step and key != self._last_key:
                self._drop(key)

    def _drop(self, key: RowKey) -> None:
        entry = self._entries.pop(key)
        if self._on_drop:
            self._on_drop(entry.row)

    def _was_dropped(self, key: RowKey) -> bool:
        """Whether a new key is that of a dropped row. Updates the highest number of the key's name."""
        name, value = key
        if not isinstance(value, int | float):
            return False
        highest = self._highest.get(name)
        if highest is None or value > highest:
            self._highest[name] = value
            return False
        return self._step > 1


def build_metrics(rows: Rows, summary: Row) -> Metrics:
    """The metrics of a run. If rows were dropped, `count` and the summary have the number of all rows."""
    kept_rows = rows.all()
    if len(kept_rows) == rows.count:
        return Metrics(rows=kept_rows, summary=summary)
    return Metrics(rows=kept_rows, count=rows.count, summary={"rows": rows.count} | summary)
