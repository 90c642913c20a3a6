"""nccl-tests: the tables of NVIDIA/nccl-tests and ROCm/rccl-tests (`all_reduce_perf` and others), old and new."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import NUMBER_PATTERN, contains_any, parse_finite, split_terminal_lines, strip_prefixes
from torchyard.model.run import Metrics, Row

# Bytes of one element.
_TYPE_BYTES = (
    dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1)
    | dict.fromkeys(("half", "float16", "bfloat16", "bf16"), 2)
    | dict.fromkeys(("int", "int32", "uint32", "float"), 4)
    | dict.fromkeys(("int64", "uint64", "double"), 8)
)
_ROW_PATTERN = re.compile(rf"(?<![\w.,-])([0-9]{{1,15}})\s+([0-9]{{1,15}})\s+({'|'.join(_TYPE_BYTES)})(?!\w)(.*)")
_REDOP_PATTERN = re.compile(r"\s+(?!(?:nan|inf)\b)([^\W\d_]+)(?!\S)")
_CELLS_PATTERN = re.compile(rf"(?:\s+(?:(?!0[0-9]){NUMBER_PATTERN}\*?|N/A)(?!\S))*+")
_ERROR_PATTERN = re.compile(r"e(-|\+0?0[0-5])")  # an error's exponent; a count of wrong elements has none
# A row with nothing else on its line, in a table with redop and root: nearly all rows, and far quicker to read.
_HALF = r"\s+([0-9]+(?:\.[0-9]+)?)\s+([0-9]+\.[0-9]+)\s+([0-9]+\.[0-9]+)\s+([0-9]{1,9})"
_COMPLETE_ROW_PATTERN = re.compile(
    rf"\s*([0-9]{{1,15}})\s+[0-9]{{1,15}}\s+({'|'.join(_TYPE_BYTES)})"
    rf"\s+((?!nan|inf)[a-z]{{1,20}})\s+(-?[0-9]{{1,9}}){_HALF}{_HALF}\s*"
)
# Text of other writers inside a row: mpirun's tags, and NCCL's lines, which may begin anywhere in it.
_MPI_TAG_PATTERN = re.compile(r"\[[0-9]{1,9},[0-9]{1,9}\]<std[a-z]{3,4}>:")
_NOISE_PATTERN = re.compile(
    r"(?:\[[0-9]{4}-[^\]]{1,30}\] )?(?<![A-Za-z])[A-Za-z][\w.-]{0,80}:[0-9]{1,9}:[0-9]{1,9} \[[0-9]{1,3}\].*"
)
_HEADER_PATTERN = re.compile(r"\b(size|bytes)\s+(?:count|N)\s+type\b(.*)")
_BEGIN_PATTERN = re.compile(r"ccl-tests version|Collective test starting|\bnThread [0-9]|_perf\s+-\w")
_BEGIN_MARKERS = ("ccl-tests", "Collective test", "nThread ", "_perf")
_VERDICT_MARKERS = ("Out of bounds", "Avg bus", "Test ")
# Every line of interest contains one of these: a row's type, a header, a property of the table.
_RELEVANT_MARKERS = (
    "float",
    "half",
    "int",
    "double",
    "char",
    "bf16",
    "f8e",
    "fp8",
    "type",
    "ccl-tests",
    "CCL version",
    "_perf",
    "Avg bus",
    "Out of bounds",
    "ank",  # Rank, nranks
    "Test ",
    "Collective test",
    "nThread ",
)
_PROGRAMS = "all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|gather|scatter|sendrecv|hypercube"
# Properties of a table that a line may contain, each with a marker that is quicker to find than its pattern.
_PROPERTY_PATTERNS = (
    ("ccl-tests", re.compile(r"\b[nr]ccl-tests:? [Vv]ersion (?P<version>\S{1,80})")),
    ("CCL version", re.compile(r"\bR?(?:NCCL|CCL) version :?\s?(?P<nccl>[0-9][\w.+-]{0,60})")),
    ("_perf", re.compile(rf"(?<![A-Za-z0-9])(?P<op>{_PROGRAMS})_perf")),
    ("Avg bus", re.compile(rf"Avg bus bandwidth\s*:\s*(?P<avg_busbw>{NUMBER_PATTERN})")),
    ("Out of bounds", re.compile(r"Out of bounds values\s*:\s*(?P<out_of_bounds>[0-9]{1,9})")),
    ("nranks", re.compile(r"\bnranks[ =](?P<ranks>[0-9]{1,9})")),
    ("Rank", re.compile(r"#\s+Rank\s+(?P<rank>[0-9]{1,9})\s")),
)
_VERDICT_PATTERN = re.compile(
    r"(?:Out of bounds values|Avg bus bandwidth)\s*:.{0,60}?\b(OK|FAILED)\b|\bTest \w{1,20} (failure)\b"
)
_END_KEYS = ("avg_busbw", "out_of_bounds", "failed")
_HALF_COLUMNS = 4  # columns of one half: time, algbw, busbw and #wrong (`error` or `res` in old versions)
_TIMED_COLUMNS = 8  # followed by the four of each iteration's times


class TableLayout(NamedTuple):
    """The layout of a table's rows, as its header names it; `scale` converts its times to microseconds."""

    has_root: bool
    scale: float


class PartialRow(NamedTuple):
    """A row as far as it was printed; `is_clean`: the line contained nothing but its cells."""

    fields: Row
    elements: int
    cells: list[str]
    is_clean: bool


def read_nccl_tests(lines: Iterable[str]) -> Metrics:
    """Read one row per size (bytes), with time (us), algbw and busbw (GB/s of 10^9 bytes) out of place and in place.

    With several tables each row has its `table`, `op` and `ranks`. A summary value that differs between tables has the
    table's number in its name: `avg_busbw_2`. `max_busbw` is the highest in a table, in place or not.
    """
    tables = [_Table()]
    for line in split_terminal_lines(lines):
        if not tables[-1].is_open and (not contains_any(line, _RELEVANT_MARKERS) or tables[-1].add_complete_row(line)):
            continue
        properties = _parse_properties(line)
        if tables[-1].starts_next_table(line, properties):
            tables.append(_Table())
        tables[-1].add_line(line, properties)
    tables = [table for table in tables if table.has_started] or tables[:1]
    if len(tables) == 1:
        return build_metrics(tables[0].rows, tables[0].summary())
    return _merge_tables(tables)


def _merge_tables(tables: list["_Table"]) -> Metrics:
    """The rows of several tables, each with its `table` number, from 1; and what all tables share, or differ in."""
    rows = Rows()
    summaries: list[Row] = []
    for number, table in enumerate(tables, 1):
        summary = table.summary()
        summaries.append(summary)
        table_fields: Row = {"op": summary.get("op")}
        if "ranks" in summary:
            table_fields["ranks"] = summary["ranks"]
        table_fields["table"] = number
        for row in table.rows.all():
            rows.add(row | table_fields)
    return build_metrics(rows, {"tables": len(tables)} | _merge_summaries(summaries))


def _merge_summaries(summaries: list[Row]) -> Row:
    """The values that all tables share; those that differ, with the number of their table."""
    keys: dict[str, None] = {}  # in order of appearance
    for summary in summaries:
        keys |= dict.fromkeys(summary)
    merged: Row = {}
    for key in keys:
        values = [summary.get(key) for summary in summaries]
        if len(set(values)) == 1:
            merged[key] = values[0]
        elif key == "failed":
            merged[key] = True in values
        else:
            for number, value in enumerate(values, 1):
                if value is not None:
                    merged[f"{key}_{number}"] = value
    return merged


class _Table:
    """One table, built from its lines in their order.

    `add_complete_row` is the quick way for a line that contains exactly one row. If it returns False, or while
    `is_open`, the line goes to `add_line`, which also reads headers, properties, and rows in pieces: other writers
    (mpirun, NCCL) may interrupt a row, and its other cells follow on later lines. Until then the row is `_open_row`.
    A row that is never completed is left out and counted in `incomplete_rows` of the summary.

    The caller checks `starts_next_table` before it adds a line, and creates another table if so.
    """

    def __init__(self) -> None:
        self.rows = Rows(self._record_rates)
        self._max_busbw: float | None = None  # in GB/s, of the rows that `rows` has dropped
        self._properties: Row = {}
        self._guessed_op: str | None = None
        self._incomplete_rows = 0
        self._open_row: PartialRow | None = None
        self._layout: TableLayout | None = None

    @property
    def has_started(self) -> bool:
        """Whether a row, or a property that is printed after the rows, was read."""
        return bool(self.rows.count or self._incomplete_rows or self._open_row or self._properties.keys() & _END_KEYS)

    @property
    def is_open(self) -> bool:
        """Whether a row still lacks cells, which any line may contain."""
        return self._open_row is not None

    def starts_next_table(self, line: str, properties: Row) -> bool:
        """Whether a line belongs to the next table. `properties`: those of the line."""
        if self.has_started:
            is_beginning = contains_any(line, _BEGIN_MARKERS) and _BEGIN_PATTERN.search(line)
            if is_beginning or _parse_layout(line):
                return True
        return "avg_busbw" in self._properties and "op" in properties and "concluded" not in line

    def add_line(self, line: str, properties: Row) -> None:
        """Read a line. `properties`: those of the line, which the caller has parsed already."""
        self._merge_properties(properties)
        text = _MPI_TAG_PATTERN.sub(" ", line) if "<std" in line else line
        text = _NOISE_PATTERN.sub("", text) if " [" in text else text
        layout = _parse_layout(text)
        if layout:
            self._layout = layout
            return
        row_start = _parse_row_start(text, self._layout)
        if row_start:
            self._close_row()
            self._add_row(row_start, is_pieced=False)
        elif self._open_row:
            cells = strip_prefixes(text).split()
            if cells and _CELLS_PATTERN.fullmatch(" " + " ".join(cells)):
                self._add_row(self._open_row._replace(cells=self._open_row.cells + cells), is_pieced=True)

    def add_complete_row(self, line: str) -> bool:
        """Add a row that is alone on its line.

        False, and nothing is added, if the line is not such a row, or the table's layout is not known yet.
        """
        is_layout_known = (
            self._layout and self._layout.has_root and "op" in self._properties and "avg_busbw" not in self._properties
        )
        match = _COMPLETE_ROW_PATTERN.fullmatch(line) if is_layout_known else None
        if match is None:
            return False
        size, element_type, redop, root, *cells = match.groups()
        fields: Row = {"size": int(size), "type": element_type, "redop": redop}
        if not root.startswith("-"):
            fields["root"] = int(root)
        self.rows.add(_build_row(PartialRow(fields, 0, cells, is_clean=True), self._layout))
        return True

    def summary(self) -> Row:
        """The table's properties, its highest busbw in GB/s, and the number of incomplete rows if there are any."""
        for row in self.rows.all():
            self._record_rates(row)
        summary: Row = {}
        if self._guessed_op:
            summary["op"] = self._guessed_op  # the printed operation replaces it
        summary |= self._properties
        if self._max_busbw is not None:
            summary["max_busbw"] = self._max_busbw
        incomplete_rows = self._incomplete_rows + (self._open_row is not None)
        if incomplete_rows:
            summary["incomplete_rows"] = incomplete_rows
        return summary

    def _record_rates(self, row: Row) -> None:
        for key in ("busbw", "in_place_busbw"):
            busbw = row.get(key)
            if isinstance(busbw, float) and (self._max_busbw is None or busbw > self._max_busbw):
                self._max_busbw = busbw

    def _merge_properties(self, properties: Row) -> None:
        """Keep the first value of each property, but the highest number of ranks, and any failure."""
        for key, value in properties.items():
            previous = self._properties.setdefault(key, value)
            if key == "failed":
                self._properties[key] = previous or value
            elif key == "ranks" and isinstance(previous, int) and isinstance(value, int):
                self._properties[key] = max(previous, value)

    def _close_row(self) -> None:
        """Count the open row, if there is one, as incomplete."""
        if self._open_row is not None:
            self._incomplete_rows += 1
            self._open_row = None

    def _add_row(self, row_start: PartialRow, *, is_pieced: bool) -> None:
        """Add a row that has all its cells. One that lacks some stays open: other writers may have interrupted it.

        `is_pieced`: its cells were on several lines.
        """
        self._open_row = None
        row: Row = {}
        if len(row_start.cells) in (2 * _HALF_COLUMNS, 2 * _TIMED_COLUMNS):
            row = _build_row(row_start, self._layout)
        is_certain = self._layout is not None and not is_pieced
        if row and not {"error", "in_place_wrong"} <= row.keys() and (is_certain or _is_plausible(row)):
            self.rows.add(row)
            self._guessed_op = _guess_operation(row_start) or self._guessed_op
        elif row_start.is_clean and len(row_start.cells) in (0, _HALF_COLUMNS):
            self._open_row = row_start
        else:
            self._incomplete_rows += 1


def _parse_layout(text: str) -> TableLayout | None:
    """The layout that a line names, if it is the header of a table; None for any other line."""
    header = _HEADER_PATTERN.search(text) if "type" in text else None
    if header is None:
        return None
    scale = 1000.0 if header[1] == "bytes" else 1.0  # the oldest tables print the time in ms
    return TableLayout(has_root="root" in header[2].split(), scale=scale)


def _parse_row_start(text: str, layout: TableLayout | None) -> PartialRow | None:
    """The size, count and type of a row, its redop and root if the program prints them, and the cells that follow.

    None if the line does not contain the start of a row. Without the table's header, an odd number of cells begins
    with the root: the row's two halves are equally long.
    """
    match = _ROW_PATTERN.search(text)
    if match is None:
        return None
    fields: Row = {"size": int(match[1]), "type": match[3]}
    rest = match[4]
    redop = _REDOP_PATTERN.match(rest)
    if redop:
        fields["redop"] = redop[1]
    cells_match = _CELLS_PATTERN.match(rest, redop.end() if redop else 0)
    cells = cells_match[0].split() if cells_match else []
    is_clean = cells_match is not None and not rest[cells_match.end() :].strip()
    has_root = layout.has_root if layout else len(cells) % 2 == 1
    if cells and has_root:
        root = cells.pop(0)
        if root.isascii() and root.isdecimal() and len(root) < 10:
            fields["root"] = int(root)
    return PartialRow(fields, int(match[2]), cells, is_clean)


def _build_row(row_start: PartialRow, layout: TableLayout | None) -> Row:
    """A row of the report: its size first, its type, redop and root last. Times are in microseconds."""
    half = len(row_start.cells) // 2
    scale = layout.scale if layout else 1.0
    row: Row = {"size": row_start.fields["size"]}
    row |= _parse_half(row_start.cells[:half], scale)
    for key, value in _parse_half(row_start.cells[half:], scale).items():
        row[f"in_place_{key}"] = value
    return row | row_start.fields


def _parse_half(cells: list[str], scale: float) -> Row:
    """Time, algbw, busbw, and the number of wrong elements (`wrong`) or, in old tables, the largest error (`error`)."""
    time, algbw, busbw, errors = (
        None if cell == "N/A" else parse_finite(cell.rstrip("*")) for cell in cells[:_HALF_COLUMNS]
    )
    half: Row = {"time_us": None if time is None else time * scale, "algbw": algbw, "busbw": busbw}
    if errors is None:
        return half
    if _ERROR_PATTERN.search(cells[3]):
        half["error"] = errors
    else:
        half["wrong"] = int(errors)
    return half


def _is_plausible(row: Row) -> bool:
    """Whether size, time and bandwidth of a row agree.

    A row in pieces, or one whose header was lost, is checked with this: its cells may belong to other columns.
    """
    size = row.get("size")
    for prefix in ("", "in_place_"):
        time = row.get(f"{prefix}time_us")
        algbw = row.get(f"{prefix}algbw")
        if not (isinstance(size, int) and isinstance(time, float) and isinstance(algbw, float) and time > 0):
            return False
        if abs(size / time / 1000 - algbw) > 0.05 * algbw + 0.006:
            return False
    return True


def _guess_operation(row_start: PartialRow) -> str | None:
    """The operation of a table without a header, by one of its rows; None if the row does not show it.

    Only reductions have a redop, and only `reduce` has a root. `count` of a reduce_scatter is that of one rank, so it
    does not match the size.
    """
    size = row_start.fields["size"]
    if not size or row_start.fields.get("redop", "none") == "none":
        return None
    if row_start.fields.get("root") is not None:
        return "reduce"
    count_bytes = row_start.elements * _TYPE_BYTES[str(row_start.fields["type"])]
    return "all_reduce" if count_bytes == size else "reduce_scatter"


def _parse_properties(line: str) -> Row:
    """The properties of its table that a line contains, such as `op`, `ranks` and `avg_busbw`; {} if none."""
    groups: dict[str, str] = {}
    for marker, pattern in _PROPERTY_PATTERNS:
        if marker in line and (match := pattern.search(line)):
            groups |= match.groupdict()
    properties: Row = {key: groups[key] for key in ("op", "version", "nccl") if key in groups}
    if "rank" in groups:
        properties["ranks"] = int(groups["rank"]) + 1  # the list of ranks starts with 0
    elif "ranks" in groups:
        properties["ranks"] = int(groups["ranks"])
    if "avg_busbw" in groups:
        properties["avg_busbw"] = parse_finite(groups["avg_busbw"])
    if "out_of_bounds" in groups:
        properties["out_of_bounds"] = int(groups["out_of_bounds"])
    has_verdict = "avg_busbw" in groups or "out_of_bounds" in groups or contains_any(line, _VERDICT_MARKERS)
    if has_verdict and (verdict := _VERDICT_PATTERN.search(line)):
        properties["failed"] = verdict[1] != "OK"
    return properties


def read_nccl_tests_line(line: str) -> Row:
    """The last row in a line, else a table's result (`avg_busbw`, `out_of_bounds`, `failed`); {} if it has neither."""
    table = _Table()
    for terminal_line in split_terminal_lines([line]):
        table.add_line(terminal_line, _parse_properties(terminal_line))
    rows = table.rows.all()
    return rows[-1] if rows else {key: value for key, value in table.summary().items() if key in _END_KEYS}
