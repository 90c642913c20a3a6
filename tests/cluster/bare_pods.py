"""Pods whose containers restart: pods without a job on any node, and fake ones whose status a test writes."""

from pathlib import Path
from typing import Any

from tests.cluster.jobs import ANNOTATION, until
from tests.cluster.objects import delete_by_name
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError

PRINT_SCRIPT = "echo one; sleep 1; echo two; sleep 0.3; echo three"
RESTART_SCRIPT = (
    f"if [ -e /kept/begun ]; then echo again; sleep 5; exit 0; fi; touch /kept/begun; {PRINT_SCRIPT}; exit 1"
)
Object = dict[str, Any]


class BarePod:
    """A pod without a job. On a fake node its log is in files, one for each start of its container."""

    def __init__(self, client: Client, name: str, node: dict[str, str], folder: Path) -> None:
        self.client = client
        self.name = name
        self.is_fake = "type" in node
        self._node = node
        self._folder = folder

    @property
    def log_path(self) -> str:
        """The API path of the pod's log."""
        return f"{self.client.path('v1', 'Pod', self.name)}/log"

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
        annotations = {f"{ANNOTATION}log": f"{self._folder}/{self.name}-{{restart}}"}
        metadata = {"name": self.name, "annotations": annotations}
        self.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def append_log(self, *lines: str, restart: int = 0, first_second: int = 0) -> None:
        """Append lines to a fake container's log, a second apart, from second `first_second` on."""
        with Path(self._folder, f"{self.name}-{restart}").open("a") as file:
            for second, line in enumerate(lines, first_second):
                file.write(f"2026-01-01T00:00:{second:02d}.500000000Z stdout F {line}\n")

    def read(self) -> Object:
        """The pod's current state; it must exist."""
        pod = self.client.get("v1", "Pod", self.name)
        assert pod
        return pod

    def read_container_status(self) -> Object:
        """The status of its container; one with an empty `state` while it has none."""
        status: Object = (self.read()["status"].get("containerStatuses") or [{"state": {}}])[0]
        return status

    def wait_for_phase(self, phase: str) -> None:
        """Wait until the pod has this phase."""
        until(lambda: self.read()["status"].get("phase") == phase)

    def restart(self) -> None:
        """Let the fake container exit with code 1 and restart, as a kubelet would report it."""
        write_restart(self.client, self.read())

    def succeed(self) -> None:
        """Let the fake container succeed."""
        change = {"metadata": {"annotations": {f"{ANNOTATION}end-now": "0"}}}
        self.client.patch({"apiVersion": "v1", "kind": "Pod"} | self.read(), change)

    def delete(self) -> None:
        """Delete the pod without waiting."""
        delete_by_name(self.client, "v1", "Pod", self.name)


def write_restart(client: Client, pod: Object, times: int = 1) -> None:
    """Write restarts after exit code 1 into a fake pod's status, and wait until its log API serves the previous log."""
    current = pod["status"]["containerStatuses"][0]
    started_at = current["state"]["running"]["startedAt"]
    terminated = {
        "exitCode": 1,
        "reason": "Error",
        "startedAt": started_at,
        "finishedAt": started_at,
        "containerID": "kwok://before",
    }
    status = current | {"restartCount": current["restartCount"] + times, "lastState": {"terminated": terminated}}
    path = client.path("v1", "Pod", pod["metadata"]["name"])
    client.request("PATCH", f"{path}/status", body={"status": {"containerStatuses": [status]}})
    until(lambda: has_previous_log(client, f"{path}/log"))


def has_previous_log(client: Client, log_path: str) -> bool:
    """Whether a previous container's log exists or has existed: the kubelet is the first to report a restart."""
    try:
        list(client.stream_lines(log_path, {"previous": "true"}, 10))
    except ClusterError:
        return False
    return True
