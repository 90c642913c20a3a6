"""Watching a job on a real API server, over a connection that breaks."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.jobs import Jobs, until
from torchyard.cluster import job_watch, reflector
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import WatchedKind

Plan = Callable[..., Any]
_NO_LIST = re.compile(r"watch=1|/log\?|^GET \S+/pods/[^/?\s]+$")


def read_pod_phases(watch: ClusterWatch) -> dict[str, str]:
    """The phase of each pod in the watch's state, by the pod's node."""
    watch.poll(timeout_s=0.05)
    phases = {name: obj["status"]["phase"] for name, obj in watch.states.items() if name.startswith("Pod/")}
    return {name.removeprefix("Pod/"): phase for name, phase in phases.items()}


def read_kinds(watch: ClusterWatch) -> set[str]:
    """The kinds of the objects that exist according to the watch."""
    watch.poll(timeout_s=0.05)
    return {name.partition("/")[0] for name in watch.states} - {"Removed"}


def is_running(watch: ClusterWatch) -> bool:
    """Poll the watch; whether both pods run."""
    return list(read_pod_phases(watch).values()) == ["Running", "Running"]


def has_ended(watch: ClusterWatch) -> bool:
    """Poll the watch; whether both pods have succeeded."""
    return list(read_pod_phases(watch).values()) == ["Succeeded", "Succeeded"]


def count_lists(proxy: FaultProxy) -> int:
    """The number of requests that are neither a watch, nor a log, nor a read of one pod by name."""
    return len([line for line in proxy.request_lines if not _NO_LIST.search(line)])


def test_job_is_seen_to_its_end(jobs: Jobs) -> None:
    """A watch has the states of the job, its pods and its PodGroup, to the end of the pods."""
    plan = jobs.start()
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        assert read_kinds(watch) == {"Job", "Pod", "PodGroup"}
        jobs.end(plan)
        until(lambda: has_ended(watch))


def test_running_job_needs_no_requests(jobs: Jobs, proxy: FaultProxy) -> None:
    """A running job costs no requests, because its objects and logs are streamed over open connections."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and all(Path(path).exists() for path in plan.nodes.values()))
        assert proxy.count_requests("/log?") == 2

        def costs_nothing() -> bool:
            request_count = len(proxy.request_lines)
            time.sleep(12)
            return len(proxy.request_lines) == request_count

        until(costs_nothing, timeout_s=60)  # the first list of PodGroups is empty, and therefore repeated once


def test_broken_connection_is_reopened(jobs: Jobs, proxy: FaultProxy) -> None:
    """After all connections are cut, the watch continues where it was, without listing everything again."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        list_count = count_lists(proxy)
        proxy.cut()
        jobs.end(plan)
        until(lambda: has_ended(watch))
        assert count_lists(proxy) == list_count


def test_deletion_during_an_outage_is_noticed(jobs: Jobs, proxy: FaultProxy) -> None:
    """An object that was deleted during an outage of 5 s is missing after it."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        proxy.is_down = True
        proxy.cut()
        jobs.delete(plan)
        time.sleep(5)
        proxy.is_down = False
        until(lambda: read_kinds(watch) == set())


def test_outage_is_not_taken_for_silence(jobs: Jobs, proxy: FaultProxy) -> None:
    """The watch reports that it is disconnected during an outage, when logs may grow unnoticed, and only then."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and not watch.is_disconnected())
        proxy.is_down = True
        proxy.cut()
        until(watch.is_disconnected)
        time.sleep(1)
        assert watch.is_disconnected()
        proxy.repair()
        jobs.end(plan)
        until(lambda: has_ended(watch))
        until(lambda: not watch.is_disconnected())


def test_silent_connection_is_noticed(jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that stalls without being closed is replaced after a timeout."""
    monkeypatch.setattr(reflector, "WATCH_IDLE_TIMEOUT_S", 2.0)
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        proxy.stall("watch=1")
        jobs.end(plan)
        until(lambda: has_ended(watch))


EXPIRED_STATUS = {
    "kind": "Status",
    "status": "Failure",
    "message": "too old resource version",
    "reason": "Expired",
    "code": 410,
}


@pytest.mark.parametrize(
    ("status", "body"), [(410, EXPIRED_STATUS), (200, {"type": "ERROR", "object": EXPIRED_STATUS})]
)
def test_expired_version_is_listed_again(jobs: Jobs, proxy: FaultProxy, status: int, body: dict[str, Any]) -> None:
    """If the watch's resource version has expired, a new list finds which objects were deleted meanwhile."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        for kind in ("/jobs?", "/pods?", "/podgroups?"):
            proxy.respond(kind, status, body)
        proxy.is_down = True
        proxy.cut()
        jobs.delete(plan)
        proxy.is_down = False
        until(lambda: read_kinds(watch) == set())


def test_server_reports_an_expired_version(jobs: Jobs) -> None:
    """The real API server answers an expired resource version with a 410 inside the stream."""
    path = jobs.client.path("batch.volcano.sh/v1alpha1", "Job", namespace=None)
    first = next(jobs.client.stream_lines(path, {"watch": "1", "resourceVersion": "1"}, 5.0))
    assert json.loads(first)["object"]["code"] == 410


def test_optional_kind_delays_nothing(jobs: Jobs, proxy: FaultProxy) -> None:
    """If this user may not list PodGroups, the watch has everything else."""
    plan = jobs.start(proxy)
    proxy.respond("/podgroups?", 403, {"kind": "Status", "message": "no"}, times=1000)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        assert read_kinds(watch) == {"Job", "Pod"}


def test_unknown_kind_delays_nothing(jobs: Jobs) -> None:
    """The watch skips a kind that the API server does not serve."""
    plan = jobs.start()
    unknown_kind = WatchedKind(api="torchyard.test/v1", kind="Strange")
    with ClusterWatch(plan.model_copy(update={"watch": (*plan.watch, unknown_kind)})) as watch:
        until(lambda: is_running(watch))


def test_bookmarks_carry_the_version_on(jobs: Jobs, proxy: FaultProxy) -> None:
    """A watch without changes continues from the resource version of the last bookmark."""
    plan = jobs.start(proxy)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        bookmark = {"type": "BOOKMARK", "object": {"kind": "Job", "metadata": {"resourceVersion": "4000000000"}}}
        proxy.respond("/jobs?", 200, bookmark)
        proxy.cut("/jobs?")
        until(lambda: proxy.count_requests("resourceVersion=4000000000"))
        assert watch.states


def test_attaching_during_an_outage_waits_for_the_server(jobs: Jobs, proxy: FaultProxy) -> None:
    """A watch that starts during an outage waits for its first list, and does not report the job as deleted."""
    plan = jobs.start(proxy)
    watch = ClusterWatch(plan)
    proxy.interrupt(duration_s=3.0)
    with watch:
        assert any(name.startswith("Job/") for name in watch.states)


def test_first_list_times_out(
    jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    """If the API server stays down, the first list times out with an error, because the job's state is unknown."""
    monkeypatch.setattr(job_watch, "FIRST_LIST_TIMEOUT_S", 1.0)
    plan = jobs.start(proxy)
    proxy.is_down = True
    proxy.cut()
    with pytest.raises(ClusterError, match="no response"), ClusterWatch(plan):
        pass
