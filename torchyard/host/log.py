"""The log of a supervised process. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import re
import shutil
import struct
import termios
import time
from typing import BinaryIO, Iterator

from torchyard.host.staging import is_missing, list_files
from torchyard.host.state import file_path, read_spec, read_state, take_lock, try_write_state

ENDED_PHASES = ("exited", "unsupervised", "absent")  # the supervisor writes nothing any more
_TEE_PREFIX = re.compile(rb"(\[default\d{1,6}\]:)")  # torchrun's --tee writes it before each piece of a rank's output
_RANK_LOG = re.compile(r"ranks/[^/]+/attempt_[^/]*/[^/]+/std[^/]*\.log$")
_MAX_JOINED_PIECES = 8  # of one line: each sequence of them is compared
_MAX_LINE_BYTES = 1 << 20  # bytes; a program that never ends its line must not fill the memory
_MAX_TAIL_BYTES = 1 << 22  # bytes of a file's end: torchrun is never more than a moment behind


class ProcessLog:
    """Append lines to a process's log, each as `TIME NAME | text`, with the time (UTC) at which it arrived.

    A full disk or a removed folder costs lines and never the job: no write raises an error. Lost lines are counted
    (`lost_count`), and the first loss and its reason are recorded in the state at once (`lost`, `error`). After a write
    that broke off, or after another writer was killed, the next write first ends the partial line, so that its text
    never runs into a new line.

    Order of calls: `write_output` with each piece of the process's output, `write_pipe` for the rest once it has ended,
    then `finish` once. `write_lines` may add whole lines at any time. One writer at a time: the holder of the process's
    lock (state.py).
    """

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.name = name
        self.fd = os.open(file_path(folder, "log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.unfinished_line = b""
        self.line_count = 0  # written by this object
        self.lost_count = 0
        self.error = ""  # why the first line was lost; empty while none is
        self.has_partial_line = self._ends_with_partial_line()

    def _ends_with_partial_line(self) -> bool:
        """Whether the file's last line is incomplete: its writer was killed, or the disk was full."""
        size = os.fstat(self.fd).st_size
        return size > 0 and os.pread(self.fd, 1, size - 1) != b"\n"

    def write_output(self, data: bytes) -> None:
        """Write every complete line of `data`; keep the rest for the next call."""
        *complete_lines, self.unfinished_line = (self.unfinished_line + data).split(b"\n")
        if len(self.unfinished_line) > _MAX_LINE_BYTES:
            complete_lines.append(self.unfinished_line)
            self.unfinished_line = b""
        if complete_lines:
            self.write_lines(complete_lines)

    def write_pipe(self, output_fd: int) -> None:
        """Write what is in a pipe now. Its end may never come: a process that cannot be ended may go on writing."""
        (remaining_bytes,) = struct.unpack("i", fcntl.ioctl(output_fd, termios.FIONREAD, bytes(4)))
        while remaining_bytes > 0:
            data = os.read(output_fd, min(remaining_bytes, 1 << 16))
            remaining_bytes -= len(data)
            self.write_output(data)

    def write_lines(self, lines: list[bytes]) -> None:
        """Append lines, all with the current time. Lines that cannot be written are counted as lost."""
        now = time.time()
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000)
        prefix = ("%s %s | " % (timestamp, self.name)).encode()
        data = b"".join(prefix + line + b"\n" for line in lines)
        if self.has_partial_line:
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(self.fd, data) :]
            self.has_partial_line = False
            self.line_count += len(lines)
        except OSError as error:
            missing_count = data.count(b"\n")
            self.has_partial_line = self.has_partial_line or missing_count < len(lines)
            self.line_count += len(lines) - missing_count
            self.record_loss(missing_count, error)

    def record_loss(self, missing_count: int, error: OSError) -> None:
        """Count lost lines; the first loss is recorded in the state."""
        self.lost_count += missing_count
        self.error = self.error or os.strerror(error.errno or errno.EIO)
        if self.lost_count == missing_count:
            try_write_state(self.folder, lost=missing_count, error=self.error)

    def finish(self) -> None:
        """Write the last line, which may lack its end; if the file was removed meanwhile, count every line as lost.

        A file that cannot be looked at counts as removed, as its server reports one that was (ESTALE). The descriptor
        stays open: `recover_output` may still append lines.
        """
        if self.unfinished_line:
            self.write_lines([self.unfinished_line])
            self.unfinished_line = b""
        try:
            if os.fstat(self.fd).st_nlink:
                return
            error = OSError(errno.ENOENT, "")
        except OSError as stat_error:
            error = stat_error
        self.record_loss(self.line_count, error)
        self.line_count = 0


def recover_output(folder: str, log: ProcessLog) -> None:
    """Append what torchrun had on disk but had not printed yet when it was killed; then remove its copy.

    OSError if a part of the copy cannot be read: it stays.
    """
    _append_unprinted(folder, log)
    shutil.rmtree(file_path(folder, "ranks"), ignore_errors=True)


def recover_unsupervised(folder: str) -> None:
    """Append what a killed supervisor had not logged, and record whether that succeeded (`recovered` in the state).

    Does nothing without torchrun's own copy of the output, or while another process holds the lock. A second call
    appends nothing. torchrun's copy stays, because the processes may still write it.
    """
    state = read_state(folder)
    spec = read_spec(folder)
    if not state or not spec or is_missing(file_path(folder, "ranks")):
        return
    lock = take_lock(folder)
    if lock is None:
        return
    with contextlib.suppress(OSError):
        log = ProcessLog(folder, spec["name"])
        _append_unprinted(folder, log)
        try_write_state(folder, recovered=not log.lost_count)
        os.close(log.fd)
    os.close(lock)


def _append_unprinted(folder: str, log: ProcessLog) -> None:
    """Append the lines of torchrun's copy that are not in the end of the log; each is counted as often as it occurs.

    OSError if a part of the copy cannot be read.
    """
    paths = sorted(_list_rank_logs(folder))
    if not paths:
        return
    printed = collections.Counter()  # type: collections.Counter[bytes]
    with open(file_path(folder, "log"), "rb") as file:
        for line in _read_tail_bytes(file).split(b"\n"):
            printed.update(list_printed_lines(line.partition(b" | ")[2]))
    for path in paths:
        prefix = b"[default" + os.path.basename(os.path.dirname(path)).encode() + b"]:"
        with open(path, "rb") as file:
            lines = list_final_lines(_read_tail_bytes(file))
        for text in lines:
            line = prefix + text
            printed[line] -= 1
            if printed[line] < 0:
                log.write_lines([line])


def _list_rank_logs(folder: str) -> Iterator[str]:
    """The files of torchrun's copy, as `ranks/ID/attempt_0/3/stdout.log`. OSError if a folder cannot be listed."""
    for name, _ in list_files(folder, "ranks"):
        if _RANK_LOG.match(name):
            yield file_path(folder, name)


def list_printed_lines(text: bytes) -> list[bytes]:
    """The lines of ranks in one line of torchrun, each with its prefix.

    torchrun copies what is in a rank's file at that moment. A line that the rank has not ended yet, such as a progress
    bar, is therefore followed by the next prefix in the same line; if it is the same rank's, both may be pieces of one
    line. The result contains each piece, and each sequence of pieces of one rank.
    """
    pieces = _TEE_PREFIX.split(text)
    lines = [pieces[0]] if pieces[0] else []
    prefixes = pieces[1::2]
    texts = pieces[2::2]
    for first, prefix in enumerate(prefixes):
        line = prefix
        for index in range(first, min(first + _MAX_JOINED_PIECES, len(prefixes))):
            if prefixes[index] != prefix:
                break
            line += texts[index]
            lines.append(line)
    return lines


def list_final_lines(output: bytes) -> list[bytes]:
    """The lines of a rank's output as a terminal shows them at the end.

    What a carriage return has redrawn, such as the states of a progress bar, was replaced by the rank itself and is not
    lost. A last line that the rank has not ended counts, unless it is being redrawn.
    """
    *ended_lines, last_line = output.split(b"\n")
    lines = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in ended_lines]
    if last_line and b"\r" not in last_line:
        lines.append(last_line)
    return lines


def read_tail(file: BinaryIO) -> list[bytes]:
    """The lines in the last 4 MiB of a file, without their newlines. A carriage return is a part of its line."""
    *complete_lines, last_line = _read_tail_bytes(file).split(b"\n")
    return complete_lines + [last_line] if last_line else complete_lines


def _read_tail_bytes(file: BinaryIO) -> bytes:
    """The last 4 MiB of a file, from the start of a line on."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAX_TAIL_BYTES))
    if size > _MAX_TAIL_BYTES:
        file.readline()
    return file.read()
