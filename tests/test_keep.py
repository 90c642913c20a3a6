"""The keeper of one process, for real: started, logged, told, stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchyard.host.processes import find_labelled
from torchyard.launchers.baremetal import _SUPERVISOR_PATH

Keep = Callable[..., Any]


def keep(verb: str, folder: Path, *more: str, spec: dict[str, Any] | None = None) -> Any:
    """One call of keep.py: the last JSON line that it printed."""
    argv = [sys.executable, "-I", "-S", _SUPERVISOR_PATH, verb, str(folder), *more]
    done = subprocess.run(argv, input=json.dumps(spec or {}), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose process does not outlive the test."""
    yield tmp_path / "kept"
    keep("cancel", tmp_path / "kept", "0")


def start(folder: Path, script: str, **more: Any) -> Any:
    spec = {"name": "node-0", "argv": ["bash", "-c", script], "env": {}, "cwd": "/", "label": str(folder), "ports": []}
    return keep("submit", folder, spec={**spec, **more})


def ended(folder: Path) -> Any:
    """The state once the process has ended."""
    for _ in range(200):
        state = keep("status", folder)
        if state["phase"] != "running":
            return state
        time.sleep(0.02)
    raise AssertionError("it did not end")


def texts(folder: Path) -> list[str]:
    return [line.partition(" | ")[2] for line in (folder / "log").read_text().splitlines()]


def test_exit_code_and_output_are_kept(folder: Path) -> None:
    """The exit code and every line, the last one without a newline too, are on disk after the end."""
    start(folder, "echo one; echo two >&2; printf three; exit 7")
    assert ended(folder)["exit"] == 7
    assert texts(folder) == ["one", "two", "three"]


def test_the_program_keeps_the_umask_of_its_user(folder: Path) -> None:
    """The keeper's own files are closed all the same."""
    start(folder, "umask")
    ended(folder)
    umask = os.umask(0o022)
    os.umask(umask)
    assert texts(folder) == [f"{umask:04o}"]
    assert [path.name for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o077] == []


def test_lines_are_marked_by_time_and_node(folder: Path) -> None:
    """Each line says when it came and from which node."""
    start(folder, "echo one")
    ended(folder)
    stamp, node, *_ = (folder / "log").read_text().split()
    assert (stamp[:2], stamp[-1], node) == ("20", "Z", "node-0")


def test_submit_twice_starts_once(folder: Path) -> None:
    """The second submit adopts what the first one started."""
    first, second = start(folder, "sleep 60"), start(folder, "sleep 60")
    assert (first["created"], second["created"]) == (True, False)
    assert first["agent"] == second["agent"]


def test_submit_after_the_end_starts_nothing(folder: Path) -> None:
    """What has ended is adopted as ended."""
    start(folder, "exit 3")
    ended(folder)
    assert start(folder, "exit 3")["exit"] == 3


def test_death_by_signal_is_a_negative_exit_code(folder: Path) -> None:
    """A killed process is told by its signal."""
    start(folder, "kill -9 $$")
    assert ended(folder)["exit"] == -9


def test_program_that_cannot_start_is_127(folder: Path) -> None:
    """A missing program is told in the log, with the exit code of a shell."""
    start(folder, "", argv=["/no/such/program"])
    assert ended(folder)["exit"] == 127
    assert "cannot start /no/such/program" in texts(folder)[0]


def test_orphans_of_a_killed_agent_are_removed(folder: Path) -> None:
    """A grandchild in a session of its own does not survive its agent."""
    state = start(folder, "setsid sleep 60 & sleep 60")
    os.kill(state["agent"], signal.SIGKILL)
    ended(folder)
    assert find_labelled(str(folder)) == []


def test_orphan_that_hides_its_label_is_removed(folder: Path, tmp_path: Path) -> None:
    """A process that has cleared its environment is found among the keeper's children."""
    state = start(folder, f"(env -i setsid sleep 60 & echo $! > {tmp_path}/orphan); sleep 60")
    while not (tmp_path / "orphan").exists():
        time.sleep(0.01)
    os.kill(state["agent"], signal.SIGKILL)
    ended(folder)
    assert not Path(f"/proc/{(tmp_path / 'orphan').read_text().strip()}").exists()


def test_cancel_asks_first(folder: Path) -> None:
    """A process that ends on SIGTERM is not killed, and its last words are in the log."""
    start(folder, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    while not (folder / "log").exists() or "ready" not in texts(folder):
        time.sleep(0.01)
    assert keep("cancel", folder, "10")["exit"] == 5
    assert texts(folder)[-1] == "bye"


def test_cancel_kills_after_the_grace(folder: Path) -> None:
    """A process that ignores SIGTERM is killed, and nothing is left."""
    start(folder, "trap '' TERM; while :; do sleep 0.05; done")
    said = keep("cancel", folder, "0.2")
    assert (said["exit"], said["left"]) == (-9, [])


def test_cancel_of_nothing_is_a_success(folder: Path) -> None:
    """Cancelling what was never started leaves nothing behind."""
    assert keep("cancel", folder, "1") == {"phase": "absent", "left": []}


def test_killed_keeper_is_seen(folder: Path) -> None:
    """A keeper that was killed is told, and cancel still removes its process."""
    os.kill(start(folder, "sleep 60")["keeper"], signal.SIGKILL)
    assert keep("status", folder)["phase"] == "unkept"
    assert keep("cancel", folder, "1")["left"] == []
    assert find_labelled(str(folder)) == []


def test_full_disk_costs_lines_not_the_job(folder: Path) -> None:
    """With no room for its log a process still ends, and the lost lines are counted."""
    folder.mkdir()
    (folder / "log").symlink_to("/dev/full")
    start(folder, "seq 100; exit 4")
    state = ended(folder)
    assert (state["exit"], state["lost"], state["error"]) == (4, 100, "No space left on device")


def test_endless_line_is_cut(folder: Path) -> None:
    """A line of three megabytes is kept in pieces, every byte of it."""
    start(folder, "head -c 3000000 /dev/zero | tr '\\0' x")
    ended(folder)
    assert len(texts(folder)) == 3
    assert sum(map(len, texts(folder))) == 3_000_000


def test_lines_that_a_killed_torchrun_owed_are_recovered(folder: Path) -> None:
    """What torchrun had on disk but not printed when it was killed is appended, and nothing twice."""
    ranks = folder / "ranks" / "id" / "attempt_0" / "1"
    ranks.mkdir(parents=True)
    (ranks / "stdout.log").write_text("seen\nowed\n")
    start(folder, "echo '[default1]:seen'; kill -9 $$")
    ended(folder)
    assert texts(folder) == ["[default1]:seen", "[default1]:owed"]
    assert not (folder / "ranks").exists()


def test_settings_that_would_stand_in_for_flags_are_dropped(folder: Path) -> None:
    """PET_ and PREFECT_ variables of the launcher do not reach the job; the label does."""
    os.environ |= {"PET_NNODES": "9", "PREFECT_API_KEY": "secret"}
    start(folder, "env")
    ended(folder)
    names = {line.partition("=")[0] for line in texts(folder)}
    assert names.isdisjoint({"PET_NNODES", "PREFECT_API_KEY"})
    assert "TORCHYARD_JOB" in names


def test_status_ends_when_nobody_listens(folder: Path) -> None:
    """A status command ends with its caller, at the latest a moment later."""
    start(folder, "sleep 60")
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", _SUPERVISOR_PATH, "status", str(folder)], stdin=subprocess.PIPE
    )
    assert watcher.stdin
    watcher.stdin.close()
    assert watcher.wait(timeout=5) == 0


@pytest.mark.parametrize(("offset", "expected"), [(0, b"one\ntwo\n"), (2, b"e\ntwo\n"), (8, b""), (99, b"")])
def test_log_is_followed_from_a_byte_to_its_end(folder: Path, offset: int, expected: bytes) -> None:
    """Follow prints what comes after a byte, and ends well once nothing more can come."""
    start(folder, "exit 3")
    ended(folder)
    (folder / "log").write_text("one\ntwo\n")
    argv = [sys.executable, "-I", "-S", _SUPERVISOR_PATH, "follow", str(folder), str(offset)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (0, expected)


def test_folder_of_a_site_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that begins at the home of a host is absolute for the process, wherever it stands in its words."""
    monkeypatch.chdir(tmp_path)
    spec = {"argv": ["sh", "-c", "echo $SAVED; echo $0", "--log-dir=.yard/run/ranks"], "env": {"SAVED": ".yard/run/a"}}
    start(Path(".yard/run/node-0"), "", site=".yard/run", **spec)
    assert ended(Path(".yard/run/node-0"))["exit"] == 0
    assert texts(Path(".yard/run/node-0")) == [f"{tmp_path}/.yard/run/a", f"--log-dir={tmp_path}/.yard/run/ranks"]


# --- the lease


class Onlooker:
    """A status command that is told who looks after the process, and what it said last."""

    def __init__(self, folder: Path) -> None:
        argv = [sys.executable, "-I", "-S", _SUPERVISOR_PATH, "status", str(folder)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)
        self.state: Any = {}

    def look(self, who: str) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{who}\n".encode())
        time.sleep(0.2)
        if said := self.process.stdout.read():
            self.state = json.loads(said.splitlines()[-1])
        return self.state

    def until(self, who: str, holds: Callable[[Any], bool]) -> bool:
        return any(holds(self.look(who)) for _ in range(50))

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def watched(folder: Path) -> Iterator[Callable[..., Onlooker]]:
    """Start a process that sleeps, with a lease, and an onlooker."""
    made: list[Onlooker] = []

    def make(lease: float) -> Onlooker:
        start(folder, "sleep 60", lease=lease)
        made.append(Onlooker(folder))
        return made[-1]

    yield make
    made[-1].close()


def test_process_ends_with_its_lease(folder: Path) -> None:
    """What nobody looks after is asked to end, and killed after the grace; its log and its state say why."""
    start(folder, "trap 'echo bye' TERM; while :; do sleep 0.05; done", lease=0.3, grace=0.3)
    state = ended(folder)
    assert (state["exit"], state["abandoned"]) == (-9, 0.3)
    assert texts(folder) == ["ended by its keeper: nobody has looked after it for 0.3 s (deadlines.lease)", "bye"]
    assert find_labelled(str(folder)) == []


def test_process_that_is_looked_after_lives(folder: Path, watched: Callable[..., Onlooker]) -> None:
    """A word through its status command, again and again, keeps a process alive; a glance without one does not."""
    onlooker = watched(lease=1)
    for _ in range(12):
        onlooker.look("here:/runs/a")
    assert keep("status", folder)["phase"] == "running"
    assert ended(folder)["abandoned"] == 1


@pytest.mark.parametrize("jump", [-1e7, 1e7])
def test_clock_that_jumps_ends_nothing(folder: Path, jump: float) -> None:
    """A look counts from when it was seen, whatever the clock says that made it."""
    start(folder, "sleep 60", lease=1.0)
    time.sleep(0.6)
    os.utime(folder.parent / "looked", (time.time() + jump, time.time() + jump))
    time.sleep(0.6)
    assert keep("status", folder)["phase"] == "running"
    assert ended(folder)["abandoned"] == 1.0


def test_looking_needs_no_room(folder: Path, watched: Callable[..., Onlooker]) -> None:
    """On a full disk a process that is looked after lives on."""
    (folder.parent / "looked").symlink_to("/dev/full")
    onlooker = watched(lease=1)
    for _ in range(12):
        onlooker.look("here:/runs/a")
    assert keep("status", folder)["phase"] == "running"


def test_second_carrier_is_told_of_the_first(folder: Path, watched: Callable[..., Onlooker]) -> None:
    """Who looks after a process that another one has just looked after is told who that is, until that one is dead."""
    onlooker, looked = watched(lease=60), folder.parent / "looked"
    assert onlooker.until("here:/runs/a", lambda _: "here:/runs/a" in looked.read_text())
    assert onlooker.until("there:/runs/a", lambda state: state.get("carrier") == "here:/runs/a")
    os.utime(looked, (time.time() - 61,) * 2)
    assert onlooker.until("there:/runs/a", lambda state: "carrier" not in state)
    assert looked.read_text().strip() == "there:/runs/a"


def test_meeting_file_goes_with_its_process(folder: Path, tmp_path: Path) -> None:
    """The file in which processes have met is removed when they are: another attempt would wait in it for ever."""
    start(folder, f"touch {tmp_path}/meet; echo ready; sleep 60", meeting=str(tmp_path / "meet"))
    while not (folder / "log").exists() or "ready" not in texts(folder):
        time.sleep(0.01)
    assert keep("cancel", folder, "1")["left"] == []
    assert not (tmp_path / "meet").exists()
