"""Pods whose containers restart: bare ones on any node, and fake ones whose status a test writes."""

from pathlib import Path
from typing import Any

from tests.cluster.jobs import ANNOTATION, until
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError

SAYS = "echo one; sleep 1; echo two; sleep 0.3; echo three"
TWICE = f"if [ -e /kept/begun ]; then echo again; sleep 5; exit 0; fi; touch /kept/begun; {SAYS}; exit 1"
Object = dict[str, Any]


class Bare:
    """A pod without a job; on a fake node its log is in files, one for each start of its container."""

    def __init__(self, server: Client, name: str, node: dict[str, str], folder: Path) -> None:
        self.server, self.name, self.fake = server, name, "type" in node
        self._node, self._folder = node, folder

    @property
    def log(self) -> str:
        return f"{self.server.path('v1', 'Pod', self.name)}/log"

    def start(self, script: str) -> None:
        """Create the pod; a real container runs the script."""
        container = {
            "name": "main",
            "image": "torchyard/node-python:local",
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
        }
        spec = {
            "restartPolicy": "OnFailure",
            "nodeSelector": self._node,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "kept", "emptyDir": {}}],
        }
        told = {f"{ANNOTATION}log": f"{self._folder}/{self.name}-{{restart}}"}
        meta = {"name": self.name, "annotations": told}
        self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def say(self, *lines: str, restart: int = 0, at: int = 0) -> None:
        """Append lines to a fake container's log, a second apart, from second `at` on."""
        with Path(self._folder, f"{self.name}-{restart}").open("a") as file:
            for number, line in enumerate(lines, at):
                file.write(f"2026-01-01T00:00:{number:02d}.500000000Z stdout F {line}\n")

    def now(self) -> Object:
        found = self.server.get("v1", "Pod", self.name)
        assert found
        return found

    def status(self) -> Object:
        found: Object = (self.now()["status"].get("containerStatuses") or [{"state": {}}])[0]
        return found

    def until(self, phase: str) -> None:
        until(lambda: self.now()["status"].get("phase") == phase)

    def restart(self) -> None:
        """Let the fake container end with exit code 1 and restart, as a kubelet would report it."""
        begin_again(self.server, self.now())

    def end(self) -> None:
        """Let the fake container succeed."""
        change = {"metadata": {"annotations": {f"{ANNOTATION}end-now": "0"}}}
        self.server.patch({"apiVersion": "v1", "kind": "Pod", **self.now()}, change)

    def delete(self) -> None:
        self.server.delete("v1", "Pod", self.name)


def begin_again(server: Client, pod: Object, times: int = 1) -> None:
    """Write a restart after exit code 1 into a fake pod's status, and wait until its log API shows it."""
    known = pod["status"]["containerStatuses"][0]
    began = known["state"]["running"]["startedAt"]
    over = {"exitCode": 1, "reason": "Error", "startedAt": began, "finishedAt": began, "containerID": "kwok://before"}
    status = {**known, "restartCount": known["restartCount"] + times, "lastState": {"terminated": over}}
    path = server.path("v1", "Pod", pod["metadata"]["name"])
    server.request("PATCH", f"{path}/status", body={"status": {"containerStatuses": [status]}})
    until(lambda: has_previous(server, f"{path}/log"))


def has_previous(server: Client, log: str) -> bool:
    """Whether a previous container's log exists or has existed: the kubelet is the first to know of a restart."""
    try:
        list(server.stream_lines(log, {"previous": "true"}, 10))
    except ClusterError:
        return False
    return True
