"""Copies one pod's log to a file, from its first line, stamped as supervisors on plain machines stamp theirs."""

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

_STREAM_SILENCE_S = 600.0  # a stream without a line for so long is reopened: its connection may have died silently
_ANSWER_SILENCE_S = 30.0  # the same for a response that has an end
_END_GRACE_S = 0.1  # seconds that the stream of an ended container may stay open
_OPEN_TIMEOUT_S = 30.0  # seconds that an API server may take to start a response; an empty log has none
_REFUSAL_TIMEOUT_S = 15.0  # seconds for which an ended container's log is requested in spite of refusals
_FIRST_RETRY_DELAY_S = 0.25  # before the second try; doubled for each further one, up to _MAX_RETRY_DELAY_S
_MAX_RETRY_DELAY_S = 5.0
_PREDECESSOR_TIMEOUT_S = 20.0  # seconds that the log of a recreated pod waits for the end of its predecessor's
_ROTATED = "perhaps some lines: the log was rotated or restarted while its stream was broken"
_RESTARTED = "perhaps some lines before restart {}: a kubelet keeps the log of one earlier container"
_REMOVED_LOG_PREFIX = (
    b"unable to retrieve container logs for "  # a kubelet's message for a log that it removed; the status is 200
)


class LogSource(NamedTuple):
    """The log of one container of one pod; a recreated pod has another uid."""

    pod: str
    uid: str
    container: str


class LogFollower(threading.Thread):
    """Follows a container's log to its end, across restarts. A later process continues where the file ends."""

    def __init__(self, server: Client, source: LogSource, path: Path, before: "LogFollower | None" = None) -> None:
        """`before`: the follower that writes an earlier pod's log into the same file."""
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
        self._opened_at, self.received = math.inf, 0  # when the current stream was requested; bytes in all
        self._is_heard, self._refused_at = False, math.inf
        self._threads: list[threading.Thread] = [self]  # those not started yet
        self._complete: tuple[int, int] | None = None  # the container that was read to its end; the lines taken by then
        self._missing = "all of it: it was not read"

    @property
    def unwritten(self) -> str:
        """How many lines could not be written, and why; empty if none."""
        return f"{self._tail.lost} lines: {self._tail.why}" if self._tail and self._tail.lost else ""

    @property
    def lost(self) -> str:
        """What is permanently missing from the file, as far as is known."""
        missed = self._tail.missed if self._tail else []
        return "; ".join(filter(None, (*missed, self.unwritten or self._missing)))

    @property
    def is_heard(self) -> bool:
        """Whether everything logged so far has arrived: the stream is open, or nothing more will come.

        The stream of an empty log opens without a response, so after a while it counts as open.
        """
        waited = time.monotonic() - self._opened_at > _OPEN_TIMEOUT_S
        return self.over or self.whole.is_set() or self._is_heard or waited

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to wait for: the log is complete, or was refused for a while."""
        return self.whole.is_set() or time.monotonic() - self._refused_at > _REFUSAL_TIMEOUT_S

    def update_pod(self, over: bool, restarts: int = 0, ended: bool = False) -> None:
        """Report the container's state: ended, `over` if it will not restart, and its restarts. Starts the follower."""
        self._restarts, self._ended = max(self._restarts, restarts), ended or over
        ended, self.over = over and not self.over, over or self.over
        self._news.set()
        if ended:
            self._refused_at = math.inf
            timer = threading.Timer(_END_GRACE_S, self._finish)
            timer.daemon = True
            self._threads.append(timer)
        self.resume()

    def resume(self) -> None:
        """Start the threads not started yet. Raises RuntimeError if this process can have no more threads now."""
        while self._threads:
            self._threads[0].start()
            self._threads.pop(0)

    def run(self) -> None:
        """Follow the log. The end of a stream is not the container's end: a restarting kubelet ends it too."""
        while not (self.over or self.whole.is_set()):
            self._news.clear()
            self._following = True
            rest = _MAX_RETRY_DELAY_S if self._try(follow=True) else self._pause
            self._following = False
            if not self.over:
                self._news.wait(rest)
        self._finish()

    def _finish(self) -> None:
        """Read the rest of an ended container's log in one request: not every server ends the stream."""
        with self._ending:
            while not self.whole.is_set():
                if self._try(follow=False):
                    self.whole.set()
                else:
                    self.whole.wait(self._pause)

    def _try(self, follow: bool) -> bool:
        """Read on; return whether the end was reached. What a broken connection left out is requested again."""
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
        """404: the pod is gone, with what its stream has not delivered. Others pass: a kubelet or a token recovers."""
        self._refused_at = min(self._refused_at, time.monotonic())
        if error.status not in (403, 404):
            self._missing = f"perhaps its end: {error.message}"
        elif follow or not self._following:
            self._missing = self._missing and f"{self._missing.partition(':')[0]}: {error.message}"
            self.whole.set()

    def _read(self, follow: bool) -> bool:
        """Take lines until the stream ends or a later read has started: only the latest read takes any."""
        with self._reading:
            tail = self._tail = self._tail or self._begin()
            ended = self._restarts if self._ended else None
            bridging = self._torn or self._restarts > self._bridged
            overlap = tail.resume_point(another=bridging and self._bridge(tail))
            overlap.otherwise = _describe_loss(self._restarts) if bridging else ""
            stream = self._stream(overlap, follow=follow)
            head = [] if follow else list(islice(stream, 1))  # a refusal is raised here: the stream goes on
            self._reads += 1
            mine = self._reads
        for lines in chain(head, stream):
            with self._reading:
                if self._reads != mine:
                    return False
                self._pause, self._missing = _FIRST_RETRY_DELAY_S, "perhaps its end: it was still being read"
                if not (bridging or overlap.since or tail.taken):  # a restart may be unknown to the API server yet
                    self._copy_previous(tail, tail.resume_point(), lines[0])
                tail.append(lines, overlap)
        if not follow:
            tail.close_log(overlap)
        self._complete = (ended, tail.taken) if ended is not None and overlap.owed is None else None
        return self._reads == mine

    def _begin(self) -> LogWriter:
        if self._before:
            self._before.whole.wait(_PREDECESSOR_TIMEOUT_S)
        return LogWriter(self.path, self.node, begun=not self._before)

    def _bridge(self, tail: LogWriter) -> bool:
        """Read the rest of the previous container's log, if it is kept; return whether the file reaches its end."""
        number, overlap = self._restarts, tail.resume_point()
        overlap.otherwise = _describe_loss(number - 1)
        if self._complete in ((number - 1, tail.taken), (number, tail.taken)):  # a kubelet may be ahead of its status
            self._torn, self._bridged = False, number
            return True
        kept = self._copy_previous(tail, overlap)
        if not overlap.since and number > kept:
            tail.note_gap(_describe_loss(number - kept))
        self._torn, self._bridged = False, number
        return overlap.owed is None

    def _copy_previous(self, tail: LogWriter, overlap: Overlap, other: bytes = b"") -> bool:
        """Copy the previous container's log, unless it begins with the line `other`; False if there is none now."""
        try:
            for lines in self._stream(overlap, previous=True):
                if lines[0] == other:  # the container of the current stream, which has ended meanwhile
                    break
                tail.append(lines, overlap)
        except ClusterError as error:
            if error.status not in (400, 404):
                raise
            return False
        return True

    def _stream(self, overlap: Overlap, follow: bool = False, previous: bool = False) -> Iterator[list[bytes]]:
        """Complete lines as they come; at the end of a log the unfinished rest counts as a line too."""
        begin = {"sinceTime": overlap.since} if overlap.since else {}
        which = {"follow": "true"} if follow else {"previous": "true"} if previous else {}
        asked = {"container": self.source.container, "timestamps": "true", **which, **begin}
        lines = LineSplitter()
        for part in self._api.stream_chunks(self._at, asked, _STREAM_SILENCE_S if follow else _ANSWER_SILENCE_S):
            self.received += len(part)
            self._is_heard, self._refused_at = True, math.inf
            if whole := lines.cut(part):
                yield whole
        rest = lines.rest
        if rest.startswith(_REMOVED_LOG_PREFIX):
            raise ClusterError(self._api.host, "read a log", rest.decode(errors="replace"), 400)
        if rest and not follow:  # in a followed stream it is half a line
            yield [rest]


def _describe_loss(restart: int) -> str:
    """What is lost if no available log contains the file's newest line."""
    return _RESTARTED.format(restart) if restart > 0 else _ROTATED


def follow_pod_log(server: Client, source: LogSource, path: Path, before: LogFollower | None = None) -> LogFollower:
    """The follower of a container's log: the one that an earlier watch of this process started, or a new one."""
    for each in threading.enumerate():
        if isinstance(each, LogFollower) and not each.whole.is_set() and (each.source, each.path) == (source, path):
            return each
    return LogFollower(server, source, path, before)
