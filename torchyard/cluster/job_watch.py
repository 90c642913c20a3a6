"""Watches a running job in a cluster: its objects by watches, never by polling, and every pod's log to disk."""

import contextlib
import json
import math
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
from torchyard.common.local_errors import LocalErrorGuard
from torchyard.common.log import get_log
from torchyard.common.log_lines import read_new_lines
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.deadlines import ArrivalTimer
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.kube.client import get_cluster_client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import ContainerFailure, Outcome

_FIRST_LIST_TIMEOUT_S = 86400.0  # for the first list of the job and its pods: giving up would delete the job
_OPTIONAL_LIST_TIMEOUT_S = 10.0  # for the first list of a kind that only adds detail
_MESSAGE_INTERVAL_S = 30.0  # between two messages about logs that take long to read
_LOG_POLL_INTERVAL_S = 0.05  # between two checks of logs that are still being read
_LIST_POLL_INTERVAL_S = 0.5  # a run is ended by an exception in this thread, which a longer sleep would delay


class ClusterWatch:
    """What the API server reports about a plan's objects: `seen` is current after each `poll`."""

    def __init__(self, plan: ManifestPlan, on_poll: Callable[[], object] = lambda: None) -> None:
        """`on_poll` is called every half second until the first lists have arrived."""
        self._on_poll = on_poll
        self.seen: dict[str, Mapping[str, Any]] = {}
        self._plan, self._api = plan, get_cluster_client(plan.cluster)
        self._news: queue.Queue[ObjectChange] = queue.Queue()
        self._over = threading.Event()
        self._logs = PodLogs(self._api, plan)
        self._endings: dict[tuple[str, float], ContainerFailure] = {}
        self._removed: dict[str, set[str]] = {}  # the uids of the pods that have gone, by node
        self._monitor, self._machines = ProgressMonitor(self._api, plan), dict[str, str]()
        self._outage, self._own = OutageReporter(), LocalErrorGuard()
        self._watchers = [Reflector(self._api, plan, watched, self._news, self._over) for watched in plan.watch]

    def __enter__(self) -> Self:
        """Wait until everything is listed once: after that an object that is not seen does not exist.

        Raises ClusterError if the job or its pods may not be read, or the API server never answers.
        """
        began = time.monotonic()
        try:
            for watcher in self._watchers:
                watcher.start()
            for watcher in self._watchers:
                self._await_first_list(watcher, began)
        except BaseException:
            self._over.set()
            raise
        self._drain(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _await_first_list(self, watcher: Reflector, began: float) -> None:
        """Wait for a watcher's first list."""
        while not watcher.looked.wait(_LIST_POLL_INTERVAL_S):
            self._outage.report(self._trouble())
            self._on_poll()
            gone = time.monotonic() - began
            if gone > _OPTIONAL_LIST_TIMEOUT_S and not watcher.vital:
                return
            if gone > _FIRST_LIST_TIMEOUT_S:
                said = f"no answer for {_FIRST_LIST_TIMEOUT_S:.0f} s: {watcher.trouble or 'it is still listing'}"
                raise ClusterError(self._api.host, f"list {watcher.kind}", said, 0)
        if watcher.refusal:
            raise watcher.refusal

    def poll(self, timeout: float) -> bool:
        """Wait for changes, at most `timeout` seconds; return whether `seen` has changed.

        Raises RunInUseError if another process has taken the run over.
        """
        get_renewer().check(self._plan)
        self._outage.report(self._trouble())
        with self._own.endured("follow every log"):
            self._logs.resume()
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
            return  # another pod has taken that node's place by now
        before = self.seen.pop(key, None) if thing is None else thing
        if thing is not None:
            self.seen[key] = thing
        if kind == "Pod":
            node = key.partition("/")[2]
            if before and (thing is None or pod_facts.is_being_deleted(thing)):
                self._note_removal(node, before)
            failed = pod_facts.find_own_failure(before or {}) if node in self._plan.nodes else None
            if failed and failed.failed_at < math.inf:
                self._endings[node, failed.failed_at] = ContainerFailure(
                    node=node, failed_at=failed.failed_at, exit_code=failed.exit_code
                )
            if machine := pod_facts.get_node_name(before or {}):
                self._machines[node] = machine
            self._logs.update_pod(node, name, thing)

    def _note_removal(self, node: str, pod: Mapping[str, Any]) -> None:
        """Keep the first pod of a node that goes, which may be why the others fail; count them all."""
        removed = self._removed.setdefault(node, set())
        removed.add(pod_facts.to_text(pod_facts.get_mapping(pod, "metadata").get("uid")))
        first = self.seen.get(f"Removed/{node}", pod)
        self.seen[f"Removed/{node}"] = {**first, pod_facts.REMOVALS_KEY: len(removed)}

    def has_pods(self) -> bool:
        """Whether a pod of the job exists; the store's does not count."""
        return any(node in self._plan.nodes for node in self._pods())

    def is_fully_seen(self) -> bool:
        """Whether `seen` is the job's current state."""
        return self._trouble() is None

    def is_disconnected(self) -> bool:
        """Whether logs may grow unseen: the API server does not answer, or a log's stream is not open."""
        return self._trouble() is not None or self._logs.is_disconnected()

    def _trouble(self) -> OutageCause:
        """Why the job or its pods cannot be seen; None if they can."""
        return next((each.trouble for each in self._watchers if each.vital and each.trouble), None)

    # --- how it ended

    def read_ends(self, timeout_s: float) -> None:
        """Wait until `seen` has the ends of the pods that the job's own end follows from, at most `timeout_s`.

        The job and its pods are watched by separate requests, so a job may be Failed here before the pod that failed
        has an exit code. The job's controller has seen that pod's end; a list that is made now therefore contains it.
        """
        deadline = time.monotonic() + timeout_s
        listed: dict[str, Mapping[str, Any]] | None = None
        while time.monotonic() < deadline:
            if listed is None:
                listed = self._list_pods()
            if listed is None:
                self.poll(_LIST_POLL_INTERVAL_S)
            elif all(self._has_end_of(node, pod) for node, pod in listed.items()):
                return
            else:
                self.poll(_LOG_POLL_INTERVAL_S)

    def _list_pods(self) -> dict[str, Mapping[str, Any]] | None:
        """The pods of the job by node, as the API server has them now; None if it does not answer."""
        labels = ",".join(f"{key}={value}" for key, value in self._plan.labels.items())
        try:
            response = self._api.get_once(self._api.path("v1", "Pod"), {"labelSelector": labels})
            return {self._plan.node(pod["metadata"]["name"]): pod for pod in response["items"]}
        except (ClusterError, TransientError, ValueError, KeyError, TypeError):
            return None

    def _has_end_of(self, node: str, listed_pod: Mapping[str, Any]) -> bool:
        """Whether `seen` has the exit code of a listed pod, if it has one. A pod that is removed is not waited for."""
        exit_code = pod_facts.get_pod_exit_code(listed_pod)
        pod = self.seen.get(f"Pod/{node}")
        if exit_code is None or (pod is None and f"Removed/{node}" in self.seen):
            return True
        return pod is not None and pod_facts.get_pod_exit_code(pod) == exit_code

    def record_outcome(self, outcome: Outcome) -> None:
        """Record the outcome before anything is stopped: a process that resumes the run must not start it again."""
        with contextlib.suppress(ClusterError):
            lease.record_outcome(self._plan, outcome)

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code by node; negative is a signal."""
        codes = pod_facts.get_pod_exit_codes(self._pods())
        return {name: 128 - code if code and code > 128 else code for name, code in codes.items()}

    def ended_at(self) -> float | None:
        """When the last container exited, by its node's clock."""
        ends = [
            pod_facts.get_container_end(pod)
            for pod in self._pods().values()
            if pod_facts.get_pod_exit_code(pod) is not None
        ]
        return max((end for end in ends if end < float("inf")), default=None)

    def losing_logs(self) -> dict[str, str]:
        """What could not be written so far, by node."""
        return self._logs.losing_logs()

    def lost_logs(self) -> dict[str, str]:
        """What is permanently missing from a log, by node."""
        return self._logs.lost_logs()

    def started_at(self) -> float:
        """When the last container started, by its node's clock; 0 if none has."""
        return max((pod_facts.get_container_start(pod) for pod in self._pods().values()), default=0.0)

    def last_line(self, node: str) -> str:
        """The last line that a pod logged; empty if there is none so far."""
        lines = [line for line, _ in read_new_lines(Path(self._plan.folder, node, "log"), 0)]
        return lines[-1].partition(" | ")[2] if lines else ""

    def diagnose(self, last: bool = False) -> Diagnosis | None:
        """Why the job makes no progress; None if it does. `last`: query the cluster once more before giving up."""
        return self._monitor.diagnose(self.seen, last)

    def machines(self) -> dict[str, str]:
        """The cluster node that each node of the job was on last, even if its pod is gone."""
        return self._machines

    def endings(self) -> tuple[ContainerFailure, ...]:
        """The failures of the job's pods so far, also of those that were removed or restarted; the first one first."""
        return tuple(sorted(self._endings.values(), key=lambda each: each.failed_at))

    def drain_ended_logs(self, quiet: float, on_poll: Callable[[], object]) -> None:
        """Read the logs of ended pods to their end: stopping the job deletes its pods, and their logs with them."""
        self._read_out(lambda: self._logs.is_unfinished(only_terminated=True), quiet, on_poll)

    def drain_logs(self, quiet: float, on_poll: Callable[[], object] = lambda: None) -> bool:
        """Wait until every log is complete, or nothing has come for `quiet` seconds; return whether they are complete.

        If the API server is away, wait for it too. The objects as last seen are saved.
        """
        is_whole = self._read_out(self._logs.is_unfinished, quiet, on_poll)
        # One object per line: with indentation a thousand pods take seconds and 200 MB of memory.
        said = ",\n".join(f"{json.dumps(name)}: {json.dumps(thing)}" for name, thing in self.seen.items())
        with contextlib.suppress(OSError):
            make_private_folder(Path(self._plan.folder))
            write_private_text(Path(self._plan.folder, "objects.json"), f"{{\n{said}\n}}\n")
        return is_whole

    def _read_out(self, settling: Callable[[], bool], quiet: float, on_poll: Callable[[], object]) -> bool:
        """Whether everything came before the wait was given up."""
        arrival, said_at = ArrivalTimer(quiet, time.monotonic()), time.monotonic()
        while settling():
            now = time.monotonic()
            if arrival.is_expired(now, self._logs.received_bytes, is_unreachable=self._trouble() is not None):
                return False
            if now - said_at > _MESSAGE_INTERVAL_S:
                said_at = now
                get_log().info(
                    "the job has ended, and its logs are still being read: %d MiB", self._logs.received_bytes >> 20
                )
            self.poll(_LOG_POLL_INTERVAL_S)
            on_poll()
        return True

    def _pods(self) -> pod_facts.Pods:
        return {name.partition("/")[2]: pod for name, pod in self.seen.items() if name.startswith("Pod/")}
