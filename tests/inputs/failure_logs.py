"""Logs of failed jobs, recorded, posted and invented, with their exit codes and expected diagnoses."""

from pathlib import Path

from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.model.run import Failure, LogLine

LOGS = Path(__file__).parents[1] / "logs"
Exits = dict[str, int | None]
NAMES = sorted(path.stem for path in LOGS.glob("*.log") if path.stem != "posted-spellings")
SPELLINGS = [line.split(" ", 1) for line in (LOGS / "posted-spellings.log").read_text().splitlines()[1:]]
HARMLESS = (LOGS / "harmless-lines.txt").read_text().splitlines()  # warnings of programs that did not fail
PROGRESS = (LOGS / "progress-lines.txt").read_text().split("\n")[:-1]  # of training programs and their libraries
NO_PROGRESS = (
    (LOGS / "no-progress-lines.txt").read_text().split("\n")[:-1]
)  # with the same words, or with numbers alone
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
)


def load_log(name: str) -> tuple[dict[str, list[LogLine]], Exits, dict[str, str]]:
    """A log by node, its exit codes and its expected diagnosis.

    Lines of the file: `# exits: node-0=1 node-1=None`, `# expected: cause=...`, `time node text`.
    """
    logs: dict[str, list[LogLine]] = {}
    headers: dict[str, dict[str, str]] = {}
    for row in (LOGS / f"{name}.log").read_text().split("\n"):
        if row.startswith(("# exits: ", "# expected: ")):
            headers[row.split()[1]] = dict(pair.split("=") for pair in row.split()[2:])
        elif row and not row.startswith("# "):
            timestamp, node, text = row.split(" ", 2)
            logs.setdefault(node, []).append(LogLine(float(timestamp), node, text))
    exits = {node: None if code == "None" else int(code) for node, code in headers["exits:"].items()}
    return logs, exits, headers["expected:"]


def diagnose_lines(exits: Exits, **lines: list[str]) -> Failure:
    """The failure of nodes that wrote these lines, one per second; a number as the first line is the first second."""
    logs: dict[str, list[LogLine]] = {}
    for name, rows in lines.items():
        node = name.replace("_", "-")
        start = int(rows[0]) if rows and rows[0].isdigit() else 0
        logs[node] = [LogLine(float(start + offset), node, row) for offset, row in enumerate(rows)]
    failure = diagnose_failure(logs, {node.replace("_", "-"): code for node, code in exits.items()})
    assert failure is not None
    return failure


def build_summary_entry(rank: int, local_rank: int, code: int, second: int) -> list[str]:
    """One entry of torchrun's failure summary."""
    return [
        "[0]:",
        f"  time      : 2026-11-21_08:22:{second:02}",
        "  host      : host-0",
        f"  rank      : {rank} (local_rank: {local_rank})",
        f"  exitcode  : {code} (pid: 42)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ]


def build_traceback(local_rank: int, error: str) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/app/train.py", line 3, in <module>',
        "    step()",
        error,
    ]
    return [f"[default{local_rank}]:{line}" for line in lines]
