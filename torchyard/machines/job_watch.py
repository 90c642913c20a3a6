"""What many commands say while a job runs: how its processes are, and their logs."""

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
from torchyard.model.run import Failure, Outcome

TORN_LOG = "its end did not come"  # what a log lacks whose copy broke off
_MAX_SILENCE_S = 600.0  # without a word of a host, until the job is judged by what the others say
_DRAIN_POLL_INTERVAL_S = 0.1  # between two looks at what is being copied
_HEARTBEAT_INTERVAL_S = 2.0  # seconds between two words to each keeper that somebody looks after its process


class ProcessWatch:
    """The status commands of many blocks at once, each a JSON line at every change; logs that are elsewhere are copied.

    `seen` is what each block said last. `logs_only`: nobody is asked how it is, or looked after.
    """

    def __init__(self, blocks: Sequence[Process], store: Process | None = None, logs_only: bool = False) -> None:
        # A block that has not spoken yet is there with nothing known of it, or the others would pass for the whole job.
        self._job, blocks = [block.name for block in blocks], (*blocks, *((store,) if store else ()))
        self.seen: dict[str, Mapping[str, Any]] = {block.name: {} for block in blocks}
        self._selector = selectors.DefaultSelector()
        self._copies = {block.name: LogCopy(block, block.follow) for block in blocks if block.follow}
        self._told = [] if logs_only else [StatusStream(block, self.seen) for block in blocks]
        self._looked, self._received = -math.inf, 0
        self._streams: list[CommandStream] = [*self._told, *self._copies.values()]
        for stream in self._streams:
            self._open(stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        self._selector.close()

    def changes(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True where there was some.

        RunInUseError where another place has taken the run over.
        """
        for stream in [each for each in self._streams if each.broken_at < time.monotonic() - 1]:
            self._open(stream)
        self._look()
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        return any([self._take(key.data) for key, _ in self._selector.select(timeout)])

    def _look(self) -> None:
        """Tell every keeper, now and then, that somebody looks after its process."""
        if time.monotonic() - self._looked > _HEARTBEAT_INTERVAL_S:
            self._looked = time.monotonic()
            for told in self._told:
                told.look()
            for stream in self._streams:
                stream.hear_beside()

    def exits(self) -> dict[str, int | None]:
        """Exit code by block; negative is a signal, None is unknown."""
        return {name: seen.get("exit") for name, seen in self.seen.items()}

    def ended_at(self) -> float | None:
        """When the last process exited, by its host's clock."""
        return max((seen["ended"] for seen in self.seen.values() if seen.get("ended")), default=None)

    def running_at(self) -> float:
        """When the last process began, by its host's clock; 0 where one has not."""
        begun = [float(seen.get("started") or 0.0) for seen in self.seen.values()]
        return max(begun) if all(begun) else 0.0

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by block."""
        return {**{name: f"{TORN_LOG}: {self._copies[name].said}" for name in self._torn()}, **self._unwritten()}

    def losing(self) -> dict[str, str]:
        """What running processes' logs lack already, by block."""
        return {name: lost for name, lost in self._unwritten().items() if self.seen[name].get("phase") == "running"}

    def why(self, last: bool = False) -> Diagnosis | None:
        """Which hosts cannot be asked; nobody knows more about a process."""
        mute = [stream for stream in self._streams if isinstance(stream, StatusStream) and stream.broken_at < math.inf]
        if not mute:
            return None
        said = "; ".join(f"{stream.block.name} cannot be asked: {stream.said}" for stream in mute)
        return Diagnosis(Failure(cause="host-silent", sentence=said, node=mute[0].block.name, retry=True))

    def machines(self) -> dict[str, str]:
        """The host of each block of the job."""
        return {stream.block.name: stream.block.host for stream in self._streams if stream.block.name in self._job}

    def known(self) -> bool:
        """Whether every process has told how it is, but for those whose host has been away for long."""
        return not any(0.0 <= time.monotonic() - told.unheard_since <= _MAX_SILENCE_S for told in self._told)

    def deaf(self) -> bool:
        """Whether a log may grow unseen: a process cannot be asked, or what it has said is still being copied."""
        broken = any(stream.broken_at < math.inf for stream in self._streams)
        behind = any(copy.is_behind(self.seen[name].get("log_size")) for name, copy in self._copies.items())
        return broken or behind or any(seen.get("detail") for seen in self.seen.values())

    def note(self, outcome: Outcome) -> None:
        """The keepers know how their processes ended."""

    def secure(self, quiet: float, pulse: Callable[[], object]) -> None:
        """Nothing to do: what a host has of a log stays there when its process is stopped."""

    def settle(self, quiet: float, pulse: Callable[[], object] = lambda: None) -> bool:
        """Take in what is said last, while something comes and `quiet` seconds more; whether the logs are whole."""
        arrival = ArrivalTimer(quiet, time.monotonic())
        while self._unsettled() and not arrival.is_over(time.monotonic(), self._received):
            self.changes(_DRAIN_POLL_INTERVAL_S)
            pulse()
        return not self._unsettled()

    def _unsettled(self) -> bool:
        return bool(self._torn()) or any(self.seen[name].get("phase") == "running" for name in self._job)

    def _torn(self) -> list[str]:
        """The blocks of the job whose log is not copied whole; a store still runs when its job has ended."""
        return [name for name in self._job if name in self._copies and not self._copies[name].whole]

    def _unwritten(self) -> dict[str, str]:
        return {name: f"{seen['lost']} lines: {seen['error']}" for name, seen in self.seen.items() if seen.get("lost")}

    def _open(self, stream: CommandStream) -> None:
        """Begin a stream; one that cannot be begun now, for want of descriptors or processes, is tried again."""
        try:
            self._selector.register(stream.open(), selectors.EVENT_READ, stream)
        except (OSError, HostError) as error:
            stream.close()
            stream.fail(str(error))

    def _take(self, stream: CommandStream) -> bool:
        """What has come of one stream: whether it was anything."""
        data = processes.read_output(stream.process)
        self._received += len(data)
        try:
            stream.take(data)
            stream.unheard_since, why = math.inf if stream.tells(data) else stream.unheard_since, ""
        except OSError as error:  # this machine's disk is full: what is missing comes once there is room
            stream.process.kill()
            why = str(error)
        if why or not data:
            self._selector.unregister(stream.stdout)
            stream.end(why)
        return bool(data) and not why
