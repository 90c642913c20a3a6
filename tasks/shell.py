"""The only door to processes: on this machine now; a host reached by ssh is the same commands behind `ssh HOST`."""

import contextlib
import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tasks.errors import HostError
from tasks.model import THIS_MACHINE, Block, Command


def start(host: str, command: Command) -> subprocess.Popen[bytes]:
    """Start a command on a host; its stdin stays open until it is closed here."""
    if host not in THIS_MACHINE:
        raise HostError(host, "reach it", "is not this machine, and only this machine can be reached")
    try:
        process = subprocess.Popen(command.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise HostError(host, f"start {command.argv[0]}", error.strerror or str(error)) from error
    if command.input is not None and process.stdin:
        with contextlib.suppress(BrokenPipeError):  # it died at once; what it said is told by `finish`
            process.stdin.write(json.dumps(command.input).encode())
            process.stdin.close()
        process.stdin = None
    return process


def call(host: str, command: Command, timeout: float = 60.0) -> Any:
    """Run a command to its end: the JSON that it printed. HostError where it failed, and what it said."""
    return finish(host, command, start(host, command), timeout)


def call_each(commands: Sequence[tuple[str, Command]], timeout: float = 60.0) -> list[Any]:
    """Run one command a host, all at once: the answers in the same order, a HostError in place of a missing one."""
    with ThreadPoolExecutor(max(len(commands), 1)) as pool:
        return list(pool.map(lambda pair: attempt(pair[0], pair[1], timeout), commands))


def attempt(host: str, command: Command, timeout: float) -> Any:
    try:
        return call(host, command, timeout)
    except HostError as error:
        return error


def finish(host: str, command: Command, process: subprocess.Popen[bytes], timeout: float) -> Any:
    what = " ".join(Path(word).name for word in command.argv[-3:])
    try:
        printed, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise HostError(host, what, f"no answer within {timeout:.0f} s") from error
    try:
        return json.loads(printed)
    except ValueError as error:
        why = said.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}, no answer"]
        raise HostError(host, what, why[-1]) from error


class Watch:
    """The status commands of many blocks at once; each prints a JSON line at every change."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        # A block that has not spoken yet is there with nothing known of it, or the others would pass for the whole job.
        self.seen: dict[str, Mapping[str, Any]] = {block.name: {} for block in blocks}
        self._selector = selectors.DefaultSelector()
        self._watched: dict[str, Watched] = {}
        for block in blocks:
            self._open(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for watched in self._watched.values():
            watched.process.kill()
            watched.process.communicate()
        self._selector.close()

    def changes(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True where `seen` has changed."""
        for watched in [each for each in self._watched.values() if each.broken_at < time.monotonic() - 1]:
            self._open(watched.block)
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        return any([self._take(key.data) for key, _ in self._selector.select(timeout)])

    def exits(self) -> dict[str, int | None]:
        """Exit code by block; negative is a signal, None is unknown."""
        return {name: seen.get("exit") for name, seen in self.seen.items()}

    def ended_at(self) -> float | None:
        """When the last process exited, by its host's clock."""
        return max((seen["ended"] for seen in self.seen.values() if seen.get("ended")), default=None)

    def running_at(self) -> float:
        """Not known of processes: their logs say when they joined."""
        return 0.0

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by block."""
        return {name: f"{seen['lost']} lines: {seen['error']}" for name, seen in self.seen.items() if seen.get("lost")}

    def losing(self) -> dict[str, str]:
        """What running processes' logs lack already, by block."""
        return {name: lost for name, lost in self.lost().items() if self.seen[name].get("phase") == "running"}

    def hints(self) -> str:
        """Nobody else knows more about a process."""
        return ""

    def settle(self, seconds: float) -> None:
        """Take in what the keepers say last: they write every line before they tell the end."""
        until = time.monotonic() + seconds
        while any(seen.get("phase") == "running" for seen in self.seen.values() if seen) and time.monotonic() < until:
            self.changes(0.1)

    def _open(self, block: Block) -> None:
        watched = self._watched[block.name] = Watched(block, start(block.host, block.status))
        self._selector.register(watched.stdout, selectors.EVENT_READ, block.name)

    def _take(self, name: str) -> bool:
        watched = self._watched[name]
        data = os.read(watched.stdout.fileno(), 1 << 16)
        *lines, watched.partial = (watched.partial + data).split(b"\n")
        for line in lines:
            self.seen[name] = json.loads(line)
        if not data:
            self._selector.unregister(watched.stdout)
            if watched.process.wait() != 0:
                watched.broken_at = time.monotonic()
        return bool(lines)


class Watched:
    """One status command; a broken one (a dropped connection, a kill) is started again a second later."""

    def __init__(self, block: Block, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.block, self.process, self.stdout = block, process, process.stdout
        self.partial, self.broken_at = b"", math.inf


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
