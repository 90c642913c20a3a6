"""One job of a thousand fake pods through every step: it is started and watched, one pod fails, all is torn down.

`python tests/bench_pods.py [PODS [fake]]`. The launcher is a child process with at most 4,096 open files; the nodes for
the pods are created here and removed again. With `fake` the API server is the tests' own, for machines without a
cluster: it speaks plain HTTP, so the launcher needs less memory than it would with TLS.
"""

import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bench_cluster import PROFILE, new_namespace
from tests.cluster.e2e import cluster
from tests.cluster.fake import node
from tests.cluster.jobs import as_user, until
from torchyard.cluster import create, diagnose
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.no_progress import explain_no_progress
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Handle, Run
from torchyard.steps.collect import collect
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

PODS, PER_NODE, FILES, AT_ONCE = 1000, 100, 4096, 8
LOOK_S = 2.0  # between two measurements of the launcher, which cost it something themselves
PENDING_S, PATIENCE_S = 25.0, 600.0  # how long no pod starts, while there are warnings; the limit for everything else
OWN = "torchyard.test/bench"
WARNED = "MountVolume.SetUp failed for volume data: timed out waiting for the condition"
Said = dict[str, Any]


class Real:
    """The cluster of KUBECONFIG, or a new one: its controllers create the pods, kwok runs them."""

    def __init__(self, pods: int) -> None:
        self._pods, self._own = pods, f"bench-{uuid.uuid4().hex[:8]}"

    @contextlib.contextmanager
    def stage(self) -> Iterator[dict[str, Any]]:
        """The keys that a profile needs to run here, on nodes of its own."""
        with cluster(), new_namespace() as namespace:
            admin, count = Client(Cluster()), -(-self._pods // PER_NODE)
            for number in range(count):
                made = node(f"{self._own}-{number}", {OWN: self._own}, {}, 9000 + number)
                admin.request("POST", "/api/v1/nodes", body={**made, "spec": {"taints": [taint()]}})
            where = {"pod.node_selector": {OWN: self._own}, "pod.tolerations": [OWN]}
            notes = {"torchyard.test/start-after": str(PENDING_S)}
            try:
                yield {**as_user(), **where, "cluster.namespace": namespace, "pod.annotations": notes}
            finally:
                for number in range(count):
                    admin.request("DELETE", f"/api/v1/nodes/{self._own}-{number}")

    def start(self, plan: ManifestPlan, here: Client) -> None:
        """Do nothing: the controllers create the pods."""

    def run(self, plan: ManifestPlan, here: Client) -> None:
        """Do nothing: kwok runs the pods."""

    def fail(self, plan: ManifestPlan, here: Client, name: str) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        here.patch(pod, {"metadata": {"annotations": {"torchyard.test/end-now": "1"}}})


def taint() -> dict[str, str]:
    return {"key": OWN, "effect": "NoSchedule"}


class Fake:
    """The tests' API server in this process; pods are created and changed here, and their logs stay open."""

    def __init__(self, pods: int) -> None:
        from tests.fake_api import FakeApi, Handler

        self._over = threading.Event()
        over = self._over
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z begins\n".encode()

        class Held(Handler):
            def _serve(self) -> None:
                if "/log?" not in self.path:
                    super()._serve()
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    over.wait()
                    self.wfile.write(b"0\r\n\r\n")

        self._folder = tempfile.TemporaryDirectory()
        self._server = FakeApi(Path(self._folder.name))
        self._server._http.RequestHandlerClass = type("HeldBound", (Held,), {"server_of": self._server})
        self._server._http.request_queue_size = 1024
        self._server._http.socket.listen(1024)

    @contextlib.contextmanager
    def stage(self) -> Iterator[dict[str, Any]]:
        os.environ["KUBECONFIG"] = str(self._server.kubeconfig)
        try:
            yield {}
        finally:
            self._over.set()
            self._server.close()

    def start(self, plan: ManifestPlan, here: Client) -> None:
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        owner = here.get(plan.main["apiVersion"], plan.main["kind"], plan.job)
        assert owner
        refers = {"apiVersion": plan.main["apiVersion"], "kind": plan.main["kind"], "name": plan.job}
        for name in plan.nodes:
            owners = [{**refers, "uid": owner["metadata"]["uid"], "controller": True}]
            about = {"name": f"{plan.job}-{name}", "labels": plan.labels, "ownerReferences": owners}
            spec = {**plan.pod["spec"], "nodeName": "node-1"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
            self._server.put({**pod, "status": status("Pending", plan, waiting)})

    def run(self, plan: ManifestPlan, here: Client) -> None:
        time.sleep(PENDING_S)
        for name in plan.nodes:
            self._move(here, f"{plan.job}-{name}", status("Running", plan, {"running": {"startedAt": stamp()}}))

    def fail(self, plan: ManifestPlan, here: Client, name: str) -> None:
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": stamp(), "startedAt": stamp()}}
        self._move(here, name, status("Failed", plan, ended))
        self._over.set()

    def _move(self, here: Client, name: str, status: Said) -> None:
        found = here.get("v1", "Pod", name)
        assert found
        self._server.put({**found, "apiVersion": "v1", "kind": "Pod", "status": status})


def status(phase: str, plan: ManifestPlan, state: Said) -> Said:
    statuses = [{"name": plan.container, "restartCount": 0, "state": state, "image": "none:1"}]
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp()}
    return {"phase": phase, "conditions": [placed], "containerStatuses": statuses}


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- the job


def main(show: Any, pods: int = PODS, kind: str = "real") -> None:
    """Run the job, and show how much time and memory the launcher needed."""
    place = (Fake if kind == "fake" else Real)(pods)
    with place.stage() as overrides, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "many.yaml").write_text(PROFILE)
        own = {} if kind == "fake" else overrides
        plain = {"nodes": pods, "pod.node_selector": {"type": "kwok"}, "deadlines.start": "30m"}
        handle = started(folder, {**plain, **own})
        assert isinstance(handle.plan, ManifestPlan)
        try:
            measure(show, handle, place)
        finally:
            teardown(handle.plan)


def started(folder: Path, overrides: dict[str, Any]) -> Handle:
    profile = load_profile(str(folder / "many.yaml"), overrides)
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / "run"))
    plan = create.resolve_cluster(registry.load_launcher(profile.launcher).plan(profile, run))  # type: ignore[arg-type]
    return submit(plan, profile.deadlines)


def measure(show: Any, handle: Handle, place: Real | Fake) -> None:
    """Keep the pods pending with a warning each, run them, end one; show what the launcher reports about itself."""
    plan = handle.plan
    assert isinstance(plan, ManifestPlan)
    here, command = get_cluster_client(Cluster(namespace=plan.cluster.namespace)), [sys.executable, __file__, "child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(handle.model_dump_json() + "\n")
        child.stdin.flush()
        place.start(plan, here)
        pods = until(lambda: all_pods(here, plan), PATIENCE_S)
        threading.Thread(target=place.run, args=(plan, here), daemon=True).start()
        warn(here, pods)
        lines = map(json.loads, child.stdout)
        running = next(lines)
        failed = next(iter(plan.nodes))
        known = threading.Thread(target=lambda: seen.append(failed_at(here, f"{plan.job}-{failed}")))
        seen: list[float] = []
        known.start()
        time.sleep(3)
        place.fail(plan, here, f"{plan.job}-{failed}")
        ended = next(lines)
        known.join()
        report(show, {**running, **ended, "late": ended["seen"] - seen[0], "pods": len(pods)})
        removed = next(lines)
        show(f"{len(pods)} pods: teardown", removed["teardown"], None)
        show(f"{len(pods)} pods: teardown, left over", removed["left"], 0, "")


def report(show: Any, said: Said) -> None:
    head = f"{said['pods']} pods:"
    show(f"{head} `explain`, median, of a processor", 1000 * said["usual"], None, "ms")
    show(f"{head} `explain`, worst, of a processor", 1000 * said["own"], 50, "ms")
    show(f"{head} `explain`, worst, with the garbage collector", 1000 * said["explain"], None, "ms")
    show(f"{head} `explain` was asked", said["explained"], None, "times")
    show(f"{head} share of a processor while they stand and start", said["share"], None, "")
    show(f"{head} the end is seen after the API server knows it", said["late"], 1.0)
    show(f"{head} memory at most", said["mib"], 500, "MB")
    show(f"{head} open files at most (of {FILES})", said["files"], FILES - 1, "")
    show(f"{head} logs that never began or are not whole", said["lost"], 0, "")
    show(f"{head} from the end until all is stopped and collected", said["closing"], None)
    print(f"  {said['cause']}: {said['sentence'][:150]}", *said["why"], sep="\n  ", flush=True)


def all_pods(here: Client, plan: ManifestPlan) -> list[Said]:
    """The pods, once all of them exist."""
    found = here.list("v1", "Pod", {"labelSelector": f"torchyard/run={plan.labels['torchyard/run']}"})
    return found if len(found) >= len(plan.nodes) else []


def warn(here: Client, pods: list[Said]) -> None:
    """Create a warning about each pod, like that of a kubelet that waits for a volume."""

    def make(pod: Said) -> None:
        about = pod["metadata"]
        thing = {"kind": "Pod", "name": about["name"], "uid": about["uid"], "namespace": here.namespace}
        told = {"reason": "FailedMount", "message": WARNED, "type": "Warning", "involvedObject": thing}
        times = {"firstTimestamp": stamp(), "lastTimestamp": stamp()}
        name = {"name": f"{about['name']}.{uuid.uuid4().hex[:8]}", "namespace": here.namespace}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": name, **told, **times}
        here.request("POST", here.path("v1", "Event"), body=body)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(make, pods))


def failed_at(here: Client, name: str) -> float:
    """The time at which a bare watch of the pod sees that it failed."""
    query = {"watch": "1", "fieldSelector": f"metadata.name={name}"}
    for line in here.stream_lines(here.path("v1", "Pod"), query, PATIENCE_S):
        if json.loads(line)["object"]["status"].get("phase") == "Failed":
            return time.time()
    raise AssertionError("the watch ended before the pod did")


# --- the child: the launcher


class Timed:
    """A function that notes the CPU time of its calls, and how much of that was Python's garbage collector.

    A collection takes longer the larger the process is, and is charged to the code that allocates next.
    """

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work, self.took, self.own = work, [0.0], [0.0]
        self._began = self._collecting = 0.0
        gc.callbacks.append(self._collect)

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self._collecting += time.thread_time() - self._began

    def __call__(self, *given: Any) -> Any:
        began, self._collecting = time.thread_time(), 0.0
        try:
            return self._work(*given)
        finally:
            self.took.append(time.thread_time() - began)
            self.own.append(self.took[-1] - self._collecting)


def child() -> None:
    """Wait for the job, then collect and tear down as a run does."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    handle = Handle.model_validate_json(sys.stdin.readline())
    timed, ends = Timed(explain_no_progress), list[float]()
    assert vars(diagnose)["explain_no_progress"] is explain_no_progress
    vars(diagnose)["explain_no_progress"] = timed
    note = ClusterWatch.record_outcome

    def noted(watch: ClusterWatch, outcome: Any) -> None:
        ends.append(time.time())
        note(watch, outcome)

    type.__setattr__(ClusterWatch, "record_outcome", noted)
    files, said = list[int](), list[bool]()
    wall, cpu = time.monotonic(), time.process_time()

    def on_poll(_: list[str]) -> None:
        if time.monotonic() < wall + LOOK_S * (len(files) + 1):
            return
        files.append(len(os.listdir("/proc/self/fd")))
        begun = sum(Path(path).exists() and Path(path).stat().st_size > 0 for path in handle.plan.nodes.values())
        if not said and begun == len(handle.plan.nodes):
            said.append(True)
            tell(share=(time.process_time() - cpu) / (time.monotonic() - wall))

    outcome = wait(handle, on_poll)
    found = collect(handle.plan, outcome, "none")
    failure = found.failure
    assert failure
    empty = sum(log.lines == 0 for log in found.logs)
    tell(
        **{"usual": statistics.median(timed.took), "own": max(timed.own)},
        **{"explain": max(timed.took), "explained": len(timed.took) - 1, "seen": ends[0], "files": max(files)},
        **{"mib": peak(), "lost": max(empty, len(outcome.lost)), "closing": time.time() - ends[0]},
        **{"cause": failure.cause, "sentence": failure.sentence, "why": list(dict.fromkeys(outcome.lost.values()))},
    )
    began = time.monotonic()
    left = teardown(handle.plan)
    tell(left=len(left), teardown=time.monotonic() - began)


def peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child()
    else:
        from tests.bench import show as shown

        main(shown, int((*sys.argv[1:2], str(PODS))[0]), (*sys.argv[2:3], "real")[0])
