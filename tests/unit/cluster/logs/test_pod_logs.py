"""The logs of a job's pods: when one is followed, when it is complete, and what is missing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import Planned
from tests.doubles.pod_jobs import Job, build_lines
from tests.support.waiting import wait_until
from torchyard.cluster.logs.pod_logs import PodLogs, has_container_started, has_container_terminated
from torchyard.kube.client import Client, get_cluster_client


def build_pod(policy: str, phase: str = "Running", **status: object) -> dict[str, object]:
    container_status = {"name": "main"} | status
    spec = {"restartPolicy": policy, "containers": [{"name": "main"}]}
    return {"spec": spec, "status": {"phase": phase, "containerStatuses": [container_status]}}


ENDED = {"terminated": {"exitCode": 0}}
FAILED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("pod_status", "has_terminated"),
    [
        (build_pod("Never", state=FAILED), True),
        (build_pod("OnFailure", state=ENDED), True),
        (build_pod("OnFailure", state=FAILED), False),
        (build_pod("OnFailure", state={"waiting": {}}, lastState=FAILED), False),
        (build_pod("Always", state=ENDED), False),
        (build_pod("Always", "Failed", state={"waiting": {}}), True),
    ],
)
def test_container_has_terminated_if_it_cannot_restart(pod_status: dict[str, object], has_terminated: bool) -> None:
    """A container has terminated if its pod has ended, or if restart policy and exit code allow no restart."""
    assert has_container_terminated(pod_status, "main") is has_terminated


@pytest.mark.parametrize(("last_state", "has_started"), [({}, False), (FAILED, True)])
def test_container_that_waits_may_have_a_log(last_state: dict[str, object], has_started: bool) -> None:
    """A container that has crashed and waits for its restart has a log."""
    pod = build_pod("OnFailure", state={"waiting": {}}, lastState=last_state)
    assert has_container_started(pod, "main") is has_started


def test_recreated_pod_continues_the_log(job: Job) -> None:
    """The log of a pod's successor follows the predecessor's in one file: no line is lost or out of order."""
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    name = job.get_pod_name("worker-0")
    job.fake_api.logs[name] = b"".join(build_lines(3))
    logs.update_pod("worker-0", name, job.fake_api.put(job.build_pod("worker-0", "uid-1")))
    wait_until(lambda: len(job.read_log()) == 3)
    logs.update_pod("worker-0", name, None)
    wait_until(lambda: not logs.is_unfinished())
    job.fake_api.logs[name] = b"".join(build_lines(5)[3:])
    logs.update_pod("worker-0", name, job.fake_api.put(job.build_pod("worker-0", "uid-2")))
    wait_until(lambda: len(job.read_log()) == 5)
    logs.update_pod("worker-0", name, None)
    wait_until(lambda: not logs.is_unfinished())
    assert (job.read_log(), logs.lost_logs()) == ([f"line {number}" for number in range(5)], {})


@pytest.mark.parametrize(("last_second", "is_read"), [("10", True), ("12", False)])
def test_log_that_its_successor_continues_is_not_read_again(job: Job, last_second: str, is_read: bool) -> None:
    """A file with lines from after a container's end belongs to the next pod of the node by now."""
    name = job.get_pod_name("worker-0")
    path = Path(job.plan.nodes["worker-0"])
    path.parent.mkdir(parents=True)
    path.write_text(f"2026-01-01T00:00:{last_second}Z worker-0 | one\n")
    state = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:10Z"}}
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    logs.update_pod("worker-0", name, job.fake_api.put(job.build_pod("worker-0", "uid-1", "Failed", state)))
    wait_until(lambda: not logs.is_unfinished())
    assert bool(job.fake_api.find_requests("GET", f"{name}/log")) is is_read


def test_log_whose_pod_is_gone_lacks_its_end(job: Job) -> None:
    """A process that attaches finds the start of a log whose pod is gone: the rest is reported as lost."""
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    path = Path(job.plan.nodes["worker-1"])
    path.parent.mkdir(parents=True)
    path.write_text("2026-01-01T00:00:00.000Z worker-1 | one\n")
    assert logs.lost_logs() == {"worker-1": "possibly the last lines: its pod is gone"}


@pytest.mark.parametrize(("node", "lost"), [("worker-0", {"worker-0": "all of it: it was not read"}), ("store", {})])
def test_log_of_the_store_may_be_incomplete(job: Job, node: str, lost: dict[str, str]) -> None:
    """A log of the job that is not read to its end lacks lines; that of the store continues until teardown."""
    has_ended = threading.Event()

    def wait_for_end() -> Iterator[bytes]:
        has_ended.wait(10)
        yield from build_lines(1)

    job.fake_api.put(job.build_pod(node, f"uid-{node}"))
    job.fake_api.logs[job.get_pod_name(node)] = wait_for_end
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    logs.update_pod(node, job.get_pod_name(node), job.build_pod(node, f"uid-{node}"))
    assert logs.lost_logs() == lost
    has_ended.set()
    logs.update_pod(node, job.get_pod_name(node), None)
    wait_until(lambda: not logs.lost_logs())


def test_refused_log_of_the_store_is_reported(job: Job) -> None:
    """If the store's log may not be read, nothing more of it will come, and the report names it."""
    job.fake_api.put(job.build_pod("store", "uid-store"))
    job.fake_api.fail("GET", "/log", 403)
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    logs.update_pod("store", job.get_pod_name("store"), job.build_pod("store", "uid-store"))
    wait_until(lambda: "store" in logs.lost_logs())
    assert logs.lost_logs()["store"].startswith("all of it: ")


BARE: list[dict[str, Any]] = [
    {},
    {"metadata": {"uid": "u"}},
    {"metadata": {"uid": "u"}, "spec": "x", "status": {"containerStatuses": "x"}},
    {"metadata": {"uid": "u"}, "spec": {"containers": []}, "status": {"containerStatuses": [{"state": 7}]}},
    {"metadata": [], "spec": {"containers": ["x", {}]}, "status": []},
]


@pytest.mark.parametrize("bare", BARE, ids=range(len(BARE)))
def test_pod_without_containers_has_no_log(planned: Planned, bare: dict[str, Any]) -> None:
    """A pod with almost no fields is accepted, and its log is not followed yet."""
    logs = PodLogs(cast(Client, None), planned(nodes=2))
    logs.update_pod("worker-0", "sample-worker-0", bare)
    assert not logs.is_unfinished()
