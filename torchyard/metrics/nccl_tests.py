"""nccl-tests: the tables of NVIDIA/nccl-tests and ROCm/rccl-tests (`all_reduce_perf` and others), old and new."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import NUMBER_PATTERN, contains_any, parse_finite, split_terminal_lines, strip_prefixes
from torchyard.model.run import Metrics, Row

# Bytes of one element.
_TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("int", "int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
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
# What other writers put into a row: mpirun's tags, and NCCL's lines, which may begin anywhere in it.
_MPI_TAG_PATTERN = re.compile(r"\[[0-9]{1,9},[0-9]{1,9}\]<std[a-z]{3,4}>:")
_NOISE_PATTERN = re.compile(
    r"(?:\[[0-9]{4}-[^\]]{1,30}\] )?(?<![A-Za-z])[A-Za-z][\w.-]{0,80}:[0-9]{1,9}:[0-9]{1,9} \[[0-9]{1,3}\].*"
)
_HEADER_PATTERN = re.compile(r"\b(size|bytes)\s+(?:count|N)\s+type\b(.*)")
_BEGIN_PATTERN = re.compile(r"ccl-tests version|Collective test starting|\bnThread [0-9]|_perf\s+-\w")
_BEGIN_MARKERS = ("ccl-tests", "Collective test", "nThread ", "_perf")
_VERDICT_MARKERS = ("Out of bounds", "Avg bus", "Test ")
# Every line of interest contains one of these: a row's type, a header, a fact.
_RELEVANT_MARKERS = (
    *("float", "half", "int", "double", "char", "bf16", "f8e", "fp8", "type"),
    *("ccl-tests", "CCL version", "_perf", "Avg bus", "Out of bounds", "ank", "Test ", "Collective test", "nThread "),
)
_PROGRAMS = "all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|gather|scatter|sendrecv|hypercube"
# Facts that a line may state, each after a part of it that is quick to find.
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
    """What the header of a table says about its rows; `scale` converts its times to microseconds."""

    has_root: bool
    scale: float


class PartialRow(NamedTuple):
    """A row as far as it was printed; `is_clean`: nothing but its cells was on the line."""

    fields: Row
    elements: int
    cells: list[str]
    is_clean: bool


def read_nccl_tests(lines: Iterable[str]) -> Metrics:
    """One row per size (bytes), with time (us), algbw and busbw (GB/s of 10^9 bytes) out of place and in place.

    With several tables each row has its `table`, `op` and `ranks`; summary values that differ have the table's number:
    `avg_busbw_2`.
    `max_busbw` is the highest in a table, in place or not.
    """
    tables = [_Table()]
    for line in split_terminal_lines(lines):
        if not tables[-1].is_open and (not contains_any(line, _RELEVANT_MARKERS) or tables[-1].add_complete_row(line)):
            continue
        properties = _parse_properties(line)
        if tables[-1].starts_next_table(line, properties):
            tables.append(_Table())
        tables[-1].add_line(line, properties)
    filled = [table for table in tables if table.has_started] or tables[:1]
    summaries = [table.summary() for table in filled]
    if len(filled) == 1:
        return build_metrics(filled[0].rows, summaries[0])
    rows = Rows()
    for number, (table, summary) in enumerate(zip(filled, summaries, strict=True), 1):
        for row in table.rows.all():
            ranks: Row = {"ranks": summary["ranks"]} if "ranks" in summary else {}
            rows.add(row | {"op": summary.get("op"), **ranks, "table": number})
    return build_metrics(rows, {"tables": len(filled), **_merge_summaries(summaries)})


def _merge_summaries(summaries: list[Row]) -> Row:
    """The values that all tables share; those that differ, with the number of their table."""
    merged: Row = {}
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        values = [summary.get(key) for summary in summaries]
        if len(set(values)) == 1:
            merged[key] = values[0]
        elif key == "failed":
            merged[key] = True in values
        else:
            merged |= {f"{key}_{number}": value for number, value in enumerate(values, 1) if value is not None}
    return merged


class _Table:
    """One table while its lines are read."""

    def __init__(self) -> None:
        self.rows = Rows(self._record_rates)
        self._highest: float | None = None  # of the rows that were not kept
        self._properties: Row = {}
        self._guessed_op = ""
        self._incomplete_rows = 0
        self._open_row: PartialRow | None = None
        self._layout: TableLayout | None = None

    @property
    def has_started(self) -> bool:
        return bool(self.rows.count or self._incomplete_rows or self._open_row or self._properties.keys() & _END_KEYS)

    @property
    def is_open(self) -> bool:
        """Whether a row still lacks cells, which any line may supply."""
        return self._open_row is not None

    def starts_next_table(self, line: str, properties: Row) -> bool:
        """Whether a line belongs to the next table."""
        if self.has_started and (
            (contains_any(line, _BEGIN_MARKERS) and _BEGIN_PATTERN.search(line)) or _parse_layout(line)
        ):
            return True
        return "avg_busbw" in self._properties and "op" in properties and "concluded" not in line

    def add_line(self, line: str, properties: Row) -> None:
        self._merge_properties(properties)
        text = _MPI_TAG_PATTERN.sub(" ", line) if "<std" in line else line
        text = _NOISE_PATTERN.sub("", text) if " [" in text else text
        if layout := _parse_layout(text):
            self._layout = layout
        elif row_start := _parse_row_start(text, self._layout):
            self._incomplete_rows += self._open_row is not None
            self._open_row = None
            self._add_row(row_start, is_pieced=False)
        elif (
            self._open_row
            and (cells := strip_prefixes(text).split())
            and _CELLS_PATTERN.fullmatch(" " + " ".join(cells))
        ):
            self._add_row(self._open_row._replace(cells=self._open_row.cells + cells), is_pieced=True)

    def add_complete_row(self, line: str) -> bool:
        """Read a row with nothing else on its line; False if the line is none, or the table is not known yet."""
        is_layout_known = (
            self._layout and self._layout.has_root and "op" in self._properties and "avg_busbw" not in self._properties
        )
        match = _COMPLETE_ROW_PATTERN.fullmatch(line) if is_layout_known else None
        if match is None:
            return False
        size, element_type, redop, root, *cells = match.groups()
        fields: Row = {"size": int(size), "type": element_type, "redop": redop}
        root_field: Row = {} if root.startswith("-") else {"root": int(root)}
        self.rows.add(_build_row(PartialRow(fields | root_field, 0, cells, is_clean=True), self._layout))
        return True

    def summary(self) -> Row:
        guessed_op: Row = {"op": self._guessed_op} if self._guessed_op else {}
        for row in self.rows.all():
            self._record_rates(row)
        max_busbw: Row = {} if self._highest is None else {"max_busbw": self._highest}
        incomplete_rows = self._incomplete_rows + (self._open_row is not None)
        return {
            **guessed_op,
            **self._properties,
            **max_busbw,
            **({"incomplete_rows": incomplete_rows} if incomplete_rows else {}),
        }

    def _record_rates(self, row: Row) -> None:
        for key in ("busbw", "in_place_busbw"):
            rate = row.get(key)
            if isinstance(rate, float) and (self._highest is None or rate > self._highest):
                self._highest = rate

    def _merge_properties(self, properties: Row) -> None:
        for key, value in properties.items():
            previous = self._properties.setdefault(key, value)
            if key == "failed":
                self._properties[key] = previous or value
            elif key == "ranks" and isinstance(previous, int) and isinstance(value, int):
                self._properties[key] = max(previous, value)

    def _add_row(self, row_start: PartialRow, is_pieced: bool) -> None:
        """Add a row that has all its cells. One that lacks some stays open: other writers may have interrupted it."""
        self._open_row = None
        row = (
            _build_row(row_start, self._layout)
            if len(row_start.cells) in (2 * _HALF_COLUMNS, 2 * _TIMED_COLUMNS)
            else {}
        )
        is_certain = self._layout is not None and not is_pieced
        if row and not {"error", "in_place_wrong"} <= row.keys() and (is_certain or _is_plausible(row)):
            self.rows.add(row)
            self._guessed_op = _guess_operation(row_start) or self._guessed_op
        elif row_start.is_clean and len(row_start.cells) in (0, _HALF_COLUMNS):
            self._open_row = row_start
        else:
            self._incomplete_rows += 1


def _parse_layout(text: str) -> TableLayout | None:
    """What a line says about its table, if it is a header."""
    header = _HEADER_PATTERN.search(text) if "type" in text else None
    if header is None:
        return None
    scale = 1000.0 if header[1] == "bytes" else 1.0  # the oldest tables print the time in ms
    return TableLayout(has_root="root" in header[2].split(), scale=scale)


def _parse_row_start(text: str, layout: TableLayout | None) -> PartialRow | None:
    """The size, count and type of a row, its redop and root if the program prints them, and the cells that follow.

    Without the table's header, an odd number of cells begins with the root: the row's two halves are equally long.
    """
    match = _ROW_PATTERN.search(text)
    if match is None:
        return None
    redop = _REDOP_PATTERN.match(match[4])
    cells_match = _CELLS_PATTERN.match(match[4], redop.end() if redop else 0)
    cells = cells_match[0].split() if cells_match else []
    is_clean = cells_match is not None and not match[4][cells_match.end() :].strip()
    root = cells.pop(0) if cells and (layout.has_root if layout else len(cells) % 2) else ""
    fields: Row = {"size": int(match[1]), "type": match[3]}
    if redop:
        fields["redop"] = redop[1]
    if root.isascii() and root.isdecimal() and len(root) < 10:
        fields["root"] = int(root)
    return PartialRow(fields, int(match[2]), cells, is_clean)


def _build_row(row_start: PartialRow, layout: TableLayout | None) -> Row:
    """A row of the report, with the constant values last."""
    half, scale = len(row_start.cells) // 2, layout.scale if layout else 1.0
    out_of_place, in_place_values = (
        _parse_half(row_start.cells[:half], scale),
        _parse_half(row_start.cells[half:], scale),
    )
    in_place = {f"in_place_{key}": value for key, value in in_place_values.items()}
    return {"size": row_start.fields["size"], **out_of_place, **in_place, **row_start.fields}


def _parse_half(cells: list[str], scale: float) -> Row:
    """Time, algbw, busbw, and how many elements were wrong or, in old tables, the largest error."""
    time, algbw, busbw, wrong = (
        None if cell == "N/A" else parse_finite(cell.rstrip("*")) for cell in cells[:_HALF_COLUMNS]
    )
    half: Row = {"time_us": None if time is None else time * scale, "algbw": algbw, "busbw": busbw}
    if wrong is None:
        return half
    return half | ({"error": wrong} if _ERROR_PATTERN.search(cells[3]) else {"wrong": int(wrong)})


def _is_plausible(row: Row) -> bool:
    """Whether size, time and bandwidth of a row agree: in doubt if it came in pieces or the header was lost."""
    for prefix in ("", "in_place_"):
        size, time, algbw = (row.get(key) for key in ("size", f"{prefix}time_us", f"{prefix}algbw"))
        if not (isinstance(size, int) and isinstance(time, float) and isinstance(algbw, float) and time > 0):
            return False
        if abs(size / time / 1000 - algbw) > 0.05 * algbw + 0.006:
            return False
    return True


def _guess_operation(row_start: PartialRow) -> str:
    """The operation of a table without a header, if a row shows it: only reductions have a redop."""
    size, root = row_start.fields["size"], row_start.fields.get("root")
    if not size or row_start.fields.get("redop", "none") == "none":
        return ""
    matches_size = row_start.elements * _TYPE_BYTES[str(row_start.fields["type"])] == size
    return "reduce" if root is not None else "all_reduce" if matches_size else "reduce_scatter"


def _parse_properties(line: str) -> Row:
    """What a line says about its table."""
    groups: dict[str, str] = {}
    for marker, pattern in _PROPERTY_PATTERNS:
        if marker in line and (match := pattern.search(line)):
            groups |= match.groupdict()
    properties: Row = {key: groups[key] for key in ("op", "version", "nccl") if key in groups}
    if "rank" in groups or "ranks" in groups:
        properties["ranks"] = int(groups.get("rank", -1)) + 1 or int(groups["ranks"])
    if "avg_busbw" in groups:
        properties["avg_busbw"] = parse_finite(groups["avg_busbw"])
    if "out_of_bounds" in groups:
        properties["out_of_bounds"] = int(groups["out_of_bounds"])
    has_verdict = "avg_busbw" in groups or "out_of_bounds" in groups or contains_any(line, _VERDICT_MARKERS)
    if has_verdict and (verdict := _VERDICT_PATTERN.search(line)):
        properties["failed"] = verdict[1] != "OK"
    return properties


def read_nccl_tests_line(line: str) -> Row:
    """The last row in a line, or the verdict on a table."""
    table = _Table()
    for terminal_line in split_terminal_lines([line]):
        table.add_line(terminal_line, _parse_properties(terminal_line))
    rows = table.rows.all()
    return rows[-1] if rows else {key: value for key, value in table.summary().items() if key in _END_KEYS}
