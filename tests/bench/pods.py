"""One job of a thousand fake pods, through every step: it starts and is watched, one pod fails, all is torn down.

`python -m tests.bench.pods [PODS [fake]]`. The launcher is a child process with at most 4,096 open files; the nodes for
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.cluster import PROFILE, new_namespace
from tests.cluster.e2e import cluster
from tests.cluster.fake import build_node
from tests.cluster.jobs import as_user, until
from tests.doubles.job_events import take_rows
from torchyard.cluster import create, diagnose
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.no_progress import explain_no_progress
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Handle, Row, Run
from torchyard.steps.collect import collect
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

PODS = 1000
PER_NODE = 100
FILES = 4096
AT_ONCE = 8  # threads that create warnings
SAMPLE_INTERVAL_S = 2.0  # between two measurements of the launcher, which cost it something themselves
PENDING_S = 25.0  # how long no pod starts, while there are warnings
TIMEOUT_S = 600.0
BENCH_LABEL = "torchyard.test/bench"
WARNING = "MountVolume.SetUp failed for volume data: timed out waiting for the condition"
Figures = dict[str, Any]


class RealCluster:
    """The cluster of KUBECONFIG, or a new one: its controllers create the pods, kwok runs them."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._name = f"bench-{uuid.uuid4().hex[:8]}"

    @contextlib.contextmanager
    def prepare(self) -> Iterator[dict[str, Any]]:
        """The keys that a profile needs to run here, on nodes created for it."""
        with cluster(), new_namespace() as namespace:
            admin = Client(Cluster())
            count = -(-self._pods // PER_NODE)
            for number in range(count):
                node_object = build_node(f"{self._name}-{number}", {BENCH_LABEL: self._name}, {}, 9000 + number)
                admin.request("POST", "/api/v1/nodes", body=node_object | {"spec": {"taints": [build_taint()]}})
            selectors = {"pod.node_selector": {BENCH_LABEL: self._name}, "pod.tolerations": [BENCH_LABEL]}
            annotations = {"torchyard.test/start-after": str(PENDING_S)}
            try:
                yield as_user() | selectors | {"cluster.namespace": namespace, "pod.annotations": annotations}
            finally:
                for number in range(count):
                    admin.request("DELETE", f"/api/v1/nodes/{self._name}-{number}")

    def create_pods(self, plan: ManifestPlan, client: Client) -> None:
        """Do nothing: the controllers create the pods."""

    def run_pods(self, plan: ManifestPlan, client: Client) -> None:
        """Do nothing: kwok runs the pods."""

    def fail_pod(self, plan: ManifestPlan, client: Client, name: str) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        client.patch(pod, {"metadata": {"annotations": {"torchyard.test/end-now": "1"}}})


def build_taint() -> dict[str, str]:
    return {"key": BENCH_LABEL, "effect": "NoSchedule"}


class FakeCluster:
    """The tests' API server in this process; pods are created and changed here, and their logs stay open."""

    def __init__(self, pods: int) -> None:
        from tests.doubles.fake_api import FakeApi, Handler

        self._stop_event = threading.Event()
        stop_event = self._stop_event
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z begins\n".encode()

        class HeldLogHandler(Handler):
            def serve(self) -> None:
                if "/log?" not in self.path:
                    super().serve()
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    stop_event.wait()
                    self.wfile.write(b"0\r\n\r\n")

        self._folder = tempfile.TemporaryDirectory()
        self._server = FakeApi(Path(self._folder.name), HeldLogHandler, max_waiting_connections=1024)

    @contextlib.contextmanager
    def prepare(self) -> Iterator[dict[str, Any]]:
        os.environ["KUBECONFIG"] = str(self._server.kubeconfig)
        try:
            yield {}
        finally:
            self._stop_event.set()
            self._server.close()

    def create_pods(self, plan: ManifestPlan, client: Client) -> None:
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        owner = client.get(plan.main["apiVersion"], plan.main["kind"], plan.job)
        assert owner
        owner_reference = {"apiVersion": plan.main["apiVersion"], "kind": plan.main["kind"], "name": plan.job}
        for name in plan.nodes:
            owners = [owner_reference | {"uid": owner["metadata"]["uid"], "controller": True}]
            metadata = {"name": f"{plan.job}-{name}", "labels": plan.labels, "ownerReferences": owners}
            spec = plan.pod["spec"] | {"nodeName": "node-1"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            self._server.put(pod | {"status": build_status("Pending", plan, waiting)})

    def run_pods(self, plan: ManifestPlan, client: Client) -> None:
        time.sleep(PENDING_S)
        for name in plan.nodes:
            self._set_status(
                client, f"{plan.job}-{name}", build_status("Running", plan, {"running": {"startedAt": format_now()}})
            )

    def fail_pod(self, plan: ManifestPlan, client: Client, name: str) -> None:
        ended = {
            "terminated": {"exitCode": 1, "reason": "Error", "finishedAt": format_now(), "startedAt": format_now()}
        }
        self._set_status(client, name, build_status("Failed", plan, ended))
        self._stop_event.set()

    def _set_status(self, client: Client, name: str, status: Figures) -> None:
        pod = client.get("v1", "Pod", name)
        assert pod
        self._server.put(pod | {"apiVersion": "v1", "kind": "Pod", "status": status})


def build_status(phase: str, plan: ManifestPlan, state: Figures) -> Figures:
    statuses = [{"name": find_main_container(plan.pod), "restartCount": 0, "state": state, "image": "none:1"}]
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_now()}
    return {"phase": phase, "conditions": [condition], "containerStatuses": statuses}


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- the job


def main(show: Any, pods: int = PODS, kind: str = "real") -> None:
    """Run the job, and show the launcher's time and memory."""
    test_cluster = (FakeCluster if kind == "fake" else RealCluster)(pods)
    with test_cluster.prepare() as overrides, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "many.yaml").write_text(PROFILE)
        target_overrides = {} if kind == "fake" else overrides
        base_overrides = {"nodes": pods, "pod.node_selector": {"type": "kwok"}, "deadlines.start": "30m"}
        handle = submit_job(folder, base_overrides | target_overrides)
        assert isinstance(handle.plan, ManifestPlan)
        try:
            measure(show, handle, test_cluster)
        finally:
            teardown(handle.plan)


def submit_job(folder: Path, overrides: dict[str, Any]) -> Handle:
    profile = load_profile(str(folder / "many.yaml"), overrides)
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / "run"))
    plan = create.resolve_cluster(registry.make_plan(profile, run))  # type: ignore[arg-type]
    return submit(plan, profile.deadlines)


def measure(show: Any, handle: Handle, test_cluster: RealCluster | FakeCluster) -> None:
    """Keep the pods pending with a warning each, run them, end one; show the costs that the launcher reports."""
    plan = handle.plan
    assert isinstance(plan, ManifestPlan)
    client = get_cluster_client(Cluster(namespace=plan.cluster.namespace))
    command = [sys.executable, __file__, "child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(handle.model_dump_json() + "\n")
        child.stdin.flush()
        test_cluster.create_pods(plan, client)
        pods = until(lambda: list_all_pods(client, plan), timeout_s=TIMEOUT_S)
        threading.Thread(target=test_cluster.run_pods, args=(plan, client), daemon=True).start()
        create_warnings(client, pods)
        lines = map(json.loads, child.stdout)
        running = next(lines)
        failed = next(iter(plan.nodes))
        watch_thread = threading.Thread(
            target=lambda: failure_times.append(find_failure_time(client, f"{plan.job}-{failed}"))
        )
        failure_times: list[float] = []
        watch_thread.start()
        time.sleep(3)
        test_cluster.fail_pod(plan, client, f"{plan.job}-{failed}")
        ended = next(lines)
        watch_thread.join()
        report(show, running | ended | {"end_delay_s": ended["detected_at"] - failure_times[0], "pods": len(pods)})
        removed = next(lines)
        show(f"{len(pods)} pods: teardown", removed["teardown"], None)
        show(f"{len(pods)} pods: teardown, left over", removed["left"], 0, "")


def report(show: Any, figures: Figures) -> None:
    title = f"{figures['pods']} pods:"
    show(f"{title} `explain`, median, of a processor", 1000 * figures["median_s"], None, "ms")
    show(f"{title} `explain`, worst, of a processor", 1000 * figures["worst_own_s"], 50, "ms")
    show(f"{title} `explain`, worst, with the garbage collector", 1000 * figures["worst_s"], None, "ms")
    show(f"{title} calls of `explain`", figures["explain_calls"], None, "times")
    show(f"{title} share of a processor while they are pending and start", figures["share"], None, "")
    show(f"{title} the end is detected after the API server reports it", figures["end_delay_s"], 1.0)
    show(f"{title} memory at most", figures["mib"], 500, "MB")
    show(f"{title} open files at most (of {FILES})", figures["files"], FILES - 1, "")
    show(f"{title} logs that are empty or incomplete", figures["lost"], 0, "")
    show(f"{title} from the end until all is stopped and collected", figures["closing"], None)
    print(f"  {figures['cause']}: {figures['sentence'][:150]}", *figures["lost_reasons"], sep="\n  ", flush=True)


def list_all_pods(client: Client, plan: ManifestPlan) -> list[Figures]:
    """The pods, once all of them exist; until then an empty list."""
    pods = client.list("v1", "Pod", {"labelSelector": f"torchyard/run={plan.labels['torchyard/run']}"})
    return pods if len(pods) >= len(plan.nodes) else []


def create_warnings(client: Client, pods: list[Figures]) -> None:
    """Create a warning about each pod, like that of a kubelet that waits for a volume."""

    def create_warning(pod: Figures) -> None:
        metadata = pod["metadata"]
        involved_object = {
            "kind": "Pod",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "namespace": client.namespace,
        }
        warning = {"reason": "FailedMount", "message": WARNING, "type": "Warning", "involvedObject": involved_object}
        times = {"firstTimestamp": format_now(), "lastTimestamp": format_now()}
        event_metadata = {"name": f"{metadata['name']}.{uuid.uuid4().hex[:8]}", "namespace": client.namespace}
        body = {"apiVersion": "v1", "kind": "Event", "metadata": event_metadata} | warning | times
        client.request("POST", client.path("v1", "Event"), body=body)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(create_warning, pods))


def find_failure_time(client: Client, name: str) -> float:
    """The time at which a bare watch of the pod receives its failure; AssertionError if the watch ends first."""
    query = {"watch": "1", "fieldSelector": f"metadata.name={name}"}
    for line in client.stream_lines(client.path("v1", "Pod"), query, TIMEOUT_S):
        if json.loads(line)["object"]["status"].get("phase") == "Failed":
            return time.time()
    raise AssertionError("the watch ended before the pod did")


# --- the child: the launcher


class TimedFunction:
    """A function that records the CPU seconds of its calls; `own_durations_s` are without those of garbage collection.

    A collection takes longer the larger the process is, and its time counts for whichever code allocates next.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.durations_s = [0.0]
        self.own_durations_s = [0.0]
        self._collection_started_at = self._collection_s = 0.0
        gc.callbacks.append(self._collect)

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_started_at = time.thread_time()
        else:
            self._collection_s += time.thread_time() - self._collection_started_at

    def __call__(self, *args: Any) -> Any:
        started_at = time.thread_time()
        self._collection_s = 0.0
        try:
            return self._function(*args)
        finally:
            self.durations_s.append(time.thread_time() - started_at)
            self.own_durations_s.append(self.durations_s[-1] - self._collection_s)


def run_child() -> None:
    """Wait for the job, then collect and tear down as a run does."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    handle = Handle.model_validate_json(sys.stdin.readline())
    timed = time_explanations()
    end_times = record_end_times()
    open_files: list[int] = []
    reported: list[bool] = []
    wall_before = time.monotonic()
    cpu_before = time.process_time()

    def on_poll(_: tuple[Row, ...]) -> None:
        if time.monotonic() < wall_before + SAMPLE_INTERVAL_S * (len(open_files) + 1):
            return
        open_files.append(len(os.listdir("/proc/self/fd")))
        started_count = sum(
            Path(path).exists() and Path(path).stat().st_size > 0 for path in handle.plan.nodes.values()
        )
        if not reported and started_count == len(handle.plan.nodes):
            reported.append(True)
            print_report(share=(time.process_time() - cpu_before) / (time.monotonic() - wall_before))

    outcome = wait(handle, take_rows(on_poll))
    collected = collect(handle.plan, outcome)
    failure = collected.failure
    assert failure
    empty = sum(log.lines == 0 for log in collected.logs)
    print_report(
        median_s=statistics.median(timed.durations_s),
        worst_own_s=max(timed.own_durations_s),
        worst_s=max(timed.durations_s),
        explain_calls=len(timed.durations_s) - 1,
        detected_at=end_times[0],
        files=max(open_files),
        mib=read_peak_mib(),
        lost=max(empty, len(outcome.lost)),
        closing=time.time() - end_times[0],
        cause=failure.cause,
        sentence=failure.sentence,
        lost_reasons=list(dict.fromkeys(outcome.lost.values())),
    )
    started_at = time.monotonic()
    leftovers = teardown(handle.plan)
    print_report(left=len(leftovers), teardown=time.monotonic() - started_at)


def time_explanations() -> TimedFunction:
    """Time every call of `explain_no_progress` in this process from now on."""
    assert vars(diagnose)["explain_no_progress"] is explain_no_progress
    timed = TimedFunction(explain_no_progress)
    vars(diagnose)["explain_no_progress"] = timed
    return timed


def record_end_times() -> list[float]:
    """The times at which watches of this process detect a job's end; the list grows from now on."""
    end_times: list[float] = []
    record_outcome = ClusterWatch.record_outcome

    def record_end_time(watch: ClusterWatch, outcome: Any) -> None:
        end_times.append(time.time())
        record_outcome(watch, outcome)

    type.__setattr__(ClusterWatch, "record_outcome", record_end_time)
    return end_times


def read_peak_mib() -> float:
    """The peak of this process's memory so far, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise LookupError("/proc/self/status has no VmHWM")


def print_report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child()
    else:
        from tests.bench.figures import show

        pod_count = int(sys.argv[1]) if sys.argv[1:] else PODS
        main(show, pod_count, sys.argv[2] if sys.argv[2:] else "real")
