"""What many commands say while a job runs: how its processes are, and their logs."""

import contextlib
import json
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tasks import shell
from tasks.errors import OwnedError
from tasks.model import Failure, Outcome
from tasks.plan import Block, Command
from tasks.stuck import Why

TORN = "its end did not come"  # what a log lacks whose copy broke off
LOOK = 2.0  # seconds between two words to each keeper that somebody looks after its process


def carrier(path: str) -> str:
    """Who carries a run from here, by a path in a node's folder: this machine and the run's folder, which is locked."""
    return f"{socket.gethostname()}:{Path(path).parents[2]}"


class Watch:
    """The status commands of many blocks at once, each a JSON line at every change; logs that are elsewhere are copied.

    `seen` is what each block said last. `logs_only`: nobody is asked how it is, or looked after.
    """

    def __init__(self, blocks: Sequence[Block], store: Block | None = None, logs_only: bool = False) -> None:
        # A block that has not spoken yet is there with nothing known of it, or the others would pass for the whole job.
        self._job, blocks = [block.name for block in blocks], (*blocks, *((store,) if store else ()))
        self.seen: dict[str, Mapping[str, Any]] = {block.name: {} for block in blocks}
        self._selector = selectors.DefaultSelector()
        self._copies = {block.name: Copy(block, block.follow) for block in blocks if block.follow}
        self._told = [] if logs_only else [Told(block, self.seen) for block in blocks]
        self._looked = -math.inf
        self._streams: list[Stream] = [*self._told, *self._copies.values()]
        for stream in self._streams:
            self._open(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def changes(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True where there was some.

        OwnedError where another place has taken the run over.
        """
        for stream in [each for each in self._streams if each.broken_at < time.monotonic() - 1]:
            self._open(stream)
        self._look()
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        return any([self._take(key.data) for key, _ in self._selector.select(timeout)])

    def _look(self) -> None:
        """Tell every keeper, now and then, that somebody looks after its process."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            for told in self._told:
                told.look()

    def exits(self) -> dict[str, int | None]:
        """Exit code by block; negative is a signal, None is unknown."""
        return {name: seen.get("exit") for name, seen in self.seen.items()}

    def ended_at(self) -> float | None:
        """When the last process exited, by its host's clock."""
        return max((seen["ended"] for seen in self.seen.values() if seen.get("ended")), default=None)

    def running_at(self) -> float:
        """When the last process began, by its host's clock; 0 where one has not."""
        begun = [float(seen.get("started") or 0.0) for seen in self.seen.values()]
        return max(begun) if all(begun) else 0.0

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by block."""
        return {**{name: f"{TORN}: {self._copies[name].said}" for name in self._torn()}, **self._unwritten()}

    def losing(self) -> dict[str, str]:
        """What running processes' logs lack already, by block."""
        return {name: lost for name, lost in self._unwritten().items() if self.seen[name].get("phase") == "running"}

    def why(self, last: bool = False) -> Why | None:
        """Which hosts cannot be asked; nobody knows more about a process."""
        mute = [stream for stream in self._streams if isinstance(stream, Told) and stream.broken_at < math.inf]
        if not mute:
            return None
        said = "; ".join(f"{stream.block.name} cannot be asked: {stream.said}" for stream in mute)
        return Why(Failure(cause="host-silent", sentence=said, node=mute[0].block.name, retry=True))

    def machines(self) -> dict[str, str]:
        """The host of each block of the job."""
        return {stream.block.name: stream.block.host for stream in self._streams if stream.block.name in self._job}

    def deaf(self) -> bool:
        """Whether a process cannot be asked: its log may grow unseen."""
        broken = any(stream.broken_at < math.inf for stream in self._streams)
        return broken or any(seen.get("detail") for seen in self.seen.values())

    def note(self, outcome: Outcome) -> None:
        """The keepers know how their processes ended."""

    def settle(self, seconds: float) -> None:
        """Take in what is said last: every line is written before the end is told, and copied while something comes."""
        until = time.monotonic() + seconds
        while self._unsettled() and time.monotonic() < until:
            if self.changes(0.1):
                until = time.monotonic() + seconds

    def _unsettled(self) -> bool:
        return bool(self._torn()) or any(self.seen[name].get("phase") == "running" for name in self._job)

    def _torn(self) -> list[str]:
        """The blocks of the job whose log is not copied whole; a store still runs when its job has ended."""
        return [name for name in self._job if name in self._copies and not self._copies[name].whole]

    def _unwritten(self) -> dict[str, str]:
        return {name: f"{seen['lost']} lines: {seen['error']}" for name, seen in self.seen.items() if seen.get("lost")}

    def _open(self, stream: "Stream") -> None:
        self._selector.register(stream.open(), selectors.EVENT_READ, stream)

    def _take(self, stream: "Stream") -> bool:
        """What has come of one stream: whether it was anything."""
        data = os.read(stream.stdout.fileno(), 1 << 16)
        try:
            stream.take(data)
            why = ""
        except OSError as error:  # this machine's disk is full: what is missing comes once there is room
            stream.process.kill()
            why = str(error)
        if why or not data:
            self._selector.unregister(stream.stdout)
            stream.end(why)
        return bool(data) and not why


class Stream:
    """A command whose output is taken as it comes; a broken one (a dropped connection, a kill) is started anew."""

    process: shell.Process
    stdout: IO[bytes]

    def __init__(self, block: Block, command: Command) -> None:
        self.block, self.command = block, command
        self.broken_at, self.whole, self.said = math.inf, False, "nothing came"

    def take(self, data: bytes) -> None:
        """Take a piece of the output; the last one is empty."""
        raise NotImplementedError

    def open(self) -> IO[bytes]:
        """Start the command, the first time or again."""
        self.process = shell.start(self.block.host, self.command)
        assert self.process.stdout is not None
        self.stdout, self.broken_at = self.process.stdout, math.inf
        return self.stdout

    def end(self, why: str) -> None:
        """Its output has ended: well, or to be begun again a second later."""
        said = shell.close(self.process, 1.0)
        self.whole = self.process.returncode == 0 and not why
        if not self.whole:
            self.broken_at = time.monotonic()
            self.said = why or shell.last_line(said) or f"exit code {self.process.returncode}"

    def close(self) -> None:
        if not self.stdout.closed:
            shell.close(self.process, 0.0)


class Told(Stream):
    """A block's own word: one JSON line at every change."""

    def __init__(self, block: Block, seen: dict[str, Mapping[str, Any]]) -> None:
        super().__init__(block, block.status)
        self._seen, self._partial, self._carrier = seen, b"", carrier(block.log)

    def open(self) -> IO[bytes]:
        self._partial, out = b"", super().open()
        assert self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)
        return out

    def look(self) -> None:
        """Say who looks after the block, if it listens: a connection may be on its way, or hang."""
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin
            os.write(self.process.stdin.fileno(), f"{self._carrier}\n".encode())

    def take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._seen[self.block.name] = said = json.loads(line)
            if said.get("carrier"):
                raise OwnedError(f"{self.block.host}: {self.block.name}", said["carrier"])
            if self.block.follow and said.get("started"):  # where it is silent, its log is there as well
                append(Path(self.block.log), b"")


class Copy(Stream):
    """A log that is written elsewhere, copied byte by byte: what has come is never asked for again."""

    def __init__(self, block: Block, command: Command) -> None:
        super().__init__(block, command)
        self._follow = command

    def open(self) -> IO[bytes]:
        path = Path(self.block.log)
        size = path.stat().st_size if path.exists() else 0
        self.command = Command(argv=(*self._follow.argv, str(size)), input=self._follow.input)
        return super().open()

    def take(self, data: bytes) -> None:
        if data:
            append(Path(self.block.log), data)


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
