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
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.cells import Launcher
from tests.chaos.world import wait_until
from tests.cluster.api import ApiError
from tests.cluster.plane import Plane
from torchyard.common.project_root import ROOT

RUN_LABEL = "torchyard/run"
ATTEMPT_LABEL = "torchyard/attempt"
ROLE_LABEL = "torchyard/role"
JOB_KINDS: dict[Launcher, tuple[str, str]] = {
    "volcano": ("batch.volcano.sh/v1alpha1", "jobs"),
    "pytorchjob": ("kubeflow.org/v1", "pytorchjobs"),
    "job": ("batch/v1", "jobs"),
}
EVICTED_STATUS = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
NODE_LOST_CONDITION = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}
DERIVED_KINDS = ("events", "endpoints", "endpointslices")
Object = dict[str, Any]
SWEEP_CODE = """
import sys, time
real = time.time
time.time = lambda: real() + {ahead}
from flows.sweep import main
sys.exit(main(sys.argv[1:]))
"""


class ObjectTracker:
    """Follow one kind of object in a namespace by list and watch, from its own thread, for the life of the process.

    current: the existing objects by name. created: run and attempt of every object that was ever seen, by uid.
    """

    def __init__(self, plane: Plane, path: str) -> None:
        self._api = plane.api()
        self._path = path
        self.current: dict[str, Object] = {}
        self.created: dict[str, tuple[str, str]] = {}
        threading.Thread(target=self._follow, daemon=True).start()

    def list_of_run(self, run: str) -> list[Object]:
        return [obj for obj in list(self.current.values()) if get_labels(obj).get(RUN_LABEL) == run]

    def _follow(self) -> None:
        while True:
            try:
                listing = self._api.call("GET", self._path)
                self.current = {obj["metadata"]["name"]: obj for obj in listing["items"]}
                for obj in listing["items"]:
                    self._record(obj)
                self._watch(listing["metadata"]["resourceVersion"])
            except (ApiError, OSError, ValueError, HTTPException):  # the next list has the missed objects
                time.sleep(0.2)

    def _watch(self, version: str) -> None:
        for line in self._api.stream(f"{self._path}?watch=true&resourceVersion={version}"):
            event = json.loads(line)
            if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
                return
            obj = event["object"]
            if event["type"] == "DELETED":
                self.current.pop(obj["metadata"]["name"], None)
            else:
                self.current[obj["metadata"]["name"]] = obj
                self._record(obj)

    def _record(self, obj: Object) -> None:
        self.created[obj["metadata"]["uid"]] = (
            get_labels(obj).get(RUN_LABEL, ""),
            get_labels(obj).get(ATTEMPT_LABEL, ""),
        )


def get_labels(obj: Object) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels


class ChaosNamespace:
    """The matrix's own namespace, and the faults within it."""

    def __init__(self) -> None:
        self.plane = Plane.current()
        os.environ["KUBECONFIG"] = os.pathsep.join((str(self.plane.admin_kubeconfig), str(self.plane.user_kubeconfig)))
        self.name = f"torchyard-chaos-{uuid.uuid4().hex[:6]}"
        self.api = self.plane.api()
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        wait_until("a ServiceAccount", lambda: self.list_items(self.build_path("v1", "serviceaccounts")), 30)
        self.kind_paths = list(self._list_kind_paths())
        self.pods = ObjectTracker(self.plane, self.build_path("v1", "pods"))
        self.jobs = {
            launcher: ObjectTracker(self.plane, self.build_path(*job_kind)) for launcher, job_kind in JOB_KINDS.items()
        }

    def close(self) -> None:
        self.call("DELETE", f"/api/v1/namespaces/{self.name}")

    def build_path(self, group: str, plural: str, name: str = "") -> str:
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        return f"{root}/namespaces/{self.name}/{plural}{f'/{name}' if name else ''}"

    def call(self, method: str, path: str, body: Object | None = None, patch: str = "") -> Any:
        """Send one request; repeat it if the connection is closed, or if the server has only just started (429)."""
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

    def list_worker_pods(self, run: str) -> list[Object]:
        """The run's pods without those of its store."""
        return [pod for pod in self.pods.list_of_run(run) if ROLE_LABEL not in get_labels(pod)]

    def list_store_pods(self, run: str) -> list[Object]:
        return [pod for pod in self.pods.list_of_run(run) if ROLE_LABEL in get_labels(pod)]

    def count_doubles(self, launcher: Launcher, run: str) -> int:
        """The number of jobs beyond the first of each attempt."""
        attempts = [attempt for name, attempt in self.jobs[launcher].created.values() if name == run]
        return len(attempts) - len(set(attempts))

    def list_leftovers(self, run: str) -> list[str]:
        """Every object that has the run's label."""
        leftovers = [
            (path, obj)
            for path in self.kind_paths
            for obj in self.list_items(f"{path}?labelSelector={RUN_LABEL}%3D{run}")
        ]
        return [f"{path.rpartition('/')[2]} {obj['metadata']['name']}" for path, obj in leftovers]

    def list_items(self, path: str) -> list[Object]:
        objects: list[Object] = self.call("GET", path)["items"]
        return objects

    def _list_kind_paths(self) -> Iterator[str]:
        """The path of every namespaced kind, except those that the cluster removes itself, such as events."""
        groups = self.call("GET", "/apis")["groups"]
        for version in ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for resource in self.call("GET", root)["resources"]:
                if resource["namespaced"] and "list" in resource["verbs"] and resource["name"] not in DERIVED_KINDS:
                    yield self.build_path(version, resource["name"])

    # --- faults

    def sweep(self, folder: Path) -> None:
        """Sweep as two other users, whose clocks are a day ahead and whose Prefect has none of these runs.

        One has all rights in the cluster, the other only those that a run needs, without listing Leases.
        """
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "TORCHYARD_"))
        }
        (folder / "stranger").mkdir()
        environment |= {"PREFECT_HOME": str(folder / "prefect"), "TORCHYARD_RUNS": str(folder / "stranger")}
        for config in (self.plane.admin_kubeconfig, self.create_user(folder)):
            command = [sys.executable, "-c", SWEEP_CODE.format(ahead=86400), "--context", read_current_context(config)]
            with (folder / "sweep.log").open("ab") as log:
                subprocess.run(
                    command,
                    env=environment | {"KUBECONFIG": str(config)},
                    cwd=ROOT,
                    check=False,
                    stdout=log,
                    stderr=log,
                )

    def create_user(self, folder: Path) -> Path:
        """The kubeconfig of a user who may run jobs in this namespace, and nothing else."""
        user = f"stranger-{uuid.uuid4().hex[:6]}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "torchyard"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        binding = {"metadata": {"name": user}, "roleRef": role, "subjects": [subject]}
        self.call("POST", self.build_path("rbac.authorization.k8s.io/v1", "rolebindings"), binding)
        return self.plane.write_kubeconfig(folder / "stranger.kubeconfig", user)

    def annotate(self, pod: Object, key: str, value: str) -> None:
        self.patch(pod, {"metadata": {"annotations": {key: value}}})

    def patch(self, pod: Object, change: Object, subresource: str = "") -> None:
        path = self.build_path("v1", "pods", pod["metadata"]["name"]) + subresource
        with ignore_not_found():
            self.call("PATCH", path, change, patch="merge")

    def delete(self, path: str) -> None:
        with ignore_not_found():
            self.call("DELETE", path)

    def take_lease(self, run: str) -> None:
        """Make another holder the owner of a run's Lease, as the takeover by another launcher does."""
        path = self.build_path("coordination.k8s.io/v1", "leases", run)
        renew_time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.call("PATCH", path, {"spec": {"holderIdentity": "next-launcher", "renewTime": renew_time}}, patch="merge")

    def evict(self, pod: Object) -> None:
        """Evict a pod, as a kubelet with a full disk does."""
        self.patch(pod, {"status": EVICTED_STATUS | {"containerStatuses": None}}, "/status")

    def lose_node(self, pod: Object) -> None:
        """Delete a pod, as the control plane does when its node no longer answers."""
        conditions = [*(pod["status"].get("conditions") or ()), NODE_LOST_CONDITION]
        self.patch(pod, {"status": {"conditions": conditions}}, "/status")
        self.delete(self.build_path("v1", "pods", pod["metadata"]["name"]))

    def delete_job(self, launcher: Launcher, run: str) -> None:
        for job in self.jobs[launcher].list_of_run(run):
            self.delete(self.build_path(*JOB_KINDS[launcher], job["metadata"]["name"]))

    def delete_run(self, launcher: Launcher, run: str) -> None:
        """Delete the jobs and stores of a run."""
        self.delete_job(launcher, run)
        for pod in self.list_store_pods(run):
            self.delete(self.build_path("v1", "pods", pod["metadata"]["name"]))


def read_current_context(config: Path) -> str:
    """The current context of a kubeconfig."""
    return str(yaml.safe_load(config.read_text())["current-context"])


@contextlib.contextmanager
def ignore_not_found() -> Iterator[None]:
    """Ignore a 404: the object was deleted already."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise
