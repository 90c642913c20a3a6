"""The cluster part of `make bench`: the delay until `wait` returns after a job's end, and the requests of waiting.

The API server itself counts the requests, which come from a separate user. A job ends when a bare watch of the job
receives its last status.
"""

import json
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.e2e import cluster
from tests.cluster.jobs import USER, as_user
from tests.cluster.provide import build_local_overrides
from torchyard.cluster import create
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Handle, Run
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

JOBS = ("yolov5-volcano", "yolov5-pytorchjob", "yolov5-jobset", "fms-vela")
RUNS = 9
IDLE_S = 60.0
LONG_IDLE_S = 330.0  # long enough to include the requests that are sent every five minutes
COUNTERS = (  # all requests of this user except for logs, and all users' requests for logs
    (b"apiserver_flowcontrol_dispatched_requests_total", b'flow_schema="torchyard-user"'),
    (b"apiserver_request_total", b'subresource="log"'),
)
PROFILE = """
about: a job of fake pods
launcher: volcano
image: none:1
program: /none.py
resources: {cpu: 100m}
pod: {node_selector: {type: kwok}, spread: false}
"""


def main(show: Any) -> None:
    """Measure on the cluster that TORCHYARD_TEST_KUBECONFIG names, on that of `make cluster-up`, or on a new one."""
    with cluster(), new_namespace() as namespace:
        for name in JOBS:
            ends = [measure_end_delay(name, namespace) for _ in range(RUNS)]
            show(f"{name}: last status to `wait` returning, median of {RUNS}", statistics.median(ends), 0.2)
            show(f"{name}: last status to `wait` returning, worst", max(ends), 1.0)
            if not as_user():
                print(f"  {name}: requests are not counted, because KUBECONFIG has no context {USER}")
                continue
            seconds = LONG_IDLE_S if name == JOBS[0] else IDLE_S
            show(
                f"{name}: requests a minute, over {seconds:.0f} s of waiting",
                measure_requests(name, namespace, seconds),
                4,
                "",
            )


@contextmanager
def new_namespace() -> Iterator[str]:
    """A namespace that is removed afterwards, named as Run:ai names the namespace of a project."""
    admin = Client(Cluster())
    name = f"runai-bench-{uuid.uuid4().hex[:6]}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    while not Client(Cluster(namespace=name)).get("v1", "ServiceAccount", "default"):
        time.sleep(0.05)
    try:
        yield name
    finally:
        admin.request("DELETE", f"/api/v1/namespaces/{name}")


def submit_job(name: str, namespace: str, seconds: float) -> Handle:
    """Submit a job of fake pods that end by themselves."""
    overrides = as_user() | build_local_overrides(name, namespace) | {"nodes": 2, "pod.node_selector": {"type": "kwok"}}
    overrides["pod.priority_class"] = None  # the test cluster lacks the guide's priority classes
    profile = load_profile(name, overrides | {"pod.annotations": {"torchyard.test/end-after": str(seconds)}})
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=tempfile.mkdtemp())
    plan = create.resolve_cluster(registry.make_plan(profile, run))  # type: ignore[arg-type]
    return submit(plan, profile.deadlines)


def measure_end_delay(name: str, namespace: str) -> float:
    """Seconds from the job's last status, received by another watch, until `wait` returns."""
    handle = submit_job(name, namespace, 1.5)
    assert isinstance(handle.plan, ManifestPlan)
    end_times: list[float] = []
    watch_thread = threading.Thread(target=lambda: end_times.append(find_end_time(handle.plan)))
    watch_thread.start()
    try:
        outcome = wait(handle)
        returned = time.time()
    finally:
        watch_thread.join()
        teardown(handle.plan)
    assert outcome.status.state == "succeeded", outcome
    return returned - end_times[0]


def find_end_time(plan: Any) -> float:
    """The time at which a bare watch receives the job's success; AssertionError if the watch ends first."""
    admin = Client(Cluster(namespace=plan.cluster.namespace))
    path = admin.path(plan.main["apiVersion"], plan.main["kind"])
    for line in admin.stream_lines(path, {"watch": "1", "fieldSelector": f"metadata.name={plan.job}"}, 120):
        if has_succeeded(json.loads(line)["object"]):
            return time.time()
    raise AssertionError("the watch ended before the job did")


def has_succeeded(job: dict[str, Any]) -> bool:
    status = job.get("status", {})
    true_conditions = [
        condition["type"]
        for condition in status.get("conditions", ())
        if condition["status"] == "True" and "type" in condition
    ]
    phase = status.get("phase") or status.get("state", {}).get("phase")
    return bool({"Completed", "Succeeded"} & {phase, *true_conditions})


def measure_requests(name: str, namespace: str, seconds: float) -> float:
    """Requests per minute that `wait` makes while nothing happens, including logs, PodGroup and Lease."""
    admin = Client(Cluster())
    handle = submit_job(name, namespace, seconds + 20)
    waiting = threading.Thread(target=lambda: wait(handle))
    waiting.start()
    time.sleep(10)
    count_before = count_requests(admin)
    assert count_before > 0, "the API server has counted no request of `submit`"
    time.sleep(seconds)
    request_count = count_requests(admin) - count_before
    waiting.join()
    teardown(handle.plan)
    return request_count * 60 / seconds


def count_requests(admin: Client) -> float:
    """The number of requests that the benchmark's user has made so far."""
    lines = list(admin.stream_lines("/metrics", {}, 30))
    counter_lines = [line for line in lines if any(line.startswith(name) and label in line for name, label in COUNTERS)]
    assert counter_lines, "the API server's metrics have no counter of the user's requests: their names have changed"
    return sum(float(line.split()[-1]) for line in counter_lines)
