"""Following one pod's log: streams that break, end or lack lines, and a file that is removed."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_api import FakeApi
from tests.pod_jobs import Job, after, lines, slowly
from tests.waiting import until
from torchyard.cluster import log_follower
from torchyard.cluster.log_follower import LogFollower, LogSource, follow_pod_log
from torchyard.kube.client import Client

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-worker-0"}}
Follow = Callable[[], LogFollower]


def test_removed_run_folder_ends_nothing(job: Job) -> None:
    """If the folder of a living run is removed, the job goes on and its log is written again from its first line."""
    job.server.logs[job.name("worker-0")] = b"".join(lines(3))

    def remove() -> None:
        until(lambda: len(job.log()) == 3)
        shutil.rmtree(job.plan.folder)
        job.server.logs[job.name("worker-0")] = b"".join(lines(6))
        job.end()

    after(0, remove)
    outcome = job.wait()
    assert (outcome.status.state, job.log()) == ("succeeded", [f"line {number}" for number in range(6)])


@pytest.fixture
def follow(fake_api: FakeApi, fake_server: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Start to follow the log of a running pod, which ends with the test."""
    monkeypatch.setattr(log_follower, "_MAX_RETRY_DELAY_S", 0.1)
    fake_api.put(POD)
    begun = list[LogFollower]()

    def start() -> LogFollower:
        source = LogSource("train-worker-0", "uid-0", "main")
        begun.append(follow_pod_log(fake_server, source, tmp_path / "worker-0" / "log"))
        begun[-1].update_pod(over=False)
        return begun[-1]

    yield start
    for each in begun:
        each.update_pod(over=True)
        each.join(10)


def texts(path: Path) -> list[str]:
    return [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path.exists() else []


def test_broken_stream_costs_no_line(fake_api: FakeApi, follow: Follow) -> None:
    """A stream that breaks is opened again from two seconds before its end; what comes twice is written once."""
    served = iter([lines(3), lines(5)[1:], lines(7)])

    def pour() -> Iterator[bytes]:
        yield from next(served, lines(7))

    fake_api.logs["train-worker-0"] = pour
    found = follow()
    until(lambda: len(texts(found.path)) == 7)
    found.update_pod(over=True)
    assert found.whole.wait(10)
    assert (texts(found.path), found.lost) == ([f"line {number}" for number in range(7)], "")
    asked = [each.query for each in fake_api.requests("GET", "/log") if "previous" not in each.query]
    first, *later = (query.get("sinceTime") for query in asked)
    assert (first, set(later)) == (None, {"2025-12-31T23:59:58Z"})


def test_lines_that_a_rotation_took_are_reported(fake_api: FakeApi, follow: Follow) -> None:
    """If the file's last line does not come again after a break, the log says that lines may be missing between."""
    served = iter([lines(3)])

    def pour() -> Iterator[bytes]:
        yield from next(served, lines(100)[50:])

    fake_api.logs["train-worker-0"] = pour
    found = follow()
    until(lambda: len(texts(found.path)) == 53)
    found.update_pod(over=True)
    assert found.whole.wait(10)
    assert found.lost == log_follower._ROTATED


def test_restart_before_the_first_look_costs_no_line(fake_api: FakeApi, follow: Follow) -> None:
    """A container that restarted before its log was first opened, and before its status said so, is read in order."""
    over = threading.Event()

    def pour() -> Iterator[bytes]:
        yield from lines(6)[3:]
        over.wait(10)

    fake_api.logs |= {"train-worker-0/previous": b"".join(lines(6)[:3]), "train-worker-0": pour}
    found = follow()
    until(lambda: len(texts(found.path)) == 6)
    del fake_api.logs["train-worker-0/previous"]  # a kubelet deletes it when the next container ends
    found.update_pod(over=False, restarts=1)
    over.set()
    found.update_pod(over=True, restarts=1)
    assert found.whole.wait(10)
    assert (texts(found.path), found.lost) == ([f"line {number}" for number in range(6)], "")


def test_container_that_ends_while_its_log_is_opened_is_read_once(fake_api: FakeApi, follow: Follow) -> None:
    """A previous log that begins with the stream's own first line is the stream's, so it is not copied before it."""
    fake_api.logs |= {"train-worker-0/previous": b"".join(lines(6)), "train-worker-0": b"".join(lines(6))}
    found = follow()
    found.update_pod(over=True)
    assert found.whole.wait(10)
    assert (texts(found.path), found.lost) == ([f"line {number}" for number in range(6)], "")


def test_log_is_followed_by_one_thread(fake_api: FakeApi, follow: Follow) -> None:
    """A second watch of the same container in this process gets the follower of the first one."""
    over = threading.Event()
    fake_api.logs["train-worker-0"] = slowly(1000, 0.02, stays=lambda: not over.is_set())
    first = follow()
    until(first.path.exists)
    assert follow() is first
    over.set()
