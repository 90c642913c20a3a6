"""Two hundred runs in one process: what each wait costs in memory, CPU and requests, and how late it sees the end.

`python tests/bench_many.py [WAITS [PODS]]`. The waits are threads of a child process, like the task runs of one Prefect
flow; each follows a job of its own, whose fake pods print one line and then nothing.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bench_cluster import PROFILE, counted, has_succeeded, new_namespace
from tests.cluster.e2e import cluster
from tests.cluster.jobs import as_user, until
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

WAITS, PODS, AT_ONCE = 200, 2, 8
# Seconds: until all pods run; of a wait; measured; to the end.
RISE = 400.0
SETTLED = 20.0
QUIET = 60.0
PATIENCE = 300.0
Said = dict[str, Any]


def main(show: Any, waits: int = WAITS, pods: int = PODS) -> None:
    """Measure on the cluster of `make cluster-up`, on a new one, or on the one that is named."""
    with cluster(), new_namespace() as namespace, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "many.yaml").write_text(PROFILE)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            handles = list(pool.map(lambda _: started(folder, namespace, pods), range(waits)))
        try:
            until(lambda: running(namespace) == waits * pods, RISE)
            measure(show, handles, folder)
        finally:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda handle: teardown(handle.plan), handles))


def started(folder: Path, namespace: str, pods: int) -> Handle:
    """Submit a job that runs until its pods are told to end, and save its handle for the child."""
    profile = load_profile(str(folder / "many.yaml"), {**as_user(), "cluster.namespace": namespace, "nodes": pods})
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / uuid.uuid4().hex))
    plan = create.resolve_cluster(registry.load_launcher(profile.launcher).plan(profile, run))  # type: ignore[arg-type]
    handle = submit(plan, profile.deadlines)
    (folder / f"{plan.job}.handle").write_text(handle.model_dump_json())
    return handle


def running(namespace: str) -> int:
    """The number of running pods."""
    return len(
        get_cluster_client(Cluster(namespace=namespace)).list("v1", "Pod", {"fieldSelector": "status.phase=Running"})
    )


def measure(show: Any, handles: list[Handle], folder: Path) -> None:
    """Start the child, read its reports, count its requests, end the jobs and measure how late it sees that."""
    admin, head, count = Client(Cluster()), f"{len(handles)} waits:", len(handles)
    command = [sys.executable, __file__, "child", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        lines = child.stdout or ()
        first, full = said(lines, "first"), said(lines, "full")
        show(f"{head} memory a wait, over the first one", (full["rss"] - first["rss"]) / (count - 1), 5, "MB")
        show(f"{head} threads", full["threads"], None, "")
        show(f"{head} connections and files", full["files"], None, "")
        before = counted(admin)
        show(f"{head} share of a processor while nothing happens", said(lines, "quiet")["cpu"], 0.5, "")
        show(f"{head} requests a minute, a wait", (counted(admin) - before) * 60 / QUIET / count, 4, "")
        ended = ends([handle.plan for handle in handles if isinstance(handle.plan, ManifestPlan)])
        returned = {line["job"]: line["at"] for line in map(json.loads, lines)}
    late = [returned[job] - at for job, at in ended.items()]
    show(f"{head} last status to `wait` returning, median", statistics.median(late), None)
    show(f"{head} last status to `wait` returning, worst", max(late), None)
    show(f"{head} last status of all to the last return", max(returned.values()) - max(ended.values()), None)


def said(lines: Any, phase: str) -> Said:
    """The child's next report, which must be of this phase."""
    found: Said = json.loads(next(iter(lines)))
    assert found["phase"] == phase, found
    return found


def ends(plans: list[ManifestPlan]) -> dict[str, float]:
    """End all jobs at once; return when a bare watch of all of them saw each job's last status."""
    seen: dict[str, float] = {}
    watching = threading.Thread(target=partial(last_statuses, plans, seen))
    watching.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(end, plans))
    watching.join()
    return seen


def last_statuses(plans: list[ManifestPlan], seen: dict[str, float]) -> None:
    here, job = Client(Cluster(namespace=plans[0].cluster.namespace)), plans[0].main
    for line in here.stream_lines(here.path(job["apiVersion"], job["kind"]), {"watch": "1"}, PATIENCE):
        found = json.loads(line)["object"]
        if has_succeeded(found):
            seen.setdefault(found["metadata"]["name"], time.time())
        if len(seen) == len(plans):
            return


def end(plan: ManifestPlan) -> None:
    here = get_cluster_client(Cluster(namespace=plan.cluster.namespace))
    for node in plan.nodes:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{plan.job}-{node}"}}
        here.patch(pod, {"metadata": {"annotations": {"torchyard.test/end-now": "0"}}})


# --- the child


def child(folder: Path) -> None:
    """Wait for every job whose handle is in the folder; report what that costs."""
    handles = [Handle.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.handle"))]
    threads = [threading.Thread(target=partial(one, handle)) for handle in handles]
    threads[0].start()
    time.sleep(SETTLED)
    tell(phase="first", **costs())
    for thread in threads[1:]:
        thread.start()
    time.sleep(SETTLED)
    tell(phase="full", **costs())
    began = time.process_time()
    time.sleep(QUIET)
    tell(phase="quiet", cpu=(time.process_time() - began) / QUIET)
    for thread in threads:
        thread.join()


def one(handle: Handle) -> None:
    outcome = wait(handle)
    tell(job=handle.plan.job, at=time.time(), state=outcome.status.state)


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def costs() -> Said:
    """Resident memory in MB, threads and open files of this process."""
    pairs = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    status = {key: value.split() for key, value in pairs}
    files = len(os.listdir("/proc/self/fd"))
    return {"rss": int(status["VmRSS"][0]) / 1024, "threads": int(status["Threads"][0]), "files": files}


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]))
    else:
        from tests.bench import show as shown

        main(shown, *map(int, sys.argv[1:]))
