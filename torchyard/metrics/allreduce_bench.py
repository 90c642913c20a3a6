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
_PAYLOAD_PATTERNS = re.compile(rf"(?<![\w.]){_BYTES} payload\b"), re.compile(rf"\bdata size: {_BYTES}\b")
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
    """One row per payload, or per trial if each one is printed.

    `size` is the payload in bytes; `algbw` and `busbw` are in GB/s of 10^9 bytes. The `throughput` of 2021, in the
    same unit, counts both directions: it is twice what `algbw` became.
    """
    log = _BenchLog()
    for line in split_terminal_lines(lines):
        log.add_line(line)
    for row in log.rows.all():
        log.record_rate(row)
    return build_metrics(
        log.rows, log.summary | ({} if log.highest_busbw is None else {"max_busbw": log.highest_busbw})
    )


class _BenchLog:
    """What was printed so far. A row that spans several lines is open until one of its values appears again."""

    def __init__(self) -> None:
        self.rows = Rows(self.record_rate)
        self.highest_busbw: float | None = None
        self._trials: Counter[object] = Counter()
        self.summary: Row = {}
        self._payload: Row = {}
        self._columns: list[str] = []
        self._open_row: Row = {}
        self._rank: Row = {}

    def add_line(self, line: str) -> None:
        if "|" in line and contains_any(line, _CELL_MARKERS):
            cells = [cell for text in line.split("|")[1:-1] if (cell := text.strip())]
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
        """Take a row of a table; the payload is its first column, or the same for all rows and printed above."""
        size = _SIZE_PATTERN.fullmatch(cells[0])
        columns = self._columns or [*(["payload"] if size else []), "busbw", "algbw"]
        rates = {
            name: _convert_rate(match)
            for name, cell in zip(columns, cells, strict=False)
            if (match := _RATE_PATTERN.match(cell))
        }
        if rates and (size or "payload" not in columns):
            # The sweep is in powers of two, even where old versions print KB.
            payload: Row = {"size": _convert_bytes(size[1], size[2], 1024)} if size else {"trial": 0, **self._payload}
            self._add_row({**payload, **rates})

    def _add_value(self, name: str, value: float | None) -> None:
        """Take a value: `duration:` begins a row of 2021, the payload's line one of later years."""
        if name in self._open_row or name == "seconds" or not self._open_row:
            trial: Row = {"trial": 0, **self._rank} if name == "seconds" else {}
            self._open_row = {**trial, **self._payload}
            self._add_row(self._open_row)
        self._open_row[name] = value

    def _add_row(self, row: Row) -> None:
        """Add a row; the trials of each rank are counted from 1."""
        if "trial" in row:
            self._trials[row.get("rank")] += 1
            row["trial"] = self._trials[row.get("rank")]
        self.rows.add(row)

    def record_rate(self, row: Row) -> None:
        rate = row.get("busbw")
        if isinstance(rate, float):
            self.highest_busbw = rate if self.highest_busbw is None else max(self.highest_busbw, rate)

    def _update_context(self, line: str) -> None:
        mentions_payload = " payload" in line or "data size" in line
        if mentions_payload and (
            match := next(filter(None, (pattern.search(line) for pattern in _PAYLOAD_PATTERNS)), None)
        ):
            self._payload = {"size": _convert_bytes(match[1], match[2], 1000)}
        if "bandwidth of" in line and _HEADER_PATTERN.search(line):
            self._open_row, self._columns = {}, []
            self.summary |= {name: int(number) for number, name in _COUNTS_PATTERN.findall(line)}
        if "software:" in line:
            self.summary |= {
                name: re.sub(r",\s*", ".", value.strip("()")) for name, value in _SOFTWARE_PATTERN.findall(line)
            }
        if "Elapsed" in line and (match := _ELAPSED_PATTERN.search(line)):
            days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
            self.summary["seconds"] = ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _parse_rank(line: str) -> Row:
    """The rank in a line that says whose values follow: `0:` or `host:0:`."""
    match = _RANK_PATTERN.search(line) if line.rstrip().endswith(":") else None
    return {"rank": int(match[1]) if match[1].isdecimal() else match[1]} if match else {}


def _parse_values(line: str) -> Iterator[tuple[str, float | None]]:
    """Values such as `algbw: 1.939 GBps (15.5 Gbps)`; one that is cut off before its unit is left out."""
    for match in _VALUE_PATTERN.finditer(line):
        rest, name = line[match.end() :], _COLUMN_NAMES.get(match[1], match[1])
        if name == "seconds" and (seconds := _SECONDS_PATTERN.match(rest)):
            yield name, parse_finite(seconds[1])
        elif name != "seconds" and (rate := _RATE_PATTERN.match(rest)):
            yield name, _convert_rate(rate)


def _convert_rate(match: re.Match[str]) -> float | None:
    """A rate in GB/s, from bytes (`GBps`) or bits (`Gbps`, `bps`)."""
    value = parse_finite(match[1])
    if value is None:
        return None
    return value * 1000.0 ** (_UNIT_PREFIXES.index(match[2] or " ") - 3) / (8 if match[3] == "b" else 1)


def _convert_bytes(number: str, unit: str, thousand: int) -> int:
    """`4.0GB` in bytes; a KB has `thousand` bytes, a KiB always 1024."""
    power = max(_UNIT_PREFIXES.find(unit[0]), 0)
    return round(float(number) * float(1024 if "i" in unit else thousand) ** power)


def read_allreduce_bench_line(line: str) -> Row:
    """The last trial or row in a line."""
    row: Row = {}
    for terminal_line in split_terminal_lines([line]):
        log = _BenchLog()
        log.add_line(terminal_line)
        if rows := log.rows.all():
            row = {key: value for key, value in rows[-1].items() if key != "trial"}
        elif match := _TRIAL_PATTERN.fullmatch(strip_prefixes(terminal_line)):
            row = {"size": _convert_bytes(match[1], match[2], 1024)} if match[1] else {}
            row["trial"] = int(match[3])
    return row
