"""Nightly runs on this machine: whole runs of a program that prints a number, until one prints a worse number."""

import json
import os
from pathlib import Path

from tests.conftest import RUN_ID, Write, load
from tests.processes.local_runs import WITHOUT_AGENT
from torchyard.assembly import create_runner
from torchyard.run.control import LocalControl
from torchyard.run.runner import Runner

PROGRAM = """
import json, os
print(json.dumps({"step": 1, "busbw": float(os.environ["BUSBW"])}))
"""


def test_regression_fails_the_nightly_run(write: Write) -> None:
    """After six typical nights a worse run fails with the comparison as its sentence, and is not tried again."""
    path = write(
        code=PROGRAM,
        attempts=3,
        trend={"value": "busbw", "on_regression": "fail"},
        **WITHOUT_AGENT,
    )

    def play_night(number: int, busbw: float) -> Runner:
        run_id = f"{RUN_ID[:-8]}{number:08}"
        runner = create_runner(load(path, env={"BUSBW": str(busbw)}), run_id, LocalControl())
        ended = runner.run()
        ends.append((ended.end, ended.sentence))
        return runner

    ends: list[tuple[str, str]] = []
    for number in range(6):
        play_night(number, 200 + number % 2)
    assert [end for end, _ in ends] == ["succeeded"] * 6
    last_runner = play_night(6, 150)
    end, sentence = ends[-1]
    report = last_runner.folder.report()
    assert report
    assert (end, report.end, report.leftovers, len(report.attempts)) == ("failed", "failed", (), 1)
    assert sentence.startswith("busbw is 150, 25.2 % below 200.5, the median of the last 6 runs; ")
    assert sentence.endswith(f"; see {os.environ['TORCHYARD_RUNS']}/history/{Path(report.history).name}")
    records = [json.loads(line) for line in Path(report.history).read_text().splitlines()]
    assert [record["numbers"]["busbw"] for record in records] == [200, 201, 200, 201, 200, 201, 150]
    assert [step.name for step in report.steps] == ["preflight", "submit", "wait", "collect", "teardown"]
