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
        watch.changes(0.5)
"""


class Said:
    """The log of fake pods: a file that grows as the test writes."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()
        path.touch()

    def say(self, *lines: str, at: str = "") -> None:
        """Add lines, all of them stamped alike where a time is given."""
        self.lines += lines
        stamp = f"{at} stdout F " if at else ""
        with self.path.open("a") as file:
            file.write("".join(f"{stamp}{line}\n" for line in lines))


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path / "said.log")


def texts(plan: ManifestPlan, node: str = "worker-0") -> list[str]:
    """What the file of a node holds, without stamps."""
    path = Path(plan.nodes[node])
    lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
    return [line.partition(" | ")[2] for line in lines]


def finish(watch: ClusterWatch, jobs: Jobs, plan: ManifestPlan) -> dict[str, str]:
    """End the pods once they run, and wait until their logs are whole; what these lack."""
    until(lambda: running(watch))
    jobs.end(plan)
    until(lambda: not running(watch))
    watch.settle(20.0)
    return watch.lost()


def running(watch: ClusterWatch) -> bool:
    watch.changes(0.05)
    phases = [thing["status"]["phase"] for name, thing in watch.seen.items() if name.startswith("Pod/")]
    return phases == ["Running", "Running"]


# --- a connection that lasts, and one that does not


def test_long_logs_are_whole(jobs: Jobs, said: Said) -> None:
    """20,000 lines of each of two pods are on disk, in order, each with its stamp and its node."""
    said.say(*MANY)
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    for node, path in plan.nodes.items():
        assert texts(plan, node) == MANY
        lines = [read_line(line, node) for line in Path(path).read_text().splitlines()]
        assert all(line.at > 0 for line in lines)
        assert [line.at for line in lines] == sorted(line.at for line in lines)
        assert f" {node} | step 0\n" in Path(path).read_text()


def test_log_grows_with_the_pod(jobs: Jobs, said: Said) -> None:
    """What a pod says is on disk while it runs."""
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch))
        for number in range(3):
            said.say(f"epoch {number}")
            until(lambda: texts(plan) == texts(plan, "worker-1") == said.lines)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_cut_stream_goes_on_where_it_was(jobs: Jobs, said: Said, wire: Wire) -> None:
    """Connections cut in the middle of a log, and of a line, cost no line and double none."""
    said.say(*MANY)
    plan = jobs.start(wire, log=said.path)
    for node, size in (("worker-0", 100_001), ("worker-1", 500_003)):
        wire.cut_after(f"{node}/log?", size)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("sinceTime=") == 2)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == texts(plan, "worker-1") == MANY


def test_equal_stamps_are_told_apart(jobs: Jobs, said: Said, wire: Wire) -> None:
    """Thousands of lines of one second, many of them alike, are neither lost nor doubled where the stream is cut."""
    said.say(*(f"step {index // 3}" for index in range(9000)), at="2026-01-01T00:00:00.500000000Z")
    plan = jobs.start(wire, log=said.path)
    wire.cut_after("worker-0/log?", 200_000)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("sinceTime=") == 1)
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_api_server_away_costs_no_line(jobs: Jobs, said: Said, wire: Wire) -> None:
    """What pods said, and how they ended, while the API server was away is read when it is back."""
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
        watch.settle(20.0)
        assert (watch.lost(), texts(plan)) == ({}, ["before", "meanwhile"])


def test_silent_stream_is_opened_anew(jobs: Jobs, said: Said, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log's connection that carries nothing any more, and is not closed, is given up after a while."""
    monkeypatch.setattr(module, "_STREAM_SILENCE_S", 1.0)
    plan = jobs.start(wire, log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and wire.count("/log?"))
        wire.stall("/log?")
        said.say("still here")
        until(lambda: texts(plan) == ["still here"])


def test_stream_that_ends_too_soon_is_opened_again(jobs: Jobs, said: Said, wire: Wire) -> None:
    """The end of a stream is not the container's: a kubelet that restarts ends it well, in the middle of a line."""
    plan = jobs.start(wire, log=said.path)
    said.say("one", "two", at="2026-01-01T00:00:00.500000000Z")
    stamp = b"2026-01-01T00:00:00.500000000Z"
    wire.answer("worker-0/log?", 200, stamp + b" one\n" + stamp + b" tw")
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == ["one", "two"]


def test_kubelet_that_is_away_is_asked_again(jobs: Jobs, said: Said, wire: Wire) -> None:
    """Where the API server cannot reach a node's kubelet, the log is not given up."""
    said.say("one")
    plan = jobs.start(wire, log=said.path)
    wire.answer("worker-0/log?", 500, {"message": "dial tcp 10.0.0.1:10250: connect: connection refused"})
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) == ["one"])


# --- later processes


def test_killed_process_is_followed_by_another(jobs: Jobs, said: Said, tmp_path: Path) -> None:
    """A process that attaches after a SIGKILL goes on where the file ends: no line is lost, none is doubled."""
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
    """A second watch of one process finds the logs being read, and does not write every line a second time."""
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as first:
        until(lambda: running(first))
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch))
        said.say(*MANY[:50])
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_log_without_its_pod_is_not_whole(jobs: Jobs, said: Said) -> None:
    """Whoever attaches, and finds a log begun and its pod gone, does not call that log whole."""
    said.say("one")
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) and texts(plan, "worker-1"))
    jobs.delete(plan)
    with ClusterWatch(plan) as watch:
        assert watch.lost() == dict.fromkeys(("worker-0", "worker-1"), "perhaps its end: its pod is gone")


# --- pods that are not there yet, or not any more


def pump(jobs: Jobs, plan: ManifestPlan, wire: Wire | None = None, over: bool = False) -> LogFollower:
    """Follow worker-0, whatever the API server says of it."""
    server = Client(Cluster(namespace=jobs.namespace, context=CONTEXT if wire else None))
    made = LogFollower(server, LogSource(f"{plan.job}-worker-0", "", plan.container), Path(plan.nodes["worker-0"]))
    made.tell(over)
    return made


def test_container_that_is_still_made_is_asked_again(jobs: Jobs, said: Said) -> None:
    """The API server's 400 for a container that waits to start is no end."""
    said.say("one")
    plan = jobs.start(log=said.path, start_after=1)
    until(lambda: jobs.server.read("v1", "Pod", f"{plan.job}-worker-0"))
    pump(jobs, plan)
    until(lambda: texts(plan) == ["one"])


def test_pod_that_is_gone_has_lost_its_log(jobs: Jobs) -> None:
    """A log that nobody read in time is told as lost."""
    plan = jobs.plan()
    gone = pump(jobs, plan)
    assert gone.whole.wait(10)
    assert gone.lost == f'all of it: pods "{plan.job}-worker-0" not found'


def test_end_that_went_with_its_pod_is_told(jobs: Jobs, said: Said, wire: Wire) -> None:
    """A pod that goes while its log's stream is broken may have said more."""
    said.say("one")
    plan = jobs.start(wire, log=said.path)
    with ClusterWatch(plan) as watch:
        until(lambda: running(watch) and texts(plan) == texts(plan, "worker-1") == ["one"])
        wire.away = True
        wire.cut()
        jobs.delete(plan)
        wire.away = False
        until(lambda: not watch.changes(0.05) and "Pod/worker-0" not in watch.seen)
        watch.settle(10.0)
        assert "perhaps its end" in watch.lost()["worker-0"]


# --- lines that are no sentences


def test_strange_lines_are_kept_as_they_are(jobs: Jobs, said: Said) -> None:
    """Long lines, empty ones, and a progress bar's carriage returns go to disk unchanged."""
    said.say("x" * 1_000_000, "", "10%\r20%\r30%", " leading and trailing ", "a | b", "", "ümläut")
    plan = jobs.start(log=said.path)
    with ClusterWatch(plan) as watch:
        assert finish(watch, jobs, plan) == {}
    assert texts(plan) == said.lines


def test_last_line_needs_no_end(jobs: Jobs, wire: Wire) -> None:
    """Bytes that are no UTF-8 are kept, and so is a last line without its end."""
    plan = jobs.plan(wire)
    wire.answer("/log?", 200, b"2026-01-01T00:00:00Z \xff\xfe\n2026-01-01T00:00:00Z the end")
    assert pump(jobs, plan, wire, over=True).whole.wait(10)
    kept = Path(plan.nodes["worker-0"]).read_bytes()
    assert kept == b"2026-01-01T00:00:00Z worker-0 | \xff\xfe\n2026-01-01T00:00:00Z worker-0 | the end\n"


# --- a disk without room


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
    """What there is no room for is counted, no line is torn, and the watch goes on to the job's end."""
    said.say(*MANY)
    plan = jobs.start(log=said.path).model_copy(update={"folder": str(small_disk / "attempt-1")})
    with ClusterWatch(plan) as watch:
        lost = finish(watch, jobs, plan)
    got = texts(plan)
    assert lost["worker-0"] == f"{len(MANY) - len(got)} lines: No space left on device"
    assert set(got) < set(MANY)
