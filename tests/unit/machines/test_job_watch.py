"""A log that is written elsewhere, and copied here while it grows."""

import os
import shutil
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from torchyard.machines.job_watch import TORN_LOG, UNKEPT_LOG, ProcessWatch
from torchyard.model.plan import Command, Process

Make = Callable[..., Process]
RUNS = """echo '{"phase": "running", "started": 1}'; %s"""
SAYS = """echo '{"phase": "running"%s}'; sleep 60"""
ENDED = """echo '{"phase": "exited", "exit": 0, "started": 1}'"""


def sh(script: str) -> Command:
    return Command(argv=("sh", "-c", script, "sh"))


@pytest.fixture
def block(tmp_path: Path) -> Make:
    """A process whose log is `there`, copied by a script to `here`."""

    def make(follow: str, status: str = ENDED) -> Process:
        script = f"cd {tmp_path}; {follow}"
        log = str(tmp_path / "kept" / "here")
        return Process(
            name="a", host="localhost", log=log, submit=None, status=sh(status), follow=sh(script), cancel=None
        )

    (tmp_path / "there").write_text("one\ntwo\nthree\n")
    return make


FROM = "tail -c +$(($1 + 1)) there"


def copied(block: Process, seconds: float = 5.0) -> tuple[str, dict[str, str]]:
    """The copy once it is complete, and what it lacks."""
    with ProcessWatch([block]) as watch:
        watch.drain_logs(seconds)
        return Path(block.log).read_text(), watch.lost_logs()


def test_log_is_copied(block: Make) -> None:
    """Every byte of the log is copied once the watch has drained it."""
    assert copied(block(FROM)) == ("one\ntwo\nthree\n", {})


def test_torn_line_is_completed(block: Make) -> None:
    """A copy that was cut off in the middle of a line continues at that byte."""
    made = block(FROM)
    Path(made.log).parent.mkdir()
    Path(made.log).write_text("one\ntw")
    assert copied(made) == ("one\ntwo\nthree\n", {})


def test_broken_copy_goes_on(block: Make) -> None:
    """A connection that breaks in the middle is opened again, and no byte comes twice."""
    assert copied(block(f"{FROM} | head -c 6; test $1 -ge 8")) == ("one\ntwo\nthree\n", {})


def test_copy_that_does_not_end_is_told(block: Make) -> None:
    """A copy that stays incomplete is reported with the command's error output."""
    text, lost = copied(block("echo no route >&2; exit 255"), seconds=0.2)
    assert (text, lost) == ("", {"a": f"{TORN_LOG}: no route"})


def test_store_is_not_waited_for(block: Make) -> None:
    """A store that still runs after its job has ended is not waited for, and its log counts as complete."""
    store = block("exec sleep 60", RUNS % "exec sleep 60").model_copy(update={"name": "etcd"})
    with ProcessWatch([block(FROM)], store) as watch:
        began = time.monotonic()
        watch.drain_logs(30.0)
        assert (watch.lost_logs(), time.monotonic() - began < 20) == ({}, True)


def test_running_block_has_a_log(block: Make) -> None:
    """A process that prints nothing has an empty log as soon as it runs."""
    made = block("exec sleep 60", RUNS % "exec sleep 60")
    with ProcessWatch([made]) as watch:
        while not watch.poll(1.0):
            pass
        assert Path(made.log).read_bytes() == b""


def test_copy_that_is_removed_is_begun_anew(block: Make, tmp_path: Path) -> None:
    """If the local folder is removed during the copy, the log is copied again from its first byte."""
    made = block(f"{FROM}; sleep 0.5; echo four >> there; echo four; test $1 -ge 14", RUNS % "exec sleep 60")
    with ProcessWatch([made]) as watch:
        while watch.poll(0.3):
            pass
        shutil.rmtree(tmp_path / "kept")
        watch.drain_logs(2.0)
    assert Path(made.log).read_text().startswith("one\ntwo\nthree\nfour\n")


@pytest.mark.parametrize(
    ("size", "follow", "deaf"),
    [(', "log_size": 14', FROM, False), (', "log_size": 15', FROM, True), ("", "true", True), ("", FROM, False)],
)
def test_log_that_is_still_copied_is_not_silent(block: Make, size: str, follow: str, deaf: bool) -> None:
    """A process is not silent until its copy is as long as the log was at first or, if unknown, has a byte."""
    with ProcessWatch([block(f"{follow}; exec sleep 60", SAYS % size)]) as watch:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            watch.poll(0.1)
        assert watch.is_disconnected() is deaf


def test_host_that_has_not_spoken_is_not_known(block: Make) -> None:
    """The state of a process is unknown before its first status line and after its connection has broken."""
    with ProcessWatch([block("exec sleep 60", "sleep 0.3; " + RUNS % "sleep 0.3; exit 255")]) as watch:
        found = []
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            watch.poll(0.05)
            found.append(watch.is_fully_seen())
    assert [known for known, _ in groupby(found)] == [False, True, False]


def test_full_disk_here_is_caught_up_with(block: Make, tmp_path: Path) -> None:
    """A copy that a full disk has stopped continues from what it has once there is room."""
    made = block(FROM, RUNS % "exec sleep 60")
    Path(made.log).parent.mkdir()
    os.symlink("/dev/full", made.log)
    with ProcessWatch([made]) as watch:
        watch.drain_logs(0.3)
        assert watch.lost_logs() == {"a": f"{TORN_LOG}: [Errno 28] No space left on device"}
        os.unlink(made.log)
        time.sleep(1)
        watch.drain_logs(0.3)
        assert (Path(made.log).read_text(), watch.lost_logs()) == ("one\ntwo\nthree\n", {})


@pytest.mark.parametrize(("said", "lost"), [("", {"a": UNKEPT_LOG}), (', "recovered": true', {})])
def test_log_of_a_killed_keeper_is_whole_once_recovered(block: Make, said: str, lost: dict[str, str]) -> None:
    """The log of a killed supervisor is incomplete unless it was recovered from torchrun's own copy of the output."""
    assert copied(block(FROM, f"""echo '{{"phase": "unkept"{said}}}'""")) == ("one\ntwo\nthree\n", lost)


@pytest.mark.parametrize(
    ("status", "follow", "deaf"),
    [
        (RUNS % "sleep 60", f"{FROM}; sleep 60", False),
        (RUNS % "exit 255", f"{FROM}; sleep 60", True),
        (RUNS % "sleep 60", f"{FROM}; exit 255", True),
        ("""echo '{"phase": "running", "detail": "the login has expired"}'; sleep 60""", f"{FROM}; sleep 60", True),
    ],
)
def test_who_cannot_be_heard_is_not_silent(block: Make, status: str, follow: str, deaf: bool) -> None:
    """A process does not count as silent while its connection is broken or its CLI gets no answer."""
    with ProcessWatch([block(follow, status)]) as watch:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            watch.poll(0.1)
        assert watch.is_disconnected() is deaf
