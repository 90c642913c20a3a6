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

INCOMPLETE_COPY = "its end did not come"  # what a log lacks if its copy broke off
SUPERVISOR_KILLED = "its supervisor was killed, and the last lines may be missing"
_MAX_SILENCE_S = 600.0  # without news of a host, after which the job is judged by the other hosts alone
_DRAIN_POLL_INTERVAL_S = 0.1  # between two reads of what is being copied
_HEARTBEAT_INTERVAL_S = 2.0  # seconds between two heartbeats to each supervisor


class ProcessWatch:
    """Reads the status streams of many processes at once, and copies the logs that are on other hosts.

    `seen` is the last state of each process. `logs_only`: no states are read, and no leases renewed.
    """

    def __init__(self, job_processes: Sequence[Process], store: Process | None = None, logs_only: bool = False) -> None:
        # A process that has reported nothing yet has an empty state, or the others would pass for the whole job.
        self._job_names, job_processes = (
            [process.name for process in job_processes],
            (*job_processes, *((store,) if store else ())),
        )
        self.seen: dict[str, Mapping[str, Any]] = {process.name: {} for process in job_processes}
        self._selector = selectors.DefaultSelector()
        self._log_copies = {
            process.name: LogCopy(process, process.follow) for process in job_processes if process.follow
        }
        self._status_streams = [] if logs_only else [StatusStream(process, self.seen) for process in job_processes]
        self._last_heartbeat_at, self._received_bytes = -math.inf, 0
        self._streams: list[CommandStream] = [*self._status_streams, *self._log_copies.values()]
        for stream in self._streams:
            self._open_stream(stream)

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
        for stream in [stream for stream in self._streams if stream.broken_at < time.monotonic() - 1]:
            self._open_stream(stream)
        self._send_heartbeats()
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        return any([self._read_stream(key.data) for key, _ in self._selector.select(timeout)])

    def _send_heartbeats(self) -> None:
        """Send each supervisor a heartbeat, if one is due, and read what the commands print on stderr."""
        if time.monotonic() - self._last_heartbeat_at > _HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_at = time.monotonic()
            for status_stream in self._status_streams:
                status_stream.send_heartbeat()
            for stream in self._streams:
                stream.read_stderr()

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code by process; negative is a signal, None is unknown."""
        return {name: state.get("exit") for name, state in self.seen.items()}

    def read_ends(self, timeout_s: float) -> None:
        """Nothing to wait for: the job's end is read from the ends of its processes."""

    def ended_at(self) -> float | None:
        """When the last process exited, by its host's clock."""
        return max((state["ended"] for state in self.seen.values() if state.get("ended")), default=None)

    def started_at(self) -> float:
        """When the last process started, by its host's clock; 0 if one has not."""
        start_times = [float(state.get("started") or 0.0) for state in self.seen.values()]
        return max(start_times) if all(start_times) else 0.0

    def lost_logs(self) -> dict[str, str]:
        """What each log lacks for good, by process."""
        return {
            **{name: f"{INCOMPLETE_COPY}: {self._log_copies[name].reason}" for name in self._list_incomplete_logs()},
            **self._describe_lost_lines(),
        }

    def losing_logs(self) -> dict[str, str]:
        """What the logs of running processes lack already, by process."""
        return {
            name: loss
            for name, loss in self._describe_lost_lines().items()
            if self.seen[name].get("phase") == "running"
        }

    def diagnose(self, last: bool = False) -> Diagnosis | None:
        """Which hosts cannot be asked; nothing more is known about a process."""
        broken_streams = [
            stream for stream in self._streams if isinstance(stream, StatusStream) and stream.broken_at < math.inf
        ]
        if not broken_streams:
            return None
        message = "; ".join(f"{stream.process.name} cannot be asked: {stream.reason}" for stream in broken_streams)
        return Diagnosis(
            Failure(cause="host-silent", sentence=message, node=broken_streams[0].process.name, retry=True)
        )

    def machines(self) -> dict[str, str]:
        """The host of each process of the job."""
        return {
            stream.process.name: stream.process.host
            for stream in self._streams
            if stream.process.name in self._job_names
        }

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
        is_broken = any(stream.broken_at < math.inf for stream in self._streams)
        is_behind = any(copy.is_behind(self.seen[name].get("log_size")) for name, copy in self._log_copies.items())
        return is_broken or is_behind or any(state.get("detail") for state in self.seen.values())

    def record_outcome(self, outcome: Outcome) -> None:
        """Nothing to do: the supervisors know how their processes ended."""

    def drain_ended_logs(self, quiet: float, on_poll: Callable[[], object]) -> None:
        """Nothing to do: a log stays on its host when its process is stopped."""

    def drain_logs(self, quiet: float, on_poll: Callable[[], object] = lambda: None) -> bool:
        """Read what still arrives, until nothing has come for `quiet` seconds; True if the logs are whole."""
        arrival = ArrivalTimer(quiet, time.monotonic())
        while self._is_unfinished() and not arrival.is_expired(time.monotonic(), self._received_bytes):
            self.poll(_DRAIN_POLL_INTERVAL_S)
            on_poll()
        return not self._is_unfinished()

    def _is_unfinished(self) -> bool:
        return bool(self._list_incomplete_logs()) or any(
            self.seen[name].get("phase") == "running" for name in self._job_names
        )

    def _list_incomplete_logs(self) -> list[str]:
        """The processes whose log is not copied whole, without the store: it still runs when the job has ended."""
        return [name for name in self._job_names if name in self._log_copies and not self._log_copies[name].is_complete]

    def _describe_lost_lines(self) -> dict[str, str]:
        dropped_lines = {
            name: f"{state['lost']} lines: {state['error']}" for name, state in self.seen.items() if state.get("lost")
        }
        unsupervised = [name for name in self._job_names if self.seen[name].get("phase") == "unkept"]
        return {
            name: SUPERVISOR_KILLED for name in unsupervised if not self.seen[name].get("recovered")
        } | dropped_lines

    def _open_stream(self, stream: CommandStream) -> None:
        """Start a stream; one that cannot be started now, for want of descriptors or processes, is tried again."""
        try:
            self._selector.register(stream.open(), selectors.EVENT_READ, stream)
        except (OSError, HostError) as error:
            stream.close()
            stream.fail(str(error))

    def _read_stream(self, stream: CommandStream) -> bool:
        """Read what one stream has sent; True if it was anything."""
        data = processes.read_output(stream.child)
        self._received_bytes += len(data)
        try:
            stream.handle_output(data)
            stream.unheard_since, reason = math.inf if stream.is_state_report(data) else stream.unheard_since, ""
        except OSError as error:  # this machine's disk is full: the rest is copied once there is room
            stream.child.kill()
            reason = str(error)
        if reason or not data:
            self._selector.unregister(stream.stdout)
            stream.end(reason)
        return bool(data) and not reason
