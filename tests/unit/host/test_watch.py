"""The stream to the launcher: the states and logs of all processes on one host, and its requests."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.supervised import read_frame, send_line, start_script, start_watch, wait_for_exit, watch_to_the_end
from torchyard.host import watch
from torchyard.host.watch import Launcher, Renewal, WatchedProcess, watch_processes

LINES = b"one\ntwo\n"
RENEWED = Renewal("", "")


@pytest.fixture
def ended(folder: Path) -> Path:
    """The folder of a process that has ended with 3 and left two lines."""
    start_script(folder, "exit 3")
    wait_for_exit(folder)
    (folder / "log").write_bytes(LINES)
    return folder


@pytest.mark.parametrize(("offset", "expected"), [(0, LINES), (2, b"e\ntwo\n"), (8, b""), (99, b"")])
def test_log_is_sent_from_a_byte_to_its_end(ended: Path, offset: int, expected: bytes) -> None:
    """The log is sent from a byte on, and the watch exits with 0 once nothing more can come."""
    exit_code, states, log = watch_to_the_end(ended, offset)
    assert (exit_code, [state["exit"] for state in states], log) == (0, [3], expected)


def test_log_that_is_not_wanted_is_not_sent(ended: Path) -> None:
    """Without a byte to start from only the state is sent."""
    assert watch_to_the_end(ended)[2] == b""


def test_log_is_sent_again_on_request(folder: Path) -> None:
    """A launcher that could not write its copy requests the log again, and the watch waits for it."""
    start_script(folder, "echo one; sleep 60")
    with start_watch(folder, 0) as watch:
        line, data = read_frame(watch)
        while "log" not in line:
            line, data = read_frame(watch)
        assert (line["log"], data[-4:]) == (0, b"one\n")
        send_line(watch, {"logs": {"node-0": 2}})
        second_line, second_data = read_frame(watch)
        assert (second_line["log"], second_data) == (2, data[2:])
        watch.kill()


# --- many processes behind one connection


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The launcher's end of a connection, and the host's."""
    launcher_end, host_end = socket.socketpair()
    with launcher_end, host_end:
        yield launcher_end, host_end


def make_watched(path: Path, state: dict[str, object], age_s: float | None = None) -> WatchedProcess:
    process = WatchedProcess(str(path), lambda: state, lambda read: read["phase"] == "exited", lambda _: age_s)
    process.request_log(0)
    return process


def test_large_log_does_not_hold_up_a_state(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    """While one process's log of many megabytes is sent over a slow connection, heartbeats are read."""
    launcher_end, host_end = ends
    (tmp_path / "large").write_bytes(b"x" * (20 << 20))
    owners: list[str] = []

    def renew_leases(owner: str) -> Renewal:
        owners.append(owner)
        host_end.shutdown(socket.SHUT_RDWR)
        return RENEWED

    launcher_end.sendall(b'{"owner": "me"}\n')
    processes = {
        "node-0": make_watched(tmp_path / "large", {"phase": "running"}),
        "node-1": make_watched(tmp_path / "none", {"phase": "running"}),
    }
    launcher = Launcher(host_end.fileno(), host_end.fileno())
    assert not watch_processes(launcher, processes, renew_leases)
    assert owners == ["me"]


def test_each_process_has_its_end(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    """The watch is complete once every process has ended and every log is sent."""
    launcher_end, host_end = ends
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"of {name}\n")
    processes = {name: make_watched(tmp_path / name, {"phase": "exited"}) for name in ("a", "b")}
    assert watch_processes(Launcher(host_end.fileno(), host_end.fileno()), processes, lambda _: RENEWED)
    host_end.close()
    received = b"".join(iter(lambda: launcher_end.recv(1 << 16), b""))
    assert received.count(b'"log_end": 5') == 2
    assert b"of a\n" in received
    assert b"of b\n" in received


def test_log_that_cannot_be_copied_yet_is_waited_for(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    """A log that is wanted from no byte yet is sent once the launcher requests it, also after the process's end."""
    launcher_end, host_end = ends
    (tmp_path / "a").write_text("of a\n")
    process = make_watched(tmp_path / "a", {"phase": "exited"})
    process.request_log(None)
    launcher_end.sendall(b'{"logs": {"a": 0}}\n')
    assert watch_processes(Launcher(host_end.fileno(), host_end.fileno()), {"a": process}, lambda _: RENEWED)
    assert b'"size": 5}\nof a\n' in launcher_end.recv(1 << 16)


def test_file_that_cannot_be_read_holds_up_no_other_process(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """A bad block in one process's log stops neither the heartbeats nor what the other processes send."""
    launcher_end, host_end = ends
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("of b\n")
    launcher_end.sendall(b'{"owner": "me"}\n')
    launcher_end.shutdown(socket.SHUT_WR)
    processes = {
        "a": make_watched(tmp_path / "a", {"phase": "running"}, age_s=1.0),
        "b": make_watched(tmp_path / "b", {"phase": "running"}),
    }
    assert not watch_processes(Launcher(host_end.fileno(), host_end.fileno()), processes, lambda _: RENEWED)
    received = launcher_end.recv(1 << 16)
    assert b'{"phase": "running", "detail": "its files cannot be read: [Errno 21] Is a directory' in received
    assert b"of b\n" in received
    assert b'{"ages": {"a": 1.0' in received


def test_state_that_cannot_be_read_is_read_again(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose state cannot be read for a moment has not ended, and its end is sent once it can be read."""
    monkeypatch.setattr(watch, "_RETRY_INTERVAL_S", 0.0)
    launcher_end, host_end = ends
    states: list[dict[str, str]] = []

    def read_state() -> dict[str, str]:
        states.append({"phase": "exited"})
        if len(states) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return states[-1]

    process = WatchedProcess(
        str(tmp_path / "none"), read_state, lambda state: state["phase"] == "exited", lambda _: None
    )
    assert watch_processes(Launcher(host_end.fileno(), host_end.fileno()), {"a": process}, lambda _: RENEWED)
    first_line, second_line = launcher_end.recv(1 << 16).splitlines()
    assert b'{"detail": "its files cannot be read: [Errno 116] Stale file handle"}' in first_line
    assert json.loads(second_line) == {"process": "a", "state": {"phase": "exited"}}


def test_other_owner_is_reported(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    """If a heartbeat finds another owner of the run, its name is sent."""
    launcher_end, host_end = ends
    launcher_end.sendall(b'{"owner": "me"}\n')
    launcher_end.shutdown(socket.SHUT_WR)
    process = make_watched(tmp_path / "none", {"phase": "running"})
    assert not watch_processes(
        Launcher(host_end.fileno(), host_end.fileno()), {"a": process}, lambda _: Renewal("another", "")
    )
    assert b'{"other_owner": "another"}\n' in launcher_end.recv(1 << 16)


def test_each_heartbeat_is_answered_with_the_ages(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    """The launcher learns from each response that it observes the job, and how old the processes are."""
    launcher_end, host_end = ends
    launcher_end.sendall(b'{"owner": "me"}\n')
    launcher_end.shutdown(socket.SHUT_WR)
    processes = {
        "a": make_watched(tmp_path / "none", {"phase": "running"}, age_s=12.5),
        "b": make_watched(tmp_path / "none", {"phase": "starting"}),
    }
    assert not watch_processes(Launcher(host_end.fileno(), host_end.fileno()), processes, lambda _: RENEWED)
    assert b'{"ages": {"a": 12.5}, "problem": ""}\n' in launcher_end.recv(1 << 16)
