"""Observes a running job in a cluster: its objects by watches, and its pods' logs, which are copied to disk."""

import contextlib
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from torchyard.cluster import lease
from torchyard.cluster.diagnose import ProgressMonitor
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.cluster.listing import format_selector
from torchyard.cluster.logs.pod_logs import PodLogs
from torchyard.cluster.outage import OutageCause, OutageReporter
from torchyard.cluster.reflector import ObjectChange, Reflector
from torchyard.common.local_errors import LocalErrorGuard
from torchyard.common.log import get_log
from torchyard.common.log_lines import read_new_lines
from torchyard.common.poll_pacer import MAX_SLEEP_S, PollPacer
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.diagnosis import pod_facts, pod_reasons
from torchyard.diagnosis.deadlines import ArrivalTimer
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.kube import absence
from torchyard.kube.client import get_cluster_client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import ContainerFailure, Outcome

FIRST_LIST_TIMEOUT_S = 86400.0  # for the first list of the job and its pods: giving up would delete the job
_OPTIONAL_LIST_TIMEOUT_S = 10.0  # for the first list of a kind that only adds detail
_MESSAGE_INTERVAL_S = 30.0  # between two messages about logs that take long to read
_MAX_LISTS = 2  # that lack a pod, before it counts as absent
_LOG_POLL_INTERVAL_S = 0.05  # between two checks of logs that are still being read


class ClusterWatch:
    """Observe a job in a cluster: its objects by watches, never by polling, and every pod's log, copied to disk.

        with ClusterWatch(plan) as watch:           lists everything once
            watch.poll(timeout_s=0.5)               repeated by the caller: applies changes to `states`
            watch.drain_logs(idle_timeout_s=20.0)   at the end: reads every log, saves the objects

    `states` has an object by `Kind/name`; a pod by `Pod/node`; and the first pod that a node lost, or that was replaced
    there, by `Removed/node`.

    Threads. One Reflector per watched kind puts changes into a queue. The LogFollowers, one per pod, are coroutines of
    one thread for all runs of the process. All methods are called by one thread, which alone changes `states`.
    `__exit__` stops the reflectors; the followers end by themselves, when their pods have ended.

    Errors. `poll` raises RunInUseError if another process has taken the run over, and `__enter__` raises ClusterError.
    Otherwise faults of the API server or of this process are logged and retried: `is_fully_observed` and
    `is_disconnected` report whether objects and logs are current.
    """

    def __init__(self, plan: ManifestPlan, on_poll: Callable[[], object] | None = None) -> None:
        """`on_poll` is called every half second until the first lists have arrived."""
        self.states: dict[str, Mapping[str, Any]] = {}
        self._plan = plan
        self._client = get_cluster_client(plan.cluster)
        self._on_poll = on_poll
        self._changes: queue.Queue[ObjectChange] = queue.Queue()
        self._stop_event = threading.Event()
        self._logs = PodLogs(self._client, plan)
        self._failures: dict[tuple[str, float], ContainerFailure] = {}  # by node and time
        self._removed_uids: dict[str, set[str]] = {}  # of the pods that are deleted or replaced, by node
        self._machines: dict[str, str] = {}  # the last cluster node of each node of the job
        self._monitor = ProgressMonitor(self._client, plan)
        self._outage = OutageReporter()
        self._local_errors = LocalErrorGuard()
        self._reflectors = [
            Reflector(self._client, plan, watched, self._changes, self._stop_event) for watched in plan.watch
        ]

    def __enter__(self) -> Self:
        """Wait until everything is listed once: after that an object that is not in `states` does not exist.

        Raises ClusterError if the job or its pods may not be read, or the API server never responds.
        """
        started_at = time.monotonic()
        try:
            for reflector in self._reflectors:
                reflector.start()
            for reflector in self._reflectors:
                self._await_first_list(reflector, started_at)
        except BaseException:
            self._stop_event.set()
            raise
        self._apply_changes(timeout_s=0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()

    def _await_first_list(self, reflector: Reflector, started_at: float) -> None:
        """Wait for a reflector's first list, counted from `started_at`; a kind that only adds detail is given up."""
        while not reflector.has_listed.wait(MAX_SLEEP_S):
            self._outage.report(self._find_error())
            if self._on_poll:
                self._on_poll()
            elapsed_s = time.monotonic() - started_at
            if elapsed_s > _OPTIONAL_LIST_TIMEOUT_S and not reflector.is_required:
                return
            if elapsed_s > FIRST_LIST_TIMEOUT_S:
                reason = reflector.error or "the first list has not arrived"
                message = f"no response for {FIRST_LIST_TIMEOUT_S:.0f} s: {reason}"
                raise ClusterError(self._client.host, f"list {reflector.kind}", message, 0)
        if reflector.refusal:
            raise reflector.refusal

    def poll(self, *, timeout_s: float) -> bool:
        """Wait for changes, at most `timeout_s` seconds; return whether `states` has changed.

        Raises RunInUseError if another process has taken the run over.
        """
        get_renewer().check(self._plan)
        error = self._find_error()
        self._outage.report(error)
        if error:
            self._logs.record_outage()
        with self._local_errors.tolerate("follow every log"):
            self._logs.resume()
        return self._apply_changes(timeout_s=timeout_s)

    def _apply_changes(self, *, timeout_s: float) -> bool:
        """Apply all changes that have arrived, after waiting for the first one; return whether there were any."""
        has_changed = False
        with contextlib.suppress(queue.Empty):
            self._apply_change(self._changes.get(timeout=timeout_s) if timeout_s else self._changes.get_nowait())
            has_changed = True
            while True:
                self._apply_change(self._changes.get_nowait())
        return has_changed

    def _apply_change(self, change: ObjectChange) -> None:
        """Update `states`. For a pod: its node's failures and machine too, and its log follower."""
        if change.kind == "Pod":
            self._apply_pod_change(self._plan.node(change.name), change)
        elif change.obj is None:
            self.states.pop(f"{change.kind}/{change.name}", None)
        else:
            self.states[f"{change.kind}/{change.name}"] = change.obj

    def _apply_pod_change(self, node: str, change: ObjectChange) -> None:
        """Apply a change of one of the pods that a node has had: the one that was created last is the node's pod.

        A controller may leave a pod that failed, as a Job's does, or delete it later: a replaced pod counts as removed.
        """
        key = f"Pod/{node}"
        current = self.states.get(key)
        if change.obj is None:
            if current is None or pod_facts.get_mapping(current, "metadata").get("name") != change.name:
                return  # a recreated pod is the node's pod by now: this is the late deletion of the earlier one
            last_seen = self.states.pop(key)
            self._record_removal(node, last_seen)
        else:
            last_seen = change.obj
            uid = pod_facts.get_uid(last_seen)
            if current is not None and pod_facts.get_uid(current) != uid:
                if uid in self._removed_uids.get(node, ()):  # a late change of an earlier pod
                    self._record_failure(node, last_seen)
                    self._logs.update_pod(node, change.name, last_seen)
                    return
                self._record_removal(node, current)
                current = None
            last_seen = pod_reasons.record_obstacles(last_seen, current, self.now())
            self.states[key] = last_seen
            if pod_facts.is_being_deleted(last_seen):
                self._record_removal(node, last_seen)
        self._record_failure(node, last_seen)
        machine = pod_facts.get_node_name(last_seen)
        if machine:
            self._machines[node] = machine
        self._logs.update_pod(node, change.name, change.obj)

    def _record_failure(self, node: str, pod: Mapping[str, Any]) -> None:
        """Keep the failure of a pod of the job: its object may be removed or restarted later."""
        failure = pod_facts.find_own_failure(pod) if node in self._plan.nodes else None
        if failure and failure.failed_at < math.inf:
            self._failures[node, failure.failed_at] = ContainerFailure(
                node=node, failed_at=failure.failed_at, exit_code=failure.exit_code
            )

    def _record_removal(self, node: str, pod: Mapping[str, Any]) -> None:
        """Keep the first pod of a node that is removed or replaced, because others may fail as a consequence.

        All of them are counted.
        """
        removed_uids = self._removed_uids.setdefault(node, set())
        removed_uids.add(pod_facts.get_uid(pod))
        first_pod = self.states.get(f"Removed/{node}", pod)
        recorded = dict(first_pod)
        recorded[pod_facts.REMOVALS_KEY] = len(removed_uids)
        self.states[f"Removed/{node}"] = recorded

    def now(self) -> float:
        """The API server's time, which dates the objects in `states`."""
        return self._client.now()

    def list_pods(self) -> list[Mapping[str, Any]]:
        """The pods of the job that exist; the store's is not among them."""
        return [pod for node, pod in self._get_pods().items() if node in self._plan.nodes]

    def has_pods(self) -> bool:
        """Whether a pod of the job exists; the store's does not count."""
        return bool(self.list_pods())

    def job_age_s(self) -> float | None:
        """None: the handle has the age by the API server's clock."""
        return None

    def is_fully_observed(self) -> bool:
        """Whether `states` is the job's current state."""
        return self._find_error() is None

    def is_disconnected(self) -> bool:
        """Whether logs may grow unread: the API server does not respond, or a log's stream is not open."""
        return self._find_error() is not None or self._logs.is_disconnected()

    def _find_error(self) -> OutageCause:
        """Why the job or its pods cannot be observed; None if they can."""
        for reflector in self._reflectors:
            if reflector.is_required and reflector.error:
                return reflector.error
        return None

    # --- the job's end

    def await_exit_codes(self, *, timeout_s: float) -> None:
        """Wait until `states` has the ends of the pods that the job's own end follows from, at most `timeout_s`.

        The job and its pods are watched by separate requests, so a job may have ended here before a pod has, or before
        a pod was seen at all. The job's controller has read its pods; a list that is made now therefore contains their
        ends. One list that lacks a pod proves nothing: it is repeated once.
        """
        deadline = time.monotonic() + timeout_s
        next_list_at = 0.0
        list_count = 0
        listed: dict[str, Mapping[str, Any]] = {}
        while time.monotonic() < deadline:
            has_all_nodes = all(node in listed or self._has_seen(node) for node in self._plan.nodes)
            needed_lists = 1 if has_all_nodes else _MAX_LISTS
            if list_count < needed_lists and time.monotonic() >= next_list_at:
                pods = self._list_pods()
                if pods is not None:
                    self._publish_unseen(pods)
                    listed |= pods
                    list_count += 1
                    next_list_at = time.monotonic() + absence.CONFIRMATION_DELAY_S
            if list_count >= needed_lists and all(self._has_exit_code_of(node, pod) for node, pod in listed.items()):
                return
            self.poll(timeout_s=_LOG_POLL_INTERVAL_S if list_count else MAX_SLEEP_S)

    def _publish_unseen(self, pods: Mapping[str, Mapping[str, Any]]) -> None:
        """Publish listed pods that the watch has not brought: after an empty list it takes seconds until the next."""
        for node, pod in pods.items():
            if not self._has_seen(node):
                obj = dict(pod) | {"apiVersion": "v1", "kind": "Pod"}  # a list does not repeat its kind
                self._changes.put(ObjectChange("Pod", pod["metadata"]["name"], obj))

    def _has_seen(self, node: str) -> bool:
        """Whether a pod of the node was ever observed."""
        return f"Pod/{node}" in self.states or f"Removed/{node}" in self.states

    def _list_pods(self) -> dict[str, Mapping[str, Any]] | None:
        """The pods of the job by node, as the API server has them now; None if they cannot be read."""
        try:
            query = {"labelSelector": format_selector(self._plan.labels)}
            response = self._client.get_once(self._client.path("v1", "Pod"), query)
            pods = sorted(response["items"], key=pod_facts.get_creation_time)  # the last one is the node's
            return {self._plan.node(pod["metadata"]["name"]): pod for pod in pods}
        except (ClusterError, TransientError, ValueError, KeyError, TypeError):
            return None

    def _has_exit_code_of(self, node: str, listed_pod: Mapping[str, Any]) -> bool:
        """Whether `states` has the exit code of a listed pod, if it has one. A removed pod is not waited for."""
        exit_code = pod_facts.get_pod_exit_code(listed_pod)
        pod = self.states.get(f"Pod/{node}")
        if exit_code is None or (pod is None and f"Removed/{node}" in self.states):
            return True
        return pod is not None and pod_facts.get_pod_exit_code(pod) == exit_code

    def record_outcome(self, outcome: Outcome | None) -> None:
        """Record the outcome before anything is stopped: a process that resumes the run must not start it again."""
        with contextlib.suppress(ClusterError):
            lease.record_outcome(self._plan, outcome)

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code by node; negative is a signal, None if the pod has not exited."""
        exit_codes = pod_facts.get_pod_exit_codes(self._get_pods())
        return {node: pod_facts.normalize_exit_code(code) for node, code in exit_codes.items()}

    def ended_at(self) -> float | None:
        """When the last container exited, in seconds since the epoch by its node's clock; None if none has."""
        end_times = [
            pod_facts.get_container_end(pod)
            for pod in self._get_pods().values()
            if pod_facts.get_pod_exit_code(pod) is not None
        ]
        return max((end_time for end_time in end_times if end_time < math.inf), default=None)

    def losing_logs(self) -> dict[str, str]:
        """The lines that could not be written so far, by node."""
        return self._logs.losing_logs()

    def lost_logs(self) -> dict[str, str]:
        """What is permanently missing from a log, by node."""
        return self._logs.lost_logs()

    def started_at(self) -> float:
        """When the last container started, in seconds since the epoch by its node's clock; 0 if none has."""
        return max((pod_facts.get_container_start(pod) for pod in self._get_pods().values()), default=0.0)

    def last_line(self, node: str) -> str:
        """The last line that a pod logged; empty if there is none so far."""
        lines = [line for line, _ in read_new_lines(Path(self._plan.folder, node, "log"), 0)]
        return lines[-1].partition(" | ")[2] if lines else ""

    def diagnose(self, *, is_last: bool = False) -> Diagnosis | None:
        """Why the job makes no progress; None if it does. `is_last`: query the cluster once more before giving up."""
        return self._monitor.diagnose(self.states, is_last=is_last)

    def machines(self) -> dict[str, str]:
        """The cluster node that each node of the job was on last, even if its pod is gone."""
        return self._machines

    def container_failures(self) -> tuple[ContainerFailure, ...]:
        """The failures of the job's pods so far, in order of time, also of pods that were removed or restarted."""
        return tuple(sorted(self._failures.values(), key=attrgetter("failed_at")))

    def drain_ended_logs(self, on_poll: Callable[[], object], *, idle_timeout_s: float) -> None:
        """Read the logs of ended pods to their end: stopping the job deletes its pods, and their logs with them."""
        is_unfinished = partial(self._logs.is_unfinished, only_terminated=True)
        self._read_logs(is_unfinished, on_poll, idle_timeout_s=idle_timeout_s)

    def drain_logs(self, on_poll: Callable[[], object] | None = None, *, idle_timeout_s: float) -> bool:
        """Wait until every log is complete, or nothing has come for `idle_timeout_s`; return whether they are complete.

        Seconds without the API server do not count. The last version of each object is saved in objects.json.
        """
        are_logs_complete = self._read_logs(self._logs.is_unfinished, on_poll, idle_timeout_s=idle_timeout_s)
        # One object per line: with indentation a thousand pods take seconds and 200 MB of memory.
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(obj)}" for name, obj in self.states.items())
        with contextlib.suppress(OSError):
            make_private_folder(Path(self._plan.folder))
            write_private_text(Path(self._plan.folder, "objects.json"), f"{{\n{text}\n}}\n")
        return are_logs_complete

    def _read_logs(
        self, is_unfinished: Callable[[], bool], on_poll: Callable[[], object] | None, *, idle_timeout_s: float
    ) -> bool:
        """Poll until `is_unfinished` is False; return False if nothing has come for `idle_timeout_s` before that."""
        now = time.monotonic()
        arrival = ArrivalTimer(idle_timeout_s, now)
        last_message_at = now
        pacer = PollPacer()
        while is_unfinished():
            now = time.monotonic()
            if arrival.is_expired(now, self._logs.received_bytes, is_unreachable=self._find_error() is not None):
                return False
            if now - last_message_at > _MESSAGE_INTERVAL_S:
                last_message_at = now
                received_mib = self._logs.received_bytes >> 20
                get_log().info("the job has ended; its logs are still being read: %d MiB so far", received_mib)
            with pacer.pace():
                self.poll(timeout_s=_LOG_POLL_INTERVAL_S)
                if on_poll:
                    on_poll()
        return True

    def _get_pods(self) -> pod_facts.Pods:
        """The pods in `states`, by node."""
        return {name.partition("/")[2]: pod for name, pod in self.states.items() if name.startswith("Pod/")}
