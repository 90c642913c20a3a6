"""The log of a kept process. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import collections
import errno
import glob
import os
import select
import shutil
import sys
import time
from typing import BinaryIO

from torchyard.host.state import StateCache, file_path, note_state

ENDED_PHASES = ("exited", "unkept", "absent")  # nothing is written any more
_MAX_LINE_BYTES = 1 << 20  # bytes; a program that never ends its line must not fill the memory


class ProcessLog:
    """Appends stamped lines; a disk that is full costs lines, never the job."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name
        self.fd = os.open(file_path(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.rest, self.lines, self.lost, self.torn, self.error = b"", 0, 0, False, ""

    def feed(self, data: bytes) -> None:
        """Write every whole line of `data`; keep the rest for the next call."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > _MAX_LINE_BYTES:
            whole, self.rest = [*whole, self.rest], b""
        if whole:
            self.write(whole)

    def write(self, lines: list[bytes]) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000)
        mark = ("%s %s | " % (stamp, self.name)).encode()
        data = (b"\n" if self.torn else b"") + b"".join(mark + line + b"\n" for line in lines)
        try:
            while data:
                data = data[os.write(self.fd, data) :]
            self.torn = False
            self.lines += len(lines)
        except OSError as error:
            missing = data.count(b"\n")
            self.torn = self.torn or missing < len(lines)
            self.lines += len(lines) - missing
            self.complain(missing, error)

    def complain(self, missing: int, error: OSError) -> None:
        self.lost += missing
        self.error = self.error or os.strerror(error.errno or errno.EIO)
        if self.lost == missing:
            note_state(self.folder, lost=missing, error=self.error)

    def close(self) -> None:
        """Write the last line; where the file was removed meanwhile, all of it is lost."""
        if self.rest:
            self.write([self.rest])
        if not os.fstat(self.fd).st_nlink:
            self.complain(self.lines, OSError(errno.ENOENT, ""))
            self.lines = 0


def recover_output(folder: str, log: ProcessLog) -> None:
    """Append what torchrun had on disk but had not printed yet when it was killed; then drop its copy."""
    if not os.path.isdir(file_path(folder, "ranks")):
        return
    with open(file_path(folder, "log"), "rb") as file:
        printed = collections.Counter(line.partition(b" | ")[2] for line in read_tail(file))
    for name in sorted(glob.glob(file_path(folder, "ranks/*/attempt_*/*/std*.log"))):
        mark = b"[default" + os.path.basename(os.path.dirname(name)).encode() + b"]:"
        with open(name, "rb") as file:
            for line in read_tail(file):
                printed[mark + line] -= 1
                if printed[mark + line] < 0:
                    log.write([mark + line])
    shutil.rmtree(file_path(folder, "ranks"), ignore_errors=True)


def read_tail(file: BinaryIO, size: int = 1 << 22) -> list[bytes]:
    """The whole lines in the last 4 MiB: torchrun is never more than a moment behind."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - size))
    if end > size:
        file.readline()
    return file.read().splitlines()


# --- the log, read


def follow_process_log(folder: str, offset: int) -> None:
    """Print the log from a byte on, until all of it is printed; exit 1 where the caller goes before."""
    glance = StateCache(folder)
    while True:
        ended = glance.view()["phase"] in ENDED_PHASES  # before the last read: nothing is written after it
        try:
            with open(file_path(folder, "log"), "rb") as file:
                file.seek(offset)
                shutil.copyfileobj(file, sys.stdout.buffer)
                offset = file.tell()
        except FileNotFoundError:
            pass
        sys.stdout.flush()
        if ended:
            return
        if _has_caller_left():
            sys.exit(1)


def _has_caller_left() -> bool:
    """Wait a moment; True where the caller is gone."""
    return read_caller() is None


def read_caller() -> bytes | None:
    """What the caller has said after a moment; None where it is gone."""
    if not select.select([0], [], [], 0.05)[0]:
        return b""
    try:
        return os.read(0, 4096) or None
    except ConnectionResetError:  # gone before it has read everything
        return None
