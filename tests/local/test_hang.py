"""A rank that hangs in a real training: it is reported, and the attempt is ended or restarted as `on_hang` defines."""

import re
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.processes.hanging_program import LINE, NAME, PROGRAM, check_hang
from tests.processes.local_runs import read_report, run_training


@pytest.mark.parametrize(("on_hang", "end", "attempts"), [("fail", "failed", 1), ("restart", "succeeded", 2)])
def test_hanging_rank_is_named_and_the_attempt_ends(write: Write, on_hang: str, end: str, attempts: int) -> None:
    """`fail` ends the run with the rank and its line as the cause; `restart` starts an attempt that succeeds."""
    completed = run_training(write(NAME, code=PROGRAM, nodes=2, on_hang=on_hang, attempts=2))
    report = read_report()
    assert (report.end, len(report.attempts)) == (end, attempts), completed.stderr
    check_hang(report.attempts[0])
    folder = Path(report.folder, "attempt-1")
    hang_file = folder / "hang" / "hang.txt"
    assert f"load_batch ({NAME}.py:{LINE})" in hang_file.read_text()
    hang_times = re.findall(r"hangs at ([\d.]+)", "".join(path.read_text() for path in folder.glob("node-*/log")))
    print(f"reported {hang_file.stat().st_mtime - float(hang_times[0]):.1f} s after the rank stopped")
