"""FailureMonitor: when the first rank that fails is reported, and how often."""

from pathlib import Path

import pytest

from tests.conftest import plan_of
from torchyard.diagnosis.first_failure.failure_signs import FailureSignReader
from torchyard.loading.profile import load_profile
from torchyard.model.event import RankFailed
from torchyard.model.run import LogLine
from torchyard.steps.failure_monitor import SETTLE_S, FailureMonitor

HEADER = "Traceback (most recent call last):"
RANKS = "I1126 api.py:553]   global_ranks=[0, 1]"
START = "I1126 api.py:715] [default] Starting worker group"
LOST = "E1126 api.py:1002] failed (exitcode: {}) local_rank: {} (pid: 42) of binary: /usr/bin/python"


class ScriptedLogs:
    """A job of two nodes whose log lines the test writes; `now` is the time of both."""

    def __init__(self, folder: Path) -> None:
        plan = plan_of(load_profile("digits-local"), folder)
        self.now = 0.0
        self.events: list[RankFailed] = []
        self.reader = FailureSignReader()
        self.monitor = FailureMonitor(plan, self.reader, self.events.append, clock=lambda: self.now)
        self._paths = plan.nodes

    def print(self, node: str, *texts: str) -> None:
        """Append lines to the log of a node, and read them."""
        path = Path(self._paths[node])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for text in texts:
                file.write(f"2026-11-26T10:00:{self.now:06.3f}Z {node} | {text}\n")
                self.reader.process_line(LogLine(self.now, node, text))

    def raise_error(self, node: str, rank: int, error: str) -> None:
        self.print(node, *(f"[default{rank % 2}]:[rank{rank}]: {text}" for text in (HEADER, '  File "a.py"', error)))

    def check(self, after_s: float) -> list[RankFailed]:
        """Check once after this time; return the events of this check."""
        self.now += after_s
        self.events.clear()
        self.monitor.check()
        return list(self.events)


@pytest.fixture
def logs(tmp_path: Path) -> ScriptedLogs:
    scripted = ScriptedLogs(tmp_path)
    for node in ("node-0", "node-1"):
        scripted.print(node, RANKS, START)
    return scripted


def test_first_rank_is_reported_once_and_then_its_exit_code(logs: ScriptedLogs) -> None:
    """Its words follow within `SETTLE_S`, its exit code when torchrun reports it, and no other rank follows."""
    logs.raise_error("node-0", 1, "ValueError: bad")
    assert logs.check(0.0) == []
    assert logs.monitor.is_pending
    [failure] = logs.check(SETTLE_S)
    assert (failure.rank, failure.exit_code, failure.lines[-1]) == (1, None, "ValueError: bad")
    logs.raise_error("node-1", 2, "RuntimeError: Connection reset by peer")
    logs.raise_error("node-1", 3, "ValueError: bad")
    assert [logs.check(SETTLE_S), logs.check(SETTLE_S)] == [[], []]
    logs.print("node-0", LOST.format(1, 1))
    logs.check(0.0)
    assert logs.check(SETTLE_S) == [RankFailed("node-0", 1, 1, 1, True, (), same_ranks=(3,))]
    logs.monitor.conclude({"node-0": 1, "node-1": 1})
    assert len(logs.events) == 1


def test_lost_peer_waits_for_the_rank_that_failed(logs: ScriptedLogs) -> None:
    """The errors of ranks that lost a peer are not reported: the killed rank is, which printed nothing."""
    logs.raise_error("node-1", 0, "RuntimeError: Connection closed by peer")
    assert [logs.check(delay_s) for delay_s in (0.0, SETTLE_S, 1.0, 2.0)] == [[]] * 4
    logs.print("node-0", LOST.format(-9, 1))
    logs.check(0.0)
    assert logs.check(SETTLE_S) == [RankFailed("node-0", 1, 1, -9, True, ())]


def test_late_end_of_a_traceback_is_awaited(logs: ScriptedLogs) -> None:
    """A traceback whose last line arrives later is quoted then, and not before."""
    logs.print("node-0", f"[default1]:[rank1]: {HEADER}")
    assert [logs.check(0.0), logs.check(SETTLE_S)] == [[], []]
    logs.print("node-0", '[default1]:[rank1]:   File "a.py"', "[default1]:[rank1]: KeyError: 1")
    [failure] = logs.check(2 * SETTLE_S)
    assert failure.lines == (HEADER, '  File "a.py"', "KeyError: 1")


def test_restarted_workers_are_reported_again(logs: ScriptedLogs) -> None:
    """After torchrun has started the workers again a new failure is reported, the same words only once."""
    reported = []
    for error in ("ValueError: step 1", "ValueError: step 2", "KeyError: 3"):
        logs.raise_error("node-0", 1, error)
        logs.check(0.0)
        reported += logs.check(SETTLE_S)
        logs.print("node-0", START)
        logs.check(SETTLE_S)
    assert [event.lines[-1:] for event in reported] == [("ValueError: step 1",), (), ("KeyError: 3",)]


def test_restart_in_the_log_of_an_attached_job_is_not_a_failure(logs: ScriptedLogs) -> None:
    """A failure that is read together with the later start of the workers is over."""
    logs.raise_error("node-0", 1, "ValueError: bad")
    logs.print("node-0", START)
    assert [logs.check(0.0), logs.check(SETTLE_S)] == [[], []]


@pytest.mark.parametrize(
    ("texts", "exit_codes", "expected"),
    [
        (("usage: train.py",), {"node-0": 2}, RankFailed("node-0", None, None, 2, True, ("usage: train.py",))),
        (("bye",), {"node-0": 137}, RankFailed("node-0", None, None, -9, True, ("bye",))),
        (("bye",), {"node-0": 0, "node-1": None}, None),
        ((), {"node-1": 1}, RankFailed("node-1", None, None, 1, True, ())),
    ],
)
def test_end_of_a_process_is_reported_at_the_end_of_the_job(
    tmp_path: Path, texts: tuple[str, ...], exit_codes: dict[str, int | None], expected: RankFailed | None
) -> None:
    """A failure without a sign is reported as the ends of the processes show it; without a failed one there is none."""
    logs = ScriptedLogs(tmp_path)
    logs.print("node-0", *texts)
    logs.monitor.conclude(exit_codes)
    assert logs.events == ([expected] if expected else [])


def test_lost_peer_is_reported_at_the_end_of_the_job(logs: ScriptedLogs) -> None:
    """If no rank has failed by itself until the job ends, the first one that lost its peer is reported."""
    logs.raise_error("node-1", 0, "RuntimeError: Connection closed by peer")
    logs.monitor.conclude({"node-0": 1, "node-1": 1})
    assert [event.node for event in logs.events] == ["node-1"]
