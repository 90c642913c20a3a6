"""Watches a running job through many commands: the states of its processes, and their logs."""

import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torchyard.diagnosis.deadlines import ArrivalTimer
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.machines import processes
from torchyard.machines.status_stream import CommandStream, LogCopy, StatusStream
from torchyard.model.errors import HostError
from torchyard.model.plan import Process
from torchyard.model.run import ContainerFailure, Failure, Outcome

TORN_LOG = "its end did not come"  # what a log lacks if its copy broke off
UNKEPT_LOG = "its supervisor was killed, and the last lines may be missing"
_MAX_SILENCE_S = 600.0  # without news of a host, after which the job is judged by the other hosts alone
_DRAIN_POLL_INTERVAL_S = 0.1  # between two reads of what is being copied
_HEARTBEAT_INTERVAL_S = 2.0  # seconds between two heartbeats to each supervisor


class ProcessWatch:
    """Reads the status streams of many processes at once, and copies the logs that are on other hosts.

    `seen` is the last state of each process. `logs_only`: no states are read, and no leases renewed.
    """

    def __init__(self, blocks: Sequence[Process], store: Process | None = None, logs_only: bool = False) -> None:
        # A process that has reported nothing yet has an empty state, or the others would pass for the whole job.
        self._job, blocks = [block.name for block in blocks], (*blocks, *((store,) if store else ()))
        self.seen: dict[str, Mapping[str, Any]] = {block.name: {} for block in blocks}
        self._selector = selectors.DefaultSelector()
        self._copies = {block.name: LogCopy(block, block.follow) for block in blocks if block.follow}
        self._status_streams = [] if logs_only else [StatusStream(block, self.seen) for block in blocks]
        self._looked, self._received = -math.inf, 0
        self._streams: list[CommandStream] = [*self._status_streams, *self._copies.values()]
        for stream in self._streams:
            self._open(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def poll(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True if there was some.

        RunInUseError if another launcher has taken the run over.
        """
        for stream in [each for each in self._streams if each.broken_at < time.monotonic() - 1]:
            self._open(stream)
        self._send_heartbeats()
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        return any([self._take(key.data) for key, _ in self._selector.select(timeout)])

    def _send_heartbeats(self) -> None:
        """Send each supervisor a heartbeat, if one is due, and read what the commands print on stderr."""
        if time.monotonic() - self._looked > _HEARTBEAT_INTERVAL_S:
            self._looked = time.monotonic()
            for status_stream in self._status_streams:
                status_stream.send_heartbeat()
            for stream in self._streams:
                stream.read_stderr()

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code by process; negative is a signal, None is unknown."""
        return {name: seen.get("exit") for name, seen in self.seen.items()}

    def read_ends(self, timeout_s: float) -> None:
        """Nothing to wait for: the job's end is read from the ends of its processes."""

    def ended_at(self) -> float | None:
        """When the last process exited, by its host's clock."""
        return max((seen["ended"] for seen in self.seen.values() if seen.get("ended")), default=None)

    def started_at(self) -> float:
        """When the last process started, by its host's clock; 0 if one has not."""
        begun = [float(seen.get("started") or 0.0) for seen in self.seen.values()]
        return max(begun) if all(begun) else 0.0

    def lost_logs(self) -> dict[str, str]:
        """What each log lacks for good, by process."""
        return {**{name: f"{TORN_LOG}: {self._copies[name].said}" for name in self._torn()}, **self._unwritten()}

    def losing_logs(self) -> dict[str, str]:
        """What the logs of running processes lack already, by process."""
        return {name: lost for name, lost in self._unwritten().items() if self.seen[name].get("phase") == "running"}

    def diagnose(self, last: bool = False) -> Diagnosis | None:
        """Which hosts cannot be asked; nothing more is known about a process."""
        mute = [stream for stream in self._streams if isinstance(stream, StatusStream) and stream.broken_at < math.inf]
        if not mute:
            return None
        said = "; ".join(f"{stream.block.name} cannot be asked: {stream.said}" for stream in mute)
        return Diagnosis(Failure(cause="host-silent", sentence=said, node=mute[0].block.name, retry=True))

    def machines(self) -> dict[str, str]:
        """The host of each process of the job."""
        return {stream.block.name: stream.block.host for stream in self._streams if stream.block.name in self._job}

    def endings(self) -> tuple[ContainerFailure, ...]:
        """None: no process on machines is started again within an attempt."""
        return ()

    def is_fully_seen(self) -> bool:
        """Whether every process has reported its state, except those whose host has been away for long."""
        return not any(
            0.0 <= time.monotonic() - stream.unheard_since <= _MAX_SILENCE_S for stream in self._status_streams
        )

    def is_disconnected(self) -> bool:
        """Whether a log may grow unseen: a process cannot be asked, or its output is still being copied."""
        broken = any(stream.broken_at < math.inf for stream in self._streams)
        behind = any(copy.is_behind(self.seen[name].get("log_size")) for name, copy in self._copies.items())
        return broken or behind or any(seen.get("detail") for seen in self.seen.values())

    def record_outcome(self, outcome: Outcome) -> None:
        """Nothing to do: the supervisors know how their processes ended."""

    def drain_ended_logs(self, quiet: float, on_poll: Callable[[], object]) -> None:
        """Nothing to do: a log stays on its host when its process is stopped."""

    def drain_logs(self, quiet: float, on_poll: Callable[[], object] = lambda: None) -> bool:
        """Read what still arrives, until nothing has come for `quiet` seconds; True if the logs are whole."""
        arrival = ArrivalTimer(quiet, time.monotonic())
        while self._unsettled() and not arrival.is_over(time.monotonic(), self._received):
            self.poll(_DRAIN_POLL_INTERVAL_S)
            on_poll()
        return not self._unsettled()

    def _unsettled(self) -> bool:
        return bool(self._torn()) or any(self.seen[name].get("phase") == "running" for name in self._job)

    def _torn(self) -> list[str]:
        """The processes whose log is not copied whole, without the store: it still runs when the job has ended."""
        return [name for name in self._job if name in self._copies and not self._copies[name].whole]

    def _unwritten(self) -> dict[str, str]:
        dropped = {
            name: f"{seen['lost']} lines: {seen['error']}" for name, seen in self.seen.items() if seen.get("lost")
        }
        killed = [name for name in self._job if self.seen[name].get("phase") == "unkept"]
        return {name: UNKEPT_LOG for name in killed if not self.seen[name].get("recovered")} | dropped

    def _open(self, stream: CommandStream) -> None:
        """Start a stream; one that cannot be started now, for want of descriptors or processes, is tried again."""
        try:
            self._selector.register(stream.open(), selectors.EVENT_READ, stream)
        except (OSError, HostError) as error:
            stream.close()
            stream.fail(str(error))

    def _take(self, stream: CommandStream) -> bool:
        """Read what one stream has sent; True if it was anything."""
        data = processes.read_output(stream.process)
        self._received += len(data)
        try:
            stream.feed(data)
            stream.unheard_since, why = math.inf if stream.is_answer(data) else stream.unheard_since, ""
        except OSError as error:  # this machine's disk is full: the rest is copied once there is room
            stream.process.kill()
            why = str(error)
        if why or not data:
            self._selector.unregister(stream.stdout)
            stream.end(why)
        return bool(data) and not why
