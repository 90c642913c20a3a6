"""Watches a running job through one command on each host: the states of its processes, and their logs."""

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torchyard.diagnosis.deadlines import ArrivalTimer
from torchyard.diagnosis.no_progress import Diagnosis, SilentHost, explain_waiting_processes
from torchyard.machines import processes
from torchyard.machines.host_script import group_by_script
from torchyard.machines.host_stream import HostStream
from torchyard.model.errors import HostError
from torchyard.model.plan import Process
from torchyard.model.run import ContainerFailure, Outcome

INCOMPLETE_COPY = "its end did not come"  # what a log lacks if its copy broke off
SUPERVISOR_KILLED = "its supervisor was killed, and the last lines may be missing"
_MAX_SILENCE_S = 600.0  # without a state from a host, after which the job is judged by the other hosts alone
_RESTART_DELAY_S = 1.0  # after a stream broke
_DRAIN_POLL_INTERVAL_S = 0.1  # between two reads of what is being copied
_HEARTBEAT_INTERVAL_S = 2.0  # between two heartbeats to each supervisor


class ProcessWatch:
    """Read the streams of many hosts at once, and copy the logs that are on other hosts.

    `states` has the last state of each process, by name; it is empty until a process has reported its state.

    There are no threads: all reading, writing and restarting of streams is done by `poll`, in the thread of the caller.
    Call it often: only `poll` sends the heartbeats that renew the leases (every `_HEARTBEAT_INTERVAL_S`), and only it
    empties the pipes of the commands, which would block otherwise. The other methods report what was read so far.

    A stream that breaks (a dropped connection, a killed command) is started again after `_RESTART_DELAY_S`, as often as
    needed: nothing but the state of its process ends a job. `poll` raises RunInUseError if another launcher owns the
    run; other errors of a host are not raised but reported by `diagnose` and `lost_logs`.

    Used as a context manager; `__exit__` ends every command.
    """

    def __init__(
        self, job_processes: Sequence[Process], store: Process | None = None, *, logs_only: bool = False
    ) -> None:
        """`logs_only`: no leases are renewed."""
        watched_processes = list(job_processes)
        if store:
            watched_processes.append(store)
        # A process that has reported nothing yet has an empty state, or the others would pass for the whole job.
        self.states: dict[str, Mapping[str, Any]] = {process.name: {} for process in watched_processes}
        self._machines = {process.name: process.host for process in job_processes}
        self._selector = selectors.DefaultSelector()
        self._streams: list[HostStream] = []
        for script, members in group_by_script(watched_processes).items():
            self._streams.append(HostStream(script, members, self.states, renews_leases=not logs_only))
        self._last_heartbeat_at: float | None = None
        for stream in self._streams:
            self._open_stream(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def poll(self, *, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for output of any stream, and read it; True if a state or a log has changed.

        Raises RunInUseError if another launcher has taken the run over.
        """
        restart_before = time.monotonic() - _RESTART_DELAY_S
        for stream in self._streams:
            if stream.broken_at is not None and stream.broken_at < restart_before:
                self._open_stream(stream)
        self._send_heartbeats()
        for stream in self._list_open_streams():
            stream.retry_copies()
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        received_bytes = self._count_received_bytes()
        for key, _ in self._selector.select(timeout_s):
            readable: HostStream = key.data
            if key.fileobj is readable.stderr.stream:
                self._read_stderr(readable)
            else:
                self._read_stream(readable)
        return self._count_received_bytes() != received_bytes

    def _count_received_bytes(self) -> int:
        """The bytes of states and logs that have come from all hosts so far."""
        return sum(stream.received_bytes for stream in self._streams)

    def _send_heartbeats(self) -> None:
        """Send each host a heartbeat, if one is due."""
        now = time.monotonic()
        if self._last_heartbeat_at is not None and now - self._last_heartbeat_at <= _HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_at = now
        for stream in self._list_open_streams():
            stream.send_heartbeat()

    def now(self) -> float:
        """This machine's time: a script here dates the states of Run:ai's pods."""
        return time.time()

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
        losses: dict[str, str] = {}
        for stream in self._streams:
            for name in self._list_incomplete_logs(stream):
                detail = self.states[name].get("detail")
                reason = stream.log_copies[name].reason or stream.reason or detail or "no output received"
                losses[name] = f"{INCOMPLETE_COPY}: {reason}"
        return losses | self._describe_lost_lines()

    def losing_logs(self) -> dict[str, str]:
        """What is already missing in the logs of running processes, by process."""
        losses = self._describe_lost_lines()
        return {name: loss for name, loss in losses.items() if self.states[name].get("phase") == "running"}

    def diagnose(self, *, is_last: bool = False) -> Diagnosis | None:
        """Why the job waits: the hosts that cannot be queried, else what Run:ai reports; None if neither is known."""
        silent_hosts = []
        for stream in self._streams:
            if stream.is_lost and stream.unended_names:
                silent_hosts.append(SilentHost(stream.unended_names, stream.reason))
        return explain_waiting_processes(self.states, silent_hosts)

    def machines(self) -> dict[str, str]:
        """The host of each process of the job."""
        return self._machines

    def container_failures(self) -> tuple[ContainerFailure, ...]:
        """None: no process on machines is started again within an attempt."""
        return ()

    def job_age_s(self) -> float | None:
        """The age of the oldest process, by its host's clock; None until a host has reported one."""
        return max((age_s for stream in self._streams for age_s in stream.list_ages()), default=None)

    def is_fully_observed(self) -> bool:
        """Whether every process has reported its state, except those whose host has been away for long."""
        return all(stream.is_observed(_MAX_SILENCE_S) for stream in self._streams)

    def is_disconnected(self) -> bool:
        """Whether a log may grow unseen: a process cannot be queried, or its output is still being copied."""
        if not all(stream.is_connected for stream in self._streams):
            return True
        for stream in self._streams:
            if any(copy.is_behind(self.states[name].get("log_size")) for name, copy in stream.log_copies.items()):
                return True
        return any(state.get("detail") for state in self.states.values())

    def record_outcome(self, outcome: Outcome | None) -> None:
        """Nothing to do: the supervisors record how their processes ended."""

    def drain_ended_logs(self, on_poll: Callable[[], object], *, idle_timeout_s: float) -> None:
        """Nothing to do: a log stays on its host when its process is stopped."""

    def drain_logs(self, on_poll: Callable[[], object] | None = None, *, idle_timeout_s: float) -> bool:
        """Read what still arrives, until nothing has come for `idle_timeout_s`; True if the logs are complete."""
        arrival = ArrivalTimer(idle_timeout_s, time.monotonic())
        while self._is_unfinished() and not arrival.is_expired(time.monotonic(), self._count_received_bytes()):
            self.poll(timeout_s=_DRAIN_POLL_INTERVAL_S)
            if on_poll is not None:
                on_poll()
        return not self._is_unfinished()

    def _is_unfinished(self) -> bool:
        """Whether more output of the job may come: a log is incomplete here, or a process is still running."""
        is_running = any(self.states[name].get("phase") == "running" for name in self._machines)
        return is_running or any(self._list_incomplete_logs(stream) for stream in self._streams)

    def _list_incomplete_logs(self, stream: HostStream) -> list[str]:
        """The processes whose log is not copied to its end, without the store: it still runs when the job has ended."""
        copies = stream.log_copies.items()
        return [name for name, copy in copies if name in self._machines and not copy.is_complete]

    def _list_open_streams(self) -> list[HostStream]:
        """The streams whose command runs."""
        return [stream for stream in self._streams if stream.broken_at is None and not stream.is_complete]

    def _describe_lost_lines(self) -> dict[str, str]:
        """What the hosts' own logs lack, by process: lines lost to a full disk, or those of a killed supervisor."""
        losses: dict[str, str] = {}
        for name in self._machines:
            state = self.states[name]
            if state.get("phase") == "unsupervised" and not state.get("recovered"):
                losses[name] = SUPERVISOR_KILLED
        for name, state in self.states.items():
            if state.get("lost"):
                losses[name] = f"{state['lost']} lines: {state['error']}"
        return losses

    def _open_stream(self, stream: HostStream) -> None:
        """Start a stream; one that cannot be started now, for want of descriptors or processes, is retried."""
        try:
            self._selector.register(stream.open(), selectors.EVENT_READ, stream)
            try:
                self._selector.register(stream.stderr.stream, selectors.EVENT_READ, stream)
            except OSError:
                self._selector.unregister(stream.stdout)  # its descriptor is the next stream's, once it is closed
                raise
        except (OSError, HostError) as error:
            stream.close()
            stream.fail(str(error))

    def _read_stream(self, stream: HostStream) -> None:
        """Read what one stream has sent; without any output it has ended."""
        data = processes.read_output(stream.child)
        error: OSError | None = None
        try:
            stream.handle_output(data)
        except OSError as os_error:  # what it sends cannot be read
            stream.child.kill()
            error = os_error
        if error is not None or not data:
            self._selector.unregister(stream.stdout)
            if stream.stderr.is_open:
                self._selector.unregister(stream.stderr.stream)
            stream.end(error)

    def _read_stderr(self, stream: HostStream) -> None:
        """Read what one stream's command has printed on stderr, such as the messages of `ssh -v`."""
        if not stream.stderr.stream.closed:  # its stdout, which ends with it, may have been read just before
            stream.stderr.read()
            if not stream.stderr.is_open:
                self._selector.unregister(stream.stderr.stream)
