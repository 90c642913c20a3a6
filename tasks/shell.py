"""The only door to processes: on this machine, or the same command behind the user's own `ssh HOST`."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from tasks.errors import HostError, UnreachedError
from tasks.plan import THIS_MACHINE, Command

T = TypeVar("T")
Process = subprocess.Popen[bytes]
# The user's configuration counts, but for what cannot work without a person or outlives the command.
SSH = (
    *("-T", "-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=10", "-oServerAliveCountMax=3"),
    *("-oControlMaster=no", "-oClearAllForwardings=yes", "-oRemoteCommand=none", "-oPermitLocalCommand=no"),
)
SSH_FAILED = 255
FINAL = ("Permission denied", "verification failed", "Could not resolve", "Bad configuration", "Bad owner")
PATIENCE = 10.0  # seconds in which a connection that failed is tried again: every verb can be called again
LONG = 200
HANGS = 3600.0  # seconds for what is sent or brought


def words(host: str, command: Command) -> tuple[str, ...]:
    """What is started here; TORCHYARD_SSH may name another ssh, or give it options."""
    if host in THIS_MACHINE:
        return command.argv
    return (*shlex.split(os.environ.get("TORCHYARD_SSH") or "ssh"), *SSH, host, shlex.join(command.argv))


def start(host: str, command: Command) -> Process:
    """Start a command on a host; its stdin stays open until it is closed here."""
    argv = words(host, command)
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise HostError(host, f"start {argv[0]}", error.strerror or str(error)) from error
    if command.input is not None and process.stdin:
        with contextlib.suppress(BrokenPipeError):  # it died at once; what it said is told by `finish`
            process.stdin.write(json.dumps(command.input).encode())
            process.stdin.close()
        process.stdin = None
    return process


def call(host: str, command: Command, timeout: float = 60.0, patience: float = PATIENCE) -> Any:
    """Run a command to its end: the JSON that it printed. HostError where it failed, and what it said.

    Where ssh itself failed it is called again for `patience` seconds.
    """
    return patiently(lambda: finish(host, command, start(host, command), timeout), patience)


def patiently(work: Callable[[], T], patience: float = PATIENCE) -> T:
    """What `work` returns, tried again where ssh itself failed for a reason that may pass."""

    def passing(error: BaseException) -> bool:
        return isinstance(error, UnreachedError) and not any(word in error.said for word in FINAL)

    return Retrying(
        retry=retry_if_exception(passing), wait=wait_fixed(1), stop=stop_after_delay(patience), reraise=True
    )(work)


def call_each(commands: Sequence[tuple[str, Command]], timeout: float = 60.0, patience: float = PATIENCE) -> list[Any]:
    """Run one command a host, all at once: the answers in the same order, a HostError in place of a missing one."""
    with ThreadPoolExecutor(max(len(commands), 1)) as pool:
        return list(pool.map(lambda pair: attempt(pair[0], pair[1], timeout, patience), commands))


def attempt(host: str, command: Command, timeout: float, patience: float) -> Any:
    try:
        return call(host, command, timeout, patience)
    except HostError as error:
        return error


def finish(host: str, command: Command, process: Process, timeout: float) -> Any:
    try:
        printed, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise HostError(host, title(command), f"no answer within {timeout:.0f} s") from error
    try:
        return json.loads(printed)
    except ValueError as error:
        noise = b"answers `%s`: what its shell prints by itself must go away" % last_line(printed)[:60].encode()
        raise fault(host, command, process.returncode, said or noise if printed else said) from error


def fault(host: str, command: Command, code: int, said: bytes) -> HostError:
    """Why a command did not do its work, in one sentence."""
    why = last_line(said)
    if code == SSH_FAILED and host not in THIS_MACHINE:
        advice = f"`ssh {host} true` must work without a question"
        return UnreachedError(host, "reach it by ssh", f"{why or 'ssh failed'}; {advice}")
    return HostError(host, title(command), why or f"exit code {code}, no answer")


def title(command: Command) -> str:
    """A command in few words: a script that is sent as text has none."""
    said = [Path(word).name for word in command.argv[-3:] if len(word) < LONG and " " not in word and word != "-c"]
    return " ".join(said) or command.argv[0]


def last_line(said: bytes) -> str:
    return (said.decode(errors="replace").strip().splitlines() or [""])[-1].strip()


def pipe(host: str, command: Command, work: Callable[[IO[bytes], IO[bytes]], T]) -> T:
    """What `work` makes of a command's stdin and stdout. HostError where it or the command fails."""
    process = start(host, command)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    end = threading.Timer(HANGS, process.kill)
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
        said, code = process.stderr.read(), process.wait()
    if code or broken or made is None:
        raise fault(host, command, code, said or str(broken or "").encode()) from broken
    return made


def close(process: Process, patience: float) -> bytes:
    """End a process, which may do so by itself for a moment; what it said last, as far as it is there.

    Its pipes are not read to their end: others may hold them open.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    process.kill()
    process.wait()
    assert process.stderr
    os.set_blocking(process.stderr.fileno(), False)
    said = process.stderr.read() or b""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
    return said


class Guard:
    """A detached process that sees, through a pipe, the moment this process dies (tasks/guard.py)."""

    def __init__(self, argv: Iterable[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def tell(self, word: str) -> None:
        """`ending`: teardown has begun. `done`: nothing is left to guard."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # somebody killed the guard; the run goes on without it


def follow(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """The whole lines that a growing file has gained since `offset`, each with the offset behind it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line[:-1].decode(errors="replace"), offset
