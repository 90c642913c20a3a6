"""The logs of a job's pods: one follower per pod, started when its container first runs; and what the logs lack."""

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torchyard.cluster.logs.log_file import read_newest_second
from torchyard.cluster.logs.log_follower import LOG_READERS, START_PRECISION_S, LogFollower, LogSource
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client


class LoggedJob(Protocol):
    """What `PodLogs` needs of a plan: the logs' paths by node, of the job's own and of all; the folder of others."""

    @property
    def nodes(self) -> Mapping[str, str]: ...
    @property
    def logs(self) -> Mapping[str, str]: ...
    @property
    def folder(self) -> str: ...


class PodLogs:
    """Copy every pod's log to disk, and report which are incomplete.

    Threads. One LogFollower per pod uid, on the thread of their LogReader; all methods are called by one thread, the
    polling thread. The followers end by themselves when their pods have ended, so they continue after the watch is
    closed.

    Order of calls. `update_pod` with each change of a pod, `resume` at each poll, `record_outage` at each poll during
    an outage.

    Errors. `resume` raises RuntimeError if no thread can be started; `update_pod` does not. Faults of a log are
    reported by `losing_logs` and `lost_logs`.
    """

    def __init__(self, client: Client, plan: LoggedJob) -> None:
        self._client = client
        self._plan = plan
        self._followers: dict[str, LogFollower] = {}  # by pod uid, the oldest one first
        self._latest_of_pod: dict[str, LogFollower] = {}  # by the pod's name
        self._latest_of_path: dict[Path, LogFollower] = {}
        self._outage_ended_at = -math.inf  # when the API server was away last, in monotonic seconds

    def update_pod(self, node: str, name: str, pod: Mapping[str, Any] | None, *, is_following: bool = True) -> None:
        """Record a pod's current state, None if it is gone; its log is followed once its container has run at all.

        The log of a recreated pod continues in the same file; there an earlier process may have continued it already.
        `is_following`: False to read only what the log of a
        running container contains now.
        """
        uid = pod_facts.get_uid(pod)
        latest = self._latest_of_pod.get(name)
        if latest and latest.source.uid != uid and not latest.has_terminated:
            with contextlib.suppress(RuntimeError):
                latest.update_pod(has_terminated=True)
        if pod is None or not uid:
            return
        container = pod_facts.find_main_container(pod)
        if container is None:
            return
        if uid not in self._followers and has_container_started(pod, container):
            if self._is_continued_by_successor(node, pod, container):
                return
            self._followers[uid] = self._follow(node, LogSource(name, uid, container))
        if uid in self._followers:
            status = _get_container_status(pod, container)
            with contextlib.suppress(RuntimeError):  # no thread is available: `resume` tries again, and reports it
                self._followers[uid].update_pod(
                    has_terminated=not is_following or has_container_terminated(pod, container),
                    restart_count=pod_facts.to_number(status.get("restartCount")),
                    has_ended=not pod_facts.get_mapping(status, "state", "running"),
                    started_at=_get_container_start(status),
                )

    def _follow(self, node: str, source: LogSource) -> LogFollower:
        """A follower of the node's log, after the one of the node's earlier pod."""
        path = self._get_path(node)
        follower = LOG_READERS.get(self._client).follow(source, path, self._latest_of_path.get(path))
        self._latest_of_pod[source.pod] = follower
        self._latest_of_path[path] = follower
        return follower

    def _get_path(self, node: str) -> Path:
        return Path(self._plan.logs.get(node) or f"{self._plan.folder}/{node}/log")

    def _is_continued_by_successor(self, node: str, pod: Mapping[str, Any], container: str) -> bool:
        """Whether the file of a node's log has lines from after the end of this pod's container.

        An earlier process has then read the pod's log, and its successor's after it, which continues the file.
        """
        terminated = pod_facts.get_mapping(_get_container_status(pod, container), "state", "terminated")
        ended_at = pod_facts.parse_timestamp(terminated.get("finishedAt"))
        if not (ended_at and has_container_terminated(pod, container)):
            return False
        newest_second = read_newest_second(self._get_path(node))
        return newest_second is not None and newest_second > ended_at + START_PRECISION_S

    def resume(self) -> None:
        """Start the threads that could not be started. RuntimeError if this process can have no more threads now."""
        for follower in self._followers.values():
            follower.resume()

    def record_outage(self) -> None:
        """Record that the API server is away now: refusals until now do not show that a log cannot be read."""
        self._outage_ended_at = time.monotonic()

    def is_disconnected(self) -> bool:
        """Whether a log of the job may grow unread: its stream is broken, or not open yet."""
        return not all(follower.is_current for follower in self._list_job_followers())

    @property
    def received_bytes(self) -> int:
        """Bytes received so far."""
        return sum(follower.received_bytes for follower in self._followers.values())

    def _list_job_followers(self) -> list[LogFollower]:
        """The followers of the job's own pods; the store's log continues until teardown."""
        return [follower for follower in self._followers.values() if follower.node in self._plan.nodes]

    def losing_logs(self) -> dict[str, str]:
        """How many lines could not be written so far, and why, by node."""
        return {follower.node: follower.unwritten for follower in self._followers.values() if follower.unwritten}

    def lost_logs(self) -> dict[str, str]:
        """What is permanently missing in the logs, by node.

        If a pod has disappeared before this process attached, its log on disk may lack the last lines.
        """
        followed = {follower.node for follower in self._followers.values()}
        lost = {}
        for node, path in self._plan.logs.items():
            if node not in followed and Path(path).exists():
                lost[node] = "possibly the last lines: its pod is gone"
        for follower in self._followers.values():
            has_ended = follower.complete.is_set() or follower.node in self._plan.nodes
            if has_ended and follower.lost:  # the log of the rendezvous store, which is not a node, goes on
                lost[follower.node] = follower.lost
        return lost

    def is_unfinished(self, *, only_terminated: bool = False) -> bool:
        """Whether a log of the job is still incomplete; `only_terminated`: one whose container will not restart."""
        return any(
            not follower.is_finished(outage_ended_at=self._outage_ended_at)
            for follower in self._list_job_followers()
            if follower.has_terminated or not only_terminated
        )


def has_container_started(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container has run at all: from then on it has a log."""
    status = _get_container_status(pod, container)
    states = (*pod_facts.get_mapping(status, "state"), *pod_facts.get_mapping(status, "lastState"))
    return "running" in states or "terminated" in states


def has_container_terminated(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container will not run again; it may end before the other containers of its pod."""
    if pod_facts.get_pod_phase(pod) in pod_facts.ENDED_POD_PHASES:
        return True
    terminated = pod_facts.get_mapping(_get_container_status(pod, container), "state", "terminated")
    spec = _find_by_name(pod_facts.get_mappings(pod, "spec", "containers"), container)
    policy = spec.get("restartPolicy") or pod_facts.get_mapping(pod, "spec").get("restartPolicy")
    is_final = policy == "Never" or (policy == "OnFailure" and terminated.get("exitCode") == 0)
    return bool(terminated) and is_final and not spec.get("restartPolicyRules")


def _get_container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """The status of the named container; empty if there is none yet."""
    return _find_by_name(pod_facts.get_mappings(pod, "status", "containerStatuses"), container)


def _get_container_start(status: Mapping[str, Any]) -> float:
    """When the container started last, in seconds since the epoch by its node's clock; 0 if unknown."""
    for state in pod_facts.get_mapping(status, "state").values():
        started_at = pod_facts.parse_timestamp(pod_facts.get_mapping(state).get("startedAt"))
        if started_at:
            return started_at
    return 0.0


def _find_by_name(entries: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The entry of this name; empty if there is none."""
    for entry in entries:
        if entry.get("name") == name:
            return entry
    return {}
