"""The cluster's part of `make bench`: how soon the end of a job is known, and what waiting costs the API server.

The requests are counted by the API server itself, for a user of their own; the moment of the end is when a bare watch
of the job sees its last status.
"""

import json
import statistics
import tempfile
import threading
import time
import uuid
from typing import Any

from tasks import objects
from tasks.cluster import Api
from tasks.launchers import registry
from tasks.model import Handle, Run
from tasks.plan import ManifestPlan
from tasks.profile import load_profile
from tasks.spec import Cluster
from tasks.submit import submit
from tasks.teardown import teardown
from tasks.wait import wait
from tests.cluster.e2e import cluster
from tests.cluster.jobs import USER, as_user
from tests.cluster.provide import at_home

JOBS, RUNS, QUIET = ("yolov5-volcano", "yolov5-pytorchjob", "yolov5-jobset", "fms-vela"), 9, 60.0
COUNTERS = (  # the API server counts everything that this user asks but logs, and those of everybody
    (b"apiserver_flowcontrol_dispatched_requests_total", b'flow_schema="torchyard-user"'),
    (b"apiserver_request_total", b'subresource="log"'),
)


def main(show: Any) -> None:
    """Measure on the cluster of KUBECONFIG, or on one made for it."""
    with cluster():
        admin = Api(Cluster())
        namespace = f"runai-bench-{uuid.uuid4().hex[:6]}"
        admin.ask("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        while not Api(Cluster(namespace=namespace)).read("v1", "ServiceAccount", "default"):
            time.sleep(0.05)
        try:
            for name in JOBS:
                ends = [late(name, namespace) for _ in range(RUNS)]
                show(f"{name}: last status to `wait` returning, median of {RUNS}", statistics.median(ends), 0.2)
                if as_user():
                    show(f"{name}: requests a minute while waiting", requests(name, namespace, admin), 4, "")
                else:
                    print(f"  {name}: requests are not counted, for KUBECONFIG has no context {USER}")
        finally:
            admin.ask("DELETE", f"/api/v1/namespaces/{namespace}")


def started(name: str, namespace: str, seconds: float) -> Handle:
    """A job of fake pods that end by themselves."""
    where = {**as_user(), **at_home(name, namespace), "nodes": 2, "pod.node_selector": {"type": "kwok"}}
    where["pod.priority_class"] = None  # none of the guide's are on the test cluster
    profile = load_profile(name, {**where, "pod.annotations": {"torchyard.test/end-after": str(seconds)}})
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=tempfile.mkdtemp())
    plan = objects.located(registry.launcher(profile.launcher).plan(profile, run))  # type: ignore[arg-type]
    return submit.fn(plan, profile.deadlines)


def late(name: str, namespace: str) -> float:
    """Seconds from the job's last status, as another watch sees it, to `wait` returning."""
    handle = started(name, namespace, 1.5)
    assert isinstance(handle.plan, ManifestPlan)
    seen: list[float] = []
    other = threading.Thread(target=lambda: seen.append(last_status(handle.plan)))
    other.start()
    try:
        outcome = wait.fn(handle)
        returned = time.time()
    finally:
        other.join()
        teardown.fn(handle.plan)
    assert outcome.status.state == "succeeded", outcome
    return returned - seen[0]


def last_status(plan: Any) -> float:
    """When a bare watch sees the job succeeded."""
    admin = Api(Cluster(namespace=plan.cluster.namespace))
    path = admin.path(plan.main["apiVersion"], plan.main["kind"])
    for line in admin.stream(path, {"watch": "1", "fieldSelector": f"metadata.name={plan.job}"}, 120):
        status = json.loads(line)["object"].get("status", {})
        true = [each["type"] for each in status.get("conditions", ()) if each["status"] == "True" and "type" in each]
        phase = status.get("phase") or status.get("state", {}).get("phase")
        if {"Completed", "Succeeded"} & {phase, *true}:
            return time.time()
    raise AssertionError("the watch ended before the job did")


def requests(name: str, namespace: str, admin: Api) -> float:
    """What `wait` asks in a minute in which nothing happens, logs and PodGroup included."""
    handle = started(name, namespace, QUIET + 20)
    waiting = threading.Thread(target=lambda: wait.fn(handle))
    waiting.start()
    time.sleep(10)
    before = counted(admin)
    assert before > 0, "the API server has counted nothing of what submit has asked"
    time.sleep(QUIET)
    made = counted(admin) - before
    waiting.join()
    teardown.fn(handle.plan)
    return made * 60 / QUIET


def counted(admin: Api) -> float:
    """The requests of the bench's user so far."""
    lines = list(admin.stream("/metrics", {}, 30))
    found = [line for line in lines if any(line.startswith(name) and which in line for name, which in COUNTERS)]
    assert found, "the API server counts no request of the user: its metrics are called otherwise"
    return sum(float(line.split()[-1]) for line in found)
