"""Reading logs while they grow and after their end: the lines of rank 0, each of them once."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.rank_records import build_record
from tests.doubles.scripted_jobs import JOINED_TEXT, OLD_LINE, Make
from torchyard.common.log_lines import parse_log_line
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.run import LogLine
from torchyard.steps import log_reader
from torchyard.steps.log_reader import (
    MAX_READ_BYTES,
    JobLogReader,
    RankZeroFilter,
    find_lines,
    read_blocks,
    read_rank_zero,
)

PREFIX = "2026-11-21T08:00:47.123Z node-0 | "


def agent_log(rank: int, *texts: str) -> list[LogLine]:
    """The log of a node that got a group rank."""
    lines = [
        "I1 api.py:5] [default] Rendezvous complete for workers. Result:",
        f"I1 api.py:5]   group_rank={rank}",
        *texts,
    ]
    return [LogLine(1.0, "node", text) for text in lines]


def test_rank_zero_has_group_rank_zero() -> None:
    """Only local rank 0 of the node with group rank 0 is global rank 0."""
    second_node = RankZeroFilter("teed", is_first_node=False)
    lines = agent_log(0, "[default0]:rank 0", "[default1]:rank 1", "agent")
    assert [list(second_node.select(line)) for line in lines] == [[], [], ["rank 0"], [], []]
    first_node = RankZeroFilter("teed", is_first_node=True)
    assert [list(first_node.select(line)) for line in agent_log(1, "[default0]:rank 2")] == [[], [], []]


def test_lines_that_torchrun_joined_are_separate() -> None:
    """If torchrun writes the next prefix after an unfinished line, each part is a line of its rank."""
    rank_filter = RankZeroFilter("teed", is_first_node=True)
    joined = agent_log(
        0, '[default0]: 50%|##  [default0]:{"loss": 1}', "File x[default1]:other[default0]:mine", "a [default0]"
    )
    texts = [list(rank_filter.select(line)) for line in joined]
    assert texts == [[], [], [" 50%|##  ", '{"loss": 1}'], ["mine"], []]


def test_first_node_has_rank_zero_without_an_agent() -> None:
    """If the program starts its own processes, all output of the first node, and no other, is rank 0's."""
    line = LogLine(1.0, "node", "text")
    filters = [RankZeroFilter("placed", is_first_node=is_first) for is_first in (True, False)]
    assert [list(rank_filter.select(line)) for rank_filter in filters] == [["text"], []]


def write_log(plan: ManifestPlan, node: str, *lines: str) -> None:
    path = Path(plan.nodes[node])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(f"{line}\n".encode(errors="surrogateescape") for line in lines))


def test_rank_zero_is_read_among_garbage(plan: ManifestPlan) -> None:
    """Lines of other ranks and of the agent, torn lines and invalid bytes do not change rank 0's output."""
    first = f"{PREFIX}I1 api.py:5]   group_rank=1"
    write_log(plan, "worker-0", first, f"{PREFIX}[default0]:not mine", "[default0]:nor this")
    lines = [f"{PREFIX}[default0]:one", f"{PREFIX}[default1]:no", "[default0]:torn", "\udcff\udcfe", f"{PREFIX}agent"]
    write_log(
        plan, "worker-1", f"{PREFIX}[default0]:early", f"{PREFIX}   group_rank=0", *lines, f"{PREFIX}[default00]:two"
    )
    assert list(read_rank_zero(plan)) == ["one", "torn", "two"]


@pytest.mark.parametrize("line", [f"{PREFIX}a | b", "torn", "2026-11-21T08:00:47+00:00 n | a", f"{PREFIX}", ""])
def test_text_of_a_line_needs_no_time(plan: ManifestPlan, line: str) -> None:
    """The text of a line is the same whether its time is parsed or not."""
    placed = plan.model_copy(update={"ranks": "placed"})
    write_log(plan, "worker-0", line)
    assert list(read_rank_zero(placed)) == [parse_log_line(line, "worker-0").text]


def create_reader(plan: CommandPlan) -> tuple[JobLogReader, Path]:
    return JobLogReader(plan), Path(plan.processes[0].log)


def test_long_log_is_read_in_parts(job: Make) -> None:
    """Each read takes a bounded part of a log, and returns each line once."""
    reader, path = create_reader(job(log=f"{JOINED_TEXT} group_rank=0"))
    with path.open("a") as file:
        file.writelines(OLD_LINE % f"[default0]:{number} {'x' * 1000}" for number in range(3000))
    sizes = []
    while reader.is_behind:
        sizes.append(len(reader.read()))
    assert (sum(sizes), reader.line_count) == (3000, 3001)
    assert max(sizes) * 1000 <= MAX_READ_BYTES


def test_new_log_is_read_from_its_start(job: Make) -> None:
    """If a folder is removed and its log written again, the new log is read, and joined nodes stay joined."""
    reader, path = create_reader(job())
    reader.read()
    shutil.rmtree(path.parent)
    reader.read()
    path.parent.mkdir()
    path.write_text(OLD_LINE % "new")
    reader.read()
    assert (reader.line_count, reader.joined) == (2, {"node-0"})


def test_records_are_not_lines_of_rank_zero(plan: ManifestPlan) -> None:
    """A record of the recorder is not a line of rank 0, but a line that it has interrupted is."""
    placed = plan.model_copy(update={"ranks": "placed"})
    write_log(placed, "worker-0", f"{PREFIX}one", f"{PREFIX}{RECORD_PREFIX}{{}}", f"{PREFIX}50 %{RECORD_PREFIX}{{}}")
    assert list(read_rank_zero(placed)) == ["one", "50 %"]


def test_record_of_an_exception_is_a_sign_of_failure(job: Make) -> None:
    """A recorder's line about an exception that has ended a rank's program is read at the next poll."""
    logs, path = create_reader(job())
    record = build_record(1, kind="raised", raised_after=999.0).model_dump_json()
    path.write_text(f"{PREFIX}{RECORD_PREFIX}{record}\n")
    logs.read()
    assert [(sign.node, sign.rank, sign.shown_at) for sign in logs.failure_signs.signs] == [("node-0", 1, 999.0)]


def test_records_do_not_count_as_lines(plan: ManifestPlan) -> None:
    """Records are not counted in `line_count`, so a job that prints nothing else is silent."""
    placed = plan.model_copy(update={"ranks": "placed"})
    write_log(placed, "worker-0", f"{PREFIX}one", *[f"{PREFIX}{RECORD_PREFIX}{{}}"] * 3)
    logs = JobLogReader(placed)
    assert (logs.read(), logs.line_count, logs.is_behind) == (["one"], 1, False)


@given(st.binary(max_size=300), st.integers(1, 40))
def test_blocks_are_the_complete_file(tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int) -> None:
    """The blocks of a log end with a newline, except the last one, and together they are the log."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_reader, "MAX_READ_BYTES", size)
        blocks = list(read_blocks(str(path)))
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_missing_log_has_no_blocks(tmp_path: Path) -> None:
    """A missing log, as of a pod that never started, is not an error."""
    assert list(read_blocks(str(tmp_path / "log"))) == []


@given(
    st.lists(st.sampled_from(["", "a", "ab", "xab", "abab", "b\r"]), max_size=9), st.sampled_from([b"", b"ab", b"b"])
)
def test_lines_of_a_block_are_found(lines: list[str], needle: bytes) -> None:
    """Each complete line with the needle is found once, in order; an incomplete last line is not."""
    block = "".join(f"{line}\n" for line in lines).encode() + b"ab"
    expected = [line.encode() for line in lines if needle in line.encode()]
    assert list(find_lines(block, needle)) == expected
