"""The search for slow nodes: over synthetic tables of speeds, and on real processes with shaped links."""

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from programs import pairwise
from tests.processes.shaped_nodes import ShapedNodes
from tests.processes.started_programs import build_command, read_rows, run
from tests.tools.skips import can_shape

PROGRAM = "programs/pairwise.py"
SHORT = ("--size=512K", "--trials=3")
THRESHOLD = 0.8
needs_shaped_links = pytest.mark.skipif(
    not can_shape(), reason="links cannot be shaped here: this takes root, namespaces and tc"
)


def search(speeds: list[float], draw_factor: Callable[[], float] = lambda: 1.0) -> tuple[pairwise.Grades, int]:
    """Search among nodes of these speeds; a pair is as fast as its slower node, times a random factor.

    Returns the grades, and the number of rounds.
    """
    rounds: list[pairwise.Speeds] = []
    while pairs := pairwise.pair_nodes(len(speeds), rounds, THRESHOLD):
        nodes = list(itertools.chain(*pairs))
        assert len({*nodes}) == len(nodes), "the pairs of a round are disjoint"
        rounds.append({(first, second): min(speeds[first], speeds[second]) * draw_factor() for first, second in pairs})
    return pairwise.grade_nodes(len(speeds), rounds, THRESHOLD), len(rounds)


def draw_speeds(rng: random.Random, count: int, slow: set[int]) -> list[float]:
    return [rng.uniform(1, 7) if node in slow else 10.0 for node in range(count)]


@pytest.mark.parametrize("count", [*range(3, 17), 31, 32, 33, 64])
def test_one_slow_node_is_found_wherever_it_is(count: int) -> None:
    """The slow one of 3 to 64 nodes is found within ceil(log2 N) + 1 rounds, and no other node is named."""
    for slow in range(count):
        grades, rounds = search(draw_speeds(random.Random(slow), count, {slow}))
        assert ({*grades.slow}, {*grades.unknown}) == ({slow}, set())
        assert rounds <= pairwise.count_rounds(count)


@pytest.mark.parametrize("count", [9, 10, 31, 32])
def test_two_or_three_rounds_are_enough_for_one_slow_node(count: int) -> None:
    """More than 8 nodes take two rounds if one is slow; three if that one had no partner at first, or none is slow."""
    for slow in range(count):
        assert search(draw_speeds(random.Random(slow), count, {slow}))[1] == 2 + (slow == count - 1) * (count % 2)
    assert search([10.0] * count)[1] == 3


@pytest.mark.parametrize("count", [6, 7, 8, 13, 16, 31, 64])
def test_several_slow_nodes_are_found(count: int) -> None:
    """Up to a third of the nodes may be slow, at different speeds, with 4 % of noise in every measurement."""
    for seed in range(30):
        rng = random.Random(seed)
        slow = {*rng.sample(range(count), rng.randint(0, count // 3))}
        grades, rounds = search(draw_speeds(rng, count, slow), partial(rng.gauss, 1, 0.04))
        assert ({*grades.slow}, {*grades.unknown}) == (slow, set()), seed
        assert rounds <= pairwise.count_rounds(count)


@pytest.mark.parametrize("count", range(3, 12))
def test_slow_minority_is_found_or_unknown(count: int) -> None:
    """With fewer slow nodes than half no fast node is ever named, and in 97 % of all cases all slow ones are."""
    combinations = [itertools.combinations(range(count), size) for size in range((count + 1) // 2)]
    sets = [set(nodes) for nodes in itertools.chain(*combinations)]
    found_count = 0
    for slow in sets:
        grades, _ = search([5.0 if node in slow else 10.0 for node in range(count)])
        assert grades.slow <= slow
        found_count += grades.slow == slow
    assert found_count >= 0.97 * len(sets)


def test_slow_link_between_two_fast_nodes_names_no_node() -> None:
    """If two nodes are slow only with each other, each is fast with another partner."""
    rounds: list[pairwise.Speeds] = []
    while pairs := pairwise.pair_nodes(8, rounds, THRESHOLD):
        rounds.append({pair: 2.0 if {*pair} == {2, 3} else 10.0 for pair in pairs})
    grades = pairwise.grade_nodes(8, rounds, THRESHOLD)
    assert (rounds[0][2, 3], grades.slow, grades.unknown) == (2.0, frozenset(), frozenset())


@pytest.mark.parametrize(("expect", "slow"), [(None, set()), (10.0, {2, 3, 4, 5, 6, 7})])
def test_slow_majority_is_named_only_against_an_expected_speed(expect: float | None, slow: set[int]) -> None:
    """Six slow nodes of eight are named if they do not reach the expected speed; without one they are unknown."""
    rounds: list[pairwise.Speeds] = []
    while pairs := pairwise.pair_nodes(8, rounds, THRESHOLD, expect):
        rounds.append({pair: 10.0 if {*pair} == {0, 1} else 3.0 for pair in pairs})
    grades = pairwise.grade_nodes(8, rounds, THRESHOLD, expect)
    assert ({*grades.slow}, {*grades.slow | grades.unknown}) == (slow, {2, 3, 4, 5, 6, 7})


@pytest.mark.parametrize("expect", [None, 10.0])
def test_two_slow_nodes_cannot_be_distinguished(expect: float | None) -> None:
    """Both nodes of a single slow pair are unknown; without an expected speed the pair is not slow."""
    rounds: list[pairwise.Speeds] = [{(0, 1): 3.0}, {(0, 1): 3.0}]
    grades = pairwise.grade_nodes(2, rounds, THRESHOLD, expect)
    assert (grades.slow, grades.unknown) == (frozenset(), frozenset() if expect is None else {0, 1})


def test_one_slow_result_is_not_enough() -> None:
    """A node that had only one partner is not slow yet, and a slightly slow one needs two fast partners."""
    first: pairwise.Speeds = {(0, 1): 10.0, (2, 3): 7.0}
    grades = pairwise.grade_nodes(5, [first, {(0, 4): 2.0, (1, 2): 7.0}], THRESHOLD)
    assert ({*grades.slow}, {*grades.unknown}) == (set(), {2, 3, 4})
    third: pairwise.Speeds = {(0, 2): 7.0, (1, 4): 2.0}
    assert pairwise.grade_nodes(5, [first, {(0, 4): 2.0, (1, 2): 7.0}, third], THRESHOLD).slow == {2, 4}


@pytest.fixture(scope="module")
def nodes() -> Iterator[ShapedNodes]:
    """Eight nodes, each with a link of 100 Mbit/s."""
    shaped_nodes = ShapedNodes(8, 100)
    yield shaped_nodes
    shaped_nodes.stop()


@needs_shaped_links
@pytest.mark.parametrize(("count", "slow"), [(8, 3), (5, 4)])
def test_slow_link_names_its_node(nodes: ShapedNodes, count: int, slow: int) -> None:
    """Jobs of 8 and of 5 nodes find the node with the slower link and its ratio within four rounds."""
    nodes.shape(slow, 40)
    completed = nodes.run(count, PROGRAM, *SHORT, "--fail-if-slow")
    nodes.shape(slow, 100)
    *rows, summary = read_rows(completed.stdout)
    assert summary["verdict"].startswith(f"1 of {count} nodes is slow: node-{slow} (0."), completed.stdout
    assert (rows[-1]["node"], rows[-1]["ratio"]) == (f"node-{slow}", pytest.approx(0.4, rel=0.35))
    assert summary["rounds"] <= 4
    assert (completed.returncode, "1 of" in completed.stderr) == (1, True)


@needs_shaped_links
def test_equal_links_name_no_node(nodes: ShapedNodes) -> None:
    """With six equal links no node is slow; each pair has a row, and each node is in one pair of a round."""
    completed = nodes.run(6, PROGRAM, *SHORT, "--fail-if-slow", "--threshold=0.5")
    *rows, summary = read_rows(completed.stdout)
    assert (completed.returncode, summary["verdict"], summary["rounds"]) == (0, "no slow node", 3), completed.stdout
    assert [row["round"] for row in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    for start in (0, 3, 6):
        pairs = [(row["node"], row["peer"]) for row in rows[start : start + 3]]
        assert len(set(itertools.chain(*pairs))) == 6


def test_processes_of_one_agent_are_one_node_by_default() -> None:
    """Two processes of one agent are a pair only with --each-process, and then have separate names."""
    refused = run(build_command(2, PROGRAM, "--size=4K"))
    assert "requires two nodes or more, each with the same number of processes" in refused.stderr
    rows = read_rows(run(build_command(2, PROGRAM, "--size=4K", "--each-process")).stdout)
    assert [row["node"].rpartition(":")[2] + row["peer"].rpartition(":")[2] for row in rows[:-1]] == ["01", "01"]
    assert json.dumps(rows[-1]["verdict"]) == '"no slow node"'


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--size=0"], "'0' is not a size"),
        (["--trials=0"], "one trial or more"),
        (["--threshold=1.5"], "--threshold must be between 0 and 1"),
        (["--expect=0"], "--expect above 0"),
        ([], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT must be set; start it with torchrun"),
    ],
)
def test_invalid_arguments_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    """Invalid arguments end the program with exit code 2 and one line, without a traceback."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", [PROGRAM, *argv])
    with pytest.raises(SystemExit, match="2"):
        pairwise.read_options()
    error = capsys.readouterr().err
    assert (error.count("\n"), message in error) == (1, True), error
