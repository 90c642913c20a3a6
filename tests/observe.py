"""`make observe`: records what the real controllers say about a job at each moment, for the tests of status readers.

The cases are in tests/observed/cases.yaml, each with the states that are true of it; the cluster is that of
`make cluster-up`, a new one, or the one that TORCHYARD_TEST_KUBECONFIG names.
A new version of a controller shows up as a difference in tests/observed/.
"""

import copy
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
from tests.recording import OBSERVED, Case, Moment, Seen, clocked, newer, normal, plain, printed, settled, written
from torchyard.cluster import create
from torchyard.cluster import delete as removal
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.reflector import ObjectChange
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, get_nested
from torchyard.model.profile import Cluster
from torchyard.model.run import Observation, Run

SPACE = f"torchyard-observe-{uuid.uuid4().hex[:6]}"
QUEUE, BUS = "scheduling.volcano.sh/v1beta1", "bus.volcano.sh/v1alpha1"
AT_ONCE = 3  # cases in parallel: more would only make the cluster slow
CONTROLLERS = {
    "volcano": ("vc-controller-manager", "vc-scheduler"),
    "pytorchjob": ("training-operator", "vc-scheduler"),
    "appwrapper": ("appwrapper", "training-operator", "vc-scheduler"),
    "jobset": ("jobset",),
}
# The profile of a launcher's cases, and the overrides that adapt it to the launcher.
BASE: dict[str, tuple[str, Case]] = {
    "volcano": ("yolov5-volcano", {}),
    "pytorchjob": ("yolov5-pytorchjob", {}),
    "appwrapper": ("yolov5-pytorchjob", {"launcher": "appwrapper"}),
    "jobset": ("yolov5-jobset", {}),
}
FAKE = {
    "pod.node_selector": {"type": "kwok"},
    "pod.annotations": {"torchyard.test/start-after": "0.5"},
    "resources": {"gpus": "1", "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
}


class Scene(NamedTuple):
    """Where a case is played."""

    server: Client
    plan: ManifestPlan

    def path(self, node: str) -> str:
        """The API path of a pod, of the job, or of the job inside it."""
        if node in ("job", "inner"):
            job = get_nested(self.plan.main, self.plan.wrapped_path if node == "inner" else ())
            return self.server.path(job["apiVersion"], job["kind"], self.plan.job)
        return self.server.path("v1", "Pod", self.name(node))

    def name(self, node: str) -> str:
        """A pod's name, which may end in a random word."""
        which = ",".join(f"{key}={value}" for key, value in self.plan.labels.items())
        pods = (str(each["metadata"]["name"]) for each in self.server.list("v1", "Pod", {"labelSelector": which}))
        return next(name for name in pods if self.plan.node(name) == node)


def main(names: Sequence[str]) -> int:
    """Record the cases with these names, or all; return 1 if one did not go as its states say."""
    chosen = {name: case for name, case in cases().items() if not names or name in names}
    with cluster():
        try:
            server = get_cluster_client(Cluster(namespace=SPACE))
            server.ping()
        except ClusterError as error:
            sys.exit(f"no cluster to observe: {error}")
        with namespace(server), ThreadPoolExecutor(AT_ONCE) as pool:
            good = list(pool.map(lambda name: record(server, name, chosen[name]), chosen))
    print(f"{sum(good)} of {len(good)} cases went as cases.yaml says")
    return 0 if all(good) else 1


def cases() -> dict[str, Case]:
    """Every case by launcher and name, such as volcano-ok."""
    read = yaml.safe_load((OBSERVED / "cases.yaml").read_text())
    return {f"{kind}-{name}": {"launcher": kind, **case} for kind in CONTROLLERS for name, case in read[kind].items()}


@contextmanager
def namespace(server: Client) -> Iterator[None]:
    """A namespace of our own; it is deleted with its content and with the queues that have its name."""
    path = server.path("v1", "Namespace", namespace=None)
    server.request("POST", path, body={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    try:
        until(lambda: server.get("v1", "ServiceAccount", "default"))
        yield
    finally:
        server.request("DELETE", f"{path}/{SPACE}")
        for queue in server.list(QUEUE, "Queue", everywhere=True):
            if queue["metadata"]["name"].startswith(SPACE):
                server.request("DELETE", server.path(QUEUE, "Queue", queue["metadata"]["name"], None))


def narrow(server: Client, name: str, state: str) -> None:
    """Create a queue that is too small for any job, open or closed."""
    spec = {"weight": 1, "capability": {"cpu": "100m"}}
    queue = {"apiVersion": QUEUE, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    made = server.request("POST", server.path(QUEUE, "Queue", namespace=None), body=queue)
    until(lambda: state_of(server, name) == "Open")
    if state == "Closed":
        close(server, made)


def close(server: Client, queue: Case) -> None:
    """Close a queue as `vcctl queue operate --action close` does."""
    of = {key: queue["metadata"][key] for key in ("name", "uid")}
    target = {"apiVersion": QUEUE, "kind": "Queue", "controller": True, **of}
    metadata = {"generateName": "close-", "ownerReferences": [target]}
    order = {"apiVersion": BUS, "kind": "Command", "metadata": metadata, "action": "CloseQueue", "target": target}
    server.request("POST", server.path(BUS, "Command"), body=order)
    until(lambda: state_of(server, queue["metadata"]["name"]) in ("Closed", "Closing"))


def state_of(server: Client, queue: str) -> str:
    return str((server.get(QUEUE, "Queue", queue, None) or {}).get("status", {}).get("state"))


def until(true: Callable[[], object], patience: float = 20.0) -> None:
    ends = time.monotonic() + patience
    while not true():
        assert time.monotonic() < ends, "the cluster does not get there"
        time.sleep(0.1)


# --- one case


def record(server: Client, name: str, case: Case) -> bool:
    """Play a case, record what was seen, print how it went and return whether it went as its states say."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(name, case, folder)
        if "queue" in case:
            narrow(server, f"{SPACE}-{name}", case["queue"])
        raw = play(Scene(server, plan), case)
    names = {plan.job: "job", SPACE: "space"}
    said = events(server, plan.job, names)
    read = registry.load_launcher(case["launcher"]).read_status
    moments = [Moment(at, normal(seen, names), read(Observation(seen, frozenset(), at)).state) for at, seen in raw]
    told = {"about": case["about"], "launcher": case["launcher"], "controllers": versions(server, case["launcher"])}
    made = {**told, "states": case["states"], "events": said, "moments": list(written(clocked(settled(moments)), case))}
    file = OBSERVED / f"{name}.json"
    file.write_text(printed(newer(json.loads(file.read_text()), made) if file.exists() else made))
    went = [state for state, _ in groupby(moment["expected"] for moment in made["moments"])]
    wrong = "" if went == case["states"] else f"; cases.yaml says {' > '.join(case['states'])}"
    print(f"  {name:<34} {' > '.join(went)}{wrong}", flush=True)
    return not wrong


def play(scene: Scene, case: Case) -> list[tuple[float, Seen]]:
    """Submit the job and do what the case does to it; return what was seen and since when, from the job on."""
    with Witness(scene.plan) as witness:
        create.create_job(scene.plan)
        began = time.time()
        for act in [*case.get("acts", ()), {"at": case["lasts"]}]:
            while time.time() < began + act["at"]:
                witness.poll(0.05)
            for verb in VERBS.keys() & act.keys():
                VERBS[verb](scene, act[verb], act)
    removal.delete_object(scene.plan, scene.plan.main)
    kind = scene.plan.main["kind"]
    first = next(at for at, (_, seen) in enumerate(witness.kept) if f"{kind}/{scene.plan.job}" in seen)
    return witness.kept[first:]


def events(server: Client, job: str, names: Mapping[str, str]) -> list[str]:
    """The distinct events about a job's objects: `Pod/job-worker-0 Normal Scheduled: ...`."""
    found = [each for each in server.list("v1", "Event") if each["involvedObject"]["name"].startswith(job)]
    return sorted({plain(spoken(each), names) for each in found})


def spoken(event: Mapping[str, Any]) -> str:
    about = event["involvedObject"]
    return f"{about['kind']}/{about['name']} {event['type']} {event['reason']}: {event.get('message', '')}"


class Witness(ClusterWatch):
    """A watch that keeps what was seen after every single change."""

    def __init__(self, plan: ManifestPlan) -> None:
        self.kept: list[tuple[float, Seen]] = []
        super().__init__(plan)

    def _apply_change(self, change: ObjectChange) -> None:
        super()._apply_change(change)
        self.kept.append((time.time(), dict(self.seen)))


def planned(name: str, case: Case, folder: str) -> ManifestPlan:
    """The plan of the shipped profile, small, on fake nodes, and with the case's changes to its job."""
    shipped, own = BASE[case["launcher"]]
    asked = load_profile(shipped, {**FAKE, **own, **case.get("profile", {})})
    pods = {f"torchyard.test/{key}": value for key, value in case.get("pods", {}).items()}
    pod = asked.pod.model_copy(update={"annotations": {**asked.pod.annotations, **pods}})
    options = {"queue": f"{SPACE}-{name}"} if "queue" in case else asked.options
    profile = asked.model_copy(update={"pod": pod, "options": options, "cluster": Cluster(namespace=SPACE)})
    run = Run(id=f"{zlib.crc32(name.encode()):032x}", attempt=1, folder=folder)
    plan = registry.load_launcher(case["launcher"]).plan(profile, run)
    assert isinstance(plan, ManifestPlan)
    job = copy.deepcopy(plan.main)
    for path, value in case.get("job", {}).items():
        change(job, [step.replace("!", ".") for step in path.split(".")], value)
    return plan.model_copy(update={"objects": (job,)})


def change(thing: Any, path: Sequence[str], value: Any) -> None:
    """Set the value at a path: None removes it, `{like: other, ...}` copies its neighbour with some keys changed."""
    *way, last = path
    for step in way:
        thing = thing[int(step)] if isinstance(thing, list) else thing[step]
    if isinstance(value, dict) and "like" in value:
        model = copy.deepcopy(thing[value["like"]])
        value = {**model, **{key: each for key, each in value.items() if key != "like"}}
    if isinstance(thing, list):
        thing[int(last) :] = [value]
    elif value is None:
        thing.pop(last, None)
    else:
        thing[last] = value


# --- what a case does to its job


def end(scene: Scene, node: str, act: Case) -> None:
    """End a pod's containers with `exit`, for `reason`."""
    annotate(
        scene, node, {"end-now": str(act.get("exit", 0)), **({"reason": act["reason"]} if "reason" in act else {})}
    )


def annotate(scene: Scene, node: str, marks: Mapping[str, str]) -> None:
    marked = {f"torchyard.test/{key}": value for key, value in marks.items()}
    scene.server.request("PATCH", scene.path(node), body={"metadata": {"annotations": marked}})


def hold(scene: Scene, node: str, act: Case) -> None:
    """Make a pod's containers wait for a reason; without one they go on."""
    annotate(scene, node, {"waiting": act.get("reason", ""), "exit": "7", "restarts": "1"})


def restarts(scene: Scene, node: str, act: Case) -> None:
    """Set how often a pod's container has been restarted: `times` in all."""
    pod = scene.server.request("GET", scene.path(node))
    counted = [{**each, "restartCount": act["times"]} for each in pod["status"]["containerStatuses"]]
    scene.server.request("PATCH", scene.path(node) + "/status", body={"status": {"containerStatuses": counted}})


def say(scene: Scene, node: str, act: Case) -> None:
    """Write a pod's status as its kubelet would."""
    scene.server.request("PATCH", scene.path(node) + "/status", body={"status": act["status"]})


def delete(scene: Scene, node: str, act: Case) -> None:
    """Delete a pod or the job, as another user would."""
    scene.server.request("DELETE", scene.path(node), body={"propagationPolicy": act.get("how", "Background")})


def evict(scene: Scene, node: str, _: Case) -> None:
    """Evict a pod as `kubectl drain` does."""
    named = {"metadata": {"name": scene.name(node)}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", **named}
    scene.server.request("POST", scene.path(node) + "/eviction", body=eviction)


def shut(scene: Scene, queue: str, _: Case) -> None:
    """Close the narrow queue."""
    close(scene.server, scene.server.request("GET", scene.server.path(QUEUE, "Queue", f"{SPACE}-{queue}", None)))


VERBS: dict[str, Callable[[Scene, str, Case], None]] = {
    "end": end,
    "hold": hold,
    "restarts": restarts,
    "say": say,
    "delete": delete,
    "evict": evict,
    "close": shut,
}


def versions(server: Client, launcher: str) -> list[str]:
    """The images of the controllers, as their Deployments name them."""
    found = {
        each["image"].rpartition("/")[2]
        for deployment in server.list("apps/v1", "Deployment", everywhere=True)
        for each in deployment["spec"]["template"]["spec"]["containers"]
    }
    return sorted(image for image in found if image.partition(":")[0] in CONTROLLERS[launcher])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
