"""A job in a cluster while it goes: its objects by watches, never by asking again, and every pod's log to disk."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from torchyard.cluster import lease
from torchyard.cluster.diagnose import ProgressMonitor
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.cluster.outage import OutageCause, OutageReporter
from torchyard.cluster.pod_logs import PodLogs
from torchyard.cluster.reflector import ObjectChange, Reflector
from torchyard.common.log import get_log
from torchyard.common.log_lines import read_new_lines
from torchyard.common.own_trouble import OwnTrouble
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.deadlines import ArrivalTimer
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Outcome

_FIRST_LIST_TIMEOUT_S = (
    86400.0  # seconds that the first look at the job and its pods may take: who gives up would take the job away
)
_OPTIONAL_LIST_TIMEOUT_S = 10.0  # seconds that is waited for what only tells more
_MESSAGE_INTERVAL_S = 30.0  # between two words on logs that take long to read
_LOG_POLL_INTERVAL_S = 0.05  # between two looks at logs that are still being read
_LIST_POLL_INTERVAL_S = 0.5  # a run is ended by an exception in this thread, which a longer sleep would hold up


class ClusterWatch:
    """What the API server says of a plan's objects: `seen` is current after each `changes`."""

    def __init__(self, plan: ManifestPlan, pulse: Callable[[], object] = lambda: None) -> None:
        """`pulse` is called every half second while the first look is waited for."""
        self._pulse = pulse
        self.seen: dict[str, Mapping[str, Any]] = {}
        self._plan, self._api = plan, get_cluster_client(plan.cluster)
        self._news: queue.Queue[ObjectChange] = queue.Queue()
        self._over = threading.Event()
        self._pumps = PodLogs(self._api, plan)
        self._lookout, self._machines = ProgressMonitor(self._api, plan), dict[str, str]()
        self._outage, self._own = OutageReporter(), OwnTrouble()
        self._watchers = [Reflector(self._api, plan, watched, self._news, self._over) for watched in plan.watch]

    def __enter__(self) -> Self:
        """Everything is listed once before anything is said: an object that is not seen is not there.

        ClusterError where the job or its pods may not be looked at, or nobody answers.
        """
        began = time.monotonic()
        try:
            for watcher in self._watchers:
                watcher.start()
            for watcher in self._watchers:
                self._look(watcher, began)
        except BaseException:
            self._over.set()
            raise
        self._drain(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _look(self, watcher: Reflector, began: float) -> None:
        """Wait for a first look."""
        while not watcher.looked.wait(_LIST_POLL_INTERVAL_S):
            self._outage.tell(self._trouble())
            self._pulse()
            gone = time.monotonic() - began
            if gone > _OPTIONAL_LIST_TIMEOUT_S and not watcher.vital:
                return
            if gone > _FIRST_LIST_TIMEOUT_S:
                said = f"no answer for {_FIRST_LIST_TIMEOUT_S:.0f} s: {watcher.trouble or 'it is still looking'}"
                raise ClusterError(self._api.host, f"list {watcher.kind}", said, 0)
        if watcher.refusal:
            raise watcher.refusal

    def changes(self, timeout: float) -> bool:
        """Wait for news, at most `timeout` seconds; True where `seen` has changed.

        RunInUseError where another process has taken the run over.
        """
        get_renewer().check(self._plan)
        self._outage.tell(self._trouble())
        with self._own.endured("follow every log"):
            self._pumps.go_on()
        return self._drain(timeout)

    def _drain(self, timeout: float) -> bool:
        news = False
        with contextlib.suppress(queue.Empty):
            self._take(*self._news.get(timeout=timeout) if timeout else self._news.get_nowait())
            news = True
            while True:
                self._take(*self._news.get_nowait())
        return news

    def _take(self, kind: str, name: str, thing: Mapping[str, Any] | None) -> None:
        key = f"{kind}/{self._plan.node(name)}" if kind == "Pod" else f"{kind}/{name}"
        if thing is None and pod_facts.get_mapping(self.seen.get(key), "metadata").get("name") != name:
            return  # another pod is that node by now
        before = self.seen.pop(key, None) if thing is None else thing
        if thing is not None:
            self.seen[key] = thing
        if kind == "Pod":
            node = key.partition("/")[2]
            if before and (thing is None or pod_facts.is_being_deleted(thing)):
                # Kept: the first one that goes may be why the others fail, and is gone by then.
                self.seen.setdefault(f"Removed/{node}", before)
            if machine := pod_facts.read_node_name(before or {}):
                self._machines[node] = machine
            self._pumps.take(node, name, thing)

    def known(self) -> bool:
        """Whether what is seen is how the job is now."""
        return self._trouble() is None

    def deaf(self) -> bool:
        """Whether logs may grow unseen: the API server does not answer, or a log is still to be read."""
        return self._trouble() is not None or self._pumps.deaf()

    def _trouble(self) -> OutageCause:
        """Why the job or its pods are not seen, if so."""
        return next((each.trouble for each in self._watchers if each.vital and each.trouble), None)

    # --- how it ended

    def note(self, outcome: Outcome) -> None:
        """Write the end down before anything is stopped: whoever comes back must not begin anew."""
        with contextlib.suppress(ClusterError):
            lease.record_outcome(self._plan, outcome)

    def exits(self) -> dict[str, int | None]:
        """Exit code by node; negative is a signal."""
        codes = pod_facts.read_pod_exit_codes(self._pods())
        return {name: 128 - code if code and code > 128 else code for name, code in codes.items()}

    def ended_at(self) -> float | None:
        """When the last container exited, by its node's clock."""
        ends = [
            pod_facts.read_container_end(pod)
            for pod in self._pods().values()
            if pod_facts.read_pod_exit_code(pod) is not None
        ]
        return max((end for end in ends if end < float("inf")), default=None)

    def losing(self) -> dict[str, str]:
        """What could not be written so far, by node."""
        return self._pumps.losing()

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by node."""
        return self._pumps.lost()

    def running_at(self) -> float:
        """When the last of the containers began, by its node's clock; 0 where none has."""
        return max((pod_facts.read_container_start(pod) for pod in self._pods().values()), default=0.0)

    def last_line(self, node: str) -> str:
        """The last thing that a pod said."""
        lines = [line for line, _ in read_new_lines(Path(self._plan.folder, node, "log"), 0)]
        return lines[-1].partition(" | ")[2] if lines else "nothing"

    def why(self, last: bool = False) -> Diagnosis | None:
        """Why the job does not get on, if it does not. `last`: look around once more before it is given up."""
        return self._lookout.why(self.seen, last)

    def machines(self) -> dict[str, str]:
        """The cluster's node that each node of the job was on last, also where its pod is gone."""
        return self._machines

    def secure(self, quiet: float, pulse: Callable[[], object]) -> None:
        """Read the logs of pods that have ended to their end: where the job is stopped its pods go, and their logs."""
        self._read_out(lambda: self._pumps.settling(ended=True), quiet, pulse)

    def settle(self, quiet: float, pulse: Callable[[], object] = lambda: None) -> bool:
        """Wait until every log is whole, while something comes and `quiet` seconds more; whether they are.

        Where the API server is away, it is waited for. What it said last is kept.
        """
        is_whole = self._read_out(self._pumps.settling, quiet, pulse)
        # One object a line: indented, those of a thousand pods take seconds and 200 MB of memory.
        said = ",\n".join(f"{json.dumps(name)}: {json.dumps(thing)}" for name, thing in self.seen.items())
        with contextlib.suppress(OSError):
            make_private_folder(Path(self._plan.folder))
            write_private_text(Path(self._plan.folder, "objects.json"), f"{{\n{said}\n}}\n")
        return is_whole

    def _read_out(self, settling: Callable[[], bool], quiet: float, pulse: Callable[[], object]) -> bool:
        """Whether everything has come before it was given up."""
        arrival, said_at = ArrivalTimer(quiet, time.monotonic()), time.monotonic()
        while settling():
            now = time.monotonic()
            if arrival.is_over(now, self._pumps.received, away=self._trouble() is not None):
                return False
            if now - said_at > _MESSAGE_INTERVAL_S:
                said_at = now
                get_log().info(
                    "the job has ended, and its logs are still being read: %d MiB", self._pumps.received >> 20
                )
            self.changes(_LOG_POLL_INTERVAL_S)
            pulse()
        return True

    def _pods(self) -> pod_facts.Pods:
        return {name.partition("/")[2]: pod for name, pod in self.seen.items() if name.startswith("Pod/")}
