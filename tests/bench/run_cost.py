"""What `torchyard run` costs for one job of N fake pods: requests, CPU, memory, threads, and its exit after the end.

`python -m tests.bench.run_cost [PODS ...]`. Each job is one Volcano job, whose pods run for a minute; the last row has
kubelets that refuse connections. Then a run is stopped whose pods take ten seconds to end, and forty start at once.
The API server itself counts the requests, which come from a separate user.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.cluster import PROFILE, count_requests, new_namespace
from tests.bench.many_runs import await_pods
from tests.cluster.e2e import cluster
from tests.cluster.fake import build_node
from tests.cluster.jobs import as_user, until
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster

POD_COUNTS = (2, 8, 64, 512)
PODS_PER_NODE = 100
RUN_S = 60.0  # seconds that the pods run
BENCH_LABEL = "torchyard.test/bench"
REFUSING_ADDRESS = "127.0.0.9"  # no process listens there
SAMPLE_INTERVAL_S = 0.1
STOP_S = 10.0  # seconds that the pods of a stopped run take to end
MAX_STOP_REQUESTS = 15
STARTS = 40  # runs that start at once
MAX_STARTS_S = 20.0
START_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 900.0
FINALIZER = "torchyard.test/hold"  # keeps a deleted pod until the benchmark removes it


class Limits(NamedTuple):
    """What the project promises: requests, seconds of CPU, MiB, threads, and seconds from the end until the exit."""

    requests: float | None = None
    cpu_s: float | None = None
    memory_mib: float | None = None
    threads: float | None = None
    exit_s: float | None = None


LIMITS = {
    (2, False): Limits(requests=60),
    (512, False): Limits(requests=1100, cpu_s=10, memory_mib=120, threads=20, exit_s=6),
    (512, True): Limits(requests=1500, exit_s=20),
}


class Cost(NamedTuple):
    """The cost of one run."""

    requests: float
    cpu_s: float
    memory_mib: float
    threads: int
    exit_s: float


def main(show: Any, pod_counts: tuple[int, ...] = POD_COUNTS) -> None:
    """Measure on the cluster that TORCHYARD_TEST_KUBECONFIG names, on that of `make cluster-up`, or on a new one."""
    print("  | pods | requests | CPU of the launcher | peak memory | threads | exit after the last pod's end |")
    print("  |---|---|---|---|---|---|")
    with cluster():
        cases = [(count, False) for count in pod_counts] + [(max(pod_counts), True)]
        costs = {case: measure(*case) for case in cases}
    for case, cost in costs.items():
        limits = LIMITS.get(case, Limits())
        title = f"run of {case[0]} pods{', logs refused' if case[1] else ''}:"
        show(f"{title} requests", cost.requests, limits.requests, "")
        show(f"{title} CPU of the launcher", cost.cpu_s, limits.cpu_s)
        show(f"{title} peak memory", cost.memory_mib, limits.memory_mib, "MiB")
        show(f"{title} threads at most", cost.threads, limits.threads, "")
        show(f"{title} exit after the last pod's end", cost.exit_s, limits.exit_s)
    with cluster():
        measure_stop(show)
        measure_starts(show)


def measure(pod_count: int, refuses_logs: bool) -> Cost:
    """Run one job and print its row of the table."""
    admin = Client(Cluster())
    with (
        new_namespace() as namespace,
        fake_nodes(admin, pod_count, refuses_logs) as node_name,
        tempfile.TemporaryDirectory() as folder,
    ):
        cost = run_job(admin, namespace, node_name, Path(folder), pod_count)
    title = f"{pod_count}{', kubelets refuse logs' if refuses_logs else ''}"
    figures = f"{cost.requests:.0f} | {cost.cpu_s:.1f} s | {cost.memory_mib:.0f} MiB | {cost.threads}"
    print(f"  | {title} | {figures} | {cost.exit_s:.1f} s |", flush=True)
    return cost


@contextmanager
def fake_nodes(admin: Client, pod_count: int, refuses_logs: bool) -> Iterator[str]:
    """Nodes with room for the pods, and the value of their label BENCH_LABEL."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    node_count = -(-pod_count // PODS_PER_NODE)
    for number in range(node_count):
        node = build_node(f"{name}-{number}", {BENCH_LABEL: name}, {}, 9000 + number)
        if refuses_logs:
            for address in node["status"]["addresses"]:
                address["address"] = REFUSING_ADDRESS
        taint = {"key": BENCH_LABEL, "effect": "NoSchedule"}
        admin.request("POST", "/api/v1/nodes", body=node | {"spec": {"taints": [taint]}})
    try:
        until(lambda: are_nodes_ready(admin, name))
        yield name
    finally:
        for number in range(node_count):
            admin.request("DELETE", f"/api/v1/nodes/{name}-{number}")


def are_nodes_ready(admin: Client, name: str) -> bool:
    """Whether the nodes of `fake_nodes` have only their own taint: a new node has another until its first heartbeat."""
    nodes = admin.list("v1", "Node", {"labelSelector": f"{BENCH_LABEL}={name}"}, everywhere=True)
    return all(len(node["spec"]["taints"]) == 1 for node in nodes)


def start_run(namespace: str, node_name: str, folder: Path, pod_count: int, run_s: float) -> "subprocess.Popen[bytes]":
    """Start `torchyard run`, with pods that run for some seconds; its output is in `folder`."""
    (folder / "many.yaml").write_text(PROFILE)
    overrides = as_user() | {
        "nodes": pod_count,
        "cluster.namespace": namespace,
        "pod.node_selector": {BENCH_LABEL: node_name},
        "pod.tolerations": [BENCH_LABEL],
        "pod.annotations": {"torchyard.test/end-after": str(run_s)},
    }
    command = [str(Path(sys.executable).with_name("torchyard")), "run", str(folder / "many.yaml")]
    for key, value in overrides.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    environment = os.environ | {"TORCHYARD_RUNS": str(folder / "runs")}
    with (folder / "output").open("w") as output:
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def run_job(admin: Client, namespace: str, node_name: str, folder: Path, pod_count: int) -> Cost:
    ping_as_user()
    count_before = count_requests(admin)
    used_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = start_run(namespace, node_name, folder, pod_count, RUN_S)
    with ThreadPoolExecutor(1) as pool:
        last_end = pool.submit(await_pods, namespace, "Succeeded", pod_count, RUN_TIMEOUT_S)
        threads, memory_mib = sample_process(child)
        exited_at = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert child.returncode == 0, (folder / "output").read_text()[-3000:]
    return Cost(
        requests=count_requests(admin) - count_before,
        cpu_s=used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime,
        memory_mib=memory_mib,
        threads=threads,
        exit_s=exited_at - last_end.result(),
    )


def ping_as_user() -> None:
    """Send one request as the benchmark's user: the server has no counter before that."""
    Client(Cluster(context=as_user().get("cluster.context"))).ping()


def measure_stop(show: Any) -> None:
    """The requests of a run of two pods from Ctrl-C to its exit, while its pods take `STOP_S` to end."""
    admin = Client(Cluster())
    with (
        new_namespace() as namespace,
        fake_nodes(admin, 2, refuses_logs=False) as node_name,
        tempfile.TemporaryDirectory() as folder,
    ):
        ping_as_user()
        child = start_run(namespace, node_name, Path(folder), 2, 600)
        await_pods(namespace, "Running", 2, START_TIMEOUT_S)
        set_finalizers(namespace, [FINALIZER])
        count_before = count_requests(admin)
        child.send_signal(signal.SIGINT)
        time.sleep(STOP_S)
        stopping_count = count_requests(admin) - count_before
        set_finalizers(namespace, None)
        child.wait()
        count = count_requests(admin) - count_before
    show(f"Ctrl-C, {STOP_S:.0f} s in which two pods end: requests", stopping_count, MAX_STOP_REQUESTS, "")
    show("Ctrl-C, until the exit: requests", count, None, "")


def set_finalizers(namespace: str, finalizers: list[str] | None) -> None:
    client = Client(Cluster(namespace=namespace))
    for pod in client.list("v1", "Pod"):
        client.patch(pod | {"apiVersion": "v1", "kind": "Pod"}, {"metadata": {"finalizers": finalizers}})


def measure_starts(show: Any) -> None:
    """Seconds until the pods of many runs of two pods run, if all runs start at the same moment."""
    admin = Client(Cluster())
    with (
        new_namespace() as namespace,
        fake_nodes(admin, 2 * STARTS, refuses_logs=False) as node_name,
        tempfile.TemporaryDirectory() as folder,
    ):
        folders = [Path(folder, str(number)) for number in range(STARTS)]
        for run_folder in folders:
            run_folder.mkdir()
        started_at = time.monotonic()
        children = [start_run(namespace, node_name, run_folder, 2, 600) for run_folder in folders]
        await_pods(namespace, "Running", 2 * STARTS, START_TIMEOUT_S)
        duration_s = time.monotonic() - started_at
        for child in children:
            child.send_signal(signal.SIGINT)
        for child in children:
            child.wait()
    show(f"{STARTS} runs of two pods at once: until all pods run", duration_s, MAX_STARTS_S)


def sample_process(child: "subprocess.Popen[bytes]") -> tuple[int, float]:
    """The most threads and the peak memory in MiB of a process, sampled until it ends."""
    threads = 0
    memory_mib = 0.0
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmHWM" in fields:
            threads = max(threads, int(fields["Threads"]))
            memory_mib = max(memory_mib, int(fields["VmHWM"].split()[0]) / 1024)
        time.sleep(SAMPLE_INTERVAL_S)
    child.wait()
    return threads, memory_mib


if __name__ == "__main__":
    from tests.bench.figures import show

    main(show, tuple(map(int, sys.argv[1:])) or POD_COUNTS)
