"""A job of two pods on the fake API server, and logs that arrive as slowly as a test requires."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import Object
from tests.doubles.job_events import take_rows
from torchyard.cluster import create
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle, Outcome, Row
from torchyard.steps.wait import wait

NODES = ("worker-0", "worker-1")
TIMESTAMP = b"2026-01-01T00:00:00.%03dZ "
RUNNING: Object = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


class Job:
    """A Volcano job of two pods, whose state the test changes."""

    def __init__(self, fake_api: FakeApi, plan: ManifestPlan) -> None:
        self.fake_api = fake_api
        self.plan = plan
        create.create_job(plan)
        for node in NODES:
            self.set_pod(node, "Running", RUNNING)
        self.set_job("Running")

    def get_pod_name(self, node: str) -> str:
        return f"{self.plan.job}-{node}"

    def read_log(self, node: str = "worker-0") -> list[str]:
        """The lines of a log on disk, without time stamps; empty if there is no file yet."""
        path = Path(self.plan.nodes[node])
        if not path.exists():
            return []
        return [line.partition(" | ")[2] for line in path.read_text().splitlines()]

    def set_pod(self, node: str, phase: str, state: Object) -> None:
        self.fake_api.put(self.build_pod(node, f"uid-{node}", phase, state))

    def build_pod(self, node: str, uid: str, phase: str = "Running", state: Object = RUNNING) -> Object:
        """The pod of a node, in this phase, whose container is in this state."""
        main = self.plan.main
        owner: Object = {"apiVersion": main["apiVersion"], "kind": main["kind"], "name": self.plan.job}
        owner["uid"] = self.get_job()["metadata"]["uid"]
        metadata: Object = {"name": self.get_pod_name(node), "uid": uid, "labels": dict(self.plan.labels)}
        metadata["ownerReferences"] = [owner]
        status = {"phase": phase, "containerStatuses": [{"name": find_main_container(self.plan.pod), "state": state}]}
        spec = {"restartPolicy": "Never", "containers": [{"name": find_main_container(self.plan.pod)}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    def get_job(self) -> Object:
        obj = self.fake_api.find(self.plan.main["apiVersion"], "Job", self.plan.job)
        assert obj
        return obj

    def set_job(self, phase: str) -> None:
        self.fake_api.put(self.get_job() | {"status": {"state": {"phase": phase}}})

    def end(self, code: int = 0) -> None:
        """End all containers with an exit code, and then the job."""
        pod_phase = "Failed" if code else "Succeeded"
        job_phase = "Failed" if code else "Completed"
        for node in NODES:
            self.set_pod(node, pod_phase, {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:01:00Z"}})
        self.set_job(job_phase)

    def wait(
        self, age_s: float = 0.0, on_poll: Callable[[tuple[Row, ...]], None] | None = None, **limits: float
    ) -> Outcome:
        handle = Handle(plan=self.plan, deadlines=Deadlines(**limits), created=not age_s, submitted_at=1.0, age_s=age_s)
        return wait(handle, take_rows(on_poll) if on_poll else None)


def build_lines(count: int) -> list[bytes]:
    return [TIMESTAMP % number + b"line %d\n" % number for number in range(count)]


def slow_log(
    count: int, pause_s: float, condition: Callable[[], Any] | None = None, first_lines: Sequence[bytes] = ()
) -> Callable[[], Iterator[bytes]]:
    """A log that yields `first_lines` at once, then `count` lines, one per `pause_s`, while a condition holds."""

    def generate() -> Iterator[bytes]:
        yield from first_lines
        for line in build_lines(count):
            time.sleep(pause_s)
            if condition is not None and not condition():
                return
            yield line

    return generate


def run_later(delay_s: float, *operations: Callable[[], Any]) -> None:
    """Call the operations in a thread, `delay_s` from now."""

    def run() -> None:
        time.sleep(delay_s)
        for operation in operations:
            operation()

    threading.Thread(target=run, daemon=True).start()
