"""The logs of a job's pods: one follower per pod, started when its container first runs; and what the logs lack."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchyard.cluster.log_follower import LogFollower, LogSource, follow_pod_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan


class PodLogs:
    """Copies every pod's log to disk."""

    def __init__(self, server: Client, plan: ManifestPlan) -> None:
        self._api, self._plan = server, plan
        self._all: dict[str, LogFollower] = {}

    def update_pod(self, node: str, name: str, pod: Mapping[str, Any] | None) -> None:
        """Take a pod's current state, None if it is gone; its log is followed once its container has run at all.

        The log of a recreated pod continues in the same file.
        """
        uid = pod_facts.to_text(pod_facts.get_mapping(pod, "metadata").get("uid"))
        for pump in self._all.values():
            if pump.source.pod == name and pump.source.uid != uid and not pump.over:
                with contextlib.suppress(RuntimeError):
                    pump.update_pod(over=True)
        if pod is None or not uid:
            return
        container = self._container(pod)
        if uid not in self._all and _has_begun(pod, container):
            path = Path(self._plan.logs.get(node) or f"{self._plan.folder}/{node}/log")
            before = [pump for pump in self._all.values() if pump.path == path]
            self._all[uid] = follow_pod_log(
                self._api, LogSource(name, uid, container), path, before[-1] if before else None
            )
        if uid in self._all:
            status = _container_status(pod, container)
            ended = not pod_facts.get_mapping(status, "state", "running")
            with contextlib.suppress(RuntimeError):  # no thread is available: `resume` tries again, and reports it
                self._all[uid].update_pod(
                    _is_over(pod, container), pod_facts.to_number(status.get("restartCount")), ended
                )

    def resume(self) -> None:
        """Start what could not be started before. Raises RuntimeError if this process can have no more threads now."""
        for pump in self._all.values():
            pump.resume()

    def is_disconnected(self) -> bool:
        """Whether a log of the job may grow unseen: its stream is broken, or not open yet."""
        return not all(pump.is_heard for pump in self._job())

    @property
    def received(self) -> int:
        """Bytes received so far."""
        return sum(pump.received for pump in self._all.values())

    def _job(self) -> list[LogFollower]:
        """The followers of the job's own pods; the store's log goes on until teardown."""
        return [pump for pump in self._all.values() if pump.node in self._plan.nodes]

    def _container(self, pod: Mapping[str, Any]) -> str:
        """The container whose log counts: the plan's, or the pod's first if it has none of that name."""
        names = [pod_facts.to_text(each.get("name")) for each in pod_facts.get_mappings(pod, "spec", "containers")]
        return self._plan.container if self._plan.container in names or not names else names[0]

    def losing_logs(self) -> dict[str, str]:
        """What could not be written so far, by node."""
        return {pump.node: pump.unwritten for pump in self._all.values() if pump.unwritten}

    def lost_logs(self) -> dict[str, str]:
        """What is permanently missing, by node: a process that attaches may find a log's start, and its pod gone."""
        followed = {pump.node for pump in self._all.values()}
        begun = [node for node, path in self._plan.logs.items() if Path(path).exists()]
        gone = {node: "perhaps its end: its pod is gone" for node in begun if node not in followed}
        # The store's log goes on until teardown.
        over = [pump for pump in self._all.values() if pump.whole.is_set() or pump.node in self._plan.nodes]
        return gone | {pump.node: pump.lost for pump in over if pump.lost}

    def unfinished(self, ended: bool = False) -> bool:
        """Whether a log of the job is still incomplete; `ended`: one whose container has ended."""
        return any(pump.over >= ended and not pump.is_finished for pump in self._job())


def _has_begun(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container has run at all: from then on it has a log."""
    status = _container_status(pod, container)
    states = (*pod_facts.get_mapping(status, "state"), *pod_facts.get_mapping(status, "lastState"))
    return "running" in states or "terminated" in states


def _is_over(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container will not run again; it may end before the other containers of its pod."""
    if pod_facts.get_pod_phase(pod) in pod_facts.ENDED_POD_PHASES:
        return True
    ended = pod_facts.get_mapping(_container_status(pod, container), "state", "terminated")
    own = next(
        (each for each in pod_facts.get_mappings(pod, "spec", "containers") if each.get("name") == container), {}
    )
    policy = own.get("restartPolicy") or pod_facts.get_mapping(pod, "spec").get("restartPolicy")
    final = policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0)
    return bool(ended) and final and not own.get("restartPolicyRules")


def _container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """The status of the named container; empty if there is none yet."""
    known = pod_facts.get_mappings(pod, "status", "containerStatuses")
    return next((each for each in known if each.get("name") == container), {})
