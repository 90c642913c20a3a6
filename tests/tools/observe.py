"""`make observe`: records the statuses that real controllers set during a job, for the tests of status readers.

The cases are in tests/observed/cases.yaml, each with its expected states; the cluster is that of
`make cluster-up`, a new one, or the one that TORCHYARD_TEST_KUBECONFIG names.
A new version of a controller shows up as a difference in tests/observed/.
"""

import copy
import itertools
import json
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import yaml

from tests.cluster.e2e import cluster
from tests.inputs.recording import (
    OBSERVED,
    Case,
    Moment,
    ObjectStates,
    build_moments,
    choose_recording,
    drop_brief_moments,
    format_recording,
    mask_names,
    normalize,
    replace_times,
)
from tests.support.waiting import wait_until
from torchyard.cluster import create
from torchyard.cluster import delete as removal
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.reflector import ObjectChange
from torchyard.diagnosis.pod_facts import get_creation_time
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Observation, Run

NAMESPACE = f"torchyard-observe-{uuid.uuid4().hex[:6]}"
QUEUE = "scheduling.volcano.sh/v1beta1"
BUS = "bus.volcano.sh/v1alpha1"
AT_ONCE = 3  # cases in parallel; more would only make the cluster slower
CONTROLLERS = {
    "volcano": ("vc-controller-manager", "vc-scheduler"),
    "pytorchjob": ("training-operator", "vc-scheduler"),
    "appwrapper": ("appwrapper", "training-operator", "vc-scheduler"),
    "jobset": ("jobset",),
    "job": (),  # Kubernetes' own, which has no Deployment
}
# The profile of a launcher's cases, and the overrides that adapt it to the launcher.
BASE_PROFILES: dict[str, tuple[str, Case]] = {
    "volcano": ("yolov5-volcano", {}),
    "pytorchjob": ("yolov5-pytorchjob", {}),
    "appwrapper": ("yolov5-pytorchjob", {"launcher": "appwrapper"}),
    "jobset": ("yolov5-jobset", {}),
    "job": ("yolov5-job", {}),
}
FAKE_NODE_KEYS = {
    "pod.node_selector": {"type": "kwok"},
    "pod.annotations": {"torchyard.test/start-after": "0.5"},
    "resources": {"gpus": "1", "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
}


class RunningCase(NamedTuple):
    """The job of a case, and the client of its cluster."""

    client: Client
    plan: ManifestPlan

    def get_path(self, node: str) -> str:
        """The API path of a pod, of the job, or of the job inside it."""
        if node in ("job", "inner"):
            job = self.plan.wrapped if node == "inner" and self.plan.wrapped else self.plan.main
            return self.client.path(job["apiVersion"], job["kind"], self.plan.job)
        return self.client.path("v1", "Pod", self.find_pod_name(node))

    def find_pod_name(self, node: str) -> str:
        """The name of a node's last pod, which may have a random suffix; LookupError if it does not exist."""
        selector = ",".join(f"{key}={value}" for key, value in self.plan.labels.items())
        pods = self.client.list("v1", "Pod", {"labelSelector": selector})
        for pod in sorted(pods, key=get_creation_time, reverse=True):
            name = str(pod["metadata"]["name"])
            if self.plan.node(name) == node:
                return name
        raise LookupError(f"{self.plan.job} has no pod for {node}")


def main(names: Sequence[str]) -> int:
    """Record the cases with these names, or all; return 1 if one did not reach its expected states."""
    selected = {name: case for name, case in load_cases().items() if not names or name in names}
    with cluster():
        try:
            client = get_cluster_client(Cluster(namespace=NAMESPACE))
            client.ping()
        except ClusterError as error:
            sys.exit(f"no cluster to observe: {error}")
        with create_namespace(client), ThreadPoolExecutor(AT_ONCE) as pool:
            as_expected = list(pool.map(lambda name: record_case(client, name, selected[name]), selected))
    print(f"{sum(as_expected)} of {len(as_expected)} cases had the states of cases.yaml")
    return 0 if all(as_expected) else 1


def load_cases() -> dict[str, Case]:
    """Every case by launcher and name, such as volcano-ok."""
    by_launcher = yaml.safe_load((OBSERVED / "cases.yaml").read_text())
    return {
        f"{kind}-{name}": {"launcher": kind} | case for kind in CONTROLLERS for name, case in by_launcher[kind].items()
    }


@contextmanager
def create_namespace(client: Client) -> Iterator[None]:
    """A new namespace; it is deleted at the end, and so are the queues whose names start with its name."""
    path = client.path("v1", "Namespace", namespace=None)
    client.request("POST", path, body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    try:
        wait_until(lambda: client.get("v1", "ServiceAccount", "default"))
        yield
    finally:
        client.request("DELETE", f"{path}/{NAMESPACE}")
        for queue in client.list(QUEUE, "Queue", everywhere=True):
            if queue["metadata"]["name"].startswith(NAMESPACE):
                client.request("DELETE", client.path(QUEUE, "Queue", queue["metadata"]["name"], None))


def create_narrow_queue(client: Client, name: str, state: str) -> None:
    """Create a queue that is too small for any job, open or closed."""
    spec = {"weight": 1, "capability": {"cpu": "100m"}}
    queue = {"apiVersion": QUEUE, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    created = client.request("POST", client.path(QUEUE, "Queue", namespace=None), body=queue)
    wait_until(lambda: get_queue_state(client, name) == "Open")
    if state == "Closed":
        close_queue(client, created)


def close_queue(client: Client, queue: Case) -> None:
    """Close a queue as `vcctl queue operate --action close` does."""
    identity = {key: queue["metadata"][key] for key in ("name", "uid")}
    target = {"apiVersion": QUEUE, "kind": "Queue", "controller": True} | identity
    metadata = {"generateName": "close-", "ownerReferences": [target]}
    command = {"apiVersion": BUS, "kind": "Command", "metadata": metadata, "action": "CloseQueue", "target": target}
    client.request("POST", client.path(BUS, "Command"), body=command)
    wait_until(lambda: get_queue_state(client, queue["metadata"]["name"]) in ("Closed", "Closing"))


def get_queue_state(client: Client, queue: str) -> str:
    return str((client.get(QUEUE, "Queue", queue, None) or {}).get("status", {}).get("state"))


# --- one case


def record_case(client: Client, name: str, case: Case) -> bool:
    """Run a case, write its recording, print its states, and return whether they are the expected ones."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_case(name, case, folder)
        if "queue" in case:
            create_narrow_queue(client, f"{NAMESPACE}-{name}", case["queue"])
        raw = play_case(RunningCase(client, plan), case)
    names = {plan.job: "job", NAMESPACE: "space"}
    event_lines = list_events(client, plan.job, names)
    read_status = registry.load_launcher(case["launcher"]).read_status
    moments = [
        Moment(timestamp, normalize(objects, names), read_status(Observation(objects, frozenset(), timestamp)).state)
        for timestamp, objects in raw
    ]
    header = {
        "about": case["about"],
        "launcher": case["launcher"],
        "controllers": list_versions(client, case["launcher"]),
    }
    recording = header | {
        "states": case["states"],
        "events": event_lines,
        "moments": list(build_moments(replace_times(drop_brief_moments(moments)), case)),
    }
    file = OBSERVED / f"{name}.json"
    file.write_text(
        format_recording(choose_recording(json.loads(file.read_text()), recording) if file.exists() else recording)
    )
    states = [state for state, _ in groupby(moment["expected"] for moment in recording["moments"])]
    mismatch = "" if states == case["states"] else f"; expected in cases.yaml: {' > '.join(case['states'])}"
    print(f"  {name:<34} {' > '.join(states)}{mismatch}", flush=True)
    return not mismatch


def play_case(case_run: RunningCase, case: Case) -> list[tuple[float, ObjectStates]]:
    """Submit the job and apply the case's actions; return the objects after each change, from the job's creation on."""
    with RecordingWatch(case_run.plan) as witness:
        create.create_job(case_run.plan)
        started_at = time.time()
        for action in [*case.get("acts", ()), {"at": case["lasts"]}]:
            while time.time() < started_at + action["at"]:
                witness.poll(timeout_s=0.05)
            for verb in VERBS.keys() & action.keys():
                VERBS[verb](case_run, action[verb], action)
    removal.delete_object(case_run.plan, case_run.plan.main)
    kind = case_run.plan.main["kind"]
    job_key = f"{kind}/{case_run.plan.job}"
    return list(itertools.dropwhile(lambda snapshot: job_key not in snapshot[1], witness.snapshots))


def list_events(client: Client, job: str, names: Mapping[str, str]) -> list[str]:
    """The distinct events about a job's objects: `Pod/job-worker-0 Normal Scheduled: ...`."""
    job_events = [event for event in client.list("v1", "Event") if event["involvedObject"]["name"].startswith(job)]
    return sorted({mask_names(format_event(event), names) for event in job_events})


def format_event(event: Mapping[str, Any]) -> str:
    involved_object = event["involvedObject"]
    subject = f"{involved_object['kind']}/{involved_object['name']}"
    return f"{subject} {event['type']} {event['reason']}: {event.get('message', '')}"


class RecordingWatch(ClusterWatch):
    """A watch that keeps a snapshot of all objects, with its time, after every change."""

    def __init__(self, plan: ManifestPlan) -> None:
        self.snapshots: list[tuple[float, ObjectStates]] = []
        super().__init__(plan)

    def _apply_change(self, change: ObjectChange) -> None:
        super()._apply_change(change)
        self.snapshots.append((time.time(), dict(self.states)))


def plan_case(name: str, case: Case, folder: str) -> ManifestPlan:
    """The plan of the shipped profile, small, on fake nodes, and with the case's changes to its job."""
    profile_name, launcher_overrides = BASE_PROFILES[case["launcher"]]
    base_profile = load_profile(profile_name, FAKE_NODE_KEYS | launcher_overrides | case.get("profile", {}))
    pod_annotations = {f"torchyard.test/{key}": value for key, value in case.get("pods", {}).items()}
    pod = base_profile.pod.model_copy(update={"annotations": base_profile.pod.annotations | pod_annotations})
    options = {"queue": f"{NAMESPACE}-{name}"} if "queue" in case else base_profile.options
    profile = base_profile.model_copy(update={"pod": pod, "options": options, "cluster": Cluster(namespace=NAMESPACE)})
    run = Run(id=f"{zlib.crc32(name.encode()):032x}", attempt=1, folder=folder)
    plan = registry.make_plan(profile, run)
    assert isinstance(plan, ManifestPlan)
    job = copy.deepcopy(plan.main)
    for path, value in case.get("job", {}).items():
        set_value(job, [step.replace("!", ".") for step in path.split(".")], value)
    return plan.model_copy(update={"objects": (job,)})


def set_value(document: Any, path: Sequence[str], value: Any) -> None:
    """Set the value at a path. None removes it; `{like: other, ...}` copies its neighbour with some keys changed."""
    *parents, last = path
    for step in parents:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if isinstance(value, dict) and "like" in value:
        original = copy.deepcopy(document[value["like"]])
        value = original | {key: new_value for key, new_value in value.items() if key != "like"}
    if isinstance(document, list):
        document[int(last) :] = [value]
    elif value is None:
        document.pop(last, None)
    else:
        document[last] = value


# --- the actions of cases


def end_pod(case_run: RunningCase, node: str, action: Case) -> None:
    """End a pod's containers with `exit`, for `reason`."""
    annotations = {"end-now": str(action.get("exit", 0))}
    if "reason" in action:
        annotations["reason"] = action["reason"]
    annotate(case_run, node, annotations)


def annotate(case_run: RunningCase, node: str, annotations: Mapping[str, str]) -> None:
    prefixed = {f"torchyard.test/{key}": value for key, value in annotations.items()}
    case_run.client.request("PATCH", case_run.get_path(node), body={"metadata": {"annotations": prefixed}})


def hold_pod(case_run: RunningCase, node: str, action: Case) -> None:
    """Make a pod's containers wait for a reason; without a reason they continue."""
    annotate(case_run, node, {"waiting": action.get("reason", ""), "exit": "7", "restarts": "1"})


def set_restarts(case_run: RunningCase, node: str, action: Case) -> None:
    """Set the restart count of a pod's containers to `times`."""
    pod = case_run.client.request("GET", case_run.get_path(node))
    container_statuses = [status | {"restartCount": action["times"]} for status in pod["status"]["containerStatuses"]]
    case_run.client.request(
        "PATCH", case_run.get_path(node) + "/status", body={"status": {"containerStatuses": container_statuses}}
    )


def set_status(case_run: RunningCase, node: str, action: Case) -> None:
    """Write a pod's status as its kubelet would."""
    case_run.client.request("PATCH", case_run.get_path(node) + "/status", body={"status": action["status"]})


def delete_object(case_run: RunningCase, node: str, action: Case) -> None:
    """Delete a pod or the job, as another user would."""
    case_run.client.request(
        "DELETE", case_run.get_path(node), body={"propagationPolicy": action.get("how", "Background")}
    )


def evict_pod(case_run: RunningCase, node: str, _: Case) -> None:
    """Evict a pod as `kubectl drain` does."""
    metadata = {"metadata": {"name": case_run.find_pod_name(node)}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction"} | metadata
    case_run.client.request("POST", case_run.get_path(node) + "/eviction", body=eviction)


def close_narrow_queue(case_run: RunningCase, queue: str, _: Case) -> None:
    """Close the narrow queue."""
    close_queue(
        case_run.client,
        case_run.client.request("GET", case_run.client.path(QUEUE, "Queue", f"{NAMESPACE}-{queue}", None)),
    )


VERBS: dict[str, Callable[[RunningCase, str, Case], None]] = {
    "end": end_pod,
    "hold": hold_pod,
    "restarts": set_restarts,
    "say": set_status,
    "delete": delete_object,
    "evict": evict_pod,
    "close": close_narrow_queue,
}


def list_versions(client: Client, launcher: str) -> list[str]:
    """The images of the controllers, as their Deployments name them."""
    images = {
        container["image"].rpartition("/")[2]
        for deployment in client.list("apps/v1", "Deployment", everywhere=True)
        for container in deployment["spec"]["template"]["spec"]["containers"]
    }
    return sorted(image for image in images if image.partition(":")[0] in CONTROLLERS[launcher])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
