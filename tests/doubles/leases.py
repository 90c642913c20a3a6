"""Runs in the fake cluster whose launchers have exited: a Lease, and the objects that it owns."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.doubles.fake_api import FakeApi
from torchyard.cluster import orphans
from torchyard.cluster.orphans import Orphan, SweepScope
from torchyard.pods import lease_record

Object = dict[str, Any]
ID = "0190c7f0-0000-7000-8000-0000a1b2c3d4"
RUN = "sample-a1b2c3d4"
JOBS = "batch.volcano.sh/v1alpha1"


def format_time(ago_s: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def build_lease(run: str = RUN, ago: float = 4000.0, **changes: Any) -> Object:
    """A Lease of half an hour that was renewed `ago` seconds ago, with changed labels, annotations or spec."""
    annotations = {"torchyard/flow-run": ID, "torchyard/attempt": "1"} | changes.get("annotations", {})
    spec = {"holderIdentity": "elsewhere:/runs", "leaseDurationSeconds": 1800, "renewTime": format_time(ago)}
    metadata = {"name": run, "labels": {"torchyard/run": run} | changes.get("labels", {}), "annotations": annotations}
    return {
        "apiVersion": lease_record.LEASE_API,
        "kind": lease_record.LEASE_KIND,
        "metadata": metadata,
        "spec": spec | changes.get("spec", {}),
    }


def build_object(api: str, kind: str, name: str, owner: Object | None = None) -> Object:
    """An object with the run's labels, created an hour ago."""
    metadata: Object = {"name": name, "labels": {"torchyard/run": RUN, "torchyard/attempt": "1"}}
    metadata["creationTimestamp"] = format_time(3600)
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
            | {key: owner["metadata"][key] for key in ("name", "uid")}
        ]
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}}


class OrphanedRun:
    """A run in the fake cluster: its Lease owns the job, which owns a pod."""

    def __init__(self, fake: FakeApi, lease_object: Object, namespace: str = "default") -> None:
        self.fake = fake
        self.namespace = namespace
        self.lease = fake.put(lease_object, namespace)
        self.job = fake.put(build_object(JOBS, "Job", f"{RUN}-1", self.lease), namespace)
        self.pod = fake.put(build_object("v1", "Pod", f"{RUN}-1-worker-0", self.job), namespace)

    def add(self, api: str, kind: str, owner: Object | None = None) -> Object:
        """Add another object with the run's label."""
        return self.fake.put(build_object(api, kind, f"it-{uuid.uuid4().hex[:6]}", owner), self.namespace)

    @property
    def remaining_kinds(self) -> list[str]:
        """The kinds of the objects that still exist."""
        objects = (self.lease, self.job, self.pod)
        return [obj["kind"] for obj in objects if exists(self.fake, obj)]


def exists(fake: FakeApi, obj: Object) -> bool:
    metadata = obj["metadata"]
    return fake.find(obj["apiVersion"], obj["kind"], metadata["name"], metadata["namespace"]) is not None


# --- sweeps

NO_RUN_ALIVE = SweepScope(check_alive=lambda _: None, check_alive_by_name=lambda _: None)
Make = Callable[..., OrphanedRun]


def find_removable(scope: SweepScope = NO_RUN_ALIVE) -> list[Orphan]:
    return [orphan for orphan in orphans.find_orphans(None, scope) if orphan.kept_reason is None]


def find_kept_reasons(scope: SweepScope = NO_RUN_ALIVE) -> dict[str, str]:
    """The reasons why a sweep keeps runs, by run name."""
    return {orphan.run: orphan.kept_reason for orphan in orphans.find_orphans(None, scope) if orphan.kept_reason}


def sweep(scope: SweepScope = NO_RUN_ALIVE) -> list[str] | None:
    """Remove the only removable run; return its leftovers, as `remove_orphan` does."""
    (orphan,) = find_removable(scope)
    return orphans.remove_orphan(orphan)
