"""What hosts send while a job runs is untrusted input: whatever it is, the launcher continues."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.lone_processes import build_lone_plan
from tests.python_commands import LARGE_STDERR, build_command
from torchyard.common.identity import identify_holder
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.status_stream import MAX_STATE_BYTES
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import CommandPlan, Process
from torchyard.model.profile import Deadlines
from torchyard.run.folder import runs_folder
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

RUNNING = '{"phase": "running", "started": 1.0}'
MakeProcess = Callable[..., Process]
FOLDER = "a-run-a1b2c3d4"


@pytest.fixture
def make_process(tmp_path: Path) -> MakeProcess:
    """A process whose host sends what a piece of Python code prints."""

    def make(status: str, follow: str = "") -> Process:
        log = str(tmp_path / "log")
        status_command = build_command(status)
        return Process(
            name="a", host="localhost", log=log, submit=None, status=status_command, cancel=None,
            follow=build_command(follow) if follow else None,
        )  # fmt: skip

    return make


@contextmanager
def watch_until(process: Process, condition: Callable[[ProcessWatch], object]) -> Iterator[ProcessWatch]:
    """A watch, once a condition holds."""
    deadline = time.monotonic() + 20
    with ProcessWatch([process]) as watch:
        while not condition(watch):
            assert time.monotonic() < deadline, "the condition was not met within 20 s"
            watch.poll(timeout_s=0.1)
        yield watch


@pytest.mark.parametrize("line", [
    "Welcome to gpu1!",
    '{"phase": "exited", "exit": 0',
    '[{"phase": "exited"}]',
    "null",
    "[" * 50_000,
    "\\xff\\xfe",
    '{"exit": ' + "9" * 5000 + "}",
], ids=range(7))  # fmt: skip
def test_line_that_is_not_a_state_is_ignored(make_process: MakeProcess, line: str) -> None:
    """A line that is not a supervisor's state is ignored, and does not end the stream."""
    status = f"import sys; sys.stdout.buffer.write(b'''{line}\\n{RUNNING}\\n'''); sys.stdout.flush(); sys.stdin.read()"
    with watch_until(make_process(status), lambda watch: watch.states["a"]) as watch:
        assert watch.states["a"] == {"phase": "running", "started": 1.0}
        assert not watch.is_disconnected()


@pytest.mark.parametrize("value", ['"exit": "0"', '"started": "now"', '"ended": NaN', '"ended": 1e999', '"phase": {}'])
def test_malformed_value_is_left_out(make_process: MakeProcess, value: str) -> None:
    """A malformed value in a state is left out, and the rest of the state counts."""
    status = f"print('''{{\"known\": 1, {value}}}''', flush=True); input()"
    with watch_until(make_process(status), lambda watch: watch.states["a"]) as watch:
        assert watch.states["a"] == {"known": 1}
        assert (watch.ended_at(), watch.started_at(), watch.exit_codes()) == (None, 0.0, {"a": None})


def test_endless_line_breaks_only_the_stream(make_process: MakeProcess) -> None:
    """A host that sends an endless line counts as disconnected, with a reason, and does not fill the memory."""
    status = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with watch_until(make_process(status), lambda watch: watch.diagnose()) as watch:
        diagnosis = watch.diagnose()
        assert diagnosis
        assert diagnosis.failure.sentence == "a cannot be queried: a line of more than 64 KiB, where a state should be"
    assert MAX_STATE_BYTES == 64 << 10


def test_flood_on_stderr_does_not_block_a_stream(make_process: MakeProcess, tmp_path: Path) -> None:
    """A stream with much output on stderr, as from `ssh -v`, is read to its end."""
    flood = LARGE_STDERR.replace("100_000", "12_500")  # 100 KB: more than a pipe holds
    process = make_process("input()", f"{flood}; print('one', flush=True); sys.exit(3)")
    with watch_until(process, lambda watch: watch.lost_logs().get("a", "").endswith("the last")):
        assert (tmp_path / "log").read_text().startswith("one\n")


def test_host_takes_four_descriptors(make_process: MakeProcess) -> None:
    """A host's two streams hold two descriptors each, and close them at the end."""
    descriptor_count = len(os.listdir("/proc/self/fd"))
    with ProcessWatch([make_process("input()", "input()")]):
        assert len(os.listdir("/proc/self/fd")) - descriptor_count == 1 + 2 * 2  # the selector has one
    assert len(os.listdir("/proc/self/fd")) == descriptor_count


# --- the owner of the run


@pytest.fixture
def job(write: Write) -> Iterator[CommandPlan]:
    """A submitted job of one process."""
    profile = load(write(code="import time; time.sleep(60)", agent="none", rendezvous="env"))
    plan = build_lone_plan(profile, runs_folder() / FOLDER)
    submit(plan, Deadlines())
    yield plan
    teardown(plan)


def write_heartbeat(plan: CommandPlan, owner: str) -> Path:
    """Write that this owner has just renewed the job's lease."""
    heartbeat_file = Path(plan.processes[0].log).parents[1] / "owner"
    heartbeat_file.write_text(owner.ljust(511) + "\n")
    return heartbeat_file


def poll_for(watch: ProcessWatch, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        watch.poll(timeout_s=0.2)


def test_job_of_another_owner_is_refused(job: CommandPlan) -> None:
    """If another owner renews a supervisor's lease, this launcher raises RunInUseError."""
    write_heartbeat(job, identify_holder(str(runs_folder() / FOLDER)).partition("#")[0] + "#0190c7f0aaaa")
    with ProcessWatch(job.processes) as watch, pytest.raises(RunInUseError, match="#0190c7f0aaaa"):
        poll_for(watch, 30)
