"""Following one pod's log: streams that break, end or lack lines, and a file that is removed."""

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import RefusedError
from tests.doubles.pod_jobs import Job, build_lines, run_later, slow_log
from tests.support.waiting import wait_until
from torchyard.cluster.logs import log_follower
from torchyard.cluster.logs.log_follower import LOG_READERS, LogFollower, LogSource
from torchyard.kube.client import Client

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-worker-0", "uid": "uid-0"}}
Follow = Callable[..., LogFollower]
STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC).timestamp()  # the second of the lines of `build_lines`


def test_removed_run_folder_is_written_again(job: Job) -> None:
    """If a live run's folder is removed, the job keeps running and its log is written again from its first line."""
    job.fake_api.logs[job.get_pod_name("worker-0")] = b"".join(build_lines(3))

    def remove() -> None:
        wait_until(lambda: len(job.read_log()) == 3)
        shutil.rmtree(job.plan.folder)
        job.fake_api.logs[job.get_pod_name("worker-0")] = b"".join(build_lines(6))
        job.end()

    run_later(0, remove)
    outcome = job.wait()
    assert (outcome.status.state, job.read_log()) == ("succeeded", [f"line {number}" for number in range(6)])


@pytest.fixture
def follow(fake_api: FakeApi, fake_server: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Start to follow the log of a running pod, which ends with the test."""
    monkeypatch.setattr(log_follower, "MAX_RETRY_DELAY_S", 0.1)
    fake_api.put(POD)
    followers = list[LogFollower]()

    def start(started_at: float = 0.0) -> LogFollower:
        source = LogSource("train-worker-0", "uid-0", "main")
        followers.append(LOG_READERS.get(fake_server).follow(source, tmp_path / "worker-0" / "log"))
        followers[-1].update_pod(has_terminated=False, started_at=started_at)
        return followers[-1]

    yield start
    for follower in followers:
        follower.update_pod(has_terminated=True)
        follower.complete.wait(10)


def read_texts(path: Path) -> list[str]:
    return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def test_broken_stream_loses_no_line(fake_api: FakeApi, follow: Follow) -> None:
    """A stream that breaks is opened again from two seconds before its end; repeated lines are written once."""
    served = iter([build_lines(3), build_lines(5)[1:], build_lines(7)])

    def stream() -> Iterator[bytes]:
        yield from next(served, build_lines(7))

    fake_api.logs["train-worker-0"] = stream
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 7)
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert (read_texts(follower.path), follower.lost) == ([f"line {number}" for number in range(7)], "")
    queries = [request.query for request in fake_api.find_requests("GET", "/log") if "previous" not in request.query]
    first_since, *later_since = (query.get("sinceTime") for query in queries)
    assert (first_since, set(later_since)) == (None, {"2025-12-31T23:59:58Z"})


@pytest.mark.parametrize(
    "body",
    [b"default backend - 404", RefusedError(404, "NotFound", "", {"name": "train-worker-0", "kind": "pods"}).body],
    ids=["a proxy's page", "one report of the API server"],
)
def test_one_404_does_not_end_a_log(fake_api: FakeApi, follow: Follow, body: Any) -> None:
    """A log continues after a 404 that does not prove that its pod is gone."""
    fake_api.answer("GET", "/log", 404, body, times=1)
    fake_api.logs["train-worker-0"] = b"".join(build_lines(3))
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 3)
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert follower.lost == ""


def test_lines_lost_by_a_rotation_are_reported(fake_api: FakeApi, follow: Follow) -> None:
    """If the file's last line does not come again after a break, lines are reported as possibly missing."""
    served = iter([build_lines(3)])

    def stream() -> Iterator[bytes]:
        yield from next(served, build_lines(100)[50:])

    fake_api.logs["train-worker-0"] = stream
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 53)
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert follower.lost == log_follower.ROTATED_LOSS


def test_restart_before_the_first_read_loses_no_line(fake_api: FakeApi, follow: Follow) -> None:
    """A restart before the log was opened, which the status does not show yet, loses no line and keeps the order."""
    has_ended = threading.Event()

    def stream() -> Iterator[bytes]:
        yield from build_lines(6)[3:]
        has_ended.wait(10)

    fake_api.logs |= {"train-worker-0/previous": b"".join(build_lines(6)[:3]), "train-worker-0": stream}
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 6)
    del fake_api.logs["train-worker-0/previous"]  # a kubelet deletes it when the next container ends
    follower.update_pod(has_terminated=False, restart_count=1)
    has_ended.set()
    follower.update_pod(has_terminated=True, restart_count=1)
    assert follower.complete.wait(10)
    assert (read_texts(follower.path), follower.lost) == ([f"line {number}" for number in range(6)], "")


def test_container_that_ends_while_its_log_is_opened_is_read_once(fake_api: FakeApi, follow: Follow) -> None:
    """A previous log that starts with the stream's first line is the stream's own log, and is not copied."""
    fake_api.logs |= {"train-worker-0/previous": b"".join(build_lines(6)), "train-worker-0": b"".join(build_lines(6))}
    follower = follow()
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert (read_texts(follower.path), follower.lost) == ([f"line {number}" for number in range(6)], "")


def test_followed_log_is_completed_by_its_own_thread(
    fake_api: FakeApi, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the stream of an ended container has ended, the rest of the log is read without waiting for the timer."""
    monkeypatch.setattr(log_follower, "_END_GRACE_S", 30.0)
    fake_api.logs["train-worker-0"] = b"".join(build_lines(3))
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 3)
    fake_api.logs["train-worker-0"] = b"".join(build_lines(5))
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert read_texts(follower.path) == [f"line {number}" for number in range(5)]


def test_log_is_followed_by_one_thread(fake_api: FakeApi, follow: Follow) -> None:
    """A second watch of the same container in this process gets the follower of the first one."""
    has_ended = threading.Event()
    fake_api.logs["train-worker-0"] = slow_log(1000, 0.02, condition=lambda: not has_ended.is_set())
    first = follow()
    wait_until(first.path.exists)
    assert follow() is first
    has_ended.set()


@pytest.mark.parametrize(("started_at", "count"), [(STARTED_AT, 0), (STARTED_AT - 5.0, 1), (STARTED_AT + 5.0, 1)])
def test_previous_log_is_requested_unless_the_first_line_is_of_the_start(
    fake_api: FakeApi, follow: Follow, started_at: float, count: int
) -> None:
    """A first line of the reported start needs no request; a later or earlier one may be that of a restart."""
    fake_api.logs["train-worker-0"] = b"".join(build_lines(3))
    follower = follow(started_at)
    follower.update_pod(has_terminated=True, started_at=started_at)
    assert follower.complete.wait(10)
    previous = [request for request in fake_api.find_requests("GET", "/log") if "previous" in request.query]
    assert (read_texts(follower.path), len(previous)) == ([f"line {number}" for number in range(3)], count)


def test_stopped_log_is_requested_no_more(fake_api: FakeApi, fake_server: Client, follow: Follow) -> None:
    """Followers of a removed job stop, also while they wait for a line or for their next try; others continue."""
    has_ended = threading.Event()
    fake_api.logs["train-worker-0"] = slow_log(1000, 0.05, condition=lambda: not has_ended.is_set())
    follower = follow()
    wait_until(follower.path.exists)
    reader = LOG_READERS.get(fake_server)
    reader.stop(follower.path.parent.parent / "other-run")
    assert not follower.complete.wait(0.2)
    reader.stop(follower.path.parent.parent)
    assert follower.complete.wait(10)
    line_count = len(read_texts(follower.path))
    request_count = len(fake_api.received)
    assert not threading.Event().wait(0.3)
    assert (len(read_texts(follower.path)), len(fake_api.received)) == (line_count, request_count)
    has_ended.set()


SUCCESSOR = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-worker-0", "uid": "uid-1"}}


def test_log_of_another_pod_of_the_same_name_is_not_read(fake_api: FakeApi, follow: Follow) -> None:
    """If a pod's name belongs to its successor after a break, the log ends, and its end may be missing."""
    served = iter([build_lines(3)])

    def stream() -> Iterator[bytes]:
        lines = next(served, [b"2026-01-01T00:01:00Z of the successor\n"])
        if lines != build_lines(3):
            fake_api.put(SUCCESSOR)
        yield from lines

    fake_api.logs["train-worker-0"] = stream
    follower = follow()
    assert follower.complete.wait(10)
    assert read_texts(follower.path) == ["line 0", "line 1", "line 2"]


def test_log_of_a_replaced_pod_is_not_waited_for(fake_api: FakeApi, follow: Follow) -> None:
    """A refusal, as for a successor that has not started, ends the log of the pod that had its name before."""
    fake_api.put(SUCCESSOR)
    fake_api.fail("GET", "/log", 400)
    follower = follow()
    assert follower.complete.wait(10)
    assert follower.lost == "all of it: pod train-worker-0 was replaced by another one of its name"


def test_pod_that_cannot_be_read_does_not_end_its_log(fake_api: FakeApi, follow: Follow) -> None:
    """A failed read of the pod does not prove that its name belongs to another one."""
    fake_api.fail("GET", "/pods/train-worker-0$", 403)
    fake_api.logs["train-worker-0"] = b"".join(build_lines(3))
    follower = follow()
    wait_until(lambda: len(read_texts(follower.path)) == 3)
    follower.update_pod(has_terminated=True)
    assert follower.complete.wait(10)
    assert follower.lost == ""
