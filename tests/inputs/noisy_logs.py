"""Logs of jobs that failed after a harmless line: the line, some progress, and one of many ends."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.inputs.failure_logs import LOGS, Exits, build_summary_entry, build_traceback
from torchyard.model.run import LogLine

EARLY_LINES = (LOGS / "early-lines.txt").read_text().splitlines()  # of programs that went on after them
_START = [
    "W1121 08:22:10.123456 42 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable",
    "I1121 08:22:11.123456 42 torch/distributed/elastic/agent/server/api.py:715] [default] Starting worker group",
]
_WATCHDOG = (
    "[E1121 09:22:10.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds"
)


class Ending(NamedTuple):
    """How a job of two ranks ends on one node.

    worker_lines: what rank 1 prints last.
    agent_lines: what torchrun prints then.
    cause, rank, retry: the expected diagnosis.
    """

    worker_lines: Sequence[str]
    agent_lines: Sequence[str]
    exit_code: int | None
    cause: str
    rank: int | None
    retry: bool


def _report(code: int) -> list[str]:
    """torchrun's report about rank 1."""
    return [
        f"E1121 09:22:10.12 42 torch/elastic/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 42) of",
        "Root Cause (first observed failure):",
        *build_summary_entry(1, 1, code, 10),
    ]


def _traceback(error: str) -> list[str]:
    return [line.partition(":")[2] for line in build_traceback(1, error)]


_DEATH_SIGNAL = [
    "W1121 09:22:10.123456 42 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal",
    "W1121 09:22:10.223456 42 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 43 closing signal",
    *_traceback("torch.distributed.elastic.multiprocessing.api.SignalException: Process 42 got signal: 15"),
]
ENDINGS = {
    "exit code": Ending([], _report(3), 1, "program-error", 1, retry=False),
    "sys.exit with a text": Ending(["the folder is not empty"], _report(1), 1, "program-error", 1, retry=False),
    "SIGKILL": Ending([], _report(-9), 1, "killed", 1, retry=False),
    "SIGTERM of a rank": Ending([], _report(-15), 1, "terminated", 1, retry=True),
    "SIGTERM of the agent": Ending([], _DEATH_SIGNAL, 1, "terminated", None, retry=True),
    "SIGSEGV": Ending([], _report(-11), 1, "segfault", 1, retry=False),
    "SIGABRT": Ending([], _report(-6), 1, "abort", 1, retry=False),
    "watchdog": Ending([_WATCHDOG], _report(-6), 1, "nccl-timeout", 1, retry=True),
    "gloo timeout": Ending(
        _traceback("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv"),
        _report(1),
        1,
        "peer-timeout",
        1,
        retry=True,
    ),
    "lost peer": Ending(
        _traceback("RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.5]:123"),
        _report(1),
        1,
        "peer-lost",
        1,
        retry=True,
    ),
    "traceback": Ending(_traceback("ValueError: bad batch"), _report(1), 1, "program-error", 1, retry=False),
    "agent killed": Ending([], [], -9, "agent-killed", None, retry=True),
    "agent stopped": Ending([], [], 143, "terminated", None, retry=True),
}


def _tag_none(rank: int, line: str) -> str:
    return line


def _tag_by_tee(rank: int, line: str) -> str:
    return f"[default{rank}]:{line}"


class Stream(NamedTuple):
    """How the lines of ranks are marked: those of their progress and end, and the early one."""

    tag: Callable[[int, str], str]
    tag_early: Callable[[int, str], str]


STREAMS = {
    "tee": Stream(_tag_by_tee, _tag_by_tee),
    "no tee": Stream(_tag_none, _tag_none),
    "tee, line of the agent": Stream(_tag_by_tee, _tag_none),
}


def build_noisy_log(ending: Ending, early_line: str, stream: Stream) -> tuple[list[LogLine], Exits]:
    """The log of a job in which rank 1, or its agent, prints a line, then makes progress for a minute, and then ends.

    `early_line`: "" for none.
    """
    tag = stream.tag
    rows: list[tuple[float, str]] = [(float(index), line) for index, line in enumerate(_START)]
    rows.append((10.0, tag(1, "the model has 124M parameters")))
    if early_line:
        rows.append((12.0, stream.tag_early(1, early_line)))
    for step in range(5):
        rows += [(20.0 + 15.0 * step, tag(rank, f"step {step} loss {5.0 - step:.3f}")) for rank in (0, 1)]
    rows += [(90.0, tag(1, line)) for line in ending.worker_lines]
    rows += [(91.0, line) for line in ending.agent_lines]
    return [LogLine(timestamp, "node-0", text) for timestamp, text in rows], {"node-0": ending.exit_code}
