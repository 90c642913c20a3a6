"""One pod's log, from its first line, into a file: stamped as the keepers of plain machines stamp theirs."""

import math
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torchyard.cluster.log_file import GapError, LineSplitter, LogWriter, Overlap
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

_STREAM_SILENCE_S = (
    600.0  # a stream without a line for so long is opened anew: its connection may be dead, and nobody says so
)
_ANSWER_SILENCE_S = 30.0  # the same for an answer that has an end
_END_GRACE_S = 0.1  # seconds that the stream of an ended container may stay open
_OPEN_TIMEOUT_S = 30.0  # that an API server may take to begin an answer; a log without a line has none
_REFUSAL_TIMEOUT_S = 15.0  # that an ended container's log is asked for in spite of refusals
_FIRST_RETRY_DELAY_S = 0.25  # before a second try; each one after it waits twice as long, at most LONG
_MAX_RETRY_DELAY_S = 5.0
_PREDECESSOR_TIMEOUT_S = 20.0  # seconds that the log of a pod made anew waits for the end of the one before
_ROTATED = "perhaps some lines: the log was rotated or begun anew while its stream was broken"
_RESTARTED = "perhaps some lines before restart {}: a kubelet keeps the log of one earlier container"
_REMOVED_LOG_PREFIX = (
    b"unable to retrieve container logs for "  # a kubelet's words for a log that it has removed; the status is 200
)


class LogSource(NamedTuple):
    """The log of one container of one pod; a pod made anew has another uid."""

    pod: str
    uid: str
    container: str


class LogFollower(threading.Thread):
    """Follows a container's log to its end, over its restarts. A later process goes on where the file ends."""

    def __init__(self, server: Client, source: LogSource, path: Path, before: "LogFollower | None" = None) -> None:
        """`before`: who writes the log of an earlier pod into the same file."""
        super().__init__(daemon=True, name=f"log-{source.pod}")
        self.node, self.path, self.source = path.parent.name, path, source
        self.whole, self.over = threading.Event(), False
        self._api, self._at = server, f"{server.path('v1', 'Pod', source.pod)}/log"
        self._before = before
        self._tail: LogWriter | None = None
        self._news, self._following = threading.Event(), False
        self._reading, self._ending = threading.Lock(), threading.Lock()
        self._reads, self._pause = 0, _FIRST_RETRY_DELAY_S
        self._restarts, self._ended = 0, False
        self._bridged, self._torn = 0, False
        self._opened_at, self.received = math.inf, 0  # when the stream that there is was asked for; bytes in all
        self._is_heard, self._refused_at = False, math.inf
        self._threads: list[threading.Thread] = [self]  # those that are still to be started
        self._complete: tuple[int, int] | None = None  # the container that was read to its end, and the lines by then
        self._missing = "all of it: it was not read"

    @property
    def unwritten(self) -> str:
        """What there was no room for."""
        return f"{self._tail.lost} lines: {self._tail.why}" if self._tail and self._tail.lost else ""

    @property
    def lost(self) -> str:
        """What the file lacks for good, as far as is known."""
        missed = self._tail.missed if self._tail else []
        return "; ".join(filter(None, (*missed, self.unwritten or self._missing)))

    @property
    def is_heard(self) -> bool:
        """Whether all that was said so far has come: its stream is open, or there is nothing more to come.

        A log that says nothing opens without an answer.
        """
        waited = time.monotonic() - self._opened_at > _OPEN_TIMEOUT_S
        return self.over or self.whole.is_set() or self._is_heard or waited

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for: all has come, or the server has refused to give it for a while."""
        return self.whole.is_set() or time.monotonic() - self._refused_at > _REFUSAL_TIMEOUT_S

    def tell(self, over: bool, restarts: int = 0, ended: bool = False) -> None:
        """Say how the container is: ended, perhaps for good, and how often it has begun again. This begins it."""
        self._restarts, self._ended = max(self._restarts, restarts), ended or over
        ended, self.over = over and not self.over, over or self.over
        self._news.set()
        if ended:
            self._refused_at = math.inf
            timer = threading.Timer(_END_GRACE_S, self._finish)
            timer.daemon = True
            self._threads.append(timer)
        self.go_on()

    def go_on(self) -> None:
        """Start what is still to be started. RuntimeError where this process may have no more threads just now."""
        while self._threads:
            self._threads[0].start()
            self._threads.pop(0)

    def run(self) -> None:
        """Follow. The end of a stream is not the container's: a kubelet that restarts ends it as well."""
        while not (self.over or self.whole.is_set()):
            self._news.clear()
            self._following = True
            rest = _MAX_RETRY_DELAY_S if self._try(follow=True) else self._pause
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
        self._opened_at = time.monotonic()
        try:
            ended = self._read(follow)
        except (TransientError, OSError, RuntimeError, MemoryError) as error:
            self._missing = f"perhaps its end: {error}"
        except GapError:
            self._torn = True
            return False
        except ClusterError as error:
            self._refused(error, follow)
        else:
            self._missing, self._pause = "", _FIRST_RETRY_DELAY_S
            return ended
        finally:
            self._opened_at, self._is_heard = math.inf, False
        self._pause = min(2 * self._pause, _MAX_RETRY_DELAY_S)
        return False

    def _refused(self, error: ClusterError, follow: bool) -> None:
        """404: the pod is gone, and what its stream has not given. The rest passes: a kubelet or a token comes back."""
        self._refused_at = min(self._refused_at, time.monotonic())
        if error.status not in (403, 404):
            self._missing = f"perhaps its end: {error.said}"
        elif follow or not self._following:
            self._missing = self._missing and f"{self._missing.partition(':')[0]}: {error.said}"
            self.whole.set()

    def _read(self, follow: bool) -> bool:
        """Take lines until the stream ends, or until a later read has begun: only the latest one takes any."""
        with self._reading:
            tail = self._tail = self._tail or self._begin()
            ended = self._restarts if self._ended else None
            bridging = self._torn or self._restarts > self._bridged
            overlap = tail.ask(another=bridging and self._bridge(tail))
            overlap.otherwise = _describe_loss(self._restarts) if bridging else ""
            stream = self._stream(overlap, follow=follow)
            head = [] if follow else list(islice(stream, 1))  # refused it is here, and the stream goes on
            self._reads += 1
            mine = self._reads
        for lines in chain(head, stream):
            with self._reading:
                if self._reads != mine:
                    return False
                self._pause, self._missing = _FIRST_RETRY_DELAY_S, "perhaps its end: it was still being read"
                tail.take(lines, overlap)
        if not follow:
            tail.end(overlap)
        self._complete = (ended, tail.taken) if ended is not None and overlap.owed is None else None
        return self._reads == mine

    def _begin(self) -> LogWriter:
        if self._before:
            self._before.whole.wait(_PREDECESSOR_TIMEOUT_S)
        return LogWriter(self.path, self.node, begun=not self._before)

    def _bridge(self, tail: LogWriter) -> bool:
        """Read the rest of the container before this one, if it is kept. Whether the file goes to that one's end."""
        number, kept, overlap = self._restarts, 1, tail.ask()
        overlap.otherwise = _describe_loss(number - 1)
        if self._complete in ((number - 1, tail.taken), (number, tail.taken)):  # a kubelet may be ahead of its word
            self._torn, self._bridged = False, number
            return True
        try:
            for lines in self._stream(overlap, previous=True):
                tail.take(lines, overlap)
        except ClusterError as error:
            if error.status != 400:
                raise
            kept = 0
        if not overlap.since and number > kept:
            tail.miss(_describe_loss(number - kept))
        self._torn, self._bridged = False, number
        return overlap.owed is None

    def _stream(self, overlap: Overlap, follow: bool = False, previous: bool = False) -> Iterator[list[bytes]]:
        """Whole lines as they come; where the log has an end, what stands there is one as well."""
        begin = {"sinceTime": overlap.since} if overlap.since else {}
        which = {"follow": "true"} if follow else {"previous": "true"} if previous else {}
        asked = {"container": self.source.container, "timestamps": "true", **which, **begin}
        lines = LineSplitter()
        for part in self._api.parts(self._at, asked, _STREAM_SILENCE_S if follow else _ANSWER_SILENCE_S):
            self.received += len(part)
            self._is_heard, self._refused_at = True, math.inf
            if whole := lines.cut(part):
                yield whole
        rest = lines.rest
        if rest.startswith(_REMOVED_LOG_PREFIX):
            raise ClusterError(self._api.host, "read a log", rest.decode(errors="replace"), 400)
        if rest and not follow:  # in a stream it is half a line
            yield [rest]


def _describe_loss(restart: int) -> str:
    """What is lost where the newest line of the file is not in the logs that there are."""
    return _RESTARTED.format(restart) if restart > 0 else _ROTATED


def follow_pod_log(server: Client, source: LogSource, path: Path, before: LogFollower | None = None) -> LogFollower:
    """The pump of a container's log: the one that an earlier watch of this process has begun, or a new one."""
    for each in threading.enumerate():
        if isinstance(each, LogFollower) and not each.whole.is_set() and (each.source, each.path) == (source, path):
            return each
    return LogFollower(server, source, path, before)
