"""What hosts say while a job runs is input: whatever it is, whoever carries the run goes on."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.processes import _MAX_OUTPUT_BYTES, pipe_command, run_command
from torchyard.machines.status_stream import _MAX_STATE_BYTES
from torchyard.model.errors import HostError
from torchyard.model.plan import Command, Process

RUNS = '{"phase": "running", "started": 1.0}'
Make = Callable[..., Process]


def python(code: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", "-c", code))


@pytest.fixture
def block(tmp_path: Path) -> Make:
    """A block whose host says what a text of Python prints."""

    def make(status: str, follow: str = "") -> Process:
        log, told = str(tmp_path / "log"), python(status)
        return Process(
            name="a", host="localhost", log=log, submit=None, status=told, cancel=None,
            follow=python(follow) if follow else None,
        )  # fmt: skip

    return make


@contextmanager
def watching(block: Process, until: Callable[[ProcessWatch], object]) -> Iterator[ProcessWatch]:
    """A watch, once something is so."""
    deadline = time.monotonic() + 20
    with ProcessWatch([block]) as watch:
        while not until(watch):
            assert time.monotonic() < deadline, "it did not come to that"
            watch.changes(0.1)
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
    """A line that no keeper prints tells nothing of its process, and ends nothing."""
    status = f"import sys; sys.stdout.buffer.write(b'''{noise}\\n{RUNS}\\n'''); sys.stdout.flush(); sys.stdin.read()"
    with watching(block(status), lambda watch: watch.seen["a"]) as watch:
        assert watch.seen["a"] == {"phase": "running", "started": 1.0}
        assert not watch.deaf()


@pytest.mark.parametrize("fact", ['"exit": "0"', '"started": "now"', '"ended": NaN', '"ended": 1e999', '"phase": {}'])
def test_fact_of_another_kind_is_left_out(block: Make, fact: str) -> None:
    """Of a state that says nonsense, the rest counts, and every question about it has an answer."""
    status = f"print('''{{\"known\": 1, {fact}}}''', flush=True); input()"
    with watching(block(status), lambda watch: watch.seen["a"]) as watch:
        assert watch.seen["a"] == {"known": 1}
        assert (watch.ended_at(), watch.running_at(), watch.exits()) == (None, 0.0, {"a": None})


def test_endless_line_breaks_the_stream_alone(block: Make) -> None:
    """A host that never ends its line is not heard, and says why; nothing fills the memory."""
    status = "import sys\nwhile True: sys.stdout.write('x' * 4096)"
    with watching(block(status), lambda watch: watch.why()) as watch:
        why = watch.why()
        assert why
        assert why.failure.sentence == "a cannot be asked: a line of more than 64 KiB, where a state should be"
    assert _MAX_STATE_BYTES == 64 << 10


FLOOD = "import sys; sys.stderr.write('warning\\n' * 100_000); sys.stderr.write('the last\\n'); sys.stderr.flush()"


def test_flood_beside_a_stream_does_not_stop_it(block: Make, tmp_path: Path) -> None:
    """A connection that says much beside its output, as `ssh -v` does, is heard to its end."""
    flood = FLOOD.replace("100_000", "12_500")  # 100 KB: more than a pipe holds
    made = block("input()", f"{flood}; print('one', flush=True); sys.exit(3)")
    with watching(made, lambda watch: watch.lost().get("a", "").endswith("the last")):
        assert (tmp_path / "log").read_text().startswith("one\n")


def test_flood_beside_an_answer_does_not_stop_it() -> None:
    """A command that says much beside its answer is heard, and its last words say why it failed."""
    assert run_command("localhost", python(f"{FLOOD}; print(1)")) == 1
    with pytest.raises(HostError, match=r"the last$"):
        run_command("localhost", python(f"{FLOOD}; sys.exit(1)"))


def test_flood_beside_a_pipe_does_not_stop_it() -> None:
    """What is brought from a host comes whole, whatever its connection says beside it."""
    assert pipe_command("localhost", python(f"{FLOOD}; print('one')"), lambda _, there: there.read()) == b"one\n"


def test_endless_answer_is_refused() -> None:
    """An answer that would fill the memory is none."""
    with pytest.raises(HostError, match=f"it answers more than {_MAX_OUTPUT_BYTES >> 20} MiB"):
        run_command("localhost", python("while True: print('x' * 65536)"))


def test_command_that_hangs_is_ended() -> None:
    """A command without an answer is ended after its time, and says so."""
    with pytest.raises(HostError, match=r"no answer within 0 s"):
        run_command("localhost", python("import time; time.sleep(60)"), timeout=0.3)


def test_host_takes_four_descriptors(block: Make) -> None:
    """A host's two streams hold two descriptors each, and give them back."""
    before = len(os.listdir("/proc/self/fd"))
    with ProcessWatch([block("input()", "input()")]):
        assert len(os.listdir("/proc/self/fd")) - before == 1 + 2 * 2  # the selector has one
    assert len(os.listdir("/proc/self/fd")) == before
