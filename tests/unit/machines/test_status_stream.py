"""What hosts send while a job runs is untrusted input: whatever it is, the launcher goes on."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.lone_processes import lone_plan
from tests.python_commands import FLOOD, python
from torchyard.common.identity import _former_identity
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.status_stream import _MAX_STATE_BYTES
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import CommandPlan, Process
from torchyard.model.profile import Deadlines
from torchyard.run.folder import runs_folder
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

RUNS = '{"phase": "running", "started": 1.0}'
Make = Callable[..., Process]
FOLDER = "a-run-a1b2c3d4"


@pytest.fixture
def block(tmp_path: Path) -> Make:
    """A process whose host sends what a piece of Python code prints."""

    def make(status: str, follow: str = "") -> Process:
        log, told = str(tmp_path / "log"), python(status)
        return Process(
            name="a", host="localhost", log=log, submit=None, status=told, cancel=None,
            follow=python(follow) if follow else None,
        )  # fmt: skip

    return make


@contextmanager
def watching(block: Process, until: Callable[[ProcessWatch], object]) -> Iterator[ProcessWatch]:
    """A watch, once a condition holds."""
    deadline = time.monotonic() + 20
    with ProcessWatch([block]) as watch:
        while not until(watch):
            assert time.monotonic() < deadline, "it did not come to that"
            watch.poll(0.1)
        yield watch


@pytest.mark.parametrize("noise", [
    "Welcome to gpu1!",
    '{"phase": "exited", "exit": 0',
    '[{"phase": "exited"}]',
    "null",
    "[" * 50_000,
    "\\xff\\xfe",
    '{"exit": ' + "9" * 5000 + "}",
], ids=range(7))  # fmt: skip
def test_line_that_is_no_state_is_passed_over(block: Make, noise: str) -> None:
    """A line that is not a supervisor's state is ignored, and does not end the stream."""
    status = f"import sys; sys.stdout.buffer.write(b'''{noise}\\n{RUNS}\\n'''); sys.stdout.flush(); sys.stdin.read()"
    with watching(block(status), lambda watch: watch.seen["a"]) as watch:
        assert watch.seen["a"] == {"phase": "running", "started": 1.0}
        assert not watch.is_disconnected()


@pytest.mark.parametrize("fact", ['"exit": "0"', '"started": "now"', '"ended": NaN', '"ended": 1e999', '"phase": {}'])
def test_fact_of_another_kind_is_left_out(block: Make, fact: str) -> None:
    """A malformed value in a state is left out, and the rest of the state counts."""
    status = f"print('''{{\"known\": 1, {fact}}}''', flush=True); input()"
    with watching(block(status), lambda watch: watch.seen["a"]) as watch:
        assert watch.seen["a"] == {"known": 1}
        assert (watch.ended_at(), watch.started_at(), watch.exit_codes()) == (None, 0.0, {"a": None})


def test_endless_line_breaks_the_stream_alone(block: Make) -> None:
    """A host that sends an endless line counts as disconnected, with a reason, and does not fill the memory."""
    status = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with watching(block(status), lambda watch: watch.diagnose()) as watch:
        why = watch.diagnose()
        assert why
        assert why.failure.sentence == "a cannot be asked: a line of more than 64 KiB, where a state should be"
    assert _MAX_STATE_BYTES == 64 << 10


def test_flood_beside_a_stream_does_not_stop_it(block: Make, tmp_path: Path) -> None:
    """A stream with much output on stderr, as from `ssh -v`, is read to its end."""
    flood = FLOOD.replace("100_000", "12_500")  # 100 KB: more than a pipe holds
    made = block("input()", f"{flood}; print('one', flush=True); sys.exit(3)")
    with watching(made, lambda watch: watch.lost_logs().get("a", "").endswith("the last")):
        assert (tmp_path / "log").read_text().startswith("one\n")


def test_host_takes_four_descriptors(block: Make) -> None:
    """A host's two streams hold two descriptors each, and close them at the end."""
    before = len(os.listdir("/proc/self/fd"))
    with ProcessWatch([block("input()", "input()")]):
        assert len(os.listdir("/proc/self/fd")) - before == 1 + 2 * 2  # the selector has one
    assert len(os.listdir("/proc/self/fd")) == before


# --- the owner of the run


@pytest.fixture
def job(write: Write) -> Iterator[CommandPlan]:
    """A submitted job of one process."""
    profile = load(write(code="import time; time.sleep(60)", agent="none", rendezvous="env"))
    plan = lone_plan(profile, runs_folder() / FOLDER)
    submit(plan, Deadlines())
    yield plan
    teardown(plan)


def say(plan: CommandPlan, who: str) -> Path:
    """Write that this holder renewed the job's lease a moment ago."""
    looked = Path(plan.processes[0].log).parents[1] / "looked"
    looked.write_text(who.ljust(511) + "\n")
    return looked


def test_job_of_the_version_before_is_looked_after(job: CommandPlan) -> None:
    """If a supervisor knows this folder as `host:folder`, its lease is renewed under that name."""
    looked = say(job, _former_identity(str(runs_folder() / FOLDER)))
    before, until = looked.stat().st_mtime_ns, time.monotonic() + 30
    with ProcessWatch(job.processes) as watch:
        while looked.stat().st_mtime_ns == before and time.monotonic() < until:
            watch.poll(0.2)
    assert looked.stat().st_mtime_ns > before
    assert looked.read_text().strip() == _former_identity(str(runs_folder() / FOLDER))


def look(watch: ProcessWatch, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch.poll(0.2)


def test_job_of_another_container_is_not_looked_after(job: CommandPlan) -> None:
    """If another holder renews a supervisor's lease, this process leaves."""
    say(job, _former_identity(str(runs_folder() / FOLDER)) + "#0190c7f0aaaa")
    with ProcessWatch(job.processes) as watch, pytest.raises(RunInUseError, match="#0190c7f0aaaa"):
        look(watch, 30)
