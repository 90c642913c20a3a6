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
_PERMANENT_SSH_ERRORS = (
    "Permission denied",
    "verification failed",
    "Could not resolve",
    "Bad configuration",
    "Bad owner",
)
_RETRY_TIMEOUT_S = 10.0  # seconds in which a failed connection is tried again: every verb can be called again
_MAX_TITLE_ARG_CHARS = 200
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


def _spawn_process(host: str, command: Command, **streams: Any) -> ChildProcess:
    argv = _build_argv(host, command)
    try:
        return subprocess.Popen(argv, stderr=subprocess.PIPE, **streams)
    except OSError as error:
        raise HostError(host, f"start {argv[0]}", error.strerror or str(error)) from error


def run_command(host: str, command: Command, timeout_s: float = 60.0, retry_timeout_s: float = _RETRY_TIMEOUT_S) -> Any:
    """Run a command to its end; returns the JSON that it printed. HostError with its error if it failed.

    If ssh itself failed, it is called again for `patience` seconds.
    """
    return retry_ssh(lambda: _read_response(host, command, _start_command(host, command), timeout_s), retry_timeout_s)


def retry_ssh(operation: Callable[[], T], retry_timeout_s: float = _RETRY_TIMEOUT_S) -> T:
    """What `work` returns; tried again if ssh itself failed for a reason that may pass."""

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, UnreachedError) and not any(text in error.message for text in _PERMANENT_SSH_ERRORS)

    return Retrying(
        retry=retry_if_exception(is_transient), wait=wait_fixed(1), stop=stop_after_delay(retry_timeout_s), reraise=True
    )(operation)


def run_commands(
    commands: Sequence[tuple[str, Command]], timeout_s: float = 60.0, retry_timeout_s: float = _RETRY_TIMEOUT_S
) -> list[Any]:
    """Run one command per host, all at once: the answers in the same order, a HostError in place of a missing one."""
    with ThreadPoolExecutor(max(len(commands), 1)) as pool:
        return list(
            pool.map(
                lambda host_command: _try_command(host_command[0], host_command[1], timeout_s, retry_timeout_s),
                commands,
            )
        )


def _try_command(host: str, command: Command, timeout_s: float, retry_timeout_s: float) -> Any:
    try:
        return run_command(host, command, timeout_s, retry_timeout_s)
    except HostError as error:
        return error


def _read_response(host: str, command: Command, process: ChildProcess, timeout_s: float) -> Any:
    try:
        stdout, stderr = _collect_output(process, timeout_s)
    except (TimeoutError, OverflowError) as error:
        raise HostError(host, _command_title(command), str(error)) from error
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
    try:
        return json.loads(stdout)
    except (ValueError, RecursionError) as error:
        noise_message = (
            b"answers `%s`: its shell must not print anything by itself" % decode_last_line(stdout)[:60].encode()
        )
        raise _command_error(
            host, command, process.returncode, stderr or noise_message if stdout else stderr
        ) from error


def _collect_output(process: ChildProcess, timeout_s: float) -> tuple[bytes, bytes]:
    """A command's stdout and the end of its stderr, once no process has them open any more.

    TimeoutError if that takes too long, OverflowError if it prints too much.
    """
    assert process.stdout
    assert process.stderr
    stdout, stderr, deadline = bytearray(), b"", time.monotonic() + timeout_s
    if process.stdin:
        process.stdin.close()
    with selectors.PollSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {timeout_s:.0f} s")
            for key, _ in selector.select(deadline - time.monotonic()):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    stderr = (stderr + data)[-_MAX_STDERR_BYTES:]
                else:
                    stdout += data
            if len(stdout) > _MAX_OUTPUT_BYTES:
                raise OverflowError(f"it answers more than {_MAX_OUTPUT_BYTES >> 20} MiB")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
    return bytes(stdout), stderr


def _command_error(host: str, command: Command, code: int, stderr: bytes) -> HostError:
    """Why a command failed, in one sentence."""
    reason = decode_last_line(stderr)
    if code == _SSH_FAILED_EXIT_CODE and host not in THIS_MACHINE:
        advice = f"`ssh {host} true` must work without a question"
        return UnreachedError(host, "reach it by ssh", f"{reason or 'ssh failed'}; {advice}")
    return HostError(host, _command_title(command), reason or f"exit code {code}, no answer")


def _command_title(command: Command) -> str:
    """A command in few words, without the text of a script that is sent along."""
    words = [
        Path(word).name
        for word in command.argv[-3:]
        if len(word) < _MAX_TITLE_ARG_CHARS and " " not in word and word != "-c"
    ]
    return " ".join(words) or command.argv[0]


def decode_last_line(stderr: bytes) -> str:
    return (stderr.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


def pipe_command(host: str, command: Command, transfer: Callable[[IO[bytes], IO[bytes]], T]) -> T:
    """What `work` returns for a command's stdin and stdout. HostError if it or the command fails."""
    process = _start_command(host, command)
    assert process.stdin
    assert process.stdout
    stderr_reader = _StderrReader(process)
    timer = threading.Timer(_TRANSFER_TIMEOUT_S, process.kill)
    timer.start()
    try:
        result, failure = transfer(process.stdin, process.stdout), None
    except (OSError, ValueError) as error:
        result, failure = None, error
    finally:
        timer.cancel()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        stderr, code = stderr_reader.get_tail(), process.wait()
    if code or failure or result is None:
        raise _command_error(host, command, code, stderr or str(failure or "").encode()) from failure
    return result


class _StderrReader(threading.Thread):
    """Reads a command's stderr, and keeps the last of it."""

    def __init__(self, process: ChildProcess) -> None:
        super().__init__(daemon=True)
        assert process.stderr
        self._stream, self._stderr = process.stderr, b""
        self.start()

    def run(self) -> None:
        with self._stream:
            while data := os.read(self._stream.fileno(), 1 << 16):
                self._stderr = (self._stderr + data)[-_MAX_STDERR_BYTES:]

    def get_tail(self) -> bytes:
        """The end of stderr, once the command has ended."""
        self.join()
        return self._stderr


def close_stream(process: ChildProcess, timeout_s: float) -> bytes:
    """End a stream, by a kill if it lasts longer than `patience` seconds. Returns its last stderr output, if any.

    Its pipes are not read to their end: other processes may hold them open.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    process.kill()
    process.wait()
    stderr = read_stderr(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
    return stderr


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
