"""Every line of many pods, over streams that keep breaking: what is lost, and what it costs the client.

`python tests/bench_logs.py [PODS [SECONDS]]`. The client is a child process, so that its costs include neither the
writer of the lines nor the wire that is cut; between it and the wire is plain HTTP.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bench_cluster import PROFILE, new_namespace
from tests.cluster.e2e import cluster
from tests.cluster.jobs import Jobs
from tests.cluster.wire import Wire
from torchyard.cluster import create
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.kube.client import get_cluster_client
from torchyard.model.plan import ManifestPlan

PODS, RATE, SECONDS, CUT, TICK = 64, 200, 60, 5.0, 0.05
WORDS = b"epoch 3 of 100, loss 0.1234, 512 images/s, learning rate 0.001: step"


class Verdict(NamedTuple):
    """What became of the lines of one pod, or of all."""

    lines: int
    lost: int
    doubled: int
    out_of_order: int


def main(show: Any, pods: int = PODS, seconds: int = SECONDS) -> None:
    """Measure on the cluster of `make cluster-up`, on a new one, or on the one that is named."""
    with cluster(), new_namespace() as namespace, tempfile.TemporaryDirectory() as name, wired(Path(name)) as wire:
        folder = Path(name)
        (folder / "logs.yaml").write_text(PROFILE)
        jobs = Jobs(namespace, {"nodes": pods}, folder)
        plan = jobs.plan(wire, str(folder / "logs.yaml"), log=f"{folder}/{{pod}}.said")
        create.create_job(plan)
        try:
            said = watched(plan, jobs, wire, seconds)
        finally:
            jobs.clear()
        report(show, plan, said, seconds)
        show("streams opened anew", wire.count("sinceTime="), None, "")


@contextmanager
def wired(folder: Path) -> Iterator[Wire]:
    """A connection to the API server that can be cut; KUBECONFIG names it."""
    wire, before = Wire(folder), os.environ["KUBECONFIG"]
    os.environ["KUBECONFIG"] = f"{before}{os.pathsep}{wire.kubeconfig}"
    get_cluster_client.cache_clear()
    try:
        yield wire
    finally:
        wire.close()
        os.environ["KUBECONFIG"] = before
        get_cluster_client.cache_clear()


def watched(plan: ManifestPlan, jobs: Jobs, wire: Wire, seconds: int) -> dict[str, Any]:
    """Let the pods write, the child read and the wire break; return what the child reports about itself."""
    command = [sys.executable, __file__, "child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as child:  # type: ignore[call-overload]
        child.stdin.write(plan.model_dump_json() + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "all run\n"
        writer = threading.Thread(target=speak, args=(list(plan.nodes), jobs.folder / plan.job, seconds))
        writer.start()
        while writer.is_alive():
            writer.join(CUT)
            wire.cut("/log?")
        jobs.end(plan)
        child.stdin.close()
        found: dict[str, Any] = json.loads(child.stdout.readline())
    return found


def speak(nodes: list[str], job: Path, seconds: int) -> None:
    """Write every pod's lines at an even rate, stamped as a container runtime stamps them."""
    began, said = time.time(), 0
    with ExitStack() as stack:
        files = [stack.enter_context(Path(f"{job}-{node}.said").open("ab", buffering=0)) for node in nodes]
        while said < seconds * RATE:
            due = min(int((time.time() - began) * RATE), seconds * RATE)
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
            text = b"".join(
                b"%s%03dZ stdout F %s %d\n" % (stamp, each % 1000, WORDS, each) for each in range(said, due)
            )
            for file in files:
                file.write(text)
            said = due
            time.sleep(TICK)


def report(show: Any, plan: ManifestPlan, said: dict[str, Any], seconds: int) -> None:
    found = [judge(Path(path), seconds * RATE) for path in plan.nodes.values()]
    lines, lost, doubled, out_of_order = map(sum, zip(*found, strict=True))
    what = f"{len(plan.nodes)} pods x {RATE} lines/s, streams cut every {CUT:.0f} s"
    show(f"{what}: lines", lines, None, "")
    show("lines lost", lost, 0, "")
    show("lines doubled", doubled, 0, "")
    show("lines out of order", out_of_order, 0, "")
    show("logs called incomplete", len(said["lost"]), 0, "")
    show("the client's memory, over a watch without logs", said["mib"], 64, "MiB")
    show("the client's processors, while lines come", said["cores"], 0.5, "")


def judge(path: Path, count: int) -> Verdict:
    """Compare a pod's file with the lines that the pod wrote."""
    numbers = [int(line.rpartition(b" ")[2]) for line in path.read_bytes().splitlines()]
    backwards = sum(after < before for before, after in pairwise(numbers))
    known = set(numbers)
    return Verdict(len(numbers), len(set(range(count)) - known), len(numbers) - len(known), backwards)


# --- the client


def child() -> None:
    """Follow a plan's pods until they have ended."""
    plan = ManifestPlan.model_validate_json(sys.stdin.readline())
    with ClusterWatch(plan) as watch:
        while phases(watch) != ["Running"] * len(plan.nodes):
            watch.poll(0.2)
        before, cpu, began = rss(), time.process_time(), time.monotonic()
        print("all run", flush=True)
        until = threading.Thread(target=sys.stdin.read)
        until.start()
        while until.is_alive():
            watch.poll(0.2)
        cores = (time.process_time() - cpu) / (time.monotonic() - began)
        while "Running" in phases(watch):
            watch.poll(0.2)
        watch.drain_logs(60.0)
        print(json.dumps({"mib": rss("VmHWM") - before, "cores": cores, "lost": watch.lost_logs()}), flush=True)


def phases(watch: ClusterWatch) -> list[str]:
    return [thing["status"]["phase"] for name, thing in watch.seen.items() if name.startswith("Pod/")]


def rss(which: str = "VmRSS") -> float:
    """MiB of memory now, or the peak so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child()
    else:
        from tests.bench import show

        main(show, *map(int, sys.argv[1:]))
