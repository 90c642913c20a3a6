"""The only module that starts processes: on this machine, or the same command behind the user's own `ssh HOST`.

    run_command, run_commands  a command that prints one JSON value; ssh itself is called again if it fails
    pipe_command               a transfer through a command's stdin and stdout
    start_stream               a command whose output is read while it runs; the caller ends it with close_stream
    follow_command             a command without input, to its end; its output goes to a callback as it arrives
    replace_process            this process becomes the command, with its terminal

Every command ends or is killed: at its timeout, with its transfer, or by close_stream. Only a Watchdog outlives this
process. No pipe is left unread while a command runs, as a full one would block it. A command has ended once it has
exited: its pipes are then read once more, and not to their end, because a child of ssh (a ProxyCommand, the
ControlPersist master of a jump host) may keep them open. Errors are HostError, with UnreachedError if ssh could not
reach the host.
"""

import contextlib
import json
import math
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, TypeVar, cast

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from torchyard.common.json_text import parse_json
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.requirements import THIS_MACHINE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start on a host; `input` is written to its stdin as JSON."""

    argv: tuple[str, ...]
    input: Any = None


ChildProcess = subprocess.Popen[bytes]
# The user's configuration applies, except what needs a person to answer or outlives the command.
_SSH_OPTIONS = (
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
    "-oRemoteCommand=none",
    "-oPermitLocalCommand=no",
)
_COMMAND_OPTIONS = ("-T", "-oClearAllForwardings=yes")
_TERMINAL_OPTIONS = ("-t", "-oClearAllForwardings=yes", "-oLogLevel=ERROR")  # not: "Connection to HOST closed."
_SSH_FAILED_EXIT_CODE = 255
_PERMANENT_SSH_ERRORS = (
    "Permission denied",
    "verification failed",
    "Could not resolve",
    "Bad configuration",
    "Bad owner",
)
COMMAND_TIMEOUT_S = 60.0
_RETRY_TIMEOUT_S = 10.0  # seconds in which a failed connection is retried: every verb can be called again
_MAX_TITLE_ARG_CHARS = 200
_MAX_STDERR_BYTES = 4096  # of a command's stderr: the last of it
_PIPE_BYTES = 1 << 20  # as much as a pipe can hold: one read empties it
_EXIT_POLL_INTERVAL_S = 0.2  # between two looks whether a command has exited whose pipes are still open
MAX_OUTPUT_BYTES = 16 * 2**20  # of a command's stdout: more is refused, because it is held in memory
_TRANSFER_TIMEOUT_S = 3600.0  # seconds to stage in or out


def build_argv(host: str, command: Command, *, has_terminal: bool = False) -> tuple[str, ...]:
    """The command line to start here. `has_terminal`: the command gets a terminal on its host."""
    if host in THIS_MACHINE:
        return command.argv
    options = _TERMINAL_OPTIONS if has_terminal else _COMMAND_OPTIONS
    return (*_build_ssh_argv(), *options, host, shlex.join(command.argv))


def build_forward_argv(host: str, local_port: int, remote_port: int) -> tuple[str, ...]:
    """The command line of an ssh that forwards a port of the loopback interface here to one of a host's."""
    ports = f"127.0.0.1:{local_port}:localhost:{remote_port}"
    return (*_build_ssh_argv(), "-N", "-T", "-oExitOnForwardFailure=yes", "-L", ports, host)


def _build_ssh_argv() -> tuple[str, ...]:
    """ssh with our options; TORCHYARD_SSH may name another ssh, or give it options."""
    return (*shlex.split(os.environ.get("TORCHYARD_SSH") or "ssh"), *_SSH_OPTIONS)


def _start_command(host: str, command: Command) -> ChildProcess:
    """Start a command on a host; its stdin stays open until it is closed here. Its input is not written yet."""
    return _spawn_process(host, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def start_stream(host: str, command: Command) -> ChildProcess:
    """Start a long-lived command: one descriptor for its stdin and stdout, and one for its stderr.

    Raises HostError if it cannot be started.
    """
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise HostError(host, "start its command", error.strerror or str(error)) from error
    with ours, theirs:
        process = _spawn_process(host, command, stdin=theirs, stdout=theirs)
        process.stdin = cast(IO[bytes], ours.makefile("wb", buffering=0))
        process.stdout = cast(IO[bytes], ours.makefile("rb", buffering=0))
    return process


def read_output(process: ChildProcess) -> bytes:
    """Wait for a stream's output; empty at its end, even if the command did not read all of its input."""
    assert process.stdout
    with contextlib.suppress(ConnectionResetError):
        return os.read(process.stdout.fileno(), 1 << 16)
    return b""


class StderrTail:
    """The last bytes of a command's stderr. It must be read whenever it is readable: a command blocks at 64 KiB.

    tail: the last `_MAX_STDERR_BYTES` that were read.
    is_open: False once every process that had it open has exited.
    """

    def __init__(self, process: ChildProcess) -> None:
        assert process.stderr
        self.stream = process.stderr
        self.is_open = True
        self.tail = b""
        os.set_blocking(self.stream.fileno(), False)

    def read(self) -> bytes:
        """Read and return what has arrived, without waiting for more; empty if nothing has, or at its end."""
        try:
            data = os.read(self.stream.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return b""
        self.is_open = bool(data)
        self.tail = (self.tail + data)[-_MAX_STDERR_BYTES:]
        return data


def _spawn_process(host: str, command: Command, **streams: Any) -> ChildProcess:
    argv = build_argv(host, command)
    try:
        # In a process group of its own: a Ctrl-C is for this process, whose commands end the job or read its log.
        return subprocess.Popen(argv, stderr=subprocess.PIPE, process_group=0, **streams)
    except OSError as error:
        raise HostError(host, f"start {argv[0]}", error.strerror or str(error)) from error


def run_command(
    host: str, command: Command, *, timeout_s: float = COMMAND_TIMEOUT_S, retry_timeout_s: float = _RETRY_TIMEOUT_S
) -> Any:
    """Run a command to its end; returns the JSON value that it printed.

    Raises HostError with the command's error if it failed, timed out (`timeout_s` for each try) or did not print JSON.
    If ssh itself failed, the command is run again for `retry_timeout_s` seconds, so commands must be idempotent.
    """

    def run_once() -> Any:
        return _read_response(host, command, _start_command(host, command), timeout_s)

    return retry_ssh(run_once, retry_timeout_s=retry_timeout_s)


def retry_ssh(operation: Callable[[], T], *, retry_timeout_s: float = _RETRY_TIMEOUT_S) -> T:
    """The result of `operation`, which is repeated if ssh itself failed for a reason that may pass."""

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, UnreachedError) and not any(text in error.message for text in _PERMANENT_SSH_ERRORS)

    return Retrying(
        retry=retry_if_exception(is_transient), wait=wait_fixed(1), stop=stop_after_delay(retry_timeout_s), reraise=True
    )(operation)


def replace_process(argv: Sequence[str]) -> NoReturn:
    """Become another program, which has this process's terminal, signals and exit code. HostError if it cannot start.

    The caller has flushed its output.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        raise HostError("localhost", f"start {argv[0]}", error.strerror or str(error)) from error


def follow_command(host: str, command: Command, on_output: Callable[[int, bytes], object]) -> int:
    """Run a command without input to its end; return its exit code, 128 and the signal's number if a signal ended it.

    `on_output` gets each piece of its stdout (1) and stderr (2). Raises HostError if it cannot be started.
    """
    process = _spawn_process(host, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        for stream_number, data in _read_to_exit(process, StderrTail(process), timeout_s=math.inf):
            on_output(stream_number, data)
        exit_code = process.wait()
    finally:
        _end_command(process)
    return exit_code if exit_code >= 0 else 128 - exit_code


def run_commands(
    commands: Sequence[tuple[str, Command]],
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
    retry_timeout_s: float = _RETRY_TIMEOUT_S,
) -> list[Any]:
    """Run commands, each on its host, all at once; returns their responses in the same order.

    The response of a command that failed is its HostError.
    """

    def try_command(host_and_command: tuple[str, Command]) -> Any:
        host, command = host_and_command
        try:
            return run_command(host, command, timeout_s=timeout_s, retry_timeout_s=retry_timeout_s)
        except HostError as error:
            return error

    with ThreadPoolExecutor(max(len(commands), 1)) as pool:
        return list(pool.map(try_command, commands))


def _read_response(host: str, command: Command, process: ChildProcess, timeout_s: float) -> Any:
    """The JSON value that a command prints. The command has ended, or is killed, when this returns or raises."""
    input_data = b"" if command.input is None else json.dumps(command.input).encode()
    try:
        stdout, stderr = _collect_output(process, input_data, timeout_s)
    except (TimeoutError, OverflowError) as error:
        raise HostError(host, _command_title(command), str(error)) from error
    finally:
        _end_command(process)
    try:
        return parse_json(stdout)
    except ValueError as error:
        if stdout and not stderr:
            noise = decode_last_line(stdout)[:60].encode()
            stderr = b"answers `%s`: its shell must not print anything by itself" % noise
        raise _command_error(host, command, process.returncode, stderr) from error


def _collect_output(process: ChildProcess, input_data: bytes, timeout_s: float) -> tuple[bytes, bytes]:
    """A command's stdout and the end of its stderr, once it has exited.

    input_data: for its stdin, which is closed behind it. A command that does not read it may still respond.

    Raises TimeoutError after `timeout_s` seconds, and OverflowError if the command prints too much.
    """
    stdout = bytearray()
    stderr = StderrTail(process)
    deadline = time.monotonic() + timeout_s
    for stream_number, data in _read_to_exit(process, stderr, input_data, timeout_s=timeout_s):
        if stream_number == 1:
            stdout += data
        if len(stdout) > MAX_OUTPUT_BYTES:
            raise OverflowError(f"its output is larger than {MAX_OUTPUT_BYTES >> 20} MiB")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
    return bytes(stdout), stderr.tail


def _read_to_exit(
    process: ChildProcess, stderr: StderrTail, input_data: bytes = b"", *, timeout_s: float
) -> Iterator[tuple[int, bytes]]:
    """Yield each piece of a command's stdout (1) and stderr (2), until it has exited or has closed its pipes.

    `input_data` is written meanwhile: a host that takes none, or a full pipe, must not block this process. Raises
    TimeoutError after `timeout_s` seconds.
    """
    assert process.stdout
    unsent = memoryview(input_data)
    deadline = time.monotonic() + timeout_s
    with selectors.PollSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(stderr.stream, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            has_exited = process.poll() is not None  # before the read: then all that it has printed can be read
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"no answer within {timeout_s:.0f} s")
            wait_s = 0.0 if has_exited else min(_EXIT_POLL_INTERVAL_S, remaining_s)
            for key, _ in selector.select(wait_s):
                if key.fileobj is process.stdin:
                    unsent = _write_piece(key.fd, unsent)
                    if not unsent:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                is_stderr = key.fileobj is stderr.stream
                data = stderr.read() if is_stderr else os.read(key.fd, _PIPE_BYTES)
                if data:
                    yield (2 if is_stderr else 1), data
                else:
                    selector.unregister(key.fileobj)
            if has_exited:
                return


def _write_piece(descriptor: int, unsent: memoryview) -> memoryview:
    """Write as much as a pipe takes now; return the rest, empty if the reader is gone."""
    try:
        return unsent[os.write(descriptor, unsent[:_PIPE_BYTES]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:  # its stderr is reported later
        return unsent[:0]


def _end_command(process: ChildProcess) -> None:
    """Kill a command that has not exited, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()


def _command_error(host: str, command: Command, exit_code: int, stderr: bytes) -> HostError:
    """The error of a command that failed, with the last line of its stderr as the reason."""
    reason = decode_last_line(stderr)
    if exit_code == _SSH_FAILED_EXIT_CODE and host not in THIS_MACHINE:
        advice = f"`ssh {host} true` must work without a question"
        return UnreachedError(host, "reach it by ssh", f"{reason or 'ssh failed'}; {advice}")
    return HostError(host, _command_title(command), reason or f"exit code {exit_code}, no answer")


def _command_title(command: Command) -> str:
    """A command in few words, without the text of a script that is sent along."""
    names: list[str] = []
    for arg in command.argv[-3:]:
        if len(arg) < _MAX_TITLE_ARG_CHARS and " " not in arg and not arg.startswith("-"):
            names.append(Path(arg).name)
    return " ".join(names) or command.argv[0]


def decode_last_line(output: bytes) -> str:
    """The last line of an output that is not blank, as text; empty if there is none."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def pipe_command(host: str, command: Command, transfer: Callable[[IO[bytes], IO[bytes]], T]) -> T:
    """The result of `transfer`, which is called with a command's stdin and stdout.

    Raises HostError if the command fails, takes longer than `_TRANSFER_TIMEOUT_S`, or if `transfer` raises OSError or
    ValueError or returns None. Other errors of `transfer` are raised as they are.
    """
    process = _start_command(host, command)
    assert process.stdin
    assert process.stdout
    stderr_reader = _StderrReader(process)
    kill_timer = threading.Timer(_TRANSFER_TIMEOUT_S, process.kill)
    kill_timer.start()
    result: T | None = None
    transfer_error: Exception | None = None
    try:
        result = transfer(process.stdin, process.stdout)
    except (OSError, ValueError) as error:
        transfer_error = error
    finally:
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        exit_code = process.wait()
        kill_timer.cancel()
        stderr = stderr_reader.read_end()
    if exit_code or transfer_error or result is None:
        reason = stderr or str(transfer_error or "").encode()
        raise _command_error(host, command, exit_code, reason) from transfer_error
    return result


class _StderrReader(threading.Thread):
    """Read a command's stderr while this process waits for its transfer.

    Without this thread, a command with more than 64 KiB on stderr would block in the middle of a transfer. It starts
    itself; `read_end` ends it and must be called once, after the command has exited.
    """

    def __init__(self, process: ChildProcess) -> None:
        super().__init__(daemon=True)
        self._stderr = StderrTail(process)
        self._has_exited = threading.Event()
        self.start()

    def run(self) -> None:
        with selectors.PollSelector() as selector:
            selector.register(self._stderr.stream, selectors.EVENT_READ)
            while self._stderr.is_open and not self._has_exited.is_set():
                if selector.select(_EXIT_POLL_INTERVAL_S):
                    self._stderr.read()

    def read_end(self) -> bytes:
        """Read what the command has printed before its exit, and close the stream; returns the last of it."""
        self._has_exited.set()
        self.join()
        self._stderr.read()
        self._stderr.stream.close()
        return self._stderr.tail


def close_stream(process: ChildProcess, stderr: StderrTail, *, timeout_s: float) -> None:
    """End a stream, by a kill if the command does not exit within `timeout_s`, and read what its stderr has by then.

    Its pipes are not read to their end: other processes may hold them open.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    process.kill()
    process.wait()
    stderr.read()
    _end_command(process)


class Watchdog:
    """A detached process that detects, by a pipe, that this process has died (torchyard/run/watchdog.py).

    The pipe is its stdin: its end means that this process has died. The watchdog is in its own session, so that a
    Ctrl-C or a signal to this process's group does not reach it, and exits after `done`.
    """

    def __init__(self, argv: Iterable[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, message: Literal["ending", "done"]) -> None:
        """Send `ending` (teardown has started) or `done` (nothing is left to watch)."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(message.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # the watchdog was killed; the run continues without it
