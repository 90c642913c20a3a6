"""`torchyard logs`: the output of ranks and nodes, at once and while the job runs."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.builders.listed_runs import FAILED, RUNNING, build_folder
from tests.conftest import Write, load, plan_of
from torchyard.cli import logs
from torchyard.cli.main import main
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan

STAMP = "2026-11-21T08:00:47.123Z node | "
END = FAILED[len(RUNNING) :]


class LiveRun:
    """A run of two nodes with one rank each, whose logs a test writes."""

    def __init__(self, write: Write) -> None:
        self.folder = build_folder(*RUNNING)
        self._profile = load(write(launcher="baremetal", nodes=2))
        self.start_attempt(1)

    def start_attempt(self, number: int) -> None:
        plan = plan_of(self._profile, self.folder.path, number)
        self.folder.save_attempt_plan(number, AttemptPlan(plan=plan, deadlines=Deadlines()))
        self.print("node-0", "x   local_ranks=[0]", "x   global_ranks=[0]")
        self.print("node-1", "x   local_ranks=[0]", "x   global_ranks=[1]")

    def print(self, node: str, *texts: str) -> None:
        """Append lines to a log of the last attempt."""
        path = Path(self.folder.plans()[-1].nodes[node])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write("".join(f"{STAMP}{text}\n" for text in texts))

    def end(self) -> None:
        build_folder(*END)


@pytest.fixture
def run(write: Write) -> LiveRun:
    return LiveRun(write)


@pytest.fixture
def in_pauses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a function in each pause of the verb that follows; it must end a few pauses after the last one."""

    def script(*actions: Callable[[], object]) -> None:
        remaining: list[Callable[[], object]] = [*actions, *[list] * 5]

        def pause(_: float) -> None:
            remaining.pop(0)()

        monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
        monkeypatch.setattr(logs, "_STATE_INTERVAL_S", 0.0)

    return script


def test_rank_and_node_are_selected(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank has the lines that it printed, a node all but the records; one that the job does not have is refused."""
    run.print("node-1", "[default0]:mine", f"{RECORD_PREFIX}{{}}")
    assert main(["logs", run.folder.name, "--rank", "1"]) == 0
    assert capsys.readouterr().out == "mine\n"
    assert main(["logs", run.folder.name, "--node", "node-1"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["[default0]:mine"]
    assert main(["logs", run.folder.name, "--rank", "7"]) == 0  # the number of ranks is not known
    assert "no line of rank 7" in capsys.readouterr().err
    run.folder.record_event("start", run="an-id", processes=1)
    assert main(["logs", run.folder.name, "--rank", "7"]) == 3
    assert "its ranks are 0 to 1" in capsys.readouterr().err
    assert main(["logs", run.folder.name, "--node", "node-7"]) == 3
    assert "its nodes are node-0, node-1" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--rank", "-1"], ["--rank", "one"], ["--rank", "1", "--node", "node-1"]])
def test_wrong_selection_is_refused(options: list[str]) -> None:
    """A rank is a number from 0 on, and a node and a rank exclude each other."""
    assert main(["logs", "mine-a1b2c3d4", *options]) == 2


def test_following_ends_with_the_run(
    run: LiveRun, in_pauses: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """New lines are printed as they come, also those of the next attempt and those just before the end."""

    def end_with_a_last_line() -> None:
        run.print("node-1", "[default0]:last")
        run.end()

    in_pauses(
        lambda: run.print("node-1", "[default0]:one"),
        lambda: run.start_attempt(2),
        lambda: run.print("node-1", "[default0]:two"),
        end_with_a_last_line,
    )
    with run.folder.owned():
        assert main(["logs", run.folder.name, "--rank", "1", "-f"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["one", "two", "last"]
    assert captured.err.splitlines() == ["mine-a1b2c3d4: attempt 2", "mine-a1b2c3d4: failed: it broke"]


def test_run_that_is_over_is_printed_completely(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """If the run has ended before it is followed, all its lines are printed, and the verb ends."""
    run.print("node-0", "[default0]:one", "[default0]:two")
    run.end()
    assert main(["logs", run.folder.name, "-f"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"


def test_following_waits_for_the_first_attempt(
    write: Write, in_pauses: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is still in preflight can be followed."""
    folder = build_folder(("start", {"entry": "fresh"}))
    in_pauses(lambda: LiveRun(write).print("node-0", "[default0]:one"), lambda: build_folder(*END))
    with folder.owned():
        assert main(["logs", folder.name, "-f"]) == 0
    assert capsys.readouterr().out == "one\n"


def test_failed_reading_does_not_end_the_following(
    run: LiveRun,
    in_pauses: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A journal and a log that cannot be read for a while are read again."""
    journal = run.folder.path / "journal"
    hidden = run.folder.path / "hidden"

    def hide() -> None:
        journal.rename(hidden)
        journal.mkdir()

    def restore() -> None:
        journal.rmdir()
        hidden.rename(journal)
        run.print("node-0", "[default0]:one")

    in_pauses(hide, lambda: None, restore, run.end)
    with run.folder.owned():
        assert main(["logs", run.folder.name, "-f"]) == 0
    assert capsys.readouterr().out == "one\n"


def test_abandoned_run_is_not_followed_for_ever(
    run: LiveRun, in_pauses: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """If no process owns the run and its lease has ended, nobody records an end."""
    in_pauses()
    assert main(["logs", run.folder.name, "-f"]) == 1
    assert "its lease has ended" in capsys.readouterr().err


def test_run_of_another_machine_cannot_be_followed_here(
    run: LiveRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive has a log after the job's end: the error names the machine that has it, and the option for pods."""
    create_archive(tmp_path / "archive")
    archive_run(tmp_path / "archive", run.folder)
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "other-runs"))
    assert main(["logs", run.folder.name, "-f"]) == 1
    message = capsys.readouterr().err
    assert "has its logs on login-1" in message
    assert "follow it there, or with `--cluster`" in message
