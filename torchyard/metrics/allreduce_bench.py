"""allreduce-bench: what all_reduce_bench.py of stas00/ml-engineering prints, from its first form of 2021 on."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import contains_any, parse_finite, split_terminal_lines, strip_prefixes
from torchyard.model.run import Metrics, Row

_COUNT = r"([0-9]{1,9})"
_HEADER_PATTERN = re.compile(r"bandwidth of all_reduce\b")
_COUNTS_PATTERN = re.compile(rf"{_COUNT} (ranks|trials|warmups)\b")
_DECIMAL = r"([0-9]{1,20}(?:\.[0-9]{0,20})?|nan|inf)"
_BYTES = r"([0-9]{1,9}(?:\.[0-9]{0,9})?)\s?([KMGT]?i?B)"
_PAYLOAD_PATTERNS = (re.compile(rf"(?<![\w.]){_BYTES} payload\b"), re.compile(rf"\bdata size: {_BYTES}\b"))
_RATE_PATTERN = re.compile(rf"{_DECIMAL}\s*([KMGT]?)([Bb])(?:ps|/s)")
_SECONDS_PATTERN = re.compile(rf"{_DECIMAL}\s*sec")
_VALUE_PATTERN = re.compile(r"\b(algbw|busbw|algo throughput|duration):\s*")
_RANK_PATTERN = re.compile(r"(?:^|[\s\]:>])([\w.-]{1,80}(?::[0-9]{1,5})?):\s*$")
_SOFTWARE_PATTERN = re.compile(r"\b(torch|cuda|nccl)=(\([0-9, ]{1,20}\)|[^\s,`]{1,40})")
_ELAPSED_PATTERN = re.compile(rf"Elapsed time: (?:{_COUNT} days?, )?{_COUNT}:{_COUNT}:{_COUNT}")
_SIZE_PATTERN = re.compile(_BYTES)
_TRIAL_PATTERN = re.compile(rf"\s*(?:{_BYTES}:\s+)?{_COUNT}\s*")
_VALUE_MARKERS = ("bw:", "throughput:", "duration:")  # every line that _VALUE_PATTERN matches has one of them
_CELL_MARKERS = ("Bps", "bps", "B/s", "b/s", "busbw")  # every row and every header of a table has one of them
_UNIT_PREFIXES = " KMGT"
_COLUMN_NAMES = {"algo throughput": "throughput", "duration": "seconds"}


def read_allreduce_bench(lines: Iterable[str]) -> Metrics:
    """Read one row per payload, or one per trial if each trial is printed.

    `size` is the payload in bytes; `algbw` and `busbw` are in GB/s of 10^9 bytes. The `throughput` of 2021, in the
    same unit, counts both directions: it is twice what `algbw` became.
    """
    log = _BenchLog()
    for line in split_terminal_lines(lines):
        log.add_line(line)
    for row in log.rows.all():
        log.record_rate(row)
    if log.highest_busbw is not None:
        log.summary["max_busbw"] = log.highest_busbw
    return build_metrics(log.rows, log.summary)


class _BenchLog:
    """The rows and the summary of the lines that were added so far, in the order in which they were printed.

    The program prints the values of a row on several lines. Such a row is open (`_open_row`) until one of its values
    appears again, or a header starts a new measurement. The rank, the payload and the columns of a table are printed
    before the values that they apply to; the last ones are kept.

    `highest_busbw` is in GB/s. It counts only the rows that `rows` dropped; for the others call `record_rate`.
    """

    def __init__(self) -> None:
        self.rows = Rows(self.record_rate)
        self.summary: Row = {}
        self.highest_busbw: float | None = None
        self._trial_counts: Counter[object] = Counter()  # by rank
        self._payload: Row = {}
        self._columns: list[str] = []
        self._open_row: Row = {}
        self._rank: Row = {}

    def add_line(self, line: str) -> None:
        if "|" in line and contains_any(line, _CELL_MARKERS):
            cells = _split_cells(line)
            if "busbw" in cells:
                self._columns = cells
            elif cells:
                self._add_table_row(cells)
        if contains_any(line, _VALUE_MARKERS):
            for name, value in _parse_values(line):
                self._add_value(name, value)
        self._update_context(line)
        self._rank = _parse_rank(line)

    def _add_table_row(self, cells: list[str]) -> None:
        """Add a row of a table; the payload is its first column, or the same for all rows and printed above."""
        size = _SIZE_PATTERN.fullmatch(cells[0])
        columns = self._columns
        if not columns:
            columns = ["payload", "busbw", "algbw"] if size else ["busbw", "algbw"]
        rates: Row = {}
        for name, cell in zip(columns, cells, strict=False):
            if match := _RATE_PATTERN.match(cell):
                rates[name] = _convert_rate(match)
        if not rates:
            return
        if size:
            # The sweep is in powers of two, even where old versions print KB.
            self._add_row({"size": _convert_bytes(size[1], size[2], 1024)} | rates)
        elif "payload" not in columns:
            self._add_row({"trial": 0} | self._payload | rates)

    def _add_value(self, name: str, value: float | None) -> None:
        """Add a value to the open row.

        `duration:` starts a row of the version of 2021. In later versions a repeated value starts one.
        """
        if name in self._open_row or name == "seconds" or not self._open_row:
            self._open_row = {"trial": 0} | self._rank if name == "seconds" else {}
            self._open_row |= self._payload
            self._add_row(self._open_row)
        self._open_row[name] = value

    def _add_row(self, row: Row) -> None:
        """Add a row; the trials of each rank are counted from 1."""
        if "trial" in row:
            rank = row.get("rank")
            self._trial_counts[rank] += 1
            row["trial"] = self._trial_counts[rank]
        self.rows.add(row)

    def record_rate(self, row: Row) -> None:
        """Update `highest_busbw` with a row's bandwidth."""
        busbw = row.get("busbw")
        if isinstance(busbw, float) and (self.highest_busbw is None or busbw > self.highest_busbw):
            self.highest_busbw = busbw

    def _update_context(self, line: str) -> None:
        """Read what a line reports about the values after it, or about the whole run."""
        if " payload" in line or "data size" in line:
            for pattern in _PAYLOAD_PATTERNS:
                if match := pattern.search(line):
                    self._payload = {"size": _convert_bytes(match[1], match[2], 1000)}
                    break
        if "bandwidth of" in line and _HEADER_PATTERN.search(line):
            self._open_row = {}
            self._columns = []
            for number, name in _COUNTS_PATTERN.findall(line):
                self.summary[name] = int(number)
        if "software:" in line:
            for name, version in _SOFTWARE_PATTERN.findall(line):
                self.summary[name] = re.sub(r",\s*", ".", version.strip("()"))  # nccl=(2, 26, 2)
        if "Elapsed" in line and (match := _ELAPSED_PATTERN.search(line)):
            days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
            self.summary["seconds"] = ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _split_cells(line: str) -> list[str]:
    """The cells of a table's line that are not empty."""
    cells = [text.strip() for text in line.split("|")[1:-1]]
    return [cell for cell in cells if cell]


def _parse_rank(line: str) -> Row:
    """The rank in a line that names the rank of the following values, `0:` or `host:0:`; {} for any other line."""
    match = _RANK_PATTERN.search(line) if line.rstrip().endswith(":") else None
    if match is None:
        return {}
    return {"rank": int(match[1]) if match[1].isdecimal() else match[1]}


def _parse_values(line: str) -> Iterator[tuple[str, float | None]]:
    """Values such as `algbw: 1.939 GBps (15.5 Gbps)` by name; None for nan and inf.

    A value that is truncated before its unit is left out.
    """
    for match in _VALUE_PATTERN.finditer(line):
        rest = line[match.end() :]
        name = _COLUMN_NAMES.get(match[1], match[1])
        if name == "seconds":
            if seconds := _SECONDS_PATTERN.match(rest):
                yield name, parse_finite(seconds[1])
        elif rate := _RATE_PATTERN.match(rest):
            yield name, _convert_rate(rate)


def _convert_rate(match: re.Match[str]) -> float | None:
    """A rate in GB/s, from bytes (`GBps`) or bits (`Gbps`, `bps`) per second; None if it is nan or inf."""
    value = parse_finite(match[1])
    if value is None:
        return None
    bits_per_unit = 8 if match[3] == "b" else 1
    return value * 1000.0 ** (_UNIT_PREFIXES.index(match[2] or " ") - 3) / bits_per_unit


def _convert_bytes(number: str, unit: str, thousand: int) -> int:
    """`4.0GB` in bytes; a KB has `thousand` bytes, a KiB always 1024."""
    power = max(_UNIT_PREFIXES.find(unit[0]), 0)
    return round(float(number) * float(1024 if "i" in unit else thousand) ** power)


def read_allreduce_bench_line(line: str) -> Row:
    """The last row of results in a line, or the trial in progress (`trial`, with `size` if printed); {} if neither."""
    row: Row = {}
    for terminal_line in split_terminal_lines([line]):
        log = _BenchLog()
        log.add_line(terminal_line)
        rows = log.rows.all()
        if rows:
            row = {key: value for key, value in rows[-1].items() if key != "trial"}
        elif match := _TRIAL_PATTERN.fullmatch(strip_prefixes(terminal_line)):
            row = {"size": _convert_bytes(match[1], match[2], 1024)} if match[1] else {}
            row["trial"] = int(match[3])
    return row
