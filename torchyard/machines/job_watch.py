"""Watches a running job through many commands: the states of its processes, and their logs."""

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
_MAX_SILENCE_S = 600.0  # without a state from a host, after which the job is judged by the other hosts alone
_RESTART_DELAY_S = 1.0  # after a stream broke
_DRAIN_POLL_INTERVAL_S = 0.1  # between two reads of what is being copied
_HEARTBEAT_INTERVAL_S = 2.0  # between two heartbeats to each supervisor


class ProcessWatch:
    """Read the status streams of many processes at once, and copy the logs that are on other hosts.

    `states` has the last state of each process, by name; it is empty until a process has reported its state.

    There are no threads: all reading, writing and restarting of streams is done by `poll`, in the thread of the caller.
    Call it often: only `poll` sends the heartbeats that renew the leases (every `_HEARTBEAT_INTERVAL_S`), and only it
    empties the pipes of the commands, which would block otherwise. The other methods report what was read so far.

    A stream that breaks (a dropped connection, a killed command, a full disk here) is started again after
    `_RESTART_DELAY_S`, as often as needed: nothing but the state of its process ends a job. `poll` raises RunInUseError
    if another launcher owns the run; other errors of a host are not raised but reported by `diagnose` and `lost_logs`.

    Used as a context manager; `__exit__` ends every command.
    """

    def __init__(
        self, job_processes: Sequence[Process], store: Process | None = None, *, logs_only: bool = False
    ) -> None:
        """`logs_only`: logs are copied, but no states are read and no leases renewed."""
        watched_processes = list(job_processes)
        if store:
            watched_processes.append(store)
        self._job_names = [process.name for process in job_processes]
        # A process that has reported nothing yet has an empty state, or the others would pass for the whole job.
        self.states: dict[str, Mapping[str, Any]] = {process.name: {} for process in watched_processes}
        self._selector = selectors.DefaultSelector()
        self._log_copies = {
            process.name: LogCopy(process, process.follow) for process in watched_processes if process.follow
        }
        self._status_streams: list[StatusStream] = []
        if not logs_only:
            self._status_streams = [StatusStream(process, self.states) for process in watched_processes]
        self._streams: list[CommandStream] = [*self._status_streams, *self._log_copies.values()]
        self._last_heartbeat_at: float | None = None
        self._received_bytes = 0
        for stream in self._streams:
            self._open_stream(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def poll(self, *, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for output of any stream, and read it; True if there was some.

        Raises RunInUseError if another launcher has taken the run over.
        """
        restart_before = time.monotonic() - _RESTART_DELAY_S
        for stream in self._streams:
            if stream.broken_at is not None and stream.broken_at < restart_before:
                self._open_stream(stream)
        self._send_heartbeats()
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        has_output = False
        for key, _ in self._selector.select(timeout_s):
            if self._read_stream(key.data):
                has_output = True
        return has_output

    def _send_heartbeats(self) -> None:
        """Send each supervisor a heartbeat, if one is due, and read what the commands print on stderr."""
        now = time.monotonic()
        if self._last_heartbeat_at is not None and now - self._last_heartbeat_at <= _HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_at = now
        for status_stream in self._status_streams:
            status_stream.send_heartbeat()
        for stream in self._streams:
            stream.read_stderr()

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code by process; negative is a signal, None is unknown."""
        return {name: state.get("exit") for name, state in self.states.items()}

    def await_exit_codes(self, *, timeout_s: float) -> None:
        """Nothing to wait for: the job's end is read from the ends of its processes."""

    def ended_at(self) -> float | None:
        """When the last process exited, in seconds since the epoch by its host's clock; None if none has."""
        return max((state["ended"] for state in self.states.values() if state.get("ended")), default=None)

    def started_at(self) -> float:
        """When the last process started, in seconds since the epoch by its host's clock; 0 if one has not."""
        start_times = [float(state.get("started") or 0.0) for state in self.states.values()]
        return max(start_times) if all(start_times) else 0.0

    def lost_logs(self) -> dict[str, str]:
        """What is permanently missing in each log, by process."""
        losses = {name: f"{INCOMPLETE_COPY}: {self._log_copies[name].reason}" for name in self._list_incomplete_logs()}
        return losses | self._describe_lost_lines()

    def losing_logs(self) -> dict[str, str]:
        """What is already missing in the logs of running processes, by process."""
        losses = self._describe_lost_lines()
        return {name: loss for name, loss in losses.items() if self.states[name].get("phase") == "running"}

    def diagnose(self, *, is_last: bool = False) -> Diagnosis | None:
        """Which hosts cannot be queried, and why; None if all can. Nothing more is known about a process."""
        broken_streams = [stream for stream in self._status_streams if stream.broken_at is not None]
        if not broken_streams:
            return None
        message = "; ".join(f"{stream.process.name} cannot be queried: {stream.reason}" for stream in broken_streams)
        node = broken_streams[0].process.name
        return Diagnosis(Failure(cause="host-silent", sentence=message, node=node, retry=True))

    def machines(self) -> dict[str, str]:
        """The host of each process of the job."""
        names = set(self._job_names)
        return {stream.process.name: stream.process.host for stream in self._streams if stream.process.name in names}

    def container_failures(self) -> tuple[ContainerFailure, ...]:
        """None: no process on machines is started again within an attempt."""
        return ()

    def is_fully_observed(self) -> bool:
        """Whether every process has reported its state, except those whose host has been away for long."""
        now = time.monotonic()
        for stream in self._status_streams:
            if stream.unheard_since is not None and now - stream.unheard_since <= _MAX_SILENCE_S:
                return False
        return True

    def is_disconnected(self) -> bool:
        """Whether a log may grow unseen: a process cannot be queried, or its output is still being copied."""
        is_broken = any(stream.broken_at is not None for stream in self._streams)
        is_behind = any(copy.is_behind(self.states[name].get("log_size")) for name, copy in self._log_copies.items())
        return is_broken or is_behind or any(state.get("detail") for state in self.states.values())

    def record_outcome(self, outcome: Outcome) -> None:
        """Nothing to do: the supervisors record how their processes ended."""

    def drain_ended_logs(self, on_poll: Callable[[], object], *, idle_timeout_s: float) -> None:
        """Nothing to do: a log stays on its host when its process is stopped."""

    def drain_logs(self, on_poll: Callable[[], object] | None = None, *, idle_timeout_s: float) -> bool:
        """Read what still arrives, until nothing has come for `idle_timeout_s`; True if the logs are complete."""
        arrival = ArrivalTimer(idle_timeout_s, time.monotonic())
        while self._is_unfinished() and not arrival.is_expired(time.monotonic(), self._received_bytes):
            self.poll(timeout_s=_DRAIN_POLL_INTERVAL_S)
            if on_poll is not None:
                on_poll()
        return not self._is_unfinished()

    def _is_unfinished(self) -> bool:
        """Whether more output of the job may come: a log is incomplete here, or a process is still running."""
        is_running = any(self.states[name].get("phase") == "running" for name in self._job_names)
        return is_running or bool(self._list_incomplete_logs())

    def _list_incomplete_logs(self) -> list[str]:
        """The processes whose log is not copied to its end, without the store: it still runs when the job has ended."""
        copies = {name: self._log_copies[name] for name in self._job_names if name in self._log_copies}
        return [name for name, copy in copies.items() if not copy.is_complete]

    def _describe_lost_lines(self) -> dict[str, str]:
        """What the hosts' own logs lack, by process: lines lost to a full disk, or those of a killed supervisor."""
        losses: dict[str, str] = {}
        for name in self._job_names:
            state = self.states[name]
            if state.get("phase") == "unsupervised" and not state.get("recovered"):
                losses[name] = SUPERVISOR_KILLED
        for name, state in self.states.items():
            if state.get("lost"):
                losses[name] = f"{state['lost']} lines: {state['error']}"
        return losses

    def _open_stream(self, stream: CommandStream) -> None:
        """Start a stream; one that cannot be started now, for want of descriptors or processes, is retried."""
        try:
            self._selector.register(stream.open(), selectors.EVENT_READ, stream)
        except (OSError, HostError) as error:
            stream.close()
            stream.fail(str(error))

    def _read_stream(self, stream: CommandStream) -> bool:
        """Read what one stream has sent; True if it was anything."""
        data = processes.read_output(stream.child)
        self._received_bytes += len(data)
        error: OSError | None = None
        try:
            stream.handle_output(data)
            stream.update_contact(data)
        except OSError as os_error:  # this machine's disk is full: the rest is copied once there is room
            stream.child.kill()
            error = os_error
        if error is not None or not data:
            self._selector.unregister(stream.stdout)
            stream.end(error)
        return bool(data) and error is None
