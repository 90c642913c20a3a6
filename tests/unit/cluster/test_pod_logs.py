"""The logs of a job's pods: when one is followed, when it is over, and what is missing from them."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import Planned
from tests.pod_jobs import Job, lines
from tests.waiting import until
from torchyard.cluster.pod_logs import PodLogs, _has_begun, _is_over
from torchyard.kube.client import Client, get_cluster_client


def pod(policy: str, phase: str = "Running", **status: object) -> dict[str, object]:
    known = {"name": "main", **status}
    spec = {"restartPolicy": policy, "containers": [{"name": "main"}]}
    return {"spec": spec, "status": {"phase": phase, "containerStatuses": [known]}}


ENDED, FAILED = {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        (pod("Never", state=FAILED), True),
        (pod("OnFailure", state=ENDED), True),
        (pod("OnFailure", state=FAILED), False),
        (pod("OnFailure", state={"waiting": {}}, lastState=FAILED), False),
        (pod("Always", state=ENDED), False),
        (pod("Always", "Failed", state={"waiting": {}}), True),
    ],
)
def test_container_is_over_when_it_does_not_begin_again(seen: dict[str, object], over: bool) -> None:
    """A container is over if its pod has ended, or if restart policy and exit code allow no restart."""
    assert _is_over(seen, "main") is over


@pytest.mark.parametrize(("last", "begun"), [({}, False), (FAILED, True)])
def test_container_that_waits_may_have_a_log(last: dict[str, object], begun: bool) -> None:
    """A container that has crashed and waits for its restart has a log."""
    assert _has_begun(pod("OnFailure", state={"waiting": {}}, lastState=last), "main") is begun


def test_recreated_pod_continues_the_log(job: Job) -> None:
    """The log of a pod's successor follows the predecessor's in one file: no line is missing, and none is mixed."""
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    job.server.logs[job.name("worker-0")] = b"".join(lines(3))
    logs.update_pod("worker-0", job.name("worker-0"), job.pod("worker-0", "uid-1"))
    until(lambda: len(job.log()) == 3)
    logs.update_pod("worker-0", job.name("worker-0"), None)
    until(lambda: not logs.unfinished())
    job.server.logs[job.name("worker-0")] = b"".join(lines(5)[3:])
    logs.update_pod("worker-0", job.name("worker-0"), job.pod("worker-0", "uid-2"))
    until(lambda: len(job.log()) == 5)
    logs.update_pod("worker-0", job.name("worker-0"), None)
    until(lambda: not logs.unfinished())
    assert (job.log(), logs.lost_logs()) == ([f"line {number}" for number in range(5)], {})


def test_log_whose_pod_is_gone_lacks_its_end(job: Job) -> None:
    """A process that attaches finds the start of a log whose pod is gone: what came after that is reported as lost."""
    logs = PodLogs(get_cluster_client(job.plan.cluster), job.plan)
    path = Path(job.plan.nodes["worker-1"])
    path.parent.mkdir(parents=True)
    path.write_text("2026-01-01T00:00:00.000Z worker-1 | one\n")
    assert logs.lost_logs() == {"worker-1": "perhaps its end: its pod is gone"}


BARE: list[dict[str, Any]] = [
    {},
    {"metadata": {"uid": "u"}},
    {"metadata": {"uid": "u"}, "spec": "x", "status": {"containerStatuses": "x"}},
    {"metadata": {"uid": "u"}, "spec": {"containers": []}, "status": {"containerStatuses": [{"state": 7}]}},
    {"metadata": [], "spec": {"containers": ["x", {}]}, "status": []},
]


@pytest.mark.parametrize("bare", BARE, ids=range(len(BARE)))
def test_pod_without_containers_has_no_log(planned: Planned, bare: dict[str, Any]) -> None:
    """A pod about which almost nothing is known is accepted, and its log is not followed yet."""
    pumps = PodLogs(cast(Client, None), planned(nodes=2))
    pumps.update_pod("worker-0", "sample-worker-0", bare)
    assert not pumps.unfinished()
