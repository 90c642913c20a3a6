"""The supervisor of one real process: it starts the process, records how it ended, and removes what it left."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes.supervised import read_log_texts, start_script, start_watch, wait_for_exit
from torchyard.host.processes import find_labelled


def test_exit_code_and_output_are_kept(folder: Path) -> None:
    """The exit code and every line, even a last one without a newline, are on disk after the end."""
    start_script(folder, "echo one; echo two >&2; printf three; exit 7")
    assert wait_for_exit(folder)["exit"] == 7
    assert read_log_texts(folder) == ["one", "two", "three"]


def test_the_program_keeps_the_umask_of_its_user(folder: Path) -> None:
    """The program has the user's umask, while the supervisor's own files are private."""
    start_script(folder, "umask")
    wait_for_exit(folder)
    umask = os.umask(0o022)
    os.umask(umask)
    assert read_log_texts(folder) == [f"{umask:04o}"]
    assert [path.name for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o077] == []


def test_end_is_recorded_once_its_file_can_be_written(folder: Path) -> None:
    """An exit code that cannot be written at first, as on a share whose server restarts, is written later."""
    state = start_script(folder, f"cd {folder}; until mv go gone; do sleep 0.1; done; exit 7")
    (folder / "state").rename(folder / "saved")
    (folder / "state").mkdir()
    (folder / "go").touch()
    while Path(f"/proc/{state['agent']}").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    (folder / "state").rmdir()
    (folder / "saved").rename(folder / "state")
    assert wait_for_exit(folder)["exit"] == 7


def test_submit_twice_starts_once(folder: Path) -> None:
    """The second submit adopts what the first one started."""
    first = start_script(folder, "sleep 60")
    second = start_script(folder, "sleep 60")
    assert (first["created"], second["created"]) == (True, False)
    assert first["agent"] == second["agent"]


def test_submit_after_the_end_starts_nothing(folder: Path) -> None:
    """A submit after the end reports that end and starts nothing."""
    start_script(folder, "exit 3")
    wait_for_exit(folder)
    assert start_script(folder, "exit 3")["exit"] == 3


def test_death_by_signal_is_a_negative_exit_code(folder: Path) -> None:
    """The exit code of a killed process is its negative signal number."""
    start_script(folder, "kill -9 $$")
    assert wait_for_exit(folder)["exit"] == -9


def test_program_that_cannot_start_is_127(folder: Path) -> None:
    """A missing program is reported in the log, with the exit code that a shell would give."""
    start_script(folder, "", argv=["/no/such/program"])
    assert wait_for_exit(folder)["exit"] == 127
    assert "cannot start /no/such/program" in read_log_texts(folder)[0]


def test_orphans_of_a_killed_agent_are_removed(folder: Path) -> None:
    """A grandchild in a separate session does not survive its agent."""
    state = start_script(folder, "setsid sleep 60 & sleep 60")
    os.kill(state["agent"], signal.SIGKILL)
    wait_for_exit(folder)
    assert find_labelled(str(folder)) == []


def test_orphan_that_hides_its_label_is_removed(folder: Path, tmp_path: Path) -> None:
    """A process that has cleared its environment is found among the supervisor's descendants."""
    state = start_script(folder, f"(env -i setsid sleep 60 & echo $! > {tmp_path}/orphan); sleep 60")
    while not (tmp_path / "orphan").exists():
        time.sleep(0.01)
    os.kill(state["agent"], signal.SIGKILL)
    wait_for_exit(folder)
    assert not Path(f"/proc/{(tmp_path / 'orphan').read_text().strip()}").exists()


def test_variables_that_override_flags_are_dropped(folder: Path) -> None:
    """PET_ and PREFECT_ variables of the launcher do not reach the job; the label does."""
    os.environ |= {"PET_NNODES": "9", "PREFECT_API_KEY": "secret"}
    start_script(folder, "env")
    wait_for_exit(folder)
    names = {line.partition("=")[0] for line in read_log_texts(folder)}
    assert names.isdisjoint({"PET_NNODES", "PREFECT_API_KEY"})
    assert "TORCHYARD_JOB" in names


def test_watch_exits_when_its_launcher_has_left(folder: Path) -> None:
    """A watch ends soon after the launcher, and reports that it is not complete."""
    start_script(folder, "sleep 60")
    with start_watch(folder) as watch:
        assert watch.stdin
        watch.stdin.close()
        assert watch.wait(timeout=5) == 1


def test_folder_of_a_site_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder relative to a host's home becomes absolute wherever it occurs in the process's arguments."""
    monkeypatch.chdir(tmp_path)
    spec = {"argv": ["sh", "-c", "echo $SAVED; echo $0", "--log-dir=.yard/run/ranks"], "env": {"SAVED": ".yard/run/a"}}
    start_script(Path(".yard/run/node-0"), "", site=".yard/run", **spec)
    assert wait_for_exit(Path(".yard/run/node-0"))["exit"] == 0
    assert read_log_texts(Path(".yard/run/node-0")) == [
        f"{tmp_path}/.yard/run/a",
        f"--log-dir={tmp_path}/.yard/run/ranks",
    ]
