"""nccl-tests: the tables of NVIDIA/nccl-tests and ROCm/rccl-tests (`all_reduce_perf` and its like), old and new."""

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from tasks.model import Metrics, Row
from tasks.readers._text import NUMBER, bare, finite, parts

# Bytes of one element.
TYPES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("int", "int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
ROW = re.compile(rf"(?<![\w.,-])([0-9]{{1,15}})\s+([0-9]{{1,15}})\s+({'|'.join(TYPES)})(?!\w)(.*)")
CELL = re.compile(rf"(?!0[0-9]){NUMBER}\*?|N/A")
# What others write into a row: mpirun's tags, and NCCL's lines, which begin wherever the row had come to.
TAG = re.compile(r"\[[0-9]{1,9},[0-9]{1,9}\]<std[a-z]{3,4}>:")
NOISE = re.compile(
    r"(?:\[[0-9]{4}-[^\]]{1,30}\] )?(?<![A-Za-z])[A-Za-z][\w.-]{0,80}:[0-9]{1,9}:[0-9]{1,9} \[[0-9]{1,3}\].*"
)
HEADER = re.compile(r"\b(size|bytes)\s+(?:count|N)\s+type\b(.*)")
BEGINS = re.compile(r"ccl-tests version|Collective test starting|\bnThread [0-9]|_perf\s+-\w")
PROGRAMS = "all_reduce|all_gather|reduce_scatter|reduce|broadcast|alltoallv?|gather|scatter|sendrecv|hypercube"
SAID = (
    re.compile(r"\b[nr]ccl-tests:? [Vv]ersion (?P<version>\S{1,80})"),
    re.compile(r"\bR?(?:NCCL|CCL) version :?\s?(?P<nccl>[0-9][\w.+-]{0,60})"),
    re.compile(rf"(?<![A-Za-z0-9])(?P<op>{PROGRAMS})_perf"),
    re.compile(rf"Avg bus bandwidth\s*:\s*(?P<avg_busbw>{NUMBER})"),
    re.compile(r"Out of bounds values\s*:\s*(?P<out_of_bounds>[0-9]{1,9})"),
    re.compile(r"\bnranks[ =](?P<ranks>[0-9]{1,9})"),
    re.compile(r"#\s+Rank\s+(?P<rank>[0-9]{1,9})\s"),
)
VERDICT = re.compile(
    r"(?:Out of bounds values|Avg bus bandwidth)\s*:.{0,60}?\b(OK|FAILED)\b|\bTest \w{1,20} (failure)\b"
)
ENDS = ("avg_busbw", "out_of_bounds", "failed")
WIDTH = 4  # columns of one half: time, algbw, busbw and #wrong (`error` or `res` in old ones)
TIMED = 8  # with the four of each iteration's times after them


class Layout(NamedTuple):
    """What the head of a table says of its rows; `scale` makes microseconds of its times."""

    rooted: bool
    scale: float


class Line(NamedTuple):
    """A row as far as it was printed; `clean` where nothing but its cells was on the line."""

    head: Row
    elements: int
    cells: list[str]
    clean: bool


def read_nccl_tests(lines: Iterable[str]) -> Metrics:
    """One row per size (bytes), with time (us), algbw and busbw (GB/s of 10^9 bytes) out of place and in place.

    Of several tables each row has its `table` and `op`; what differs between them is summed up as `avg_busbw_2`.
    `max_busbw` is the highest in a table, in place or not.
    """
    tables = [Table()]
    for part in parts(lines):
        if tables[-1].is_over(part):
            tables.append(Table())
        tables[-1].take(part)
    told = [table for table in tables if table.begun] or tables[:1]
    summaries = [table.summary() for table in told]
    if len(told) == 1:
        return Metrics(rows=tuple(told[0].rows), summary=summaries[0])
    rows = tuple(
        row | {"op": said.get("op"), "table": number}
        for number, (table, said) in enumerate(zip(told, summaries, strict=True), 1)
        for row in table.rows
    )
    return Metrics(rows=rows, summary={"tables": len(told), **together(summaries)})


def together(summaries: list[Row]) -> Row:
    """What all tables say alike; what they do not, under the number of each."""
    summed: Row = {}
    for key in dict.fromkeys(key for said in summaries for key in said):
        values = [said.get(key) for said in summaries]
        if len(set(values)) == 1:
            summed[key] = values[0]
        elif key == "failed":
            summed[key] = True in values
        else:
            summed |= {f"{key}_{number}": value for number, value in enumerate(values, 1) if value is not None}
    return summed


class Table:
    """One table while its lines come."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._facts: Row = {}
        self._guess = ""
        self._torn = 0
        self._open: Line | None = None
        self._layout: Layout | None = None

    @property
    def begun(self) -> bool:
        return bool(self.rows or self._torn or self._open or self._facts.keys() & ENDS)

    def is_over(self, part: str) -> bool:
        """Whether a line is of the next table."""
        if self.begun and (BEGINS.search(part) or HEADER.search(part)):
            return True
        return "avg_busbw" in self._facts and "op" in read_facts(part) and "concluded" not in part

    def take(self, part: str) -> None:
        self._take_facts(part)
        text = NOISE.sub("", TAG.sub(" ", part))
        if layout := read_layout(text):
            self._layout = layout
        elif line := read_start(text, self._layout):
            self._torn += self._open is not None
            self._open = None
            self._add(line, pieced=False)
        elif self._open and (cells := bare(text).split()) and all(map(CELL.fullmatch, cells)):
            self._add(self._open._replace(cells=self._open.cells + cells), pieced=True)

    def summary(self) -> Row:
        guess: Row = {"op": self._guess} if self._guess else {}
        bandwidths = [row.get(key) for row in self.rows for key in ("busbw", "in_place_busbw")]
        known = [each for each in bandwidths if isinstance(each, float)]
        highest: Row = {"max_busbw": max(known)} if known else {}
        torn = self._torn + (self._open is not None)
        return {**guess, **self._facts, **highest, **({"incomplete_rows": torn} if torn else {})}

    def _take_facts(self, part: str) -> None:
        for key, value in read_facts(part).items():
            before = self._facts.setdefault(key, value)
            if key == "failed":
                self._facts[key] = before or value
            elif key == "ranks" and isinstance(before, int) and isinstance(value, int):
                self._facts[key] = max(before, value)

    def _add(self, line: Line, pieced: bool) -> None:
        """A row that has all its cells. One that lacks some stays open: other writers may have come in between."""
        self._open = None
        row = read_row(line, self._layout) if len(line.cells) in (2 * WIDTH, 2 * TIMED) else {}
        sure = self._layout is not None and not pieced
        if row and not {"error", "in_place_wrong"} <= row.keys() and (sure or plausible(row)):
            self.rows.append(row)
            self._guess = guess_op(line) or self._guess
        elif line.clean and len(line.cells) in (0, WIDTH):
            self._open = line
        else:
            self._torn += 1


def read_layout(text: str) -> Layout | None:
    header = HEADER.search(text)
    if header is None:
        return None
    scale = 1000.0 if header[1] == "bytes" else 1.0  # the oldest tables tell the time in ms
    return Layout(rooted="root" in header[2].split(), scale=scale)


def read_start(text: str, layout: Layout | None) -> Line | None:
    """The size, count, type and, where the program tells them, redop and root of a row, and what cells follow.

    Without the head of the table an odd number of cells begins with the root: its two halves are alike.
    """
    match = ROW.search(text)
    if match is None:
        return None
    words = match[4].split()
    redop = words.pop(0) if words and words[0].isalpha() and not CELL.fullmatch(words[0]) else ""
    cells = list(takewhile(CELL.fullmatch, words))
    clean = len(cells) == len(words)
    root = cells.pop(0) if cells and (layout.rooted if layout else len(cells) % 2) else ""
    head: Row = {"size": int(match[1]), "type": match[3]}
    head |= {"redop": redop} if redop else {}
    head |= {"root": int(root)} if re.fullmatch(r"[0-9]{1,9}", root) else {}
    return Line(head, int(match[2]), cells, clean)


def read_row(line: Line, layout: Layout | None) -> Row:
    """A row of the report: what is constant comes last."""
    half, scale = len(line.cells) // 2, layout.scale if layout else 1.0
    oop, ip = read_half(line.cells[:half], scale), read_half(line.cells[half:], scale)
    in_place = {f"in_place_{key}": value for key, value in ip.items()}
    return {"size": line.head["size"], **oop, **in_place, **line.head}


def read_half(cells: list[str], scale: float) -> Row:
    """Time, algbw, busbw, and how many elements were wrong or, in old tables, the largest error."""
    time, algbw, busbw, wrong = (None if cell == "N/A" else finite(cell.rstrip("*")) for cell in cells[:WIDTH])
    half: Row = {"time_us": None if time is None else time * scale, "algbw": algbw, "busbw": busbw}
    if wrong is None:
        return half
    return half | ({"error": wrong} if re.search(r"e(-|\+0?0[0-5])", cells[3]) else {"wrong": int(wrong)})


def plausible(row: Row) -> bool:
    """Whether size, time and bandwidth of a row belong together, where pieces or a lost head leave it in doubt."""
    for prefix in ("", "in_place_"):
        size, time, algbw = (row.get(key) for key in ("size", f"{prefix}time_us", f"{prefix}algbw"))
        if not (isinstance(size, int) and isinstance(time, float) and isinstance(algbw, float) and time > 0):
            return False
        if abs(size / time / 1000 - algbw) > 0.05 * algbw + 0.006:
            return False
    return True


def guess_op(line: Line) -> str:
    """The operation of a table whose head is lost, where a row tells it: only reductions have a redop."""
    size, root = line.head["size"], line.head.get("root")
    if not size or line.head.get("redop", "none") == "none":
        return ""
    whole = line.elements * TYPES[str(line.head["type"])] == size
    return "reduce" if root is not None else "all_reduce" if whole else "reduce_scatter"


def read_facts(part: str) -> Row:
    """What a line says of its table."""
    said = {
        key: value for pattern in SAID if (match := pattern.search(part)) for key, value in match.groupdict().items()
    }
    facts: Row = {key: said[key] for key in ("op", "version", "nccl") if key in said}
    if "rank" in said or "ranks" in said:
        facts["ranks"] = int(said.get("rank", -1)) + 1 or int(said["ranks"])
    if "avg_busbw" in said:
        facts["avg_busbw"] = finite(said["avg_busbw"])
    if "out_of_bounds" in said:
        facts["out_of_bounds"] = int(said["out_of_bounds"])
    if verdict := VERDICT.search(part):
        facts["failed"] = verdict[1] != "OK"
    return facts


def read_nccl_tests_line(line: str) -> Row:
    """The last row in a line, or the verdict over a table."""
    table = Table()
    for part in parts([line]):
        table.take(part)
    return table.rows[-1] if table.rows else {key: value for key, value in table.summary().items() if key in ENDS}
