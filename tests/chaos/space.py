"""The matrix's namespace on the test cluster, watched and modified as administrator."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.cells import Column
from tests.chaos.world import until
from tests.cluster.api import ApiError
from tests.cluster.plane import Plane
from torchyard.common.project_root import ROOT

RUN, ATTEMPT, ROLE = "torchyard/run", "torchyard/attempt", "torchyard/role"
JOBS: dict[Column, tuple[str, str]] = {
    "volcano": ("batch.volcano.sh/v1alpha1", "jobs"),
    "pytorchjob": ("kubeflow.org/v1", "pytorchjobs"),
}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
LOST = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}
ECHOES = ("events", "endpoints", "endpointslices")
Object = dict[str, Any]
SWEEP = """
import sys, time
real = time.time
time.time = lambda: real() + {ahead}
from flows.sweep import main
sys.exit(main(sys.argv[1:]))
"""


class Seen:
    """One kind of object in a namespace: the current objects, and every uid that ever existed."""

    def __init__(self, plane: Plane, path: str) -> None:
        self._api, self._path = plane.api(), path
        self.now: dict[str, Object] = {}
        self.ever: dict[str, tuple[str, str]] = {}
        threading.Thread(target=self._keep, daemon=True).start()

    def of(self, run: str) -> list[Object]:
        return [each for each in list(self.now.values()) if labels(each).get(RUN) == run]

    def _keep(self) -> None:
        while True:
            try:
                found = self._api.call("GET", self._path)
                self.now = {each["metadata"]["name"]: each for each in found["items"]}
                for each in found["items"]:
                    self._note(each)
                self._watch(found["metadata"]["resourceVersion"])
            except (ApiError, OSError, ValueError, HTTPException):  # broken off; the next list shows what was missed
                time.sleep(0.2)

    def _watch(self, version: str) -> None:
        for line in self._api.stream(f"{self._path}?watch=true&resourceVersion={version}"):
            event = json.loads(line)
            if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
                return
            thing = event["object"]
            if event["type"] == "DELETED":
                self.now.pop(thing["metadata"]["name"], None)
            else:
                self.now[thing["metadata"]["name"]] = thing
                self._note(thing)

    def _note(self, thing: Object) -> None:
        self.ever[thing["metadata"]["uid"]] = (labels(thing).get(RUN, ""), labels(thing).get(ATTEMPT, ""))


def labels(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("labels") or {}
    return found


class Space:
    """The matrix's own namespace, and the faults within it."""

    def __init__(self) -> None:
        self.plane = Plane.current()
        os.environ["KUBECONFIG"] = os.pathsep.join((str(self.plane.admin), str(self.plane.user)))
        self.name = f"torchyard-chaos-{uuid.uuid4().hex[:6]}"
        self.api = self.plane.api()
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        until("a ServiceAccount", lambda: self.items(self.path("v1", "serviceaccounts")), 30)
        self.kinds = list(self._kinds())
        self.pods = Seen(self.plane, self.path("v1", "pods"))
        self.jobs = {column: Seen(self.plane, self.path(*kind)) for column, kind in JOBS.items()}

    def close(self) -> None:
        self.call("DELETE", f"/api/v1/namespaces/{self.name}")

    def path(self, group: str, plural: str, name: str = "") -> str:
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return f"{root}/namespaces/{self.name}/{plural}{f'/{name}' if name else ''}"

    def call(self, method: str, path: str, body: Object | None = None, patch: str = "") -> Any:
        """Send one request, again if the connection is closed, or the server has only just started (429)."""
        for pause in (0.0, 1.0, 2.0, 4.0):
            try:
                return self.api.call(method, path, body, patch)
            except ApiError as error:
                if error.status != 429:
                    raise
            except OSError:
                pass
            time.sleep(pause)
        return self.api.call(method, path, body, patch)

    # --- reading

    def workers(self, run: str) -> list[Object]:
        """The run's pods without the store."""
        return [pod for pod in self.pods.of(run) if ROLE not in labels(pod)]

    def stores(self, run: str) -> list[Object]:
        return [pod for pod in self.pods.of(run) if ROLE in labels(pod)]

    def doubles(self, column: Column, run: str) -> int:
        """The number of jobs beyond the first of each attempt."""
        made = [attempt for name, attempt in self.jobs[column].ever.values() if name == run]
        return len(made) - len(set(made))

    def left(self, run: str) -> list[str]:
        """Every object that has the run's label."""
        found = [(path, each) for path in self.kinds for each in self.items(f"{path}?labelSelector={RUN}%3D{run}")]
        return [f"{path.rpartition('/')[2]} {each['metadata']['name']}" for path, each in found]

    def items(self, path: str) -> list[Object]:
        found: list[Object] = self.call("GET", path)["items"]
        return found

    def _kinds(self) -> Iterator[str]:
        """The path of every namespaced kind, except those that the cluster removes itself, such as events."""
        groups = self.call("GET", "/apis")["groups"]
        for version in ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for each in self.call("GET", root)["resources"]:
                if each["namespaced"] and "list" in each["verbs"] and each["name"] not in ECHOES:
                    yield self.path(version, each["name"])

    # --- faults

    def sweep(self, folder: Path) -> None:
        """Sweep as two other users, whose clocks are a day ahead and whose Prefect knows none of these runs.

        One has all rights in the cluster, the other only those that a run needs, without listing Leases.
        """
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "TORCHYARD_"))
        }
        (folder / "stranger").mkdir()
        environment |= {"PREFECT_HOME": str(folder / "prefect"), "TORCHYARD_RUNS": str(folder / "stranger")}
        for config in (self.plane.admin, self.stranger(folder)):
            words = [sys.executable, "-c", SWEEP.format(ahead=86400), "--context", current(config)]
            with (folder / "sweep.log").open("ab") as log:
                subprocess.run(
                    words, env={**environment, "KUBECONFIG": str(config)}, cwd=ROOT, check=False, stdout=log, stderr=log
                )

    def stranger(self, folder: Path) -> Path:
        """The kubeconfig of a user who may run jobs in this namespace, and nothing else."""
        user = f"stranger-{uuid.uuid4().hex[:6]}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "torchyard"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        binding = {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]}
        self.call("POST", self.path("rbac.authorization.k8s.io/v1", "rolebindings"), binding)
        return self.plane.kubeconfig(folder / "stranger.kubeconfig", user)

    def annotate(self, pod: Object, key: str, value: str) -> None:
        self.patch(pod, {"metadata": {"annotations": {key: value}}})

    def patch(self, pod: Object, change: Object, part: str = "") -> None:
        path = self.path("v1", "pods", pod["metadata"]["name"]) + part
        with suppress_absent():
            self.call("PATCH", path, change, patch="merge")

    def delete(self, path: str) -> None:
        with suppress_absent():
            self.call("DELETE", path)

    def evict(self, pod: Object) -> None:
        """Evict a pod, as a kubelet with a full disk does."""
        self.patch(pod, {"status": {**EVICTED, "containerStatuses": None}}, "/status")

    def lose(self, pod: Object) -> None:
        """Delete a pod, as the control plane does when its node no longer answers."""
        conditions = [*(pod["status"].get("conditions") or ()), LOST]
        self.patch(pod, {"status": {"conditions": conditions}}, "/status")
        self.delete(self.path("v1", "pods", pod["metadata"]["name"]))

    def delete_job(self, column: Column, run: str) -> None:
        for job in self.jobs[column].of(run):
            self.delete(self.path(*JOBS[column], job["metadata"]["name"]))

    def clear(self, column: Column, run: str) -> None:
        """Delete the jobs and stores of a run."""
        self.delete_job(column, run)
        for pod in self.stores(run):
            self.delete(self.path("v1", "pods", pod["metadata"]["name"]))


def current(config: Path) -> str:
    """The current context of a kubeconfig."""
    return str(yaml.safe_load(config.read_text())["current-context"])


@contextlib.contextmanager
def suppress_absent() -> Iterator[None]:
    """Ignore a 404: the object is gone already."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise
