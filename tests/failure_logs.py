"""Logs of failed jobs: recorded, posted and made up, and what is known about them."""

from pathlib import Path

from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.model.run import Failure, LogLine

LOGS = Path(__file__).parent / "logs"
Exits = dict[str, int | None]
NAMES = sorted(path.stem for path in LOGS.glob("*.log") if path.stem != "posted-spellings")
SPELLINGS = [line.split(" ", 1) for line in (LOGS / "posted-spellings.log").read_text().splitlines()[1:]]
HARMLESS = (LOGS / "harmless-lines.txt").read_text().splitlines()  # warnings of programs that went on well
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
)


def load(name: str) -> tuple[dict[str, list[LogLine]], Exits, dict[str, str]]:
    """A log and what is known about it: `# exits: node-0=1 node-1=None`, `# expected: cause=...`, `time node text`."""
    logs: dict[str, list[LogLine]] = {}
    known: dict[str, dict[str, str]] = {}
    for row in (LOGS / f"{name}.log").read_text().split("\n"):
        if row.startswith(("# exits: ", "# expected: ")):
            known[row.split()[1]] = dict(pair.split("=") for pair in row.split()[2:])
        elif row and not row.startswith("# "):
            at, node, text = row.split(" ", 2)
            logs.setdefault(node, []).append(LogLine(float(at), node, text))
    exits = {node: None if code == "None" else int(code) for node, code in known["exits:"].items()}
    return logs, exits, known["expected:"]


def read(exits: Exits, **said: list[str]) -> Failure:
    """The failure of nodes that wrote these lines, one per second, from second 0 or from the leading number on."""
    logs: dict[str, list[LogLine]] = {}
    for name, rows in said.items():
        node, start = name.replace("_", "-"), int(rows[0]) if rows and rows[0].isdigit() else 0
        logs[node] = [LogLine(float(start + at), node, row) for at, row in enumerate(rows)]
    found = diagnose_failure(logs, {node.replace("_", "-"): code for node, code in exits.items()})
    assert found is not None
    return found


def block(rank: int, local: int, code: int, second: int) -> list[str]:
    """One entry of torchrun's failure summary."""
    return [
        "[0]:",
        f"  time      : 2026-11-21_08:22:{second:02}",
        "  host      : host-0",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: 42)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ]


def raised(local: int, error: str) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/app/train.py", line 3, in <module>',
        "    step()",
        error,
    ]
    return [f"[default{local}]:{line}" for line in lines]
