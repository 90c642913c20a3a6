"""Every line of every pod exactly once and in order: over broken connections, by later processes, on a full disk."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.wire import CONTEXT, Wire
from torchyard.cluster import log_follower as module
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.log_follower import LogFollower, LogSource
from torchyard.common.log_lines import read_line
from torchyard.kube.client import Client
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster

MANY = [f"step {index}" for index in range(20_000)]
WATCH = """
import sys
from pathlib import Path
from torchyard.model.plan import ManifestPlan
from torchyard.cluster.job_watch import ClusterWatch
with ClusterWatch(ManifestPlan.model_validate_json(Path(sys.argv[1]).read_text())) as watch:
    while True:
        watch.poll(0.5)
"""


class Said:
    """The log of fake pods: a file that grows as the test writes."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()
        path.touch()

    def say(self, *lines: str, at: str = "") -> None:
        """Append lines, all with the same time stamp if `at` is given."""
        self.lines += lines
        stamp = f"{at} stdout F " if at else ""
        with self.path.open("a") as file:
            file.write("".join(f"{stamp}{line}\n" for line in lines))


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path / "said.log")


def texts(plan: ManifestPlan, node: str = "worker-0") -> list[str]:
    """The lines in a node's log file, without stamps."""
    path = Path(plan.nodes[node])
    lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
    return [line.partition(" | ")[2] for line in lines]


def finish(watch: ClusterWatch, jobs: Jobs, plan: ManifestPlan) -> dict[str, str]:
    """End the pods once they run, wait until their logs are complete, and return what is lost of them."""
    until(lambda: running(watch))
    jobs.end(plan)
    until(lambda: not running(watch))
    watch.drain_logs(20.0)
    return watch.lost_logs()


def running(watch: ClusterWatch) -> bool:
    watch.poll(0.05)
    phases = [thing["status"]["phase"] for name, thing in watch.seen.items() if name.startswith("Pod/")]
    return phases == ["Running", "Running"]


# --- working and broken connections


def test_long_logs_are_whole(jobs: Jobs, said: Said) -> None:
    """20,000 lines from each of two pods are on disk, in order, each with its stamp and its node."""
    said.say(*MANY)
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    for node, path in plan.nodes.items():
        assert texts(plan, node) == MANY
        lines = [read_line(line, node) for line in Path(path).read_text().splitlines()]
        assert all(line.timestamp > 0 for line in lines)
        assert [line.timestamp for line in lines] == sorted(line.timestamp for line in lines)
        assert f" {node} | step 0\n" in Path(path).read_text()


def test_log_grows_with_the_pod(jobs: Jobs, said: Said) -> None:
    """A pod's lines are on disk while it runs."""
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch))
        for number in range(3):
            said.say(f"epoch {number}")
            until(lambda: texts(plan) == texts(plan, "worker-1") == said.lines)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_cut_stream_goes_on_where_it_was(jobs: Jobs, said: Said, wire: Wire) -> None:
    """A connection that is cut in the middle of a line neither loses nor duplicates a line."""
    said.say(*MANY)
    plan = jobs.start(wire, log=said.path)
    for node, size in (("worker-0", 100_001), ("worker-1", 500_003)):
        wire.cut_after(f"{node}/log?", size)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("sinceTime=") == 2)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == texts(plan, "worker-1") == MANY


def test_equal_stamps_are_told_apart(jobs: Jobs, said: Said, wire: Wire) -> None:
    """When a stream is cut, lines with equal stamps, many of them identical, are neither lost nor duplicated."""
    said.say(*(f"step {index // 3}" for index in range(9000)), at="2026-01-01T00:00:00.500000000Z")
    plan = jobs.start(wire, log=said.path)
    wire.cut_after("worker-0/log?", 200_000)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("sinceTime=") == 1)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_api_server_away_costs_no_line(jobs: Jobs, said: Said, wire: Wire) -> None:
    """After an outage of the API server, the lines and the ends of pods during the outage are read."""
    plan = jobs.start(wire, log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch))
        said.say("before")
        until(lambda: texts(plan) == ["before"])
        wire.away = True
        wire.cut()
        said.say("meanwhile")
        jobs.end(plan)
        time.sleep(3)
        wire.away = False
        until(lambda: not running(watch))
        watch.drain_logs(20.0)
        assert (watch.lost_logs(), texts(plan)) == ({}, ["before", "meanwhile"])


def test_silent_stream_is_opened_anew(jobs: Jobs, said: Said, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log stream that stalls without being closed is opened again after a timeout."""
    monkeypatch.setattr(module, "_STREAM_IDLE_TIMEOUT_S", 1.0)
    plan = jobs.start(wire, log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("/log?"))
        wire.stall("/log?")
        said.say("still here")
        until(lambda: texts(plan) == ["still here"])


def test_stream_that_ends_too_soon_is_opened_again(jobs: Jobs, said: Said, wire: Wire) -> None:
    """A stream that ends before its container is opened again: a restarting kubelet ends it cleanly within a line."""
    plan = jobs.start(wire, log=said.path)
    said.say("one", "two", at="2026-01-01T00:00:00.500000000Z")
    stamp = b"2026-01-01T00:00:00.500000000Z"
    wire.answer("worker-0/log?", 200, stamp + b" one\n" + stamp + b" tw")
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == ["one", "two"]


def test_kubelet_that_is_away_is_asked_again(jobs: Jobs, said: Said, wire: Wire) -> None:
    """If the API server cannot reach a node's kubelet, the log is requested again."""
    said.say("one")
    plan = jobs.start(wire, log=said.path)
    wire.answer("worker-0/log?", 500, {"message": "dial tcp 10.0.0.1:10250: connect: connection refused"})
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) == ["one"])


# --- later processes


def test_killed_process_is_followed_by_another(jobs: Jobs, said: Said, tmp_path: Path) -> None:
    """A process that attaches after a SIGKILL continues at the end of the file, without lost or duplicate lines."""
    said.say(*MANY)
    plan = jobs.start(log=said.path)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    first = subprocess.Popen([sys.executable, "-c", WATCH, str(tmp_path / "plan.json")])
    until(lambda: len(texts(plan)) > 2000)
    first.kill()
    first.wait()
    said.say("after the kill")
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == texts(plan, "worker-1") == said.lines


def test_two_watches_share_a_log(jobs: Jobs, said: Said) -> None:
    """Two watches in one process share the log followers, so that each line is written once."""
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as first:
        until(lambda: running(first))
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch))
        said.say(*MANY[:50])
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_log_without_its_pod_is_not_whole(jobs: Jobs, said: Said) -> None:
    """A process that attaches after the pod is gone reports that a log's end may be missing."""
    said.say("one")
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) and texts(plan, "worker-1"))
    jobs.delete(plan)
    with ClusterWatch(plan) as watch:
        assert watch.lost_logs() == dict.fromkeys(("worker-0", "worker-1"), "possibly the last lines: its pod is gone")


# --- pods that do not exist yet, or no longer


def pump(jobs: Jobs, plan: ManifestPlan, wire: Wire | None = None, over: bool = False) -> LogFollower:
    """Follow the log of worker-0, whether or not its pod exists."""
    server = Client(Cluster(namespace=jobs.namespace, context=CONTEXT if wire else None))
    made = LogFollower(server, LogSource(f"{plan.job}-worker-0", "", plan.container), Path(plan.nodes["worker-0"]))
    made.update_pod(has_terminated=over)
    return made


def test_container_that_is_still_made_is_asked_again(jobs: Jobs, said: Said) -> None:
    """The API server's 400 for a container that is waiting to start does not end the log."""
    said.say("one")
    plan = jobs.start(log=said.path, start_after=1)
    until(lambda: jobs.server.get("v1", "Pod", f"{plan.job}-worker-0"))
    pump(jobs, plan)
    until(lambda: texts(plan) == ["one"])


def test_pod_that_is_gone_has_lost_its_log(jobs: Jobs) -> None:
    """A log that was not read before its pod was gone is reported as lost."""
    plan = jobs.plan()
    gone = pump(jobs, plan)
    assert gone.complete.wait(10)
    assert gone.lost == f'all of it: pods "{plan.job}-worker-0" not found'


def test_end_that_went_with_its_pod_is_told(jobs: Jobs, said: Said, wire: Wire) -> None:
    """If a pod is deleted while its log stream is broken, the log's end is reported as perhaps lost."""
    said.say("one")
    plan = jobs.start(wire, log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) == texts(plan, "worker-1") == ["one"])
        wire.away = True
        wire.cut()
        jobs.delete(plan)
        wire.away = False
        until(lambda: not watch.poll(0.05) and "Pod/worker-0" not in watch.seen)
        watch.drain_logs(10.0)
        assert "possibly the last lines" in watch.lost_logs()["worker-0"]


# --- unusual lines


def test_strange_lines_are_kept_as_they_are(jobs: Jobs, said: Said) -> None:
    """Long lines, empty lines, and a progress bar's carriage returns are written to disk unchanged."""
    said.say("x" * 1_000_000, "", "10%\r20%\r30%", " leading and trailing ", "a | b", "", "ümläut")
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_last_line_needs_no_end(jobs: Jobs, wire: Wire) -> None:
    """Bytes that are not UTF-8 are kept, and so is a last line without a newline."""
    plan = jobs.plan(wire)
    wire.answer("/log?", 200, b"2026-01-01T00:00:00Z \xff\xfe\n2026-01-01T00:00:00Z the end")
    assert pump(jobs, plan, wire, over=True).complete.wait(10)
    kept = Path(plan.nodes["worker-0"]).read_bytes()
    assert kept == b"2026-01-01T00:00:00Z worker-0 | \xff\xfe\n2026-01-01T00:00:00Z worker-0 | the end\n"


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place], check=False).returncode:
        pytest.skip("this machine does not let root mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_full_disk_costs_lines_and_not_the_run(jobs: Jobs, said: Said, small_disk: Path) -> None:
    """On a full disk lost lines are counted, no line is cut, and the watch continues to the job's end."""
    said.say(*MANY)
    plan = jobs.start(log=said.path).model_copy(update={"folder": str(small_disk / "attempt-1")})
    with ClusterWatch(plan) as watch:
        lost = finish(watch, jobs, plan)
    got = texts(plan)
    assert lost["worker-0"] == f"{len(MANY) - len(got)} lines: No space left on device"
    assert set(got) < set(MANY)
