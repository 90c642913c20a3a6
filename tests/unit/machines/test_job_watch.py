"""ProcessWatch: the states of processes, and logs that are copied here while they grow on other hosts."""

import contextlib
import errno
import os
import selectors
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.scripted_hosts import MakeProcess
from tests.support.failing_reads import fail_to_stat
from tests.support.waiting import TIMEOUT_S
from torchyard.machines import host_stream, job_watch
from torchyard.machines.job_watch import INCOMPLETE_COPY, SUPERVISOR_KILLED, ProcessWatch
from torchyard.model.plan import Process

ENDED = "state('exited', exit=0, started=1)\n"
COPIED = f"tail()\n{ENDED}end()\n"
RUNS = "state(started=1)\n"
STAYS = "time.sleep(60)\n"


def poll_until(watch: ProcessWatch, condition: Callable[[], bool]) -> None:
    """Poll the watch, which waits for output itself, until the condition holds; AssertionError after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        watch.poll(timeout_s=0.05)


def copy_log(process: Process) -> tuple[str, dict[str, str]]:
    """The copy once it is complete, and what is missing in it."""
    with ProcessWatch([process]) as watch:
        watch.drain_logs(idle_timeout_s=30.0)
        return Path(process.log).read_text(), watch.lost_logs()


def test_log_is_copied(make_process: MakeProcess) -> None:
    """Every byte of the log is copied once the watch has drained it."""
    assert copy_log(make_process(COPIED)) == ("one\ntwo\nthree\n", {})


def test_partial_line_is_completed(make_process: MakeProcess) -> None:
    """A copy that was cut off in the middle of a line continues at that byte."""
    process = make_process(COPIED)
    Path(process.log).parent.mkdir(parents=True)
    Path(process.log).write_text("one\ntw")
    assert copy_log(process) == ("one\ntwo\nthree\n", {})


def test_broken_copy_is_resumed(make_process: MakeProcess) -> None:
    """A connection that breaks in the middle is opened again, and no byte comes twice."""
    code = f"{ENDED}first = offset\ntail(6)\nif first < 8: sys.exit(1)\nend()\n"
    assert copy_log(make_process(code)) == ("one\ntwo\nthree\n", {})


def test_incomplete_copy_is_reported(make_process: MakeProcess) -> None:
    """A copy that stays incomplete is reported with the command's error output."""
    process = make_process("sys.exit('no route')")
    with ProcessWatch([process]) as watch:
        poll_until(watch, lambda: watch.lost_logs() == {"a": f"{INCOMPLETE_COPY}: no route"})
    assert not Path(process.log).exists()


def test_piece_of_an_earlier_request_is_not_written(make_process: MakeProcess) -> None:
    """A piece of the log that does not continue the copy is skipped, and its bytes are not read as lines."""
    line = b'{"process": "a", "log_end": 0}\n'
    code = f"send({line!r}, process=name, log=7, size={len(line)})\n{COPIED}"
    assert copy_log(make_process(code)) == ("one\ntwo\nthree\n", {})


def test_store_is_not_waited_for(make_process: MakeProcess) -> None:
    """A store that still runs after its job has ended is not waited for, and its log counts as complete."""
    script = make_process(RUNS + STAYS).script
    with ProcessWatch(
        [make_process(COPIED)], make_process("").model_copy(update={"name": "etcd", "script": script})
    ) as watch:
        started_at = time.monotonic()
        watch.drain_logs(idle_timeout_s=30.0)
        assert (watch.lost_logs(), time.monotonic() - started_at < 20) == ({}, True)


def test_processes_of_one_host_share_a_stream(make_process: MakeProcess, tmp_path: Path) -> None:
    """The states and logs of all processes on a host come through one command."""
    code = """
open("started", "a").write("x")
for name in ("a", "b"):
    data = f"of {name}\\n".encode()
    send(data, process=name, log=0, size=len(data))
    state("exited", exit=0)
    send(process=name, log_end=len(data))
"""
    first = make_process(code)
    second = first.model_copy(update={"name": "b", "log": str(tmp_path / "run" / "kept" / "second")})
    with ProcessWatch([first, second]) as watch:
        assert watch.drain_logs(idle_timeout_s=10.0)
        assert (watch.exit_codes(), watch.lost_logs()) == ({"a": 0, "b": 0}, {})
    assert [Path(process.log).read_text() for process in (first, second)] == ["of a\n", "of b\n"]
    assert (tmp_path / "started").read_text() == "x"


def test_running_process_has_a_log(make_process: MakeProcess) -> None:
    """A process that prints nothing has an empty log as soon as it runs."""
    process = make_process(RUNS + STAYS)
    with ProcessWatch([process]) as watch:
        poll_until(watch, lambda: bool(watch.states["a"]))
        assert Path(process.log).read_bytes() == b""


def test_removed_copy_is_restarted(make_process: MakeProcess, tmp_path: Path) -> None:
    """If the local folder is removed during the copy, the log is copied again from its first byte."""
    code = f"""{RUNS}tail()
while True:
    line = sys.stdin.readline()
    if "logs" in line and json.loads(line)["logs"][name] is not None:
        break
    if os.path.exists("removed"):
        open("there", "a").write("four\\n")
        tail()
offset = json.loads(line)["logs"][name]
{COPIED}"""
    process = make_process(code)
    with ProcessWatch([process]) as watch:
        poll_until(watch, lambda: Path(process.log).exists() and Path(process.log).stat().st_size == 14)
        shutil.rmtree(tmp_path / "run" / "kept")
        (tmp_path / "removed").touch()
        watch.drain_logs(idle_timeout_s=10.0)
    assert Path(process.log).read_text().startswith("one\ntwo\nthree\nfour\n")


@pytest.mark.parametrize(
    ("code", "is_disconnected"),
    [
        ("state(log_size=14); tail()\n", False),
        ("state(log_size=15); tail()\n", True),
        ("state()\n", True),
        ("state(); tail()\n", False),
    ],
)
def test_log_that_is_still_copied_is_disconnected(make_process: MakeProcess, code: str, is_disconnected: bool) -> None:
    """A process is not silent until its copy is as long as the log was at first or, if unknown, has a byte."""
    with ProcessWatch([make_process(code + STAYS)]) as watch:
        if is_disconnected:
            for _ in range(6):
                watch.poll(timeout_s=0.1)
                assert watch.is_disconnected()
        else:
            poll_until(watch, lambda: not watch.is_disconnected())


def test_process_without_a_state_is_not_seen(make_process: MakeProcess, tmp_path: Path) -> None:
    """The state of a process is unknown before its first state came and after its connection has broken."""
    code = f"""
while not os.path.exists('reachable'): time.sleep(0.01)
{RUNS}
while os.path.exists('reachable'): time.sleep(0.01)
sys.exit(255)
"""
    with ProcessWatch([make_process(code)]) as watch:
        watch.poll(timeout_s=0.0)
        assert not watch.is_fully_observed()
        (tmp_path / "reachable").touch()
        poll_until(watch, watch.is_fully_observed)
        (tmp_path / "reachable").unlink()
        poll_until(watch, lambda: not watch.is_fully_observed())


def test_copy_resumes_after_a_full_disk(make_process: MakeProcess) -> None:
    """A copy that a full disk has stopped is requested again through the same connection once there is room."""
    code = f"""{RUNS}tail()
for line in sys.stdin:
    if "logs" in line and json.loads(line)["logs"][name] is not None:
        offset = json.loads(line)["logs"][name]
        tail()
        end()
"""
    process = make_process(code)
    Path(process.log).parent.mkdir(parents=True)
    os.symlink("/dev/full", process.log)
    with ProcessWatch([process]) as watch:
        full = {"a": f"{INCOMPLETE_COPY}: [Errno 28] No space left on device"}
        poll_until(watch, lambda: watch.lost_logs() == full)
        assert watch.diagnose() is None
        os.unlink(process.log)
        poll_until(watch, lambda: not watch.lost_logs())
        assert Path(process.log).read_text() == "one\ntwo\nthree\n"


def test_copy_that_cannot_be_read_stops_no_heartbeats(make_process: MakeProcess, tmp_path: Path) -> None:
    """While the folder of the logs gives EACCES, a new connection renews the lease, and the log is copied later."""
    code = f"""{RUNS}
for line in sys.stdin:
    open("requests", "a").write(line)
    if "logs" in line and json.loads(line)["logs"][name] is not None:
        offset = json.loads(line)["logs"][name]
        tail()
        end()
"""
    process = make_process(code)
    requests = tmp_path / "requests"
    with contextlib.ExitStack() as stack:
        with fail_to_stat(Path(process.log), errno.EACCES):
            watch = stack.enter_context(ProcessWatch([process]))
            poll_until(watch, lambda: requests.exists() and "owner" in requests.read_text())
            assert watch.is_disconnected()
            assert "Permission denied" in watch.lost_logs()["a"]
        poll_until(watch, lambda: not watch.lost_logs())
        assert Path(process.log).read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize(("fields", "losses"), [("", {"a": SUPERVISOR_KILLED}), (", recovered=True", {})])
def test_log_of_a_killed_supervisor_is_complete_once_recovered(
    make_process: MakeProcess, fields: str, losses: dict[str, str]
) -> None:
    """The log of a killed supervisor is incomplete unless it was recovered from torchrun's own copy of the output."""
    code = f"tail()\nstate('unsupervised'{fields})\nend()\n"
    assert copy_log(make_process(code)) == ("one\ntwo\nthree\n", losses)


@pytest.mark.parametrize(
    ("code", "is_disconnected"),
    [
        (f"{RUNS}tail()\n{STAYS}", False),
        (f"{RUNS}tail()\nsys.exit(255)\n", True),
        (f"state(detail='the login has expired')\ntail()\n{STAYS}", True),
    ],
)
def test_broken_connection_is_disconnected(make_process: MakeProcess, code: str, is_disconnected: bool) -> None:
    """A process does not count as silent while its connection is broken or its CLI gets no response."""
    with ProcessWatch([make_process(code)]) as watch:
        if is_disconnected:
            for _ in range(6):  # the commands print and end; every watch is disconnected before that
                watch.poll(timeout_s=0.1)
            poll_until(watch, watch.is_disconnected)
        else:
            poll_until(watch, lambda: not watch.is_disconnected())


# --- what is observed

ANSWERS = """
for line in sys.stdin:
    if "owner" in line:
        send(ages={name: 3600})
"""


def test_command_that_connects_is_disconnected(make_process: MakeProcess, tmp_path: Path) -> None:
    """After a cut, a process does not count as silent while the new command has not reached its host."""
    (tmp_path / "reachable").touch()
    code = "if not os.path.exists('reachable'): time.sleep(60)\n" + RUNS + "tail()\n"
    code += "while os.path.exists('reachable'): time.sleep(0.01)\nsys.exit(255)\n"
    with ProcessWatch([make_process(code)]) as watch:
        poll_until(watch, lambda: not watch.is_disconnected())
        (tmp_path / "reachable").unlink()
        poll_until(watch, watch.is_disconnected)
        first_pid = watch._streams[0].child.pid
        poll_until(watch, lambda: watch._streams[0].child.pid != first_pid)
        for _ in range(6):
            watch.poll(timeout_s=0.1)
            assert watch.is_disconnected()
            assert watch.diagnose()


def test_open_connection_without_responses_is_disconnected(
    make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a host does not respond to heartbeats, its process does not count as silent, although ssh sees no error."""
    monkeypatch.setattr(host_stream, "_MAX_UNHEARD_S", 0.2)
    with ProcessWatch([make_process(f"{RUNS}tail()\n{STAYS}")]) as watch:
        poll_until(watch, lambda: not watch.is_disconnected())
        poll_until(watch, watch.is_disconnected)


def test_responses_to_heartbeats_keep_a_silent_process_connected(
    make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that responds is observed, even if its process prints nothing, and reports the age of its process."""
    monkeypatch.setattr(job_watch, "_HEARTBEAT_INTERVAL_S", 0.01)
    with ProcessWatch([make_process(f"{RUNS}tail()\n{ANSWERS}")]) as watch:
        poll_until(watch, lambda: watch.job_age_s() is not None)
        assert 3600 <= (watch.job_age_s() or 0.0) < 3660
        heard_at = time.monotonic()
        poll_until(watch, lambda: (watch._streams[0]._heard_at or 0.0) > heard_at)
        assert not watch.is_disconnected()


def test_responses_to_heartbeats_are_no_progress(make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose end does not come is given up although its host responds."""
    monkeypatch.setattr(job_watch, "_HEARTBEAT_INTERVAL_S", 0.01)
    with ProcessWatch([make_process(ENDED + ANSWERS)]) as watch:
        assert not watch.drain_logs(idle_timeout_s=0.5)
        poll_until(watch, lambda: watch.job_age_s() is not None)


def test_talkative_command_does_not_block(make_process: MakeProcess) -> None:
    """A command that prints megabytes on stderr, as `ssh -vvv` does, is read as fast as it prints."""
    code = "sys.stderr.write('debug1: a message of ssh\\n' * 400_000)\n" + RUNS + STAYS
    with ProcessWatch([make_process(code)]) as watch:
        poll_until(watch, lambda: bool(watch.states["a"]))


class FullSelector(selectors.DefaultSelector):
    """A selector that takes one descriptor of the first stream, and then has no room for the other."""

    count = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        FullSelector.count += 1
        if FullSelector.count == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(fileobj, events, data)


def test_stream_that_cannot_be_registered_is_opened_again(
    make_process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of which only one descriptor could be registered is retried, although the new one has its number."""
    monkeypatch.setattr(FullSelector, "count", 0)
    monkeypatch.setattr(selectors, "DefaultSelector", FullSelector)
    monkeypatch.setattr(job_watch, "_RESTART_DELAY_S", 0.0)
    assert copy_log(make_process(COPIED)) == ("one\ntwo\nthree\n", {})
    assert FullSelector.count == 4
