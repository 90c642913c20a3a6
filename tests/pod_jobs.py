"""A job of two pods on the fake API server, and logs that come as slowly as a test wants."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fake_api import FakeApi
from tests.fake_objects import Object
from torchyard.cluster import create
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome
from torchyard.steps.wait import wait

NODES = ("worker-0", "worker-1")
STAMP = b"2026-01-01T00:00:00.%03dZ "
RUNNING: Object = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


class Job:
    """A Volcano job of two pods, whose state the test changes."""

    def __init__(self, server: FakeApi, plan: ManifestPlan) -> None:
        self.server, self.plan = server, plan
        create.create_job(plan)
        for node in NODES:
            self.set_pod(node, "Running", RUNNING)
        self.set_job("Running")

    def name(self, node: str) -> str:
        return f"{self.plan.job}-{node}"

    def log(self, node: str = "worker-0") -> list[str]:
        """The lines of a log on disk, without stamps."""
        path = Path(self.plan.nodes[node])
        return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []

    def set_pod(self, node: str, phase: str, state: Object) -> None:
        self.server.put(self.pod(node, f"uid-{node}", phase, state))

    def pod(self, node: str, uid: str, phase: str = "Running", state: Object = RUNNING) -> Object:
        """The pod of a node, in this phase, whose container is in this state."""
        owner = {"uid": self.job()["metadata"]["uid"]}
        about: Object = {"name": self.name(node), "uid": uid, "labels": dict(self.plan.labels)}
        about["ownerReferences"] = [owner]
        status = {"phase": phase, "containerStatuses": [{"name": self.plan.container, "state": state}]}
        spec = {"restartPolicy": "Never", "containers": [{"name": self.plan.container}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": status}

    def job(self) -> Object:
        found = self.server.find(self.plan.main["apiVersion"], "Job", self.plan.job)
        assert found
        return found

    def set_job(self, phase: str) -> None:
        self.server.put({**self.job(), "status": {"state": {"phase": phase}}})

    def end(self, code: int = 0) -> None:
        phase, ended = ("Failed", "Failed") if code else ("Succeeded", "Completed")
        for node in NODES:
            self.set_pod(node, phase, {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:01:00Z"}})
        self.set_job(ended)

    def wait(self, age: float = 0.0, on_poll: Callable[[list[str]], None] = lambda _: None, **limits: float) -> Outcome:
        handle = Handle(plan=self.plan, deadlines=Deadlines(**limits), created=not age, submitted_at=1.0, age_s=age)
        return wait(handle, on_poll)


def lines(count: int) -> list[bytes]:
    return [STAMP % number + b"line %d\n" % number for number in range(count)]


def slowly(
    count: int, pause: float, stays: Callable[[], Any] = lambda: True, first: Sequence[bytes] = ()
) -> Callable[[], Iterator[bytes]]:
    """A log that comes line by line while a condition holds; the `first` lines come at once."""

    def pour() -> Iterator[bytes]:
        yield from first
        for line in lines(count):
            time.sleep(pause)
            if not stays():
                return
            yield line

    return pour


def after(seconds: float, *work: Callable[[], Any]) -> None:
    """Do something a little later."""

    def go() -> None:
        time.sleep(seconds)
        for each in work:
            each()

    threading.Thread(target=go, daemon=True).start()
