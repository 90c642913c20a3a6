"""Copies pods' logs to files, from their first lines, with time stamps as in the logs of plain machines."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.cluster.logs.log_file import GapError, LineSplitter, LogWriter, Overlap, parse_second
from torchyard.common.event_loop import LoopThread
from torchyard.common.json_text import parse_json
from torchyard.diagnosis import pod_facts
from torchyard.kube import absence
from torchyard.kube.client import Client
from torchyard.kube.pacing import RetryPacer
from torchyard.kube.per_client import PerClient
from torchyard.kube.retry import TransientError
from torchyard.kube.streams import StreamClient
from torchyard.model.errors import ClusterError, NotFoundError

STREAM_IDLE_TIMEOUT_S = 600.0  # a stream without a line for so long is reopened: its connection may have died silently
_READ_IDLE_TIMEOUT_S = 30.0  # the same for a response that has an end
_END_GRACE_S = 0.1  # seconds that the stream of an ended container may stay open
_OPEN_TIMEOUT_S = 30.0  # seconds that an API server may take to start a response; an empty log has none
_REFUSAL_TIMEOUT_S = 30.0  # seconds for which a log is requested in spite of refusals: kubelets restart
_END_PATIENCE_S = 10.0  # of these, at least so many after the container's end, or after others were refused no more
FIRST_RETRY_DELAY_S = 0.25  # before the second try of a stream; doubled for each further one
MAX_RETRY_DELAY_S = 5.0  # between two tries, at most
_PREDECESSOR_TIMEOUT_S = 20.0  # seconds that the log of a recreated pod waits for the end of its predecessor's
_MAX_PARALLEL_READS = 16  # reads of ended containers' logs that wait for their first line
_SLOT_TIMEOUT_S = 2.0  # after so long a read without a response makes room for another: its kubelet may be dead
START_PRECISION_S = 1  # the API states a container's start and end in whole seconds
_UNREAD = "all of it: it was not read"
_UNREAD_END = "possibly the last lines"
_BEING_READ = f"{_UNREAD_END}: it was still being read"
ROTATED_LOSS = "possibly some lines: the log was rotated or restarted while its stream was broken"
RESTARTED_LOSS = "possibly some lines before restart {}: a kubelet keeps the log of one earlier container"
# A kubelet's message in place of a log that it removed; the status of the response is 200.
_REMOVED_LOG_PREFIX = b"unable to retrieve container logs for "
_LOOP = LoopThread("logs")


class LogSource(NamedTuple):
    """The log of one container of one pod; a recreated pod has another uid. `uid` is empty if it is not known."""

    pod: str
    uid: str
    container: str


class LogReader:
    """Read the logs of all pods of one API server: the owner of their followers, and of what these share.

    Threads. All followers are coroutines of one thread (`_LOOP`), so a job of 500 pods needs as many threads as one of
    two. `follow` and `stop` may be called by any thread.

    Requests. A log is requested once its container has started: one stream until the container ends, and one read of
    what the stream may lack; at most `_MAX_PARALLEL_READS` logs are read at once. All responses share HTTP/2
    connections; only where that is not possible, each open stream has its own (kube/streams.py). `pacer` limits the
    tries after refusals, for all logs together.
    """

    def __init__(self, client: Client) -> None:
        self.host = client.host
        self._streams = StreamClient(client.credentials)
        self._pods_path = client.path("v1", "Pod")
        self.pacer = RetryPacer()
        self._read_slots = asyncio.Semaphore(_MAX_PARALLEL_READS)
        self._followers: dict[tuple[LogSource, Path], LogFollower] = {}
        self._lock = threading.Lock()  # guards `_followers`

    def follow(self, source: LogSource, path: Path, predecessor: "LogFollower | None" = None) -> "LogFollower":
        """The follower of a container's log: the one that an earlier watch of this process started, or a new one.

        `predecessor`: the follower that writes an earlier pod's log into the same file; its end is awaited.
        """
        key = (source, path)
        with self._lock:
            self._followers = {
                other_key: other for other_key, other in self._followers.items() if not other.complete.is_set()
            }
            follower = self._followers.get(key)
            if follower is None:
                follower = LogFollower(self, source, path, predecessor)
                self._followers[key] = follower
            return follower

    def stop(self, folder: Path | None = None) -> None:
        """Stop the followers whose files are in a folder, all by default: nothing more of these logs is wanted."""
        with self._lock:
            followers = list(self._followers.values())
        for follower in followers:
            if folder is None or folder in follower.path.parents:
                follower.stop()

    def stream_chunks(
        self, source: LogSource, query: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """A container's log, in chunks as they arrive; errors as those of `StreamClient.stream_chunks`."""
        query = {"container": source.container, "timestamps": "true", **query}
        return self._streams.stream_chunks(f"{self._pods_path}/{source.pod}/log", query, idle_timeout_s)

    async def check_pod(self, source: LogSource) -> None:
        """Raise NotFoundError if the name of a log's pod belongs to another pod by now; return if that is not known.

        What a response that started before contains is the log of the pod with this uid.
        """
        if not source.uid:
            return
        path = f"{self._pods_path}/{source.pod}"
        try:
            async with aclosing(self._streams.stream_chunks(path, {}, _READ_IDLE_TIMEOUT_S)) as chunks:
                pod = parse_json(b"".join([chunk async for chunk in chunks]))
        except (ClusterError, TransientError, ValueError):
            return
        if pod_facts.get_uid(pod) not in ("", source.uid):
            message = f"pod {source.pod} was replaced by another one of its name"
            raise NotFoundError(self.host, "read a log", message, HTTPStatus.NOT_FOUND)

    async def acquire_slot(self) -> "ReadSlot":
        """Wait until fewer than `_MAX_PARALLEL_READS` reads hold a slot."""
        await self._read_slots.acquire()
        return ReadSlot(self._read_slots)


class LogFollower:
    """Copy one container's log to a file, from its first line to its end, across container restarts.

    The file gets each line once, in order; a later process continues where the file ends. What is permanently missing
    is in `lost`, as text for the report.

    Coroutines. `_run` follows the live stream. Once the container has ended permanently, `_finish` reads the rest,
    because not every server ends the stream. Both call `_read`; `_read_lock` guards the writer and the attributes after
    it, and only the newest read (`_read_id`) may append lines. They run on the reader's thread, and end once `complete`
    is set; one that waits for its stream ends at the next line, when the stream is closed, or at `stop`. `update_pod`,
    `resume` and the properties are called by the polling thread, which never waits for a read.

    Resuming. The API serves a log from a whole second on (`sinceTime`), so each read requests the last seconds again
    and `Overlap` drops the lines that the file already has. If the file's newest line does not come again, lines may be
    missing: they are first looked for in the previous container's log (`_bridge`), then recorded in `lost`.

    Identity. A log is requested by the name of its pod, which a controller may give to another pod. So the pod's uid is
    read once a response has started, and after a refusal.

    Errors. Only `update_pod` and `resume` raise: RuntimeError if no thread can be started. A broken connection is
    reopened after a growing pause. A refusal with 403 ends the log, and so does the confirmed absence of the pod, whose
    name may belong to another one: what was not delivered is recorded as missing. Other refusals are retried;
    `is_finished` reports when they are not waited for.
    """

    def __init__(self, reader: LogReader, source: LogSource, path: Path, predecessor: "LogFollower | None") -> None:
        self.path = path
        self.source = source
        self.received_bytes = 0
        self.complete = threading.Event()  # nothing more will be written
        self.has_terminated = False  # the container has ended and will not restart
        self._reader = reader
        self._predecessor = predecessor
        self._tasks: list[asyncio.Task[Any] | None] = []  # what `stop` cancels; used on the loop alone
        self._has_started = False  # `_run`
        self._has_scheduled_end = False  # `_finish`
        self._pod_changed = asyncio.Event()  # wakes `_run` from its pause
        self._stream_ended = asyncio.Event()  # wakes `_finish` from its pause
        self._completed = asyncio.Event()  # wakes the successor

        # The current stream, as `is_current` sees it. Times are monotonic seconds; inf: none.
        self._is_following = False
        self._has_received_data = False
        self._stream_opened_at = math.inf
        self._refused_since = math.inf
        self._retry_delay_s = FIRST_RETRY_DELAY_S
        self._terminated_at = -math.inf  # when `has_terminated` became true

        # The container's state, as the API server reports it and as this file contains it.
        self._started_at = 0.0  # seconds since the epoch, by the node's clock; 0: unknown
        self._restart_count = 0
        self._has_ended = False
        self._bridged_restart = 0  # up to this restart the file continues the previous container's log
        self._has_gap = False

        self._finish_lock = asyncio.Lock()  # one `_finish` at a time
        self._read_lock = asyncio.Lock()  # guards what follows
        self._read_id = 0
        self._writer: LogWriter | None = None
        self._complete_read: tuple[int, int] | None = None  # restart count and lines taken, if read to its end
        self._missing = _UNREAD

    @property
    def node(self) -> str:
        """The name of the pod's node in the plan."""
        return self.path.parent.name

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

    def is_finished(self, *, outage_ended_at: float) -> bool:
        """Whether there is nothing to wait for: the log is complete, or its requests have been refused for long enough.

        `outage_ended_at`: when the API server was away last, in monotonic seconds: refusals before that do not count.
        """
        if self.complete.is_set():
            return True
        now = time.monotonic()
        last_chance_at = max(self._terminated_at, outage_ended_at, self._reader.pacer.recovered_at)
        return now - self._refused_since > _REFUSAL_TIMEOUT_S and now - last_chance_at > _END_PATIENCE_S

    def update_pod(
        self, *, has_terminated: bool, restart_count: int = 0, has_ended: bool = False, started_at: float = 0.0
    ) -> None:
        """Report the container's state, and start the coroutines that it requires.

        has_terminated: the container has ended and will not restart.
        has_ended: it has ended, and may restart.
        started_at: its last start, in seconds since the epoch by its node's clock; 0 if unknown.

        Raises RuntimeError if this process can have no more threads now: `resume` starts them later.
        """
        if has_terminated and not self.has_terminated:
            self._terminated_at = time.monotonic()
        earlier_state = (self._restart_count, self._started_at, self._has_ended, self.has_terminated)
        was_started = self._has_started
        self._restart_count = max(self._restart_count, restart_count)
        self._started_at = started_at
        self._has_ended = has_ended or has_terminated
        self.has_terminated = has_terminated or self.has_terminated
        self.resume()
        state = (self._restart_count, self._started_at, self._has_ended, self.has_terminated)
        if state != earlier_state and (was_started or self.has_terminated):  # most changes of a pod are others
            _LOOP.call(self._react)

    def resume(self) -> None:
        """Start to follow, if not started yet. Raises RuntimeError if this process can have no more threads now."""
        if not self._has_started:
            _LOOP.start_task(self._run())
            self._has_started = True

    def stop(self) -> None:
        """Read nothing more; the log is then complete as it is. Returns before the coroutines have ended."""
        if self._has_started:
            _LOOP.call(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            if task:
                task.cancel()
        self._set_complete()

    def _react(self) -> None:
        """React to a new state of the container. Called on the loop."""
        self._pod_changed.set()
        if self.has_terminated and not self._has_scheduled_end:
            self._has_scheduled_end = True
            _LOOP.start_task(self._finish(delay_s=_END_GRACE_S))

    async def _run(self) -> None:
        """Follow the log. The end of a stream is not the container's end: a restarting kubelet ends it too."""
        self._tasks.append(asyncio.current_task())
        is_retry = False
        while not (self.has_terminated or self.complete.is_set()):
            self._pod_changed.clear()
            self._is_following = True
            has_reached_end = await self._try_read(follow=True, is_retry=is_retry)
            self._is_following = False
            self._stream_ended.set()
            is_retry = not has_reached_end
            if not self.has_terminated:
                await _wait_for(self._pod_changed, MAX_RETRY_DELAY_S if has_reached_end else self._retry_delay_s)
        await self._finish()

    async def _finish(self, *, delay_s: float = 0.0) -> None:
        """Read the rest of an ended container's log in one request: not every server ends the stream."""
        self._tasks.append(asyncio.current_task())
        await asyncio.sleep(delay_s)
        async with self._finish_lock:
            is_retry = False
            while not self.complete.is_set():
                self._stream_ended.clear()
                if await self._try_read(follow=False, is_retry=is_retry):
                    self._set_complete()
                else:
                    is_retry = True
                    await _wait_for(self._stream_ended, self._retry_delay_s)

    def _set_complete(self) -> None:
        self.complete.set()
        self._completed.set()

    async def _try_read(self, *, follow: bool, is_retry: bool) -> bool:
        """Read on; return whether the end was reached. Lines that a broken connection lost are requested again."""
        pacer = self._reader.pacer
        if is_retry and not await pacer.wait(lambda: not (self.complete.is_set() or (follow and self.has_terminated))):
            return False
        self._stream_opened_at = time.monotonic()
        try:
            has_reached_end = await self._read_confirmed(follow=follow)
        except GapError:
            self._has_gap = True
            return False
        except ClusterError as error:
            self._record_refusal(error, follow=follow)
        except Exception as error:  # a fault of this process or of the connection must not end the log
            self._missing = f"{_UNREAD_END}: {error}"
            if isinstance(error, TransientError) and error.status:  # as when the API server cannot reach the kubelet
                self._refused_since = min(self._refused_since, time.monotonic())
        else:
            self._missing = ""
            self._retry_delay_s = FIRST_RETRY_DELAY_S
            pacer.record_success(is_retry=is_retry)
            return has_reached_end
        finally:
            self._stream_opened_at = math.inf
            self._has_received_data = False
        pacer.record_refusal()
        self._retry_delay_s = min(2 * self._retry_delay_s, MAX_RETRY_DELAY_S)
        return False

    def _record_refusal(self, error: ClusterError, *, follow: bool) -> None:
        """Record a refusal. 403 and NotFoundError end the log, and what was not delivered is missing.

        Other statuses are retried, because a restarting kubelet or an expired token recovers.
        """
        self._refused_since = min(self._refused_since, time.monotonic())
        if not (error.status == HTTPStatus.FORBIDDEN or isinstance(error, NotFoundError)):
            self._missing = f"{_UNREAD_END}: {error.message}"
        elif follow or not self._is_following:  # an open stream may still deliver lines of a pod that is gone
            if self._missing:
                part, _, reason = self._missing.partition(": ")
                is_error = self._missing not in (_UNREAD, _BEING_READ)
                self._missing = f"{part}: {reason}; then {error.message}" if is_error else f"{part}: {error.message}"
            self._set_complete()

    async def _read_confirmed(self, *, follow: bool) -> bool:
        """`_read`, with a NotFoundError only if it is raised twice, some seconds apart."""
        try:
            return await self._read(follow=follow)
        except NotFoundError:
            await asyncio.sleep(absence.CONFIRMATION_DELAY_S)
        return await self._read(follow=follow)

    async def _read(self, *, follow: bool) -> bool:
        """Append lines until the stream ends or a later read has started; return whether this one is still the newest.

        Raises GapError if lines before the new ones may be missing; the next read then bridges the gap.
        """
        async with self._read_lock:
            self._writer = self._writer or await self._open_writer()
            writer = self._writer
            restart_at_end = self._restart_count if self._has_ended else None
            is_bridging = self._has_gap or self._restart_count > self._bridged_restart
            overlap = writer.resume_point(is_new_container=is_bridging and await self._bridge(writer))
            if is_bridging:
                overlap.loss = _describe_loss(self._restart_count)
            stream = self._stream(overlap, follow=follow)
            # A refusal is raised here, before this read becomes the newest one: the stream being followed continues.
            first_lines = [] if follow else await anext(stream, [])
            self._read_id += 1
            own_read_id = self._read_id
        async with aclosing(stream):
            async for lines in _prepend(first_lines, stream):
                async with self._read_lock:
                    if self._read_id != own_read_id:
                        return False
                    self._retry_delay_s = FIRST_RETRY_DELAY_S
                    self._missing = _BEING_READ
                    if not (is_bridging or overlap.since or writer.line_count or self._is_own_line(lines[0])):
                        # The API server may not report a restart yet: the lines before it would be skipped.
                        await self._copy_previous(writer, writer.resume_point(), stop_line=lines[0])
                    writer.append(lines, overlap)
        if not follow:
            writer.close_log(overlap)
        self._complete_read = None
        if restart_at_end is not None and overlap.awaited_line is None:
            self._complete_read = (restart_at_end, writer.line_count)
        return self._read_id == own_read_id

    async def _open_writer(self) -> LogWriter:
        if self._predecessor:
            await _wait_for(self._predecessor._completed, _PREDECESSOR_TIMEOUT_S)
        return LogWriter(self.path, self.node, continues_file=not self._predecessor)

    def _is_own_line(self, line: bytes) -> bool:
        """Whether a line is of the container that the API server reports, because it was printed when that started.

        A successor starts after its predecessor has run and ended, so its lines are later.
        """
        second = parse_second(line)
        return second is not None and 0 <= second - self._started_at <= START_PRECISION_S

    async def _bridge(self, writer: LogWriter) -> bool:
        """Read the rest of the previous container's log, if it is kept; return whether the file reaches its end."""
        restart = self._restart_count
        overlap = writer.resume_point()
        overlap.loss = _describe_loss(restart - 1)
        # A kubelet may be ahead of the status that it reports, so the complete log may be that of either restart.
        if self._complete_read in ((restart - 1, writer.line_count), (restart, writer.line_count)):
            self._has_gap = False
            self._bridged_restart = restart
            return True
        is_copied = await self._copy_previous(writer, overlap)
        last_missing = restart - 1 if is_copied else restart  # restarts before it are not kept by the kubelet
        if not overlap.since and last_missing > 0:
            writer.record_gap(_describe_loss(last_missing))
        self._has_gap = False
        self._bridged_restart = restart
        return overlap.awaited_line is None

    async def _copy_previous(self, writer: LogWriter, overlap: Overlap, stop_line: bytes = b"") -> bool:
        """Copy the previous container's log, unless it starts with `stop_line`; False if it is not kept any more."""
        try:
            async with aclosing(self._stream(overlap, previous=True)) as stream:
                async for lines in stream:
                    if lines[0] == stop_line:  # the container of the current stream, which has ended in the meantime
                        break
                    writer.append(lines, overlap)
        except ClusterError as error:
            if error.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                raise
            return False
        return True

    async def _stream(
        self, overlap: Overlap, *, follow: bool = False, previous: bool = False
    ) -> AsyncGenerator[list[bytes], None]:
        """Complete lines as they arrive; at the end of a log the unfinished rest counts as a line too."""
        query = {}
        if follow:
            query["follow"] = "true"
        elif previous:
            query["previous"] = "true"
        if overlap.since:
            query["sinceTime"] = overlap.since
        idle_timeout_s = STREAM_IDLE_TIMEOUT_S if follow else _READ_IDLE_TIMEOUT_S
        splitter = LineSplitter()
        reader = self._reader
        slot = None if follow else await reader.acquire_slot()
        try:
            async with aclosing(self._stream_own_chunks(query, idle_timeout_s)) as chunks:
                async for chunk in chunks:
                    self.received_bytes += len(chunk)
                    self._has_received_data = True
                    self._refused_since = math.inf
                    complete_lines = splitter.split(chunk)
                    if complete_lines:
                        yield complete_lines
        finally:
            if slot:
                slot.release()
        rest = splitter.rest
        if rest.startswith(_REMOVED_LOG_PREFIX):
            raise ClusterError(reader.host, "read a log", rest.decode(errors="replace"), HTTPStatus.BAD_REQUEST)
        if rest and not follow:  # in a followed stream it is half a line
            yield [rest]

    async def _stream_own_chunks(self, query: Mapping[str, str], idle_timeout_s: float) -> AsyncGenerator[bytes, None]:
        """The chunks of this very pod's log; NotFoundError if the pod's name belongs to another one by now."""
        reader = self._reader
        is_own = False
        try:
            async with aclosing(reader.stream_chunks(self.source, query, idle_timeout_s)) as chunks:
                async for chunk in chunks:
                    if not is_own:
                        await reader.check_pod(self.source)
                        is_own = True
                    yield chunk
        except ClusterError:
            await reader.check_pod(self.source)
            raise
        if not is_own:
            await reader.check_pod(self.source)


class ReadSlot:
    """One of the reads that may wait for a kubelet at a time. It is released once, after `_SLOT_TIMEOUT_S` at most."""

    def __init__(self, semaphore: asyncio.Semaphore) -> None:
        """`semaphore`: acquired. Created on the loop."""
        self._semaphore = semaphore
        self._is_held = True
        self._timer = asyncio.get_running_loop().call_later(_SLOT_TIMEOUT_S, self.release)

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._timer.cancel()
            self._semaphore.release()


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, at most `timeout_s` seconds."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)


async def _prepend(first_lines: list[bytes], stream: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    if first_lines:
        yield first_lines
    async for lines in stream:
        yield lines


def _describe_loss(restart: int) -> str:
    """What is lost if no available log contains the file's newest line."""
    return RESTARTED_LOSS.format(restart) if restart > 0 else ROTATED_LOSS


LOG_READERS = PerClient(LogReader)  # shared by all runs of this process
