"""The only module that starts processes: on this machine, or the same command behind the user's own `ssh HOST`."""

import contextlib
import json
import os
import selectors
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.plan import THIS_MACHINE, Command

T = TypeVar("T")
ChildProcess = subprocess.Popen[bytes]
# The user's configuration applies, except what needs a person to answer or outlives the command.
_SSH_OPTIONS = (
    *("-T", "-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=10", "-oServerAliveCountMax=3"),
    *("-oControlMaster=no", "-oClearAllForwardings=yes", "-oRemoteCommand=none", "-oPermitLocalCommand=no"),
)
_SSH_FAILED_EXIT_CODE = 255
_FINAL_SSH_ERRORS = ("Permission denied", "verification failed", "Could not resolve", "Bad configuration", "Bad owner")
_RETRY_TIMEOUT_S = 10.0  # seconds in which a failed connection is tried again: every verb can be called again
_MAX_TITLE_WORD_CHARS = 200
_MAX_STDERR_BYTES = 4096  # of a command's stderr: the last of it
_MAX_OUTPUT_BYTES = 16 * 2**20
_TRANSFER_TIMEOUT_S = 3600.0  # seconds to stage in or out


def _build_argv(host: str, command: Command) -> tuple[str, ...]:
    """The command line to start here; TORCHYARD_SSH may name another ssh, or give it options."""
    if host in THIS_MACHINE:
        return command.argv
    return (*shlex.split(os.environ.get("TORCHYARD_SSH") or "ssh"), *_SSH_OPTIONS, host, shlex.join(command.argv))


def _start_command(host: str, command: Command) -> ChildProcess:
    """Start a command on a host; its stdin stays open until it is closed here."""
    process = _spawn_process(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if command.input is not None and process.stdin:
        with contextlib.suppress(BrokenPipeError):  # it died at once; its stderr is reported later
            process.stdin.write(json.dumps(command.input).encode())
            process.stdin.close()
    return process


def start_stream(host: str, command: Command) -> ChildProcess:
    """Start a long-lived command: one descriptor for its stdin and stdout, and one for its stderr."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise HostError(host, "start its command", error.strerror or str(error)) from error
    with ours, theirs:
        process = _spawn_process(host, command, stdin=theirs, stdout=theirs)
        process.stdin = cast(IO[bytes], ours.makefile("wb", buffering=0))
        process.stdout = cast(IO[bytes], ours.makefile("rb", buffering=0))
    assert process.stderr
    os.set_blocking(process.stderr.fileno(), False)
    return process


def read_output(process: ChildProcess) -> bytes:
    """Wait for a stream's output; empty at its end, even if it did not read all of its input."""
    assert process.stdout
    with contextlib.suppress(ConnectionResetError):
        return os.read(process.stdout.fileno(), 1 << 16)
    return b""


def read_stderr(process: ChildProcess) -> bytes:
    """A stream's stderr so far; it must be read, as the command would block at 64 KiB."""
    assert process.stderr
    with contextlib.suppress(BlockingIOError):
        return os.read(process.stderr.fileno(), 1 << 16)[-_MAX_STDERR_BYTES:]
    return b""


def _spawn_process(host: str, command: Command, **ends: Any) -> ChildProcess:
    argv = _build_argv(host, command)
    try:
        return subprocess.Popen(argv, stderr=subprocess.PIPE, **ends)
    except OSError as error:
        raise HostError(host, f"start {argv[0]}", error.strerror or str(error)) from error


def run_command(host: str, command: Command, timeout: float = 60.0, patience: float = _RETRY_TIMEOUT_S) -> Any:
    """Run a command to its end; returns the JSON that it printed. HostError with its error if it failed.

    If ssh itself failed, it is called again for `patience` seconds.
    """
    return retry_ssh(lambda: _await_answer(host, command, _start_command(host, command), timeout), patience)


def retry_ssh(work: Callable[[], T], patience: float = _RETRY_TIMEOUT_S) -> T:
    """What `work` returns; tried again if ssh itself failed for a reason that may pass."""

    def passing(error: BaseException) -> bool:
        return isinstance(error, UnreachedError) and not any(word in error.message for word in _FINAL_SSH_ERRORS)

    return Retrying(
        retry=retry_if_exception(passing), wait=wait_fixed(1), stop=stop_after_delay(patience), reraise=True
    )(work)


def run_commands(
    commands: Sequence[tuple[str, Command]], timeout: float = 60.0, patience: float = _RETRY_TIMEOUT_S
) -> list[Any]:
    """Run one command per host, all at once: the answers in the same order, a HostError in place of a missing one."""
    with ThreadPoolExecutor(max(len(commands), 1)) as pool:
        return list(pool.map(lambda pair: _try_command(pair[0], pair[1], timeout, patience), commands))


def _try_command(host: str, command: Command, timeout: float, patience: float) -> Any:
    try:
        return run_command(host, command, timeout, patience)
    except HostError as error:
        return error


def _await_answer(host: str, command: Command, process: ChildProcess, timeout: float) -> Any:
    try:
        printed, said = _collect_output(process, timeout)
    except (TimeoutError, OverflowError) as error:
        raise HostError(host, _command_title(command), str(error)) from error
    finally:
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout, process.stderr):
            if end:
                end.close()
    try:
        return json.loads(printed)
    except (ValueError, RecursionError) as error:
        noise = b"answers `%s`: its shell must not print anything by itself" % decode_last_line(printed)[:60].encode()
        raise _command_error(host, command, process.returncode, said or noise if printed else said) from error


def _collect_output(process: ChildProcess, timeout: float) -> tuple[bytes, bytes]:
    """A command's stdout and the end of its stderr, once no process has them open any more.

    TimeoutError if that takes too long, OverflowError if it prints too much.
    """
    assert process.stdout
    assert process.stderr
    printed, said, until = bytearray(), b"", time.monotonic() + timeout
    if process.stdin:
        process.stdin.close()
    with selectors.PollSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() > until:
                raise TimeoutError(f"no answer within {timeout:.0f} s")
            for key, _ in selector.select(until - time.monotonic()):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    said = (said + data)[-_MAX_STDERR_BYTES:]
                else:
                    printed += data
            if len(printed) > _MAX_OUTPUT_BYTES:
                raise OverflowError(f"it answers more than {_MAX_OUTPUT_BYTES >> 20} MiB")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, until - time.monotonic()))
    return bytes(printed), said


def _command_error(host: str, command: Command, code: int, said: bytes) -> HostError:
    """Why a command failed, in one sentence."""
    why = decode_last_line(said)
    if code == _SSH_FAILED_EXIT_CODE and host not in THIS_MACHINE:
        advice = f"`ssh {host} true` must work without a question"
        return UnreachedError(host, "reach it by ssh", f"{why or 'ssh failed'}; {advice}")
    return HostError(host, _command_title(command), why or f"exit code {code}, no answer")


def _command_title(command: Command) -> str:
    """A command in few words, without the text of a script that is sent along."""
    said = [
        Path(word).name
        for word in command.argv[-3:]
        if len(word) < _MAX_TITLE_WORD_CHARS and " " not in word and word != "-c"
    ]
    return " ".join(said) or command.argv[0]


def decode_last_line(said: bytes) -> str:
    return (said.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


def pipe_command(host: str, command: Command, work: Callable[[IO[bytes], IO[bytes]], T]) -> T:
    """What `work` returns for a command's stdin and stdout. HostError if it or the command fails."""
    process = _start_command(host, command)
    assert process.stdin
    assert process.stdout
    last = _StderrReader(process)
    end = threading.Timer(_TRANSFER_TIMEOUT_S, process.kill)
    end.start()
    try:
        made, broken = work(process.stdin, process.stdout), None
    except (OSError, ValueError) as error:
        made, broken = None, error
    finally:
        end.cancel()
        for end_of in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                end_of.close()
        said, code = last.words(), process.wait()
    if code or broken or made is None:
        raise _command_error(host, command, code, said or str(broken or "").encode()) from broken
    return made


class _StderrReader(threading.Thread):
    """Reads a command's stderr, and keeps the last of it."""

    def __init__(self, process: ChildProcess) -> None:
        super().__init__(daemon=True)
        assert process.stderr
        self._stream, self._said = process.stderr, b""
        self.start()

    def run(self) -> None:
        with self._stream:
            while data := os.read(self._stream.fileno(), 1 << 16):
                self._said = (self._said + data)[-_MAX_STDERR_BYTES:]

    def words(self) -> bytes:
        """The end of stderr, once the command has ended."""
        self.join()
        return self._said


def close_stream(process: ChildProcess, patience: float) -> bytes:
    """End a stream, by a kill if it lasts longer than `patience` seconds. Returns its last stderr output, if any.

    Its pipes are not read to their end: other processes may hold them open.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    process.kill()
    process.wait()
    said = read_stderr(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
    return said


class Watchdog:
    """A detached process that notices, by a pipe, when this process dies (torchyard/run/watchdog.py)."""

    def __init__(self, argv: Iterable[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def send(self, word: str) -> None:
        """Send `ending` (teardown has begun) or `done` (nothing is left to watch)."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # the watchdog was killed; the run goes on without it
