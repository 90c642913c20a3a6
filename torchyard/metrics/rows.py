"""The rows of a run, however long it is: as many as a report and its plot need."""

from collections.abc import Callable

from torchyard.model.run import MAX_ROWS, Metrics, Row

RowKey = tuple[str, float | int | str | bool | None]


class Rows:
    """Rows by key, in the order in which they first appeared. A repeated key replaces its row.

    At most MAX_ROWS are kept: they are thinned evenly, and the first and the last always stay. `on_drop` gets each row
    that is dropped. After that, a new number that is not above all earlier ones counts as a dropped row's, repeated.
    """

    def __init__(self, on_drop: Callable[[Row], object] = lambda row: None) -> None:
        self.count = 0
        self._on_drop = on_drop
        self._rows_by_key: dict[RowKey, tuple[int, Row]] = {}  # with their position among all rows
        self._last_key: RowKey | None = None
        self._step = 1
        self._highest: dict[str, float] = {}

    def get(self, key: RowKey) -> Row | None:
        entry = self._rows_by_key.get(key)
        return entry[1] if entry else None

    def put(self, key: RowKey, row: Row) -> None:
        entry = self._rows_by_key.get(key)
        if entry:
            self._rows_by_key[key] = (entry[0], row)
        elif not self._was_dropped(key):
            self._add(key, row)

    def add(self, row: Row) -> None:
        """Add a row that no other one replaces."""
        self._add(("", self.count), row)

    def all(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self._rows_by_key.values())

    def _add(self, key: RowKey, row: Row) -> None:
        if self._last_key is not None and self._rows_by_key[self._last_key][0] % self._step:
            self._on_drop(self._rows_by_key.pop(self._last_key)[1])
        self._rows_by_key[key] = (self.count, row)
        self._last_key = key
        self.count += 1
        if len(self._rows_by_key) > MAX_ROWS:
            self._thin()

    def _thin(self) -> None:
        self._step *= 2
        for key in [
            key for key, (position, _) in self._rows_by_key.items() if position % self._step and key != self._last_key
        ]:
            self._on_drop(self._rows_by_key.pop(key)[1])

    def _was_dropped(self, key: RowKey) -> bool:
        name, value = key
        if not isinstance(value, int | float):
            return False
        highest = self._highest.get(name)
        if highest is None or value > highest:
            self._highest[name] = value
            return False
        return self._step > 1


def build_metrics(rows: Rows, summary: Row) -> Metrics:
    """The metrics of a run; if rows were dropped, they say how many there were."""
    kept_rows = rows.all()
    if len(kept_rows) == rows.count:
        return Metrics(rows=kept_rows, summary=summary)
    return Metrics(rows=kept_rows, count=rows.count, summary={"rows": rows.count, **summary})
