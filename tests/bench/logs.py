"""Every line of many pods, over streams that keep breaking: the lines that are lost, and the client's costs.

`python -m tests.bench.logs [PODS [SECONDS]]`. The client is a child process, so that its costs include neither the
writer of the lines nor the proxy that breaks the streams; between it and the proxy is plain HTTP.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.cluster import PROFILE, new_namespace
from tests.bench.memory import read_memory_mib
from tests.cluster.e2e import cluster
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.jobs import Jobs
from torchyard.cluster import create
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.kube.client import get_cluster_client
from torchyard.model.plan import ManifestPlan

PODS = 64
RATE = 200  # lines per second of each pod
SECONDS = 60
CUT_INTERVAL_S = 5.0
WRITE_INTERVAL_S = 0.05
LINE = b"epoch 3 of 100, loss 0.1234, 512 images/s, learning rate 0.001: step"


class Verdict(NamedTuple):
    """How many lines of one pod were received, lost, duplicated or received in the wrong order."""

    lines: int
    lost: int
    duplicated: int
    out_of_order: int


def main(show: Any, pods: int = PODS, seconds: int = SECONDS) -> None:
    """Measure on the cluster that TORCHYARD_TEST_KUBECONFIG names, on that of `make cluster-up`, or on a new one."""
    with (
        cluster(),
        new_namespace() as namespace,
        tempfile.TemporaryDirectory() as name,
        connect_proxy(Path(name)) as proxy,
    ):
        folder = Path(name)
        (folder / "logs.yaml").write_text(PROFILE)
        jobs = Jobs(namespace, {"nodes": pods}, folder)
        plan = jobs.plan(proxy, str(folder / "logs.yaml"), log=f"{folder}/{{pod}}.log")
        create.create_job(plan)
        try:
            figures = run_client(plan, jobs, proxy, seconds)
        finally:
            jobs.clear()
        report(show, plan, figures, seconds)
        show("streams opened anew", proxy.count_requests("sinceTime="), None, "")


@contextmanager
def connect_proxy(folder: Path) -> Iterator[FaultProxy]:
    """A proxy in front of the API server that can break connections; KUBECONFIG names it until the block ends."""
    proxy = FaultProxy(folder)
    original_kubeconfig = os.environ["KUBECONFIG"]
    os.environ["KUBECONFIG"] = f"{original_kubeconfig}{os.pathsep}{proxy.kubeconfig}"
    get_cluster_client.cache_clear()
    try:
        yield proxy
    finally:
        proxy.close()
        os.environ["KUBECONFIG"] = original_kubeconfig
        get_cluster_client.cache_clear()


def run_client(plan: ManifestPlan, jobs: Jobs, proxy: FaultProxy, seconds: int) -> dict[str, Any]:
    """Write the pods' lines, let the child read them and break its streams; return the child's report."""
    command = [sys.executable, __file__, "child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, **pipes) as child:  # type: ignore[call-overload]
        child.stdin.write(plan.model_dump_json() + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "all run\n"
        writer = threading.Thread(target=write_lines, args=(list(plan.nodes), jobs.folder / plan.job, seconds))
        writer.start()
        while writer.is_alive():
            writer.join(CUT_INTERVAL_S)
            proxy.cut("/log?")
        jobs.end(plan)
        child.stdin.close()
        figures: dict[str, Any] = json.loads(child.stdout.readline())
    return figures


def write_lines(nodes: list[str], job: Path, seconds: int) -> None:
    """Write every pod's lines at an even rate, stamped as a container runtime stamps them."""
    started_at = time.time()
    written = 0
    with ExitStack() as stack:
        files = [stack.enter_context(Path(f"{job}-{node}.log").open("ab", buffering=0)) for node in nodes]
        while written < seconds * RATE:
            due_count = min(int((time.time() - started_at) * RATE), seconds * RATE)
            timestamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
            chunk = b"".join(
                b"%s%03dZ stdout F %s %d\n" % (timestamp, number % 1000, LINE, number)
                for number in range(written, due_count)
            )
            for file in files:
                file.write(chunk)
            written = due_count
            time.sleep(WRITE_INTERVAL_S)


def report(show: Any, plan: ManifestPlan, figures: dict[str, Any], seconds: int) -> None:
    verdicts = [compare_log(Path(path), seconds * RATE) for path in plan.nodes.values()]
    lines, lost_count, duplicated, out_of_order = map(sum, zip(*verdicts, strict=True))
    title = f"{len(plan.nodes)} pods x {RATE} lines/s, streams cut every {CUT_INTERVAL_S:.0f} s"
    show(f"{title}: lines", lines, None, "")
    show("lines lost", lost_count, 0, "")
    show("lines duplicated", duplicated, 0, "")
    show("lines out of order", out_of_order, 0, "")
    show("logs reported as incomplete", len(figures["lost"]), 0, "")
    show("the client's memory in addition to that of a watch without logs", figures["mib"], 64, "MiB")
    show("the client's processors while lines arrive", figures["cores"], 0.5, "")


def compare_log(path: Path, count: int) -> Verdict:
    """Compare a pod's file with the lines that the pod wrote."""
    numbers = [int(line.rpartition(b" ")[2]) for line in path.read_bytes().splitlines()]
    backwards = sum(later < earlier for earlier, later in pairwise(numbers))
    unique = set(numbers)
    return Verdict(len(numbers), len(set(range(count)) - unique), len(numbers) - len(unique), backwards)


# --- the client


def run_child() -> None:
    """Follow a plan's pods until they have ended."""
    plan = ManifestPlan.model_validate_json(sys.stdin.readline())
    with ClusterWatch(plan) as watch:
        while list_phases(watch) != ["Running"] * len(plan.nodes):
            watch.poll(timeout_s=0.2)
        rss_before = read_memory_mib("VmRSS")
        cpu_before = time.process_time()
        started_at = time.monotonic()
        print("all run", flush=True)
        end_reader = threading.Thread(target=sys.stdin.read)
        end_reader.start()
        while end_reader.is_alive():
            watch.poll(timeout_s=0.2)
        cores = (time.process_time() - cpu_before) / (time.monotonic() - started_at)
        while "Running" in list_phases(watch):
            watch.poll(timeout_s=0.2)
        watch.drain_logs(idle_timeout_s=60.0)
        print(
            json.dumps({"mib": read_memory_mib("VmHWM") - rss_before, "cores": cores, "lost": watch.lost_logs()}),
            flush=True,
        )


def list_phases(watch: ClusterWatch) -> list[str]:
    return [obj["status"]["phase"] for name, obj in watch.states.items() if name.startswith("Pod/")]


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child()
    else:
        from tests.bench.figures import show

        main(show, *map(int, sys.argv[1:]))
