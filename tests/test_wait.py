"""Waiting for a job of processes here: attached late, with clocks that are wrong, and in trouble of one's own."""

import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.model.errors import FolderError
from torchyard.model.plan import Command, CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome
from torchyard.steps.log_reader import _MAX_READ_BYTES, JobLogReader
from torchyard.steps.wait import wait

Make = Callable[..., CommandPlan]
OLD, JOINED = "2026-01-01T00:00:00.000Z node-0 | %s\n", "Rendezvous complete for workers."
STATUS = """echo '{"phase": "running", "started": 1%s}'; for _ in $(seq %d); do test -e over && break; sleep 0.1; done
echo '{"phase": "exited", "exit": 0, "ended": 1%s}'"""


def sh(script: str, folder: Path) -> Command:
    return Command(argv=("sh", "-c", f"cd {folder}; {script}", "sh"))


@pytest.fixture
def job(write: Write, tmp_path: Path) -> Make:
    """A job of one node, which runs for some tenths of a second; its log is here, or copied by a script."""

    def make(tenths: int = 15, follow: str = "", size: str = "", log: str = JOINED) -> CommandPlan:
        plan = command_plan_of(load(write()), tmp_path / "run")
        path = Path(plan.on[0].log)
        (tmp_path / "there").write_text(OLD % log)
        if not follow:
            path.parent.mkdir(parents=True)
            path.write_text(OLD % log)
        change = {
            "status": sh(STATUS % (size, tenths, size), tmp_path),
            "follow": sh(follow, tmp_path) if follow else None,
            "cancel": sh("""touch over; echo '{"left": []}'""", tmp_path),
        }
        return plan.model_copy(update={"on": (plan.on[0].model_copy(update=change),)})

    return make


def waited(plan: CommandPlan, age: float = 0.0, pulse: Callable[[list[str]], None] = lambda _: None) -> Outcome:
    limits = Deadlines(start=1.0, silence=1.0)
    return wait(Handle(plan=plan, deadlines=limits, created=not age, submitted_at=1.0, age=age), pulse)


def speak(path: Path, stamp: str, times: int) -> None:
    """Add a line five times a second, stamped alike."""
    for _ in range(times):
        time.sleep(0.2)
        with path.open("a") as file:
            file.write(f"{stamp} node-0 | text\n")


def test_old_run_is_attached_to_and_lives(job: Make) -> None:
    """A run much older than its deadlines, the last line of which is old as well, has a whole silence from now."""
    assert waited(job(tenths=7), age=5000).status.state == "succeeded"


def test_log_that_comes_late_has_not_failed_to_start(job: Make) -> None:
    """Who attaches over a slow connection does not judge the start before the log has come; nor the silence."""
    plan = job(tenths=25, follow="sleep 2; tail -c +$(($1 + 1)) there; sleep 9", size=', "log_size": 66')
    assert waited(plan, age=5000).status.state == "succeeded"


def test_clock_of_a_node_that_is_behind_is_not_silence(job: Make) -> None:
    """Lines that arrive are no silence, though they are stamped half an hour ago."""
    plan = job(tenths=22)
    thread = threading.Thread(target=speak, args=(Path(plan.on[0].log), "2026-01-01T00:00:00Z", 11))
    thread.start()
    assert waited(plan).status.state == "succeeded"
    thread.join()


def test_clock_of_a_node_that_is_ahead_hides_no_hang(job: Make) -> None:
    """A line from the future is as old as its arrival."""
    plan = job(tenths=100)
    Path(plan.on[0].log).write_text(OLD.replace("2026", "2099") % JOINED)
    assert waited(plan).cause == "silence"


def test_job_that_never_starts_is_late(job: Make) -> None:
    """Nobody has joined, and that is known."""
    assert waited(job(tenths=100, log="text")).cause == "start-deadline"


# --- trouble of one's own


@pytest.mark.parametrize("error", [FolderError("x", "gone"), OSError(28, "No space left on device"), ValueError("x")])
def test_pulse_that_fails_ends_nothing(job: Make, error: Exception) -> None:
    """What the wait reports to is its own affair: the job goes on, and its end is seen."""

    def pulse(_: list[str]) -> None:
        raise error

    assert waited(job(tenths=3), pulse=pulse).status.state == "succeeded"


def test_descriptors_that_are_used_up_are_waited_for(job: Make, caplog: pytest.LogCaptureFixture) -> None:
    """With no descriptor left the wait begins a moment later, and says so once."""
    plan, before = job(tenths=3), resource.getrlimit(resource.RLIMIT_NOFILE)
    threading.Timer(1.5, resource.setrlimit, (resource.RLIMIT_NOFILE, before)).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        assert waited(plan).status.state == "succeeded"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert caplog.text.count("Too many open files; the job goes on, and it is tried again") == 1


# --- the logs, read in pieces


def follower(plan: CommandPlan) -> tuple[JobLogReader, Path]:
    return JobLogReader(plan), Path(plan.on[0].log)


def test_long_log_is_read_in_pieces(job: Make) -> None:
    """No look reads more of a log than a bounded piece, and each line is handed on once."""
    found, path = follower(job(log=f"{JOINED} group_rank=0"))
    with path.open("a") as file:
        file.writelines(OLD % f"[default0]:{number} {'x' * 1000}" for number in range(3000))
    sizes = []
    while found.behind:
        sizes.append(len(found.read()))
    assert (sum(sizes), found.lines) == (3000, 3001)
    assert max(sizes) * 1000 <= _MAX_READ_BYTES


def test_log_that_begins_anew_is_read_from_there(job: Make) -> None:
    """Where a folder was removed, and its log is written anew, the new one is read; who has joined stays joined."""
    found, path = follower(job())
    found.read()
    shutil.rmtree(path.parent)
    found.read()
    path.parent.mkdir()
    path.write_text(OLD % "new")
    found.read()
    assert (found.lines, found.joined) == (2, {"node-0"})
