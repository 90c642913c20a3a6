"""What hosts send while a job runs is untrusted input: whatever it is, the launcher continues."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.doubles.scripted_hosts import MakeProcess
from tests.processes.lone_processes import build_lone_plan
from tests.processes.python_commands import LARGE_STDERR
from torchyard.common.identity import identify_holder
from torchyard.host.state import FOLDER_REMOVED
from torchyard.machines.host_stream import MAX_LINE_BYTES
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.ownership import identify_owner, is_confirmed
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import CommandPlan, Process
from torchyard.model.profile import Deadlines
from torchyard.run.folder import runs_folder
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

FOLDER = "a-run-a1b2c3d4"
STAYS = "sys.stdin.read()\n"


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
    '{"process": "a", "state": {"phase": "exited", "exit": 0}',
    '[{"phase": "exited"}]',
    '{"process": "b", "state": {"phase": "exited"}}',
    '{"process": ["a"], "state": 3}',
    '{"process": "a", "log_end": "x"}',
    "null",
    "[" * 50_000,
    "\\xff\\xfe",
    '{"exit": ' + "9" * 5000 + "}",
], ids=range(10))  # fmt: skip
def test_line_that_is_not_of_the_protocol_is_ignored(make_process: MakeProcess, line: str) -> None:
    """A line that is not the protocol's is ignored, and does not end the stream."""
    code = f"sys.stdout.buffer.write(b'''{line}\\n''')\ntail()\nstate(started=1.0)\n{STAYS}"
    process = make_process(code)
    (Path(process.log).parents[2] / "there").write_text("one\n")
    with watch_until(process, lambda watch: watch.states["a"]) as watch:
        assert watch.states["a"] == {"phase": "running", "started": 1.0}
        assert not watch.is_disconnected()


@pytest.mark.parametrize("value", ['"exit": "0"', '"started": "now"', '"ended": NaN', '"ended": 1e999', '"phase": {}'])
def test_malformed_value_is_left_out(make_process: MakeProcess, value: str) -> None:
    """A malformed value in a state is left out, and the rest of the state counts."""
    code = f'print(\'\'\'{{"process": "a", "state": {{"known": 1, {value}}}}}\'\'\', flush=True)\n{STAYS}'
    with watch_until(make_process(code), lambda watch: watch.states["a"]) as watch:
        assert watch.states["a"] == {"known": 1}
        assert (watch.ended_at(), watch.started_at(), watch.exit_codes()) == (None, 0.0, {"a": None})


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: sys.stdout.write('x' * 4096)", "a line of more than 64 KiB, where a state should be"),
        (f"send(process=name, log=0, size=1 << 40)\n{STAYS}", "a piece of a log without a valid size"),
        (f"send(process=name, log=0, size='9')\n{STAYS}", "a piece of a log without a valid size"),
    ],
)
def test_flood_breaks_only_the_stream(make_process: MakeProcess, code: str, reason: str) -> None:
    """A host that sends an endless line or piece counts as disconnected, with a reason, and fills no memory."""
    with watch_until(make_process(code), lambda watch: watch.diagnose()) as watch:
        diagnosis = watch.diagnose()
        assert diagnosis
        assert diagnosis.failure
        assert diagnosis.failure.cause == "host-silent"
        assert diagnosis.sentence == f"a cannot be queried: {reason}"
    assert MAX_LINE_BYTES == 64 << 10


def test_flood_on_stderr_does_not_block_a_stream(make_process: MakeProcess) -> None:
    """A stream with much output on stderr, as from `ssh -v`, is read to its end."""
    flood = LARGE_STDERR.replace("100_000", "12_500")  # 100 KB: more than a pipe holds
    process = make_process(f"{flood}\ntail()\nsys.exit(3)")
    (Path(process.log).parents[2] / "there").write_text("one\n")
    with watch_until(process, lambda watch: watch.lost_logs().get("a", "").endswith("the last")):
        assert Path(process.log).read_text().startswith("one\n")


def test_heartbeats_are_sent_while_a_log_cannot_be_written(make_process: MakeProcess, tmp_path: Path) -> None:
    """A full disk of this machine stops the copy of a log, and neither states nor the renewal of the lease."""
    code = """
state(started=1)
tail()
for line in sys.stdin:
    with open("requests", "a") as file:
        file.write(line)
"""
    process = make_process(code)
    (tmp_path / "there").write_text("one\n")
    Path(process.log).parent.mkdir(parents=True)
    os.symlink("/dev/full", process.log)
    requests = tmp_path / "requests"
    with watch_until(process, lambda _: requests.exists() and requests.read_text().count("owner") >= 2) as watch:
        assert watch.diagnose() is None
    assert '{"logs": {"a": null}}' in requests.read_text()


def test_place_takes_two_descriptors(make_process: MakeProcess) -> None:
    """A host's stream holds two descriptors for all of its processes, and closes them at the end."""
    descriptor_count = len(os.listdir("/proc/self/fd"))
    first = make_process(STAYS)
    with ProcessWatch([first, first.model_copy(update={"name": "b"})]):
        assert len(os.listdir("/proc/self/fd")) - descriptor_count == 1 + 2  # the selector has one
    assert len(os.listdir("/proc/self/fd")) == descriptor_count


def test_removed_folder_does_not_end_a_living_process(make_process: MakeProcess) -> None:
    """While a process of the attempt lives, a host without the run's folder has a running job, and is asked again."""
    process = make_process("send(site=False, is_running=True)\n")
    with watch_until(process, lambda watch: bool(watch.states["a"])) as watch:
        assert (watch.states["a"]["phase"], watch.states["a"]["detail"]) == ("running", FOLDER_REMOVED)
        assert watch.lost_logs()
        assert watch.is_disconnected()


# --- the owner of the run


@pytest.mark.parametrize(("problem", "warnings"), [("", []), ("no room", ["localhost: no room"])])
def test_heartbeat_that_was_not_recorded_confirms_nothing(
    make_process: MakeProcess, caplog: pytest.LogCaptureFixture, problem: str, warnings: list[str]
) -> None:
    """A host that cannot record the run's owner does not confirm it, and the reason is reported once."""
    response = f"send(ages={{name: 1}}, problem={problem!r})\n"
    process = make_process(f"tail()\nstate(started=1.0)\n{response * 2}state(started=2.0)\n{STAYS}")
    with watch_until(process, lambda watch: watch.states["a"].get("started") == 2.0):
        assert is_confirmed("localhost", identify_owner(process.log)) is not bool(problem)
    assert caplog.messages == warnings


@pytest.fixture
def job(write: Write) -> Iterator[CommandPlan]:
    """A submitted job of one process."""
    profile = load(write(code="import time; time.sleep(60)", agent="none", rendezvous="env"))
    plan = build_lone_plan(profile, runs_folder() / FOLDER)
    submit(plan, Deadlines())
    yield plan
    write_heartbeat(plan, identify_holder(str(runs_folder() / FOLDER)))  # only its owner may end it
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
