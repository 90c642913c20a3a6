"""The first rank that failed and its last words, in recorded logs whose lines arrive one by one."""

from collections import deque

import pytest

from tests.inputs.failure_logs import HARMLESS, LOGS, NAMES, load_log
from torchyard.diagnosis.first_failure.failure_signs import FailureSign, FailureSignReader
from torchyard.diagnosis.first_failure.last_words import LastWords, find_first_failure, find_same_ranks
from torchyard.model.run import LogLine

# Logs of workers that failed, whose words are in their own lines; every other log names no rank that failed by itself.
WORKER_LOGS = [
    name
    for name in NAMES
    if name.startswith(("program-", "torchrun-worker-")) and "zero" not in name and "early" not in name
]
HEALTHY_LOGS = sorted(path.name for path in LOGS.glob("*.txt"))
LOST = "E1126 api.py:1002] failed (exitcode: {}) local_rank: {} (pid: 42) of binary: /usr/bin/python"


def read_while_it_runs(logs: dict[str, list[LogLine]]) -> LastWords | None:
    """The first failure that the lines show, read after each sign while later lines are missing; None without one."""
    reader = FailureSignReader()
    tails: dict[str, deque[LogLine]] = {node: deque(maxlen=400) for node in logs}
    pending_lines = 0  # since a failure_sign whose last_words are not complete
    for line in sorted((line for lines in logs.values() for line in lines), key=lambda line: line.timestamp):
        change_count = reader.change_count
        reader.process_line(line)
        tails[line.node].append(line)
        if reader.change_count != change_count:
            pending_lines = 100
        if pending_lines:
            pending_lines -= 1
            arrived = {node: list(tail) for node, tail in tails.items()}
            failure = find_first_failure(reader.signs, arrived, with_consequences=False)
            if failure:
                return failure
    return None


@pytest.mark.parametrize("name", WORKER_LOGS)
def test_rank_that_failed_is_found_before_the_job_has_ended(name: str) -> None:
    """The first sign that is not a consequence is of the rank that the complete log shows as the cause."""
    logs, _, expected = load_log(name)
    failure = read_while_it_runs(logs)
    assert failure is not None
    assert (failure.failure_sign.node, str(failure.rank)) == (expected["node"], expected["rank"])
    assert failure.failure_sign.exit_code is None or str(failure.failure_sign.exit_code) == expected["exit_code"]


def test_error_names_the_rank_if_torchrun_does_not() -> None:
    """Of a node whose log does not name its ranks, the line that shows the error may do so."""
    lines = [
        *build_rank_lines(3, build_traceback("ValueError: bad")[1:], 1.0, tee=""),
        LogLine(2.0, "node-0", LOST.format(1, 0)),
    ]
    last_words = read_while_it_runs({"node-0": lines})
    assert last_words is not None
    assert last_words.rank == 3


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("torchrun-peer-lost", "FloatingPointError: loss is nan at step 3"),
        ("torchrun-worker-raises", "KeyError: 'label'"),
        ("torchrun-worker-records", "ValueError: batch size 33 is not a multiple of 2"),
        ("torchrun-module-missing", "ModuleNotFoundError: No module named 'flash_attn_9'"),
    ],
)
def test_traceback_is_quoted(name: str, last_line: str) -> None:
    """The lines are the traceback from its header on, without prefixes; a peer's later error is not among them."""
    failure = read_while_it_runs(load_log(name)[0])
    assert failure is not None
    assert failure.lines[0] == "Traceback (most recent call last):"
    assert failure.lines[-1] == last_line


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("program-exit-text", "checkpoint folder /ckpt is not empty: pass --overwrite"),
        ("program-sigkill", "train | step 30 | loss 16.000"),
        ("program-caught-oom", "{'loss': -0.2193, 'epoch': 0.6}"),
    ],
)
def test_rank_without_a_traceback_has_its_last_lines(name: str, last_line: str) -> None:
    """A rank that exits or is killed has its last lines; an exception that it had caught before is not among them."""
    failure = read_while_it_runs(load_log(name)[0])
    assert failure is not None
    assert failure.lines[-1] == last_line
    assert len(failure.lines) == 3


@pytest.mark.parametrize("name", HEALTHY_LOGS)
def test_healthy_log_has_no_failure(name: str) -> None:
    """Lines that healthy programs print show no rank that failed."""
    texts = (LOGS / name).read_text(errors="replace").splitlines()
    lines = [LogLine(float(second), "node-0", f"[default0]:{text}") for second, text in enumerate(texts)]
    assert read_while_it_runs({"node-0": lines}) is None


def build_rank_lines(rank: int, texts: list[str], started_at: float, tee: str = "[default{}]:") -> list[LogLine]:
    """Lines of a rank as torch's hook and torchrun's tee print them, a millisecond apart."""
    prefix = f"{tee.format(rank)}[rank{rank}]: "
    return [LogLine(started_at + index / 1000, "node-0", prefix + text) for index, text in enumerate(texts)]


def build_traceback(error: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "/srv/train.py", line 3, in <module>', "    main()", error]


def test_traceback_that_is_not_complete_waits() -> None:
    """Without its last line, a traceback is not quoted, also if the rank has caught another exception before."""
    caught = [LogLine(1.0, "node-0", f"[default0]:{text}") for text in build_traceback("KeyError: 'a'")]
    lines = [*caught, *build_rank_lines(0, build_traceback("ValueError: b"), 2.0)]
    assert read_while_it_runs({"node-0": lines[:-1]}) is None
    failure = read_while_it_runs({"node-0": lines})
    assert failure is not None
    assert failure.lines[-1] == "ValueError: b"


def test_ranks_with_the_same_words_are_counted() -> None:
    """Ranks whose error differs only in numbers print the same; one that lost its peer does not."""
    lines: list[LogLine] = []
    for rank, error in (
        (1, "ValueError: bad 17"),
        (2, "ValueError: bad 18"),
        (3, "RuntimeError: Connection reset by peer"),
    ):
        lines += build_rank_lines(rank, build_traceback(error), 1.0 + rank)
    reader = FailureSignReader()
    for line in lines:
        reader.process_line(line)
    failure = find_first_failure(reader.signs, {"node-0": lines}, with_consequences=False)
    assert failure is not None
    assert (failure.rank, failure.same_ranks) == (1, (2,))
    assert find_same_ranks(reader.signs[0], reader.signs, {"node-0": lines}) == (2,)


def test_lost_peer_is_a_failure_only_without_a_better_one() -> None:
    """A rank that lost its peer is reported only if that is asked for, and after a rank that failed by itself."""
    noise = build_rank_lines(0, build_traceback("RuntimeError: Connection reset by peer"), 1.0)
    killed = LogLine(2.0, "node-0", LOST.format(-9, 1))
    reader = FailureSignReader()
    for line in (*noise, killed):
        reader.process_line(line)
    logs = {"node-0": [*noise, killed]}
    first_signs = reader.signs[:1]
    assert find_first_failure(first_signs, logs, with_consequences=False) is None
    for signs, expected in ((first_signs, 0), (reader.signs, 1)):
        failure = find_first_failure(signs, logs, with_consequences=True)
        assert failure is not None
        assert failure.failure_sign.local_rank == expected


def test_long_words_are_bounded() -> None:
    """A traceback of any depth keeps its last lines, each of bounded length, without control codes."""
    frames = ['  File "/srv/train.py", line 3, in recurse', "    \x1b[2Jrecurse()"] * 500
    lines = build_rank_lines(
        0, [*build_traceback(f"ValueError: {'x' * 9000}")[:2], *frames, f"ValueError: {'x' * 9000}"], 1.0
    )
    failure_sign = FailureSign("node-0", 0, 0, 1.0)
    failure = find_first_failure([failure_sign], {"node-0": lines}, with_consequences=False)
    assert failure is not None
    assert len(failure.lines) == 40
    assert failure.lines[-1].startswith("ValueError: xxx")
    assert all(len(line) <= 240 and "\x1b" not in line for line in failure.lines)


@pytest.mark.parametrize("line", HARMLESS[:3])
def test_process_without_an_error_has_its_last_line(line: str) -> None:
    """A process that is its node's only one has its last lines, if none of them shows an error."""
    failure_sign = FailureSign("node-0", None, None, 1.0, exit_code=3, has_ended=True)
    failure = find_first_failure([failure_sign], {"node-0": [LogLine(1.0, "node-0", line)]}, with_consequences=True)
    assert failure is not None
    assert failure.lines == (line,)
