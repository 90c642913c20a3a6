"""LogTails and FailureLineIndex: the last lines of logs of any size, and earlier ones with a failure word."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inputs.failure_logs import SPELLINGS
from torchyard.common.log_lines import parse_log_line, read_new_lines
from torchyard.model.hang import RECORD_PREFIX
from torchyard.steps import log_reader, log_tail
from torchyard.steps.log_reader import read_blocks
from torchyard.steps.log_tail import DEFAULT_TAIL_LIMITS, LogTails, TailLimits

PREFIX = "2026-11-21T08:00:47.123Z node-0 | "
PIECES = st.sampled_from([PREFIX.encode() + b"[default0]:x", b"\n", b"\r"])
BYTES = st.lists(st.binary(max_size=40) | PIECES, max_size=30)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that every line extends over several blocks."""
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", 7)


@given(BYTES, st.integers(1, 12))
def test_last_lines_are_those_of_the_whole_file(tmp_path_factory: Any, pieces: list[bytes], count: int) -> None:
    """Reading a file backwards gives the same last complete lines as reading it forwards."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"\n".join(pieces))
    complete_lines = [parse_log_line(text, "a") for text, _ in read_new_lines(path, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_tail, "BLOCK_BYTES", 7)
        assert LogTails({"a": str(path)}).last("a", count) == complete_lines[-count:]


def test_missing_log_has_no_lines(tmp_path: Path) -> None:
    """A missing log, as of a pod that never started, is not an error."""
    assert LogTails({"a": str(tmp_path / "a")})["a"] == []


def test_long_end_is_bounded(tmp_path: Path, small_blocks: None) -> None:
    """However long the lines are, at most the bytes of one node are read."""
    limits = TailLimits(total_bytes=100, min_node_bytes=100)
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%060d\n" % number for number in range(50)))
    assert [int(line.text) for line in LogTails({"a": str(path)}, limits=limits)["a"]] == [49]


def test_many_nodes_share_the_lines(tmp_path: Path) -> None:
    """With a thousand nodes, fewer lines are read per node than with two."""
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 6000)
    few_paths, many_paths = ({str(node): str(path) for node in range(count)} for count in (2, 1000))
    assert (len(LogTails(few_paths)["1"]), len(LogTails(many_paths)["1"])) == (
        DEFAULT_TAIL_LIMITS.node_lines,
        DEFAULT_TAIL_LIMITS.total_lines // 1000,
    )


# --- a failure long before the end


FIVE_LINES = TailLimits(node_lines=5)


def read_with_failures(path: Path, limits: TailLimits = FIVE_LINES) -> list[str]:
    """The last lines of a log, after the earlier ones with a failure word."""
    index = limits.create_index(1)
    for block in read_blocks(str(path)):
        index.process_block(block)
    return [line.text for line in LogTails({"a": str(path)}, {"a": index}, limits=limits)["a"]]


@pytest.mark.parametrize("block", [7, 64, 1000, 1 << 20])
def test_failure_before_the_last_lines_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """A traceback that thousands of lines follow is read completely, wherever a block of the file begins."""
    monkeypatch.setattr(log_tail, "BLOCK_BYTES", block)
    monkeypatch.setattr(log_reader, "MAX_READ_BYTES", block)
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1', "    step()", "KeyError: 'x'"]
    steps = [f"step {number}" for number in range(300)]
    path = tmp_path / "log"
    path.write_text("\n".join([*steps[:100], *traceback, *steps[100:]]) + "\n")
    assert read_with_failures(path) == [*traceback, *steps[100:139], *steps[-5:]]


def test_early_lines_are_the_last_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log full of errors, the last ones are read, each once, up to the limit."""
    monkeypatch.setattr(log_reader, "MAX_READ_BYTES", 256)
    path = tmp_path / "log"
    path.write_text("".join(f"Error {number}\n" for number in range(1000)))
    assert read_with_failures(path, TailLimits(node_lines=5, failure_lines=50)) == [
        f"Error {number}" for number in range(945, 1000)
    ]


def test_log_without_a_failure_has_its_last_lines_only(tmp_path: Path) -> None:
    """Earlier lines without a failure word are not read."""
    path = tmp_path / "log"
    path.write_text("".join(f"step {number}\n" for number in range(100)))
    assert read_with_failures(path) == [f"step {number}" for number in range(95, 100)]


@pytest.mark.parametrize("line", [line for cause, line in SPELLINGS if cause != "unknown"])
def test_line_of_every_cause_has_a_failure_word(tmp_path: Path, line: str) -> None:
    """A line that shows a cause is read even if it is long before the log's end."""
    path = tmp_path / "log"
    path.write_text("".join(f"{PREFIX}{text}\n" for text in [line, *(f"step {number}" for number in range(100))]))
    assert read_with_failures(path)[0] == line


RECORD = f"{PREFIX}{RECORD_PREFIX}" + '{"kind": "pulse", "stack": ["raise_error timed out"]}'


def test_records_are_not_among_the_last_lines(tmp_path: Path) -> None:
    """However many records follow the last output of a program, its own lines are the last lines."""
    lines = [f"{PREFIX}[default0]:line {number}" for number in range(5)]
    (tmp_path / "log").write_text("\n".join([*lines[:4], RECORD, lines[4], *[RECORD] * 9_000, ""]))
    tail = LogTails({"a": str(tmp_path / "log")}).last("a", 3)
    assert [line.text for line in tail] == ["[default0]:line 2", "[default0]:line 3", "[default0]:line 4"]


def test_text_before_a_record_is_read(tmp_path: Path) -> None:
    """Text that a program printed without a newline is read, without the record after it."""
    (tmp_path / "log").write_text(f"{PREFIX}out of memory{RECORD_PREFIX}{{}}\n{PREFIX}[default0]:{RECORD_PREFIX}{{}}\n")
    assert [line.text for line in LogTails({"a": str(tmp_path / "log")})["a"]] == ["out of memory"]


def test_record_with_a_failure_word_is_not_read(tmp_path: Path) -> None:
    """A record whose stack contains a failure word is not read as a failure."""
    path = tmp_path / "log"
    path.write_text(
        "\n".join([RECORD, f"{PREFIX}Boom: an error", *[f"{PREFIX}{number}" for number in range(6_000)], ""])
    )
    texts = [text for text in read_with_failures(path) if text.startswith(("Boom", RECORD_PREFIX))]
    assert texts == ["Boom: an error"]


def test_no_line_is_read_twice(tmp_path: Path) -> None:
    """The last lines and the earlier ones with a failure word do not overlap if records are between them."""
    path = tmp_path / "log"
    lines = [output for number in range(6_000) for output in (f"{PREFIX}error {number}", RECORD)]
    path.write_text("\n".join([*lines, ""]))
    texts = read_with_failures(path, DEFAULT_TAIL_LIMITS)
    assert len(texts) == len(set(texts)) == 6_000


def test_index_forgets_shapes_but_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different lines a log has, few are remembered, and each line with a failure word is read."""
    monkeypatch.setattr(log_tail, "_MAX_SHAPES", 10)
    monkeypatch.setattr(log_reader, "MAX_READ_BYTES", 200)
    path = tmp_path / "log"
    words = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    path.write_text("".join(f"{word}\nError {word}\n" for word in words) + "done\n" * 50)
    early_lines = [text for text in read_with_failures(path) if text.startswith("Error")]
    assert early_lines == [f"Error {word}" for word in words]
