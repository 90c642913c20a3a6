"""Copies one pod's log to a file, from its first line, with time stamps as in the logs of plain machines."""

import math
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torchyard.cluster.log_file import GapError, LineSplitter, LogWriter, Overlap
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

STREAM_IDLE_TIMEOUT_S = 600.0  # a stream without a line for so long is reopened: its connection may have died silently
_READ_IDLE_TIMEOUT_S = 30.0  # the same for a response that has an end
_END_GRACE_S = 0.1  # seconds that the stream of an ended container may stay open
_OPEN_TIMEOUT_S = 30.0  # seconds that an API server may take to start a response; an empty log has none
_REFUSAL_TIMEOUT_S = 15.0  # seconds for which an ended container's log is requested in spite of refusals
FIRST_RETRY_DELAY_S = 0.25  # before the second try of a stream; doubled for each further one
MAX_RETRY_DELAY_S = 5.0  # between two tries, at most
_PREDECESSOR_TIMEOUT_S = 20.0  # seconds that the log of a recreated pod waits for the end of its predecessor's
_UNREAD_END = "possibly the last lines"
ROTATED_LOSS = "possibly some lines: the log was rotated or restarted while its stream was broken"
RESTARTED_LOSS = "possibly some lines before restart {}: a kubelet keeps the log of one earlier container"
# A kubelet's message in place of a log that it removed; the status of the response is 200.
_REMOVED_LOG_PREFIX = b"unable to retrieve container logs for "


class LogSource(NamedTuple):
    """The log of one container of one pod; a recreated pod has another uid."""

    pod: str
    uid: str
    container: str


class LogFollower(threading.Thread):
    """Copy one container's log to a file, from its first line to its end, across container restarts.

    The file gets each line once, in order; a later process continues where the file ends. What is permanently missing
    is in `lost`, as text for the report.

    Threads. `run` follows the live stream (this thread). Once the container has ended permanently, a timer thread
    calls `_finish`, because not every server ends the stream. Both call `_read`; `_read_lock` guards the writer and the
    attributes after it, and only the newest read (`_read_id`) may append lines. `update_pod` and the properties are
    called by the polling thread, which never waits for a read. All threads are daemons. They end once `complete` is
    set; one that waits for its stream ends at the next line, or when the stream is closed.

    Resuming. The API serves a log from a whole second on (`sinceTime`), so each read requests the last seconds again
    and `Overlap` drops the lines that the file already has. If the file's newest line does not come again, lines may be
    missing: they are first looked for in the previous container's log (`_bridge`), then recorded in `lost`.

    Errors. Only `update_pod` and `resume` raise: RuntimeError if no thread can be started. A broken connection is
    reopened after a growing pause. A refusal with 403 or 404 ends the log: what was not delivered is recorded as
    missing. Other refusals are retried; `is_finished` stops waiting for them after `_REFUSAL_TIMEOUT_S`.
    """

    def __init__(self, client: Client, source: LogSource, path: Path, predecessor: "LogFollower | None" = None) -> None:
        """`predecessor`: the follower that writes an earlier pod's log into the same file; its end is awaited."""
        super().__init__(daemon=True, name=f"log-{source.pod}")
        self.node = path.parent.name
        self.path = path
        self.source = source
        self.received_bytes = 0
        self.complete = threading.Event()  # nothing more will be written
        self.has_terminated = False  # the container has ended and will not restart
        self._client = client
        self._log_path = f"{client.path('v1', 'Pod', source.pod)}/log"
        self._predecessor = predecessor
        self._pod_changed = threading.Event()  # wakes `run` from its pause
        self._unstarted_threads: list[threading.Thread] = [self]

        # The current stream, as `is_current` sees it. Times are monotonic seconds; inf: none.
        self._is_following = False
        self._has_received_data = False
        self._stream_opened_at = math.inf
        self._refused_since = math.inf
        self._retry_delay_s = FIRST_RETRY_DELAY_S

        # The container's restarts, as the API server reports them and as this file contains them.
        self._restart_count = 0
        self._has_ended = False
        self._bridged_restart = 0  # up to this restart the file continues the previous container's log
        self._has_gap = False

        self._finish_lock = threading.Lock()  # one `_finish` at a time
        self._read_lock = threading.Lock()  # guards what follows
        self._read_id = 0
        self._writer: LogWriter | None = None
        self._complete_read: tuple[int, int] | None = None  # restart count and lines taken, if read to its end
        self._missing = "all of it: it was not read"

    @property
    def unwritten(self) -> str:
        """How many lines could not be written, and why; empty if none."""
        writer = self._writer
        return f"{writer.lost} lines: {writer.write_error}" if writer and writer.lost else ""

    @property
    def lost(self) -> str:
        """What is permanently missing from the file, as far as this process has found; empty if nothing."""
        gaps = self._writer.gaps if self._writer else []
        return "; ".join(filter(None, (*gaps, self.unwritten or self._missing)))

    @property
    def is_current(self) -> bool:
        """Whether everything logged so far has arrived: the stream is open, or nothing more will come.

        The stream of an empty log opens without a response, so after `_OPEN_TIMEOUT_S` it counts as open.
        """
        counts_as_open = time.monotonic() - self._stream_opened_at > _OPEN_TIMEOUT_S
        return self.has_terminated or self.complete.is_set() or self._has_received_data or counts_as_open

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to wait for: the log is complete, or was refused for `_REFUSAL_TIMEOUT_S`."""
        return self.complete.is_set() or time.monotonic() - self._refused_since > _REFUSAL_TIMEOUT_S

    def update_pod(self, *, has_terminated: bool, restart_count: int = 0, has_ended: bool = False) -> None:
        """Report the container's state, and start the threads that it requires.

        has_terminated: the container has ended and will not restart.
        has_ended: it has ended, and may restart.

        Raises RuntimeError if this process can have no more threads now: `resume` starts them later.
        """
        is_first_report = has_terminated and not self.has_terminated
        self._restart_count = max(self._restart_count, restart_count)
        self._has_ended = has_ended or has_terminated
        self.has_terminated = has_terminated or self.has_terminated
        self._pod_changed.set()
        if is_first_report:
            self._refused_since = math.inf
            timer = threading.Timer(_END_GRACE_S, self._finish)
            timer.daemon = True
            self._unstarted_threads.append(timer)
        self.resume()

    def resume(self) -> None:
        """Start the threads not started yet. Raises RuntimeError if this process can have no more threads now."""
        while self._unstarted_threads:
            self._unstarted_threads[0].start()
            self._unstarted_threads.pop(0)

    def run(self) -> None:
        """Follow the log. The end of a stream is not the container's end: a restarting kubelet ends it too."""
        while not (self.has_terminated or self.complete.is_set()):
            self._pod_changed.clear()
            self._is_following = True
            delay_s = MAX_RETRY_DELAY_S if self._try_read(follow=True) else self._retry_delay_s
            self._is_following = False
            if not self.has_terminated:
                self._pod_changed.wait(delay_s)
        self._finish()

    def _finish(self) -> None:
        """Read the rest of an ended container's log in one request: not every server ends the stream."""
        with self._finish_lock:
            while not self.complete.is_set():
                if self._try_read(follow=False):
                    self.complete.set()
                else:
                    self.complete.wait(self._retry_delay_s)

    def _try_read(self, *, follow: bool) -> bool:
        """Read on; return whether the end was reached. Lines that a broken connection lost are requested again."""
        self._stream_opened_at = time.monotonic()
        try:
            has_reached_end = self._read(follow=follow)
        except (TransientError, OSError, RuntimeError, MemoryError) as error:
            self._missing = f"{_UNREAD_END}: {error}"
        except GapError:
            self._has_gap = True
            return False
        except ClusterError as error:
            self._record_refusal(error, follow=follow)
        else:
            self._missing = ""
            self._retry_delay_s = FIRST_RETRY_DELAY_S
            return has_reached_end
        finally:
            self._stream_opened_at = math.inf
            self._has_received_data = False
        self._retry_delay_s = min(2 * self._retry_delay_s, MAX_RETRY_DELAY_S)
        return False

    def _record_refusal(self, error: ClusterError, *, follow: bool) -> None:
        """Record a refusal. 403 and 404 end the log, and what was not delivered is missing.

        Other statuses are retried, because a restarting kubelet or an expired token recovers.
        """
        self._refused_since = min(self._refused_since, time.monotonic())
        if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            self._missing = f"{_UNREAD_END}: {error.message}"
        elif follow or not self._is_following:  # an open stream may still deliver lines of a pod that is gone
            if self._missing:
                self._missing = f"{self._missing.partition(':')[0]}: {error.message}"
            self.complete.set()

    def _read(self, *, follow: bool) -> bool:
        """Append lines until the stream ends or a later read has started; return whether this one is still the newest.

        Raises GapError if lines before the new ones may be missing; the next read then bridges the gap.
        """
        with self._read_lock:
            self._writer = self._writer or self._open_writer()
            writer = self._writer
            restart_at_end = self._restart_count if self._has_ended else None
            is_bridging = self._has_gap or self._restart_count > self._bridged_restart
            overlap = writer.resume_point(is_new_container=is_bridging and self._bridge(writer))
            if is_bridging:
                overlap.loss = _describe_loss(self._restart_count)
            stream = self._stream(overlap, follow=follow)
            # A refusal is raised here, before this read becomes the newest one: the stream being followed continues.
            first_batch = [] if follow else list(islice(stream, 1))
            self._read_id += 1
            own_read_id = self._read_id
        for lines in chain(first_batch, stream):
            with self._read_lock:
                if self._read_id != own_read_id:
                    return False
                self._retry_delay_s = FIRST_RETRY_DELAY_S
                self._missing = f"{_UNREAD_END}: it was still being read"
                # The API server may not report a restart yet: without this, the lines before it would be skipped.
                if not (is_bridging or overlap.since or writer.line_count):
                    self._copy_previous(writer, writer.resume_point(), stop_line=lines[0])
                writer.append(lines, overlap)
        if not follow:
            writer.close_log(overlap)
        self._complete_read = None
        if restart_at_end is not None and overlap.awaited_line is None:
            self._complete_read = (restart_at_end, writer.line_count)
        return self._read_id == own_read_id

    def _open_writer(self) -> LogWriter:
        if self._predecessor:
            self._predecessor.complete.wait(_PREDECESSOR_TIMEOUT_S)
        return LogWriter(self.path, self.node, continues_file=not self._predecessor)

    def _bridge(self, writer: LogWriter) -> bool:
        """Read the rest of the previous container's log, if it is kept; return whether the file reaches its end."""
        restart = self._restart_count
        overlap = writer.resume_point()
        overlap.loss = _describe_loss(restart - 1)
        # A kubelet may be ahead of the status that it reports, so the complete log may be that of either restart.
        if self._complete_read in ((restart - 1, writer.line_count), (restart, writer.line_count)):
            self._has_gap = False
            self._bridged_restart = restart
            return True
        is_copied = self._copy_previous(writer, overlap)
        if not overlap.since and restart > is_copied:
            writer.record_gap(_describe_loss(restart - is_copied))
        self._has_gap = False
        self._bridged_restart = restart
        return overlap.awaited_line is None

    def _copy_previous(self, writer: LogWriter, overlap: Overlap, stop_line: bytes = b"") -> bool:
        """Copy the previous container's log, unless it starts with `stop_line`; False if it is not kept any more."""
        try:
            for lines in self._stream(overlap, previous=True):
                if lines[0] == stop_line:  # the container of the current stream, which has ended in the meantime
                    break
                writer.append(lines, overlap)
        except ClusterError as error:
            if error.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                raise
            return False
        return True

    def _stream(self, overlap: Overlap, *, follow: bool = False, previous: bool = False) -> Iterator[list[bytes]]:
        """Complete lines as they arrive; at the end of a log the unfinished rest counts as a line too."""
        params = {"container": self.source.container, "timestamps": "true"}
        if follow:
            params["follow"] = "true"
        elif previous:
            params["previous"] = "true"
        if overlap.since:
            params["sinceTime"] = overlap.since
        idle_timeout_s = STREAM_IDLE_TIMEOUT_S if follow else _READ_IDLE_TIMEOUT_S
        splitter = LineSplitter()
        for chunk in self._client.stream_chunks(self._log_path, params, idle_timeout_s):
            self.received_bytes += len(chunk)
            self._has_received_data = True
            self._refused_since = math.inf
            complete_lines = splitter.split(chunk)
            if complete_lines:
                yield complete_lines
        rest = splitter.rest
        if rest.startswith(_REMOVED_LOG_PREFIX):
            raise ClusterError(self._client.host, "read a log", rest.decode(errors="replace"), HTTPStatus.BAD_REQUEST)
        if rest and not follow:  # in a followed stream it is half a line
            yield [rest]


def _describe_loss(restart: int) -> str:
    """What is lost if no available log contains the file's newest line."""
    return RESTARTED_LOSS.format(restart) if restart > 0 else ROTATED_LOSS


def follow_pod_log(
    client: Client, source: LogSource, path: Path, predecessor: LogFollower | None = None
) -> LogFollower:
    """The follower of a container's log: the one that an earlier watch of this process started, or a new one."""
    for thread in threading.enumerate():
        if not isinstance(thread, LogFollower) or thread.complete.is_set():
            continue
        if (thread.source, thread.path) == (source, path):
            return thread
    return LogFollower(client, source, path, predecessor)
