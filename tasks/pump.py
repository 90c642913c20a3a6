"""One pod's log, from its first line, into a file: stamped as the keepers of plain machines stamp theirs."""

import threading
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

from tasks import shell
from tasks.cluster import Api, BusyError
from tasks.errors import ClusterError

QUIET = 86400.0  # a program may say nothing for long; deadlines.silence is what judges that
AFTER_END = 0.1  # seconds that the stream of an ended container may stay open
PAUSE = 0.5
RECENT = 2000  # lines that are remembered, to know them again when a stream is opened a second time
STAMP = len("2026-11-21T08:00:47")


class Tail:
    """A log's file: takes every line once, also where it is read again since the second of the last one."""

    def __init__(self, path: Path, node: str) -> None:
        self.lost = 0
        self.why = ""
        self._path, self._node = path, node
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._again: list[bytes] = []
        for line, _ in shell.follow(path, 0):
            stamp, _, rest = line.partition(" ")
            self._recent.append(f"{stamp} {rest.partition(' | ')[2]}".encode())

    def since(self) -> str | None:
        """The second from which the log is asked for; None is the beginning. The API knows whole seconds only."""
        if not self._recent:
            return None
        second = max(line[:STAMP] for line in self._recent)
        self._again = [line for line in self._recent if line[:STAMP] >= second]
        return f"{second.decode()}Z"

    def take(self, line: bytes) -> None:
        """Write a line as the API gave it: `STAMP text`."""
        if line in self._again:
            self._again.remove(line)
            return
        self._recent.append(line)
        stamp, _, text = line.partition(b" ")
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(stamp + f" {self._node} | ".encode() + text + b"\n")
        except OSError as error:
            self.lost += 1
            self.why = error.strerror or str(error)


class Pump(threading.Thread):
    """Follows a container's log to its end. A later process goes on where the file ends."""

    def __init__(self, server: Api, pod: str, container: str, path: Path) -> None:
        super().__init__(daemon=True, name=f"log-{pod}")
        self.node = path.parent.name
        self.whole = threading.Event()
        self._api, self._container = server, container
        self._at = f"{server.path('v1', 'Pod', pod)}/log"
        self.folder = str(path.parent.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._tail, self._lock = Tail(path, self.node), threading.Lock()
        self._missing, self.over = "", False

    @property
    def lost(self) -> str:
        """What the file lacks for good."""
        return f"{self._tail.lost} lines: {self._tail.why}" if self._tail.lost else self._missing

    def ended(self) -> None:
        """Say that the container has ended: what its stream does not give soon is asked for without following."""
        if not self.over:
            self.over = True
            timer = threading.Timer(AFTER_END, self._finish)
            timer.daemon = True
            timer.start()

    def run(self) -> None:
        while not self.whole.is_set():
            try:
                self._read()
                self.whole.set()
            except BusyError:
                self.whole.wait(PAUSE)
            except ClusterError as error:
                self._refused(error)

    def _refused(self, error: ClusterError) -> None:
        """400: the container is still being made. 404: the pod is gone, and its log with it."""
        if error.status != 400:
            self._missing = "" if error.status == 404 and self.over else f"its end: {error.said}"
            self.whole.set()
        self.whole.wait(PAUSE)

    def _asked(self, **more: str) -> dict[str, str]:
        since = self._tail.since()
        begin = {"sinceTime": since} if since else {}
        return {"container": self._container, "timestamps": "true", **begin, **more}

    def _read(self) -> None:
        for line in self._api.stream(self._at, self._asked(follow="true"), QUIET):
            with self._lock:
                if self.whole.is_set():
                    return
                self._tail.take(line)

    def _finish(self) -> None:
        """Read the rest in one piece: not every server ends the stream of an ended container."""
        with self._lock:
            if self.whole.is_set():
                return
            try:
                for line in self._api.stream(self._at, self._asked(), 30.0):
                    self._tail.take(line)
            except (BusyError, ClusterError) as error:
                self._missing = f"perhaps its end: {error}"
            self.whole.set()


def settle(folder: str, nodes: Collection[str], seconds: float) -> None:
    """Wait until the logs of some nodes that this process still writes are whole, at most so long."""
    until = time.monotonic() + seconds
    for thread in threading.enumerate():
        if isinstance(thread, Pump) and thread.folder == folder and thread.node in nodes:
            thread.whole.wait(max(until - time.monotonic(), 0.0))
