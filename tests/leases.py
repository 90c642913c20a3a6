"""Runs in the fake cluster whose launchers are gone: a Lease, and what it owns."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fake_api import FakeApi
from torchyard.cluster import orphans
from torchyard.cluster.orphans import Orphan, SweepScope
from torchyard.pods import lease_record

Object = dict[str, Any]
ID = "0190c7f0-0000-7000-8000-0000a1b2c3d4"
RUN = "sample-a1b2c3d4"
JOBS = "batch.volcano.sh/v1alpha1"


def stamp(ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def lease(run: str = RUN, ago: float = 4000.0, **changes: Any) -> Object:
    """A Lease of half an hour that was renewed `ago` seconds ago, with changed labels, annotations or spec."""
    told = {"torchyard/flow-run": ID, "torchyard/attempt": "1", **changes.get("annotations", {})}
    spec = {"holderIdentity": "elsewhere:/runs", "leaseDurationSeconds": 1800, "renewTime": stamp(ago)}
    about = {"name": run, "labels": {"torchyard/run": run, **changes.get("labels", {})}, "annotations": told}
    return {
        "apiVersion": lease_record.LEASE_API,
        "kind": lease_record.LEASE_KIND,
        "metadata": about,
        "spec": spec | changes.get("spec", {}),
    }


def thing(api: str, kind: str, name: str, owner: Object | None = None) -> Object:
    """An object with the run's labels, an hour old."""
    about: Object = {"name": name, "labels": {"torchyard/run": RUN, "torchyard/attempt": "1"}}
    about["creationTimestamp"] = stamp(3600)
    if owner:
        about["ownerReferences"] = [
            {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
            | {key: owner["metadata"][key] for key in ("name", "uid")}
        ]
    return {"apiVersion": api, "kind": kind, "metadata": about, "spec": {}}


class Cast:
    """A run in the fake cluster: its Lease owns the job, which owns a pod."""

    def __init__(self, fake: FakeApi, held: Object, namespace: str = "default") -> None:
        self.fake, self.namespace = fake, namespace
        self.lease = fake.put(held, namespace)
        self.job = fake.put(thing(JOBS, "Job", f"{RUN}-1", self.lease), namespace)
        self.pod = fake.put(thing("v1", "Pod", f"{RUN}-1-worker-0", self.job), namespace)

    def add(self, api: str, kind: str, owner: Object | None = None) -> Object:
        """Add another object with the run's label."""
        return self.fake.put(thing(api, kind, f"it-{uuid.uuid4().hex[:6]}", owner), self.namespace)

    @property
    def left(self) -> list[str]:
        """The kinds of the objects that still exist."""
        mine = (self.lease, self.job, self.pod)
        return [each["kind"] for each in mine if is_there(self.fake, each)]


def is_there(fake: FakeApi, thing: Object) -> bool:
    about = thing["metadata"]
    return fake.find(thing["apiVersion"], thing["kind"], about["name"], about["namespace"]) is not None


# --- sweeping them

DEAD = SweepScope(alive=lambda _: "", alive_by_name=lambda _: "")
Make = Callable[..., Cast]


def due(terms: SweepScope = DEAD) -> list[Orphan]:
    return [each for each in orphans.find_orphans(None, terms) if not each.kept]


def kept(terms: SweepScope = DEAD) -> dict[str, str]:
    """The reasons why runs stay, by run name."""
    return {each.run: each.kept for each in orphans.find_orphans(None, terms) if each.kept}


def sweep(terms: SweepScope = DEAD) -> list[str] | None:
    """Remove the one run that is due; return what is left of it."""
    (found,) = due(terms)
    return orphans.remove_orphan(found)
