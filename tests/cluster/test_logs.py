"""Every line of every pod exactly once and in order: over broken connections, by later processes, on a full disk."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fault_proxy import CONTEXT, FaultProxy
from tests.cluster.jobs import Jobs, until
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.logs import log_follower as module
from torchyard.cluster.logs.log_follower import LOG_READERS, LogFollower, LogSource
from torchyard.common.log_lines import parse_log_line
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster

MANY = [f"step {index}" for index in range(20_000)]
WATCH_SCRIPT = """
import sys
from pathlib import Path
from torchyard.model.plan import ManifestPlan
from torchyard.cluster.job_watch import ClusterWatch
with ClusterWatch(ManifestPlan.model_validate_json(Path(sys.argv[1]).read_text())) as watch:
    while True:
        watch.poll(timeout_s=0.5)
"""


class FakeLog:
    """The log of fake pods: a file that grows as the test writes; `lines` are all lines so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = list[str]()
        path.touch()

    def append(self, *lines: str, timestamp: str = "") -> None:
        """Append lines, all with the same timestamp if `timestamp` is given."""
        self.lines += lines
        prefix = f"{timestamp} stdout F " if timestamp else ""
        with self.path.open("a") as file:
            file.write("".join(f"{prefix}{line}\n" for line in lines))


@pytest.fixture
def log(tmp_path: Path) -> FakeLog:
    """The log of the test's fake pods, empty at first."""
    return FakeLog(tmp_path / "pod.log")


def read_texts(plan: ManifestPlan, node: str = "worker-0") -> list[str]:
    """The lines in a node's log file, without timestamps."""
    path = Path(plan.nodes[node])
    lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
    return [line.partition(" | ")[2] for line in lines]


def finish(watch: ClusterWatch, jobs: Jobs, plan: ManifestPlan) -> dict[str, str]:
    """End the pods once they run, wait until their logs are complete, and return the lines that they have lost."""
    until(lambda: is_running(watch))
    jobs.end(plan)
    until(lambda: not is_running(watch))
    watch.drain_logs(idle_timeout_s=20.0)
    return watch.lost_logs()


def is_running(watch: ClusterWatch) -> bool:
    """Poll the watch; whether both pods run."""
    watch.poll(timeout_s=0.05)
    phases = [obj["status"]["phase"] for name, obj in watch.states.items() if name.startswith("Pod/")]
    return phases == ["Running", "Running"]


# --- working and broken connections


def test_long_logs_are_complete(jobs: Jobs, log: FakeLog) -> None:
    """20,000 lines from each of two pods are on disk, in order, each with its timestamp and its node."""
    log.append(*MANY)
    plan = jobs.start(log=log.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    for node, path in plan.nodes.items():
        assert read_texts(plan, node) == MANY
        lines = [parse_log_line(line, node) for line in Path(path).read_text().splitlines()]
        assert all(line.timestamp > 0 for line in lines)
        assert [line.timestamp for line in lines] == sorted(line.timestamp for line in lines)
        assert f" {node} | step 0\n" in Path(path).read_text()


def test_log_grows_with_the_pod(jobs: Jobs, log: FakeLog) -> None:
    """A pod's lines are on disk while it runs."""
    plan = jobs.start(log=log.path)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        for number in range(3):
            log.append(f"epoch {number}")
            until(lambda: read_texts(plan) == read_texts(plan, "worker-1") == log.lines)
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == log.lines


def test_cut_stream_resumes_where_it_was(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """A connection that is cut in the middle of a line neither loses nor duplicates a line."""
    log.append(*MANY)
    plan = jobs.start(proxy, log=log.path)
    for node, size in (("worker-0", 100_001), ("worker-1", 500_003)):
        proxy.cut_after(f"{node}/log?", size)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and proxy.count_requests("sinceTime=") == 2)
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == read_texts(plan, "worker-1") == MANY


def test_lines_with_equal_timestamps_are_distinguished(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """When a stream is cut, lines with equal timestamps, many of them identical, are neither lost nor duplicated."""
    log.append(*(f"step {index // 3}" for index in range(9000)), timestamp="2026-01-01T00:00:00.500000000Z")
    plan = jobs.start(proxy, log=log.path)
    proxy.cut_after("worker-0/log?", 200_000)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and proxy.count_requests("sinceTime=") == 1)
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == log.lines


def test_outage_of_the_api_server_loses_no_line(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """After an outage of the API server, the lines and the ends of pods during the outage are read."""
    plan = jobs.start(proxy, log=log.path)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        log.append("before")
        until(lambda: read_texts(plan) == ["before"])
        proxy.is_down = True
        proxy.cut()
        log.append("meanwhile")
        jobs.end(plan)
        time.sleep(3)
        proxy.is_down = False
        until(lambda: not is_running(watch))
        watch.drain_logs(idle_timeout_s=20.0)
        assert (watch.lost_logs(), read_texts(plan)) == ({}, ["before", "meanwhile"])


def test_silent_stream_is_reopened(
    jobs: Jobs, log: FakeLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log stream that stalls without being closed is opened again after a timeout."""
    monkeypatch.setattr(module, "STREAM_IDLE_TIMEOUT_S", 1.0)
    plan = jobs.start(proxy, log=log.path)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and proxy.count_requests("/log?"))
        proxy.stall("/log?")
        log.append("still here")
        until(lambda: read_texts(plan) == ["still here"])


def test_stream_that_ends_too_soon_is_reopened(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """A stream that ends before its container is opened again: a restarting kubelet ends it cleanly within a line."""
    plan = jobs.start(proxy, log=log.path)
    log.append("one", "two", timestamp="2026-01-01T00:00:00.500000000Z")
    timestamp = b"2026-01-01T00:00:00.500000000Z"
    proxy.respond("worker-0/log?", 200, timestamp + b" one\n" + timestamp + b" tw")
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == ["one", "two"]


def test_unreachable_kubelet_is_retried(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """If the API server cannot reach a node's kubelet, the log is requested again."""
    log.append("one")
    plan = jobs.start(proxy, log=log.path)
    proxy.respond("worker-0/log?", 500, {"message": "dial tcp 10.0.0.1:10250: connect: connection refused"})
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and read_texts(plan) == ["one"])


# --- later processes


def test_killed_process_is_followed_by_another(jobs: Jobs, log: FakeLog, tmp_path: Path) -> None:
    """A process that attaches after a SIGKILL continues at the end of the file, without lost or duplicate lines."""
    log.append(*MANY)
    plan = jobs.start(log=log.path)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    process = subprocess.Popen([sys.executable, "-c", WATCH_SCRIPT, str(tmp_path / "plan.json")])
    until(lambda: len(read_texts(plan)) > 2000)
    process.kill()
    process.wait()
    log.append("after the kill")
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == read_texts(plan, "worker-1") == log.lines


def test_two_watches_share_a_log(jobs: Jobs, log: FakeLog) -> None:
    """Two watches in one process share the log followers, so that each line is written once."""
    plan = jobs.start(log=log.path)
    with ClusterWatch(plan) as first:
        until(lambda: is_running(first))
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        log.append(*MANY[:50])
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == log.lines


def test_log_without_its_pod_is_reported_as_incomplete(jobs: Jobs, log: FakeLog) -> None:
    """A process that attaches after the pod is deleted reports that the last lines may be missing."""
    log.append("one")
    plan = jobs.start(log=log.path)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and read_texts(plan) and read_texts(plan, "worker-1"))
    jobs.delete(plan)
    with ClusterWatch(plan) as watch:
        assert watch.lost_logs() == dict.fromkeys(("worker-0", "worker-1"), "possibly the last lines: its pod is gone")


# --- pods that do not exist yet, or are deleted


def start_follower(
    jobs: Jobs, plan: ManifestPlan, proxy: FaultProxy | None = None, *, has_terminated: bool = False
) -> LogFollower:
    """Follow the log of worker-0, whether or not its pod exists."""
    client = Client(Cluster(namespace=jobs.namespace, context=CONTEXT if proxy else None))
    source = LogSource(f"{plan.job}-worker-0", "", str(find_main_container(plan.pod)))
    follower = LOG_READERS.get(client).follow(source, Path(plan.nodes["worker-0"]))
    follower.update_pod(has_terminated=has_terminated)
    return follower


def test_container_that_is_still_created_is_retried(jobs: Jobs, log: FakeLog) -> None:
    """The API server's 400 for a container that is waiting to start does not end the log."""
    log.append("one")
    plan = jobs.start(log=log.path, start_after=1)
    until(lambda: jobs.client.get("v1", "Pod", f"{plan.job}-worker-0"))
    start_follower(jobs, plan)
    until(lambda: read_texts(plan) == ["one"])


def test_log_of_a_deleted_pod_is_reported_as_lost(jobs: Jobs) -> None:
    """A log that was not read before its pod was deleted is reported as lost."""
    plan = jobs.plan()
    follower = start_follower(jobs, plan)
    assert follower.complete.wait(10)
    assert follower.lost == f'all of it: pods "{plan.job}-worker-0" not found'


def test_end_of_a_deleted_pods_log_is_reported_as_missing(jobs: Jobs, log: FakeLog, proxy: FaultProxy) -> None:
    """If a pod is deleted while its log stream is broken, the last lines are reported as possibly lost."""
    log.append("one")
    plan = jobs.start(proxy, log=log.path)
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch) and read_texts(plan) == read_texts(plan, "worker-1") == ["one"])
        proxy.is_down = True
        proxy.cut()
        jobs.delete(plan)
        proxy.is_down = False
        until(lambda: not watch.poll(timeout_s=0.05) and "Pod/worker-0" not in watch.states)
        watch.drain_logs(idle_timeout_s=10.0)
        assert "possibly the last lines" in watch.lost_logs()["worker-0"]


# --- unusual lines


def test_unusual_lines_are_written_unchanged(jobs: Jobs, log: FakeLog) -> None:
    """Long lines, empty lines, and a progress bar's carriage returns are written to disk unchanged."""
    log.append("x" * 1_000_000, "", "10%\r20%\r30%", " leading and trailing ", "a | b", "", "ümläut")
    plan = jobs.start(log=log.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert read_texts(plan) == log.lines


def test_last_line_needs_no_end(jobs: Jobs, proxy: FaultProxy) -> None:
    """Bytes that are not UTF-8 are kept, and a last line without a newline as well."""
    plan = jobs.plan(proxy)
    proxy.respond("/log?", 200, b"2026-01-01T00:00:00Z \xff\xfe\n2026-01-01T00:00:00Z the end")
    assert start_follower(jobs, plan, proxy, has_terminated=True).complete.wait(10)
    content = Path(plan.nodes["worker-0"]).read_bytes()
    assert content == b"2026-01-01T00:00:00Z worker-0 | \xff\xfe\n2026-01-01T00:00:00Z worker-0 | the end\n"


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], check=False).returncode:
        pytest.skip("this machine does not let root mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_loses_lines_but_not_the_run(jobs: Jobs, log: FakeLog, small_disk: Path) -> None:
    """On a full disk lost lines are counted, no line is cut, and the watch continues to the job's end."""
    log.append(*MANY)
    plan = jobs.start(log=log.path).model_copy(update={"folder": str(small_disk / "attempt-1")})
    with ClusterWatch(plan) as watch:
        lost_lines = finish(watch, jobs, plan)
    written = read_texts(plan)
    assert lost_lines["worker-0"] == f"{len(MANY) - len(written)} lines: No space left on device"
    assert set(written) < set(MANY)
