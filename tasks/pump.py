"""One pod's log, from its first line, into a file: stamped as the keepers of plain machines stamp theirs."""

import errno
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from tasks.cluster import Api, BusyError
from tasks.errors import ClusterError

QUIET = 600.0  # a stream without a line for so long is opened anew: its connection may be dead, and nobody says so
AFTER_END = 0.1  # seconds that the stream of an ended container may stay open
PAUSE = 0.25  # before a second try; each one after it waits twice as long, at most LONG
LONG = 5.0
OVERLAP = 2  # seconds that are asked for again: the stamps of stdout and stderr are not in perfect order


class Tail:
    """A log's file: takes every line once, also where the last seconds are read again."""

    def __init__(self, path: Path, node: str) -> None:
        self.lost = 0
        self.why = ""
        self._path, self._mark = path, f" {node} | ".encode()
        self._newest = 0
        self._recent: deque[tuple[int, int]] = deque()  # second and hash of each line of the last seconds
        self._again: Counter[int] = Counter()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for line in kept(path):
                stamp, _, text = line.partition(self._mark)
                self._remember(stamp + b" " + text)
        except OSError as error:
            self.why = error.strerror or str(error)

    def since(self) -> str | None:
        """The second from which the log is asked for; None is the beginning. The API knows whole seconds only."""
        self._again = Counter(mark for _, mark in self._recent)
        if not self._newest:
            return None
        return datetime.fromtimestamp(self._newest - OVERLAP, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def take(self, line: bytes) -> None:
        """Write a line as the API gave it: `STAMP text`."""
        if self._again[hash(line)] > 0:
            self._again[hash(line)] -= 1
            return
        self._remember(line)
        stamp, _, text = line.partition(b" ")
        try:
            append(self._path, stamp + self._mark + text + b"\n")
        except OSError as error:
            self.lost += 1
            self.why = error.strerror or str(error)

    def _remember(self, line: bytes) -> None:
        second = read_second(line) or self._newest
        self._newest = max(self._newest, second)
        self._recent.append((second, hash(line)))
        while self._recent[0][0] < self._newest - OVERLAP:
            self._recent.popleft()


def read_second(line: bytes) -> int | None:
    """The second of a line's stamp, which may have a node's own time zone; None where it has none."""
    try:
        return int(datetime.fromisoformat(line.partition(b" ")[0].decode()).timestamp())
    except ValueError:
        return None


def kept(path: Path) -> Iterator[bytes]:
    """The lines of a log that an earlier process wrote; half a line, where it was killed in writing, is taken off."""
    if not path.exists():
        return
    whole = 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
                yield line[:-1]
        file.truncate(whole)


def append(path: Path, line: bytes) -> None:
    """Add a line as a whole, or OSError and nothing of it."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        if file.write(line) < len(line):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Source(NamedTuple):
    """The log of one container of one pod; a pod made anew has another uid."""

    pod: str
    uid: str
    container: str


class Pump(threading.Thread):
    """Follows a container's log to its end. A later process goes on where the file ends."""

    def __init__(self, server: Api, source: Source, path: Path) -> None:
        super().__init__(daemon=True, name=f"log-{source.pod}")
        self.node, self.path, self.source = path.parent.name, path, source
        self.whole, self.over = threading.Event(), False
        self._api, self._at = server, f"{server.path('v1', 'Pod', source.pod)}/log"
        self._tail: Tail | None = None
        self._news, self._following = threading.Event(), False
        self._reading, self._ending = threading.Lock(), threading.Lock()
        self._reads, self._pause = 0, PAUSE
        self._missing = "all of it: it was not read"

    @property
    def unwritten(self) -> str:
        """What there was no room for."""
        return f"{self._tail.lost} lines: {self._tail.why}" if self._tail and self._tail.lost else ""

    @property
    def lost(self) -> str:
        """What the file lacks for good, as far as is known."""
        return self.unwritten or self._missing

    def tell(self, over: bool) -> None:
        """Say that the pod has changed: the container may have ended, or have begun again."""
        self._news.set()
        if over and not self.over:
            self.over = True
            timer = threading.Timer(AFTER_END, self._finish)
            timer.daemon = True
            timer.start()

    def run(self) -> None:
        """Follow. The end of a stream is not the container's: a kubelet that restarts ends it as well."""
        while not (self.over or self.whole.is_set()):
            self._news.clear()
            self._following = True
            rest = LONG if self._try(follow=True) else self._pause
            self._following = False
            if not self.over:
                self._news.wait(rest)
        self._finish()

    def _finish(self) -> None:
        """Read the rest of an ended container in one piece: not every server ends its stream."""
        with self._ending:
            while not self.whole.is_set():
                if self._try(follow=False):
                    self.whole.set()
                else:
                    self.whole.wait(self._pause)

    def _try(self, follow: bool) -> bool:
        """Read on; whether it came to the end. What a broken connection leaves out is asked for again."""
        try:
            ended = self._read(follow)
        except BusyError as error:
            self._missing = f"perhaps its end: {error}"
        except ClusterError as error:
            self._refused(error, follow)
        else:
            self._missing, self._pause = "", PAUSE
            return ended
        self._pause = min(2 * self._pause, LONG)
        return False

    def _refused(self, error: ClusterError, follow: bool) -> None:
        """404: the pod is gone, and what its stream has not given. The rest passes: a kubelet or a token comes back."""
        if error.status not in (403, 404):
            self._missing = f"perhaps its end: {error.said}"
        elif follow or not self._following:
            self._missing = self._missing and f"{self._missing.partition(':')[0]}: {error.said}"
            self.whole.set()

    def _read(self, follow: bool) -> bool:
        """Take lines until the stream ends, or until a later read has begun: only the latest one takes any."""
        with self._reading:
            tail = self._tail = self._tail or Tail(self.path, self.node)
            lines = self._api.stream(self._at, self._asked(tail, follow), QUIET if follow else 30.0)
            head = [] if follow else list(islice(lines, 1))  # refused it is here, and the stream goes on
            self._reads += 1
            mine = self._reads
        for line in chain(head, lines):
            with self._reading:
                if self._reads != mine:
                    return False
                self._pause, self._missing = PAUSE, "perhaps its end: it was still being read"
                if line.endswith(b"\n"):
                    tail.take(line[:-1])
                elif not follow:  # the last line of all; in a stream it is half of one
                    tail.take(line)
        return self._reads == mine

    def _asked(self, tail: Tail, follow: bool) -> dict[str, str]:
        since = tail.since()
        begin = {"sinceTime": since} if since else {}
        return {"container": self.source.container, "timestamps": "true", "follow": str(follow).lower(), **begin}


def follow(server: Api, source: Source, path: Path) -> Pump:
    """The pump of a container's log: the one that an earlier watch of this process has begun, or a new one."""
    for each in threading.enumerate():
        if isinstance(each, Pump) and not each.whole.is_set() and (each.source, each.path) == (source, path):
            return each
    pump = Pump(server, source, path)
    pump.start()
    return pump
