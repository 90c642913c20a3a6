"""`torchyard ps`: what it prints once, on a terminal and elsewhere, and whenever the list changes."""

import json
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.builders.listed_runs import FAILED, RUNNING, build_folder
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.cli import ps
from torchyard.cli.main import main
from torchyard.listing.listed_run import RunList
from torchyard.model.run import JobProgress
from torchyard.run.folder import RunFolder


def test_runs_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """By default there is a line for each run that goes on; without one, a sentence names the option for the others."""
    build_folder(*FAILED, name="over-a1b2c3d4")
    assert main(["ps"]) == 0
    assert capsys.readouterr().out.startswith(
        "no run of this machine is active; `torchyard ps --all` lists those that have ended"
    )
    build_folder(*RUNNING)
    assert main(["ps"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert (header.split()[0], line.split()[:2]) == ("RUN", ["mine-a1b2c3d4", "lost"])
    assert main(["ps", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_json_is_valid_by_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """stdout has one document, also if a source fails, which is reported in it, on stderr and by the exit code."""
    build_folder(*RUNNING)
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    assert main(["ps", "--json"]) == 1
    captured = capsys.readouterr()
    run_list = RunList.model_validate_json(captured.out)
    assert [run.name for run in run_list.runs] == ["mine-a1b2c3d4"]
    assert run_list.problems[0] in captured.err


def script_pauses(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Call a function in each pause between two readings; the pause after the last one is interrupted by Ctrl-C."""
    remaining = list(actions)

    def pause(_: float) -> None:
        if not remaining:
            raise KeyboardInterrupt
        remaining.pop(0)()

    fake_time = SimpleNamespace(
        sleep=pause, time=time.time, localtime=time.localtime, strftime=time.strftime, monotonic=time.monotonic
    )
    monkeypatch.setattr(ps, "time", fake_time)


def save_epoch(folder: RunFolder, epoch: int, remaining_s: float) -> None:
    progress = JobProgress(attempt=1, updated_at=time.time(), done=f"epoch {epoch} of 9", remaining_s=remaining_s)
    folder.save_progress(progress)


def test_changes_are_printed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal the list is printed when a run changes, and not when only an estimate does."""
    folder = build_folder(*RUNNING)
    folder.attempt(1).mkdir()
    (folder.attempt(1) / "plan.json").write_text("")
    monkeypatch.setattr(RunFolder, "attempt_plan", lambda *_: None)
    save_epoch(folder, 1, 90.0)
    script_pauses(
        monkeypatch,
        lambda: save_epoch(folder, 1, 80.0),
        lambda: save_epoch(folder, 2, 70.0),
        lambda: folder.record_event("end", end="stopped"),
    )
    with pytest.raises(KeyboardInterrupt):
        main(["ps", "--watch", "--json", "--all"])
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    states = [(run["state"], (run["progress"] or {}).get("done")) for (run,) in (doc["runs"] for doc in documents)]
    assert states == [("lost", "epoch 1 of 9"), ("lost", "epoch 2 of 9"), ("stopped", None)]


def test_terminal_is_drawn_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal each reading is drawn over the last one, and lines beyond its height are counted."""
    for number in range(30):
        build_folder(*RUNNING, name=f"mine-{number:08}")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    script_pauses(monkeypatch, list)
    with pytest.raises(KeyboardInterrupt):
        main(["ps", "--watch"])
    _, *screens = capsys.readouterr().out.split("\x1b[H")
    assert len(screens) == 2
    lines = screens[0].split("\n")
    assert len(lines) == 10
    assert lines[-2].startswith("... 24 more")
