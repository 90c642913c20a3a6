"""The lines of one rank or one node, of all kinds of jobs, at once and while the logs grow."""

from pathlib import Path

import pytest

from torchyard.model.errors import SelectionError
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.plan import Ranks
from torchyard.steps.rank_output import LogSelection, OutputFollower, RankLayout, check_selection, read_output

STAMP = "2026-11-21T08:00:47.123Z node | "


def format_agent_lines(*global_ranks: int) -> list[str]:
    """What an agent prints once its node has its ranks."""
    local_ranks = list(range(len(global_ranks)))
    prefix = "I1126 15:05:08.601000 6237 torch/distributed/elastic/agent/server/api.py:553]"
    return [f"{prefix}   local_ranks={local_ranks}", f"{prefix}   global_ranks={list(global_ranks)}"]


def write_log(path: Path, *texts: str) -> None:
    with path.open("a") as log:
        log.write("".join(f"{STAMP}{text}\n" for text in texts))


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, str]:
    """The logs of two nodes with two ranks each; the second node got the first ranks."""
    workers = ["[default0]:a[default1]:b", f"[default1]:50 %{RECORD_PREFIX}{{}}", f"{RECORD_PREFIX}{{}}"]
    write_log(tmp_path / "node-0", "[default0]:early", *format_agent_lines(2, 3), *workers)
    write_log(tmp_path / "node-1", *format_agent_lines(0, 1), *workers, *format_agent_lines(2, 3), "[default0]:again")
    return {node: str(tmp_path / node) for node in ("node-0", "node-1")}


@pytest.mark.parametrize(
    ("rank", "lines"), [(0, ["a"]), (1, ["b", "50 %"]), (2, ["a", "again"]), (3, ["b", "50 %"]), (4, [])]
)
def test_lines_of_a_rank_follow_the_agents_ranks(logs: dict[str, str], rank: int, lines: list[str]) -> None:
    """The agent names the global ranks of its node, again after a restart; records are never shown."""
    assert list(read_output(logs, RankLayout("teed"), LogSelection(rank))) == lines


@pytest.mark.parametrize(
    ("ranks", "processes", "rank", "node"),
    [("placed", 1, 1, "node-1"), ("placed", 2, 1, "node-0"), ("placed", 2, 3, "node-1"), ("placed", None, 1, "node-1")],
)
def test_without_an_agent_the_place_of_the_node_decides(
    tmp_path: Path, ranks: Ranks, processes: int | None, rank: int, node: str
) -> None:
    """Lines that do not name their rank are those of the node that has it."""
    paths = {name: str(tmp_path / name) for name in ("node-0", "node-1")}
    for name in paths:
        write_log(tmp_path / name, f"of {name}")
    assert list(read_output(paths, RankLayout(ranks, processes), LogSelection(rank))) == [f"of {node}"]


def test_untagged_lines_are_those_of_the_node_that_has_the_rank(tmp_path: Path) -> None:
    """An agent that does not tag its workers' lines names the ranks of its node."""
    for name, ranks in (("node-0", (2, 3)), ("node-1", (0, 1))):
        write_log(tmp_path / name, "early", *format_agent_lines(*ranks), f"of {name}")
    paths = {name: str(tmp_path / name) for name in ("node-0", "node-1")}
    lines = list(read_output(paths, RankLayout("logged"), LogSelection(3)))
    assert [line for line in lines if "ranks=" not in line] == ["of node-0"]


def test_node_has_all_its_lines_but_records(logs: dict[str, str]) -> None:
    """The lines of a node include the agent's, as they were printed."""
    lines = list(read_output(logs, RankLayout("teed"), LogSelection(node="node-0")))
    assert [line for line in lines if "ranks=" not in line] == [
        "[default0]:early",
        "[default0]:a[default1]:b",
        "[default1]:50 %",
    ]
    assert len(lines) == 5


def test_unknown_node_or_rank_is_an_error() -> None:
    """The error lists what the job has; without the number of processes any rank may exist."""
    nodes = ["node-0", "node-1"]
    check_selection(nodes, LogSelection(rank=9), RankLayout("teed"))
    check_selection(nodes, LogSelection(rank=3), RankLayout("teed", 2))
    with pytest.raises(SelectionError, match="its nodes are node-0, node-1"):
        check_selection(nodes, LogSelection(node="node-2"), RankLayout("teed"))
    with pytest.raises(SelectionError, match="--rank 4: the job has no such rank; its ranks are 0 to 3"):
        check_selection(nodes, LogSelection(rank=4), RankLayout("teed", 2))


def test_follower_returns_each_line_once(logs: dict[str, str], tmp_path: Path) -> None:
    """Each call returns the new complete lines; a node whose log does not exist yet is read once it does."""
    follower = OutputFollower(LogSelection(2), RankLayout("teed"))
    for index, (node, path) in enumerate((logs | {"node-2": str(tmp_path / "node-2")}).items()):
        follower.add_node(node, path, index)
        follower.add_node(node, path, index)
    assert list(follower.read()) == ["a", "again"]
    with open(logs["node-0"], "a") as log:
        log.write(f"{STAMP}[default0]:half")
    write_log(tmp_path / "node-2", *format_agent_lines(2), "[default0]:new")
    assert list(follower.read()) == ["new"]
    with open(logs["node-0"], "a") as log:
        log.write(" a line\n")
    assert list(follower.read()) == ["half a line"]
    assert list(follower.read()) == []


def test_tee_without_ranks_counts_the_ranks_by_place(tmp_path: Path) -> None:
    """Lines that name their local rank, of an agent that logs no ranks, are of the rank at that place."""
    paths = {name: str(tmp_path / name) for name in ("node-0", "node-1")}
    for name in paths:
        write_log(tmp_path / name, f"[default0]:a of {name}", f"[default1]:b of {name}")
    assert list(read_output(paths, RankLayout("placed", 2), LogSelection(3))) == ["b of node-1"]
