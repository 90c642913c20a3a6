"""Watching a job on a real API server, over a connection that breaks."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.wire import Wire
from torchyard.cluster import job_watch, reflector
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import WatchedKind

Plan = Callable[..., Any]


def pods(watch: ClusterWatch) -> dict[str, str]:
    """The phase of each pod that the watch has seen."""
    watch.poll(0.05)
    found = {name: thing["status"]["phase"] for name, thing in watch.seen.items() if name.startswith("Pod/")}
    return {name.removeprefix("Pod/"): phase for name, phase in found.items()}


def there(watch: ClusterWatch) -> set[str]:
    """The kinds of the objects that exist, as far as the watch knows."""
    watch.poll(0.05)
    return {name.partition("/")[0] for name in watch.seen} - {"Removed"}


def run(watch: ClusterWatch) -> bool:
    return list(pods(watch).values()) == ["Running", "Running"]


def ended(watch: ClusterWatch) -> bool:
    return list(pods(watch).values()) == ["Succeeded", "Succeeded"]


def test_job_is_seen_to_its_end(jobs: Jobs) -> None:
    """A watch sees the job, its pods and its PodGroup, to the end of the pods."""
    plan = jobs.start()
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        assert there(watch) == {"Job", "Pod", "PodGroup"}
        jobs.end(plan)
        until(lambda: ended(watch))


def test_nothing_is_asked_while_nothing_changes(jobs: Jobs, wire: Wire) -> None:
    """A running job costs no requests, because its objects and logs are streamed over open connections."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch) and wire.count("previous=true") == 2)
        asked = len(wire.asked)
        time.sleep(4)
        assert wire.asked[asked:] == []


def test_broken_connection_is_made_again(jobs: Jobs, wire: Wire) -> None:
    """After all connections are cut, the watch continues where it was, without listing everything again."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        listed = len([line for line in wire.asked if "watch=1" not in line and "/log?" not in line])
        wire.cut()
        jobs.end(plan)
        until(lambda: ended(watch))
        assert len([line for line in wire.asked if "watch=1" not in line and "/log?" not in line]) == listed


def test_what_is_deleted_during_an_outage_is_noticed(jobs: Jobs, wire: Wire) -> None:
    """The watch notices afterwards that an object was deleted during an outage of 5 s."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.away = True
        wire.cut()
        jobs.delete(plan)
        time.sleep(5)
        wire.away = False
        until(lambda: there(watch) == set())


def test_outage_is_not_taken_for_silence(jobs: Jobs, wire: Wire) -> None:
    """The watch says that it is disconnected during an outage, when logs may grow unseen, and only then."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch) and not watch.is_disconnected())
        wire.away = True
        wire.cut()
        until(watch.is_disconnected)
        time.sleep(1)
        assert watch.is_disconnected()
        wire.mend()
        jobs.end(plan)
        until(lambda: ended(watch))
        until(lambda: not watch.is_disconnected())


def test_silent_connection_is_noticed(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that stalls without being closed is replaced after a timeout."""
    monkeypatch.setattr(reflector, "_WATCH_IDLE_TIMEOUT_S", 2.0)
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        wire.stall("watch=1")
        jobs.end(plan)
        until(lambda: ended(watch))


GONE = {"kind": "Status", "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410}


@pytest.mark.parametrize(("status", "body"), [(410, GONE), (200, {"type": "ERROR", "object": GONE})])
def test_forgotten_version_is_listed_again(jobs: Jobs, wire: Wire, status: int, body: dict[str, Any]) -> None:
    """If the watch's resource version has expired, a new list shows which objects were deleted meanwhile."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        for kind in ("/jobs?", "/pods?", "/podgroups?"):
            wire.answer(kind, status, body)
        wire.away = True
        wire.cut()
        jobs.delete(plan)
        wire.away = False
        until(lambda: there(watch) == set())


def test_server_says_that_a_version_is_forgotten(jobs: Jobs) -> None:
    """The real API server answers an expired resource version with a 410 inside the stream."""
    path = jobs.server.path("batch.volcano.sh/v1alpha1", "Job", namespace=None)
    first = next(jobs.server.stream_lines(path, {"watch": "1", "resourceVersion": "1"}, 5.0))
    assert json.loads(first)["object"]["code"] == 410


@pytest.mark.parametrize("status", [403, 404])
def test_kind_that_only_tells_more_holds_nothing_up(jobs: Jobs, wire: Wire, status: int) -> None:
    """If PodGroups are not served, or this user may not list them, the watch sees everything else."""
    plan = jobs.start(wire)
    wire.answer("/podgroups?", status, {"kind": "Status", "message": "no"}, times=1000)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        assert there(watch) == {"Job", "Pod"}


def test_unknown_kind_holds_nothing_up(jobs: Jobs) -> None:
    """The watch leaves out a kind that the API server does not know."""
    plan = jobs.start()
    strange = WatchedKind(api="torchyard.test/v1", kind="Strange")
    with ClusterWatch(plan.model_copy(update={"watch": (*plan.watch, strange)})) as watch:
        until(lambda: run(watch))


def test_bookmarks_carry_the_version_on(jobs: Jobs, wire: Wire) -> None:
    """A watch without changes continues from the resource version of the last bookmark."""
    plan = jobs.start(wire)
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        mark = {"type": "BOOKMARK", "object": {"kind": "Job", "metadata": {"resourceVersion": "4000000000"}}}
        wire.answer("/jobs?", 200, mark)
        wire.cut("/jobs?")
        until(lambda: wire.count("resourceVersion=4000000000"))
        assert watch.seen


def test_attaching_while_the_server_is_away_waits_for_it(jobs: Jobs, wire: Wire) -> None:
    """A watch that starts during an outage waits for its first list, and does not take the job for deleted."""
    plan = jobs.start(wire)
    watch = ClusterWatch(plan)
    wire.leave(3.0)
    with watch:
        assert any(name.startswith("Job/") for name in watch.seen)


def test_first_look_is_not_waited_for_for_ever(
    jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch, plane: Client
) -> None:
    """If the API server stays down, the first list times out with an error, as nothing is known of the job."""
    monkeypatch.setattr(job_watch, "_FIRST_LIST_TIMEOUT_S", 1.0)
    plan = jobs.start(wire)
    wire.away = True
    wire.cut()
    with pytest.raises(ClusterError, match="no response"), ClusterWatch(plan):
        pass
