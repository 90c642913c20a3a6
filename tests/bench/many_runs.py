"""Two hundred runs in one process: memory, CPU and requests of each wait, and its delay after the job's end.

`python -m tests.bench.many_runs [WAITS [PODS]]`. The waits are threads of a child process, like the task runs of one
Prefect flow; each follows its own job, whose fake pods print one line and then nothing.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.cluster import PROFILE, count_requests, has_succeeded, new_namespace
from tests.cluster.e2e import cluster
from tests.cluster.jobs import as_user
from torchyard.cluster import create
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Handle, Run
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

WAITS = 200
PODS = 2
AT_ONCE = 8  # threads that submit, end or tear down jobs
START_TIMEOUT_S = 400.0  # until all pods run
SETTLE_S = 20.0  # after the start of waits, before their costs are measured
IDLE_S = 60.0  # of waiting, while CPU and requests are measured
END_TIMEOUT_S = 300.0
Figures = dict[str, Any]


def main(show: Any, wait_count: int = WAITS, pods: int = PODS) -> None:
    """Measure on the cluster that TORCHYARD_TEST_KUBECONFIG names, on that of `make cluster-up`, or on a new one."""
    with cluster(), new_namespace() as namespace, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "many.yaml").write_text(PROFILE)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            handles = list(pool.map(lambda _: submit_job(folder, namespace, pods), range(wait_count)))
        try:
            await_pods(namespace, "Running", wait_count * pods, START_TIMEOUT_S)
            measure(show, handles, folder)
        finally:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda handle: teardown(handle.plan), handles))


def submit_job(folder: Path, namespace: str, pods: int) -> Handle:
    """Submit a job whose pods run until an annotation ends them, and save its handle for the child."""
    profile = load_profile(str(folder / "many.yaml"), as_user() | {"cluster.namespace": namespace, "nodes": pods})
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / uuid.uuid4().hex))
    plan = create.resolve_cluster(registry.make_plan(profile, run))  # type: ignore[arg-type]
    handle = submit(plan, profile.deadlines)
    (folder / f"{plan.job}.handle").write_text(handle.model_dump_json())
    return handle


def await_pods(namespace: str, phase: str, count: int, timeout_s: float) -> float:
    """Wait until so many pods of a namespace are in a phase; return when that was, in monotonic seconds.

    It watches: a repeated list of the pods would take half a processor from what is measured. AssertionError after
    `timeout_s`.
    """
    client = get_cluster_client(Cluster(namespace=namespace))
    query = {"watch": "1", "fieldSelector": f"status.phase={phase}"}
    names: set[str] = set()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        names.clear()  # the server ends a watch now and then; the next one begins with all pods
        for line in client.stream_lines(client.path("v1", "Pod"), query, timeout_s):
            event = json.loads(line)
            name = event["object"]["metadata"]["name"]
            if event["type"] == "DELETED":
                names.discard(name)
            else:
                names.add(name)
            if len(names) == count:
                return time.monotonic()
    raise AssertionError(f"{len(names)} of {count} pods are {phase} after {timeout_s:g} s")


def measure(show: Any, handles: list[Handle], folder: Path) -> None:
    """Start the child, read its reports, count its requests, end the jobs and time the return of its waits."""
    admin = Client(Cluster())
    title = f"{len(handles)} waits:"
    count = len(handles)
    command = [sys.executable, __file__, "child", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        lines = child.stdout or ()
        first_costs = read_report(lines, "first")
        all_costs = read_report(lines, "full")
        show(
            f"{title} memory a wait, over the first one", (all_costs["rss"] - first_costs["rss"]) / (count - 1), 5, "MB"
        )
        show(f"{title} threads", all_costs["threads"], None, "")
        show(f"{title} connections and files", all_costs["files"], None, "")
        count_before = count_requests(admin)
        show(f"{title} share of a processor while nothing happens", read_report(lines, "quiet")["cpu"], 0.5, "")
        show(f"{title} requests a minute, a wait", (count_requests(admin) - count_before) * 60 / IDLE_S / count, 4, "")
        end_times = end_jobs([handle.plan for handle in handles if isinstance(handle.plan, ManifestPlan)])
        returned = {line["job"]: line["at"] for line in map(json.loads, lines)}
    delays_s = [returned[job] - ended_at for job, ended_at in end_times.items()]
    show(f"{title} last status to `wait` returning, median", statistics.median(delays_s), None)
    show(f"{title} last status to `wait` returning, worst", max(delays_s), None)
    show(f"{title} last status of all to the last return", max(returned.values()) - max(end_times.values()), None)


def read_report(lines: Any, phase: str) -> Figures:
    """The child's next report; AssertionError if it is of another phase."""
    report: Figures = json.loads(next(iter(lines)))
    assert report["phase"] == phase, report
    return report


def end_jobs(plans: list[ManifestPlan]) -> dict[str, float]:
    """End all jobs at once; return the time at which a bare watch received the last status of each."""
    end_times: dict[str, float] = {}
    watching = threading.Thread(target=partial(record_end_times, plans, end_times))
    watching.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(end_job, plans))
    watching.join()
    return end_times


def record_end_times(plans: list[ManifestPlan], end_times: dict[str, float]) -> None:
    client = Client(Cluster(namespace=plans[0].cluster.namespace))
    manifest = plans[0].main
    for line in client.stream_lines(
        client.path(manifest["apiVersion"], manifest["kind"]), {"watch": "1"}, END_TIMEOUT_S
    ):
        job = json.loads(line)["object"]
        if has_succeeded(job):
            end_times.setdefault(job["metadata"]["name"], time.time())
        if len(end_times) == len(plans):
            return


def end_job(plan: ManifestPlan) -> None:
    client = get_cluster_client(Cluster(namespace=plan.cluster.namespace))
    for node in plan.nodes:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{plan.job}-{node}"}}
        client.patch(pod, {"metadata": {"annotations": {"torchyard.test/end-now": "0"}}})


# --- the child


def run_child(folder: Path) -> None:
    """Wait for every job whose handle is in the folder, and report the costs."""
    handles = [Handle.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.handle"))]
    threads = [threading.Thread(target=partial(wait_and_report, handle)) for handle in handles]
    threads[0].start()
    time.sleep(SETTLE_S)
    print_report(phase="first", **measure_costs())
    for thread in threads[1:]:
        thread.start()
    time.sleep(SETTLE_S)
    print_report(phase="full", **measure_costs())
    cpu_before = time.process_time()
    time.sleep(IDLE_S)
    print_report(phase="quiet", cpu=(time.process_time() - cpu_before) / IDLE_S)
    for thread in threads:
        thread.join()


def wait_and_report(handle: Handle) -> None:
    outcome = wait(handle)
    print_report(job=handle.plan.job, at=time.time(), state=outcome.status.state)


def print_report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def measure_costs() -> Figures:
    """Resident memory in MB, threads and open files of this process."""
    pairs = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    status = {key: value.split() for key, value in pairs}
    files = len(os.listdir("/proc/self/fd"))
    return {"rss": int(status["VmRSS"][0]) / 1024, "threads": int(status["Threads"][0]), "files": files}


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child(Path(sys.argv[2]))
    else:
        from tests.bench.figures import show

        main(show, *map(int, sys.argv[1:]))
