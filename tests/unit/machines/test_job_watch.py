"""ProcessWatch: the states of processes, and logs that are copied here while they grow on other hosts."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import wait_until
from torchyard.machines.job_watch import INCOMPLETE_COPY, SUPERVISOR_KILLED, ProcessWatch
from torchyard.model.plan import Command, Process

MakeProcess = Callable[..., Process]
RUNNING = """echo '{"phase": "running", "started": 1}'; %s"""
RUNNING_WITH = """echo '{"phase": "running"%s}'; sleep 60"""
ENDED = """echo '{"phase": "exited", "exit": 0, "started": 1}'"""


def build_command(script: str) -> Command:
    return Command(argv=("sh", "-c", script, "sh"))


@pytest.fixture
def make_process(tmp_path: Path) -> MakeProcess:
    """A process whose log is `there`, copied by a script to `here`."""

    def make(follow: str, status: str = ENDED) -> Process:
        script = f"cd {tmp_path}; {follow}"
        log = str(tmp_path / "kept" / "here")
        return Process(
            name="a",
            host="localhost",
            log=log,
            submit=None,
            status=build_command(status),
            follow=build_command(script),
            cancel=None,
        )

    (tmp_path / "there").write_text("one\ntwo\nthree\n")
    return make


def poll_until(watch: ProcessWatch, condition: Callable[[], bool]) -> None:
    """Poll the watch until the condition holds."""

    def is_met() -> bool:
        watch.poll(timeout_s=0.05)
        return condition()

    wait_until(is_met)


TAIL = "tail -c +$(($1 + 1)) there"


def copy_log(process: Process, idle_timeout_s: float = 5.0) -> tuple[str, dict[str, str]]:
    """The copy once it is complete, and what is missing in it."""
    with ProcessWatch([process]) as watch:
        watch.drain_logs(idle_timeout_s=idle_timeout_s)
        return Path(process.log).read_text(), watch.lost_logs()


def test_log_is_copied(make_process: MakeProcess) -> None:
    """Every byte of the log is copied once the watch has drained it."""
    assert copy_log(make_process(TAIL)) == ("one\ntwo\nthree\n", {})


def test_partial_line_is_completed(make_process: MakeProcess) -> None:
    """A copy that was cut off in the middle of a line continues at that byte."""
    process = make_process(TAIL)
    Path(process.log).parent.mkdir()
    Path(process.log).write_text("one\ntw")
    assert copy_log(process) == ("one\ntwo\nthree\n", {})


def test_broken_copy_is_resumed(make_process: MakeProcess) -> None:
    """A connection that breaks in the middle is opened again, and no byte comes twice."""
    assert copy_log(make_process(f"{TAIL} | head -c 6; test $1 -ge 8")) == ("one\ntwo\nthree\n", {})


def test_incomplete_copy_is_reported(make_process: MakeProcess) -> None:
    """A copy that stays incomplete is reported with the command's error output."""
    text, losses = copy_log(make_process("echo no route >&2; exit 255"), idle_timeout_s=0.2)
    assert (text, losses) == ("", {"a": f"{INCOMPLETE_COPY}: no route"})


def test_store_is_not_waited_for(make_process: MakeProcess) -> None:
    """A store that still runs after its job has ended is not waited for, and its log counts as complete."""
    store = make_process("exec sleep 60", RUNNING % "exec sleep 60").model_copy(update={"name": "etcd"})
    with ProcessWatch([make_process(TAIL)], store) as watch:
        started_at = time.monotonic()
        watch.drain_logs(idle_timeout_s=30.0)
        assert (watch.lost_logs(), time.monotonic() - started_at < 20) == ({}, True)


def test_running_process_has_a_log(make_process: MakeProcess) -> None:
    """A process that prints nothing has an empty log as soon as it runs."""
    process = make_process("exec sleep 60", RUNNING % "exec sleep 60")
    with ProcessWatch([process]) as watch:
        while not watch.poll(timeout_s=1.0):
            pass
        assert Path(process.log).read_bytes() == b""


def test_removed_copy_is_restarted(make_process: MakeProcess, tmp_path: Path) -> None:
    """If the local folder is removed during the copy, the log is copied again from its first byte."""
    process = make_process(
        f"{TAIL}; sleep 0.5; echo four >> there; echo four; test $1 -ge 14", RUNNING % "exec sleep 60"
    )
    with ProcessWatch([process]) as watch:
        while watch.poll(timeout_s=0.3):
            pass
        shutil.rmtree(tmp_path / "kept")
        watch.drain_logs(idle_timeout_s=2.0)
    assert Path(process.log).read_text().startswith("one\ntwo\nthree\nfour\n")


@pytest.mark.parametrize(
    ("size", "follow", "is_disconnected"),
    [(', "log_size": 14', TAIL, False), (', "log_size": 15', TAIL, True), ("", "true", True), ("", TAIL, False)],
)
def test_log_that_is_still_copied_is_disconnected(
    make_process: MakeProcess, size: str, follow: str, is_disconnected: bool
) -> None:
    """A process is not silent until its copy is as long as the log was at first or, if unknown, has a byte."""
    with ProcessWatch([make_process(f"{follow}; exec sleep 60", RUNNING_WITH % size)]) as watch:
        if is_disconnected:
            for _ in range(6):
                watch.poll(timeout_s=0.1)
                assert watch.is_disconnected()
        else:
            poll_until(watch, lambda: not watch.is_disconnected())


def test_process_without_a_state_is_not_seen(make_process: MakeProcess) -> None:
    """The state of a process is unknown before its first status line and after its connection has broken."""
    with ProcessWatch([make_process("exec sleep 60", "sleep 0.3; " + RUNNING % "sleep 0.3; exit 255")]) as watch:
        watch.poll(timeout_s=0.0)
        assert not watch.is_fully_observed()
        poll_until(watch, watch.is_fully_observed)
        poll_until(watch, lambda: not watch.is_fully_observed())


def test_copy_resumes_after_a_full_disk(make_process: MakeProcess, tmp_path: Path) -> None:
    """A copy that a full disk has stopped is resumed once there is room."""
    process = make_process(TAIL, RUNNING % "exec sleep 60")
    Path(process.log).parent.mkdir()
    os.symlink("/dev/full", process.log)
    with ProcessWatch([process]) as watch:
        watch.drain_logs(idle_timeout_s=0.3)
        assert watch.lost_logs() == {"a": f"{INCOMPLETE_COPY}: [Errno 28] No space left on device"}
        os.unlink(process.log)
        time.sleep(1)
        watch.drain_logs(idle_timeout_s=0.3)
        assert (Path(process.log).read_text(), watch.lost_logs()) == ("one\ntwo\nthree\n", {})


@pytest.mark.parametrize(("state", "losses"), [("", {"a": SUPERVISOR_KILLED}), (', "recovered": true', {})])
def test_log_of_a_killed_supervisor_is_complete_once_recovered(
    make_process: MakeProcess, state: str, losses: dict[str, str]
) -> None:
    """The log of a killed supervisor is incomplete unless it was recovered from torchrun's own copy of the output."""
    assert copy_log(make_process(TAIL, f"""echo '{{"phase": "unsupervised"{state}}}'""")) == (
        "one\ntwo\nthree\n",
        losses,
    )


@pytest.mark.parametrize(
    ("status", "follow", "is_disconnected"),
    [
        (RUNNING % "sleep 60", f"{TAIL}; sleep 60", False),
        (RUNNING % "exit 255", f"{TAIL}; sleep 60", True),
        (RUNNING % "sleep 60", f"{TAIL}; exit 255", True),
        ("""echo '{"phase": "running", "detail": "the login has expired"}'; sleep 60""", f"{TAIL}; sleep 60", True),
    ],
)
def test_broken_connection_is_disconnected(
    make_process: MakeProcess, status: str, follow: str, is_disconnected: bool
) -> None:
    """A process does not count as silent while its connection is broken or its CLI gets no response."""
    with ProcessWatch([make_process(follow, status)]) as watch:
        if is_disconnected:
            for _ in range(6):  # the commands print and end; every watch is disconnected before that
                watch.poll(timeout_s=0.1)
            poll_until(watch, watch.is_disconnected)
        else:
            poll_until(watch, lambda: not watch.is_disconnected())
