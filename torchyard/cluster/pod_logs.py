"""The logs of a job's pods: one pump a pod, begun when its container first runs; and what they lack."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchyard.cluster.log_follower import LogFollower, LogSource, follow_pod_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan


class PodLogs:
    """Every pod's log on its way to disk."""

    def __init__(self, server: Client, plan: ManifestPlan) -> None:
        self._api, self._plan = server, plan
        self._all: dict[str, LogFollower] = {}

    def take(self, node: str, name: str, pod: Mapping[str, Any] | None) -> None:
        """A pod as it is now: its log begins as soon as its container has run at all; None: it is gone.

        A pod made anew goes on in the same file.
        """
        uid = pod_facts.to_text(pod_facts.get_mapping(pod, "metadata").get("uid"))
        for pump in self._all.values():
            if pump.source.pod == name and pump.source.uid != uid and not pump.over:
                with contextlib.suppress(RuntimeError):
                    pump.tell(over=True)
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
            with contextlib.suppress(RuntimeError):  # for want of a thread: `go_on` tries again, and says so
                self._all[uid].tell(_is_over(pod, container), pod_facts.to_number(status.get("restartCount")), ended)

    def go_on(self) -> None:
        """Begin what could not be begun before. RuntimeError where this process may have no more threads just now."""
        for pump in self._all.values():
            pump.go_on()

    def deaf(self) -> bool:
        """Whether a log of the job may grow unseen: its stream is broken, or still to be opened."""
        return not all(pump.is_heard for pump in self._job())

    @property
    def received(self) -> int:
        """Bytes that have come so far."""
        return sum(pump.received for pump in self._all.values())

    def _job(self) -> list[LogFollower]:
        """The job's own; the store's log goes on until teardown."""
        return [pump for pump in self._all.values() if pump.node in self._plan.nodes]

    def _container(self, pod: Mapping[str, Any]) -> str:
        """The one whose log counts: the plan's, or where a pod has none of that name, its first."""
        names = [pod_facts.to_text(each.get("name")) for each in pod_facts.get_mappings(pod, "spec", "containers")]
        return self._plan.container if self._plan.container in names or not names else names[0]

    def losing(self) -> dict[str, str]:
        """What could not be written so far, by node."""
        return {pump.node: pump.unwritten for pump in self._all.values() if pump.unwritten}

    def lost(self) -> dict[str, str]:
        """What a log lacks for good, by node: whoever attaches may find a log begun, and its pod gone."""
        followed = {pump.node for pump in self._all.values()}
        begun = [node for node, path in self._plan.logs.items() if Path(path).exists()]
        gone = {node: "perhaps its end: its pod is gone" for node in begun if node not in followed}
        # The store's log goes on until teardown.
        over = [pump for pump in self._all.values() if pump.whole.is_set() or pump.node in self._plan.nodes]
        return gone | {pump.node: pump.lost for pump in over if pump.lost}

    def settling(self, ended: bool = False) -> bool:
        """Whether a log of the job is not whole yet; `ended`: of those whose containers have ended."""
        return any(pump.over >= ended and not pump.is_settled for pump in self._job())


def _has_begun(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container has run at all: from then on it has a log."""
    status = _container_status(pod, container)
    states = (*pod_facts.get_mapping(status, "state"), *pod_facts.get_mapping(status, "lastState"))
    return "running" in states or "terminated" in states


def _is_over(pod: Mapping[str, Any], container: str) -> bool:
    """Whether a container will not run any more; in a pod with others it may end before them."""
    if pod_facts.read_pod_phase(pod) in pod_facts.ENDED_POD_PHASES:
        return True
    ended = pod_facts.get_mapping(_container_status(pod, container), "state", "terminated")
    own = next(
        (each for each in pod_facts.get_mappings(pod, "spec", "containers") if each.get("name") == container), {}
    )
    policy = own.get("restartPolicy") or pod_facts.get_mapping(pod, "spec").get("restartPolicy")
    final = policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0)
    return bool(ended) and final and not own.get("restartPolicyRules")


def _container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """The status of the container of a name; empty where there is none so far."""
    known = pod_facts.get_mappings(pod, "status", "containerStatuses")
    return next((each for each in known if each.get("name") == container), {})
