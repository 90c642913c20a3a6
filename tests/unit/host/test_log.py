"""The log of a supervised process: every line, also after a full disk or a killed supervisor."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes.supervised import call_supervisor, read_log_texts, start_script, wait_for_exit, watch_to_the_end
from tests.support.waiting import wait_until
from torchyard.host.log import ProcessLog, read_tail, recover_output
from torchyard.host.state import view_state


def test_lines_are_marked_by_time_and_node(folder: Path) -> None:
    """Each line has the time at which it arrived and the name of its node."""
    start_script(folder, "echo one")
    wait_for_exit(folder)
    timestamp, node, *_ = (folder / "log").read_text().split()
    assert (timestamp[:2], timestamp[-1], node) == ("20", "Z", "node-0")


def test_full_disk_costs_lines_not_the_job(folder: Path) -> None:
    """Without room for its log a process still runs to its end, and the lost lines are counted."""
    folder.mkdir()
    (folder / "log").symlink_to("/dev/full")
    start_script(folder, "seq 100; exit 4")
    state = wait_for_exit(folder)
    assert (state["exit"], state["lost"], state["error"]) == (4, 100, "No space left on device")


def test_endless_line_is_split(folder: Path) -> None:
    """A line of three megabytes is kept in pieces, every byte of it."""
    start_script(folder, "head -c 3000000 /dev/zero | tr '\\0' x")
    wait_for_exit(folder)
    assert len(read_log_texts(folder)) == 3
    assert sum(map(len, read_log_texts(folder))) == 3_000_000


def test_carriage_return_does_not_split_a_line(tmp_path: Path) -> None:
    """The tail of a file has the lines that newlines end, with the carriage returns of a progress bar or of CRLF."""
    (tmp_path / "log").write_bytes(b"\r 10%\r 20%\nwindows\r\n\x0b\x0c\nunfinished")
    with (tmp_path / "log").open("rb") as file:
        assert read_tail(file) == [b"\r 10%\r 20%", b"windows\r", b"\x0b\x0c", b"unfinished"]


class FloodedLog(ProcessLog):
    """The log of a process that writes into its pipe as fast as the pipe is read."""

    pipe_fd = -1

    def write_output(self, data: bytes) -> None:
        super().write_output(data)
        os.write(self.pipe_fd, data)


def test_process_that_goes_on_writing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Of a process that cannot be ended, what is in the pipe at the end is written, and nothing after that."""
    log = FloodedLog(str(tmp_path), "node-0")
    read_fd, log.pipe_fd = os.pipe()
    os.write(log.pipe_fd, b"one\ntwo\n")
    log.write_pipe(read_fd)
    os.close(log.pipe_fd)
    assert (log.line_count, os.read(read_fd, 100)) == (2, b"one\ntwo\n")
    os.close(read_fd)


def test_log_that_cannot_be_looked_at_costs_lines_not_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log whose server has lost its file (ESTALE) counts as lost at the end, and raises no error."""
    log = ProcessLog(str(tmp_path), "node-0")
    log.write_output(b"one\ntwo")

    def fail(_: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        log.finish()
    assert (log.lost_count, log.line_count, log.error) == (2, 0, "Stale file handle")


# --- lines that torchrun had on disk and the log did not have


def write_rank_log(folder: Path, *lines: str) -> None:
    """Write torchrun's own copy of what its rank 1 printed."""
    ranks = folder / "ranks" / "id" / "attempt_0" / "1"
    ranks.mkdir(parents=True)
    (ranks / "stdout.log").write_text("".join(f"{line}\n" for line in lines))


def test_unprinted_lines_of_a_killed_torchrun_are_recovered(folder: Path) -> None:
    """Lines that torchrun had on disk but had not printed when it was killed are appended, each once."""
    write_rank_log(folder, "seen", "owed")
    start_script(folder, "echo '[default1]:seen'; kill -9 $$")
    wait_for_exit(folder)
    assert read_log_texts(folder) == ["[default1]:seen", "[default1]:owed"]
    assert not (folder / "ranks").exists()


def test_copy_that_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's own copy of the output is removed only once all of it was read."""
    write_rank_log(tmp_path, "lost")
    list_folder = os.scandir

    def fail(path: str) -> Any:
        if path.endswith("/1"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Input/output error"):
        recover_output(str(tmp_path), ProcessLog(str(tmp_path), "node-0"))
    assert (tmp_path / "ranks" / "id" / "attempt_0" / "1" / "stdout.log").exists()


def test_line_inside_a_message_of_torchrun_is_not_repeated(folder: Path) -> None:
    """If a rank's line ends in the middle of torchrun's own traceback, it is in the log and is not appended again."""
    write_rank_log(folder, "seen", "owed")
    start_script(folder, "echo '  File \"api.py\", line 86[default1]:seen'; kill -9 $$")
    wait_for_exit(folder)
    assert read_log_texts(folder) == ['  File "api.py", line 86[default1]:seen', "[default1]:owed"]


def test_line_that_torchrun_joined_is_not_repeated(folder: Path) -> None:
    """torchrun prints a line that a rank has not ended, and then the next prefix in the same line: nothing is lost."""
    write_rank_log(folder, "step 1", "bar done", "owed")
    start_script(folder, "printf '[default1]:ste[default1]:p 1\\n[default1]:bar [default1]:done\\n'; kill -9 $$")
    wait_for_exit(folder)
    assert read_log_texts(folder) == [
        "[default1]:ste[default1]:p 1",
        "[default1]:bar [default1]:done",
        "[default1]:owed",
    ]


def test_redrawn_progress_bar_is_not_appended(folder: Path) -> None:
    """Of a progress bar that the rank itself has redrawn, only the last state is a line."""
    write_rank_log(folder, "\r 10%\r 50%\r100%", "windows\r", "\r 10%\r 20%")
    with (folder / "ranks" / "id" / "attempt_0" / "1" / "stdout.log").open("ab") as file:
        file.write(b"\r 30%")
    start_script(folder, "echo '[default1]: 10%'; kill -9 $$")
    wait_for_exit(folder)
    assert read_log_texts(folder) == ["[default1]: 10%", "[default1]:100%", "[default1]:windows", "[default1]: 20%"]


def run_verb(verb: str, folder: Path) -> None:
    if verb == "watch":
        assert watch_to_the_end(folder)[0] == 0
    else:
        call_supervisor(verb, folder, grace=0)


@pytest.mark.parametrize("verb", ["watch", "cancel"])
def test_unprinted_lines_of_a_killed_supervisor_are_recovered(folder: Path, verb: str) -> None:
    """A watch or cancel of a process without its supervisor completes the log from torchrun's copy, each line once."""
    write_rank_log(folder, "seen", "owed")
    start_script(folder, "echo '[default1]:seen'; printf torn; sleep 60")
    wait_until(lambda: (folder / "log").exists() and read_log_texts(folder))
    os.kill(view_state(str(folder))["supervisor"], signal.SIGKILL)
    for _ in range(2):
        run_verb(verb, folder)
    assert read_log_texts(folder) == ["[default1]:seen", "[default1]:owed"]
    assert view_state(str(folder))["recovered"]


def test_partial_line_of_a_killed_supervisor_is_terminated(folder: Path) -> None:
    """A line that a power cut has interrupted is kept as a separate line, and the complete one follows."""
    write_rank_log(folder, "whole")
    start_script(folder, "sleep 60")
    (folder / "log").write_text("2026-11-22T00:00:00.000Z node-0 | [default1]:wh")
    os.kill(view_state(str(folder))["supervisor"], signal.SIGKILL)
    run_verb("watch", folder)
    assert read_log_texts(folder) == ["[default1]:wh", "[default1]:whole"]
