"""`make observe`: what the real controllers say of a job at each moment, recorded for whoever reads a status.

The cases stand in tests/observed/cases.yaml, each with the states that are true of it; the cluster is KUBECONFIG's.
A new version of a controller shows as a difference of tests/observed/.
"""

import copy
import json
import re
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tasks import objects
from tasks.cluster import Api, api
from tasks.errors import ClusterError
from tasks.launchers import registry
from tasks.model import ManifestPlan, Observation, Run
from tasks.profile import load_profile
from tasks.spec import Cluster
from tasks.watch import ClusterWatch

OBSERVED = Path(__file__).parent / "observed"
SPACE = f"torchyard-observe-{uuid.uuid4().hex[:6]}"
QUEUE = "scheduling.volcano.sh/v1beta1"
AT_ONCE = 3  # cases side by side: more would only make the cluster slow
BRIEF = 0.4  # seconds that two pods may be apart in what they do together
EPOCH = 1_700_000_000  # when every recorded job was made
CONTROLLERS = {
    "volcano": ("vc-controller-manager", "vc-scheduler"),
    "pytorchjob": ("training-operator", "vc-scheduler"),
}
FAKE = {
    "pod.node_selector": {"type": "kwok"},
    "pod.annotations": {"torchyard.test/start-after": "0.5"},
    "resources": {"gpus": "1", "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
}
Seen = Mapping[str, Mapping[str, Any]]
Case = dict[str, Any]


class Moment(NamedTuple):
    """What was seen from a time on, and the state that was read from it then."""

    at: float
    seen: Seen
    state: str


class Scene(NamedTuple):
    """Where a case is played."""

    server: Api
    plan: ManifestPlan

    def path(self, node: str) -> str:
        """A pod's path, or the job's."""
        job = (self.plan.main["apiVersion"], self.plan.main["kind"], self.plan.job)
        return self.server.path(*(job if node == "job" else ("v1", "Pod", f"{self.plan.job}-{node}")))


def main(names: Sequence[str]) -> int:
    """Record the cases with these names, or all; 1 where one went otherwise than its states say."""
    try:
        server = api(Cluster(namespace=SPACE))
        server.knock()
    except ClusterError as error:
        sys.exit(f"no cluster to observe: {error}")
    chosen = {name: case for name, case in cases().items() if not names or name in names}
    with namespace(server), ThreadPoolExecutor(AT_ONCE) as pool:
        good = list(pool.map(lambda name: record(server, name, chosen[name]), chosen))
    print(f"{sum(good)} of {len(good)} cases went as cases.yaml says")
    return 0 if all(good) else 1


def cases() -> dict[str, Case]:
    """Every case by launcher and name, such as volcano-ok."""
    read = yaml.safe_load((OBSERVED / "cases.yaml").read_text())
    return {f"{kind}-{name}": {"launcher": kind, **case} for kind in CONTROLLERS for name, case in read[kind].items()}


@contextmanager
def namespace(server: Api) -> Iterator[None]:
    """A namespace of our own, and a queue that is too small for any job."""
    things: list[tuple[str, str, Case]] = [
        ("v1", "Namespace", {}),
        (QUEUE, "Queue", {"spec": {"weight": 1, "capability": {"cpu": "100m"}}}),
    ]
    try:
        for version, kind, more in things:
            named = {"apiVersion": version, "kind": kind, "metadata": {"name": SPACE}, **more}
            server.ask("POST", server.path(version, kind, namespace=None), body=named)
        while not (server.read("v1", "ServiceAccount", "default") and is_open(server)):
            time.sleep(0.1)
        yield
    finally:
        for version, kind, _ in things:
            server.ask("DELETE", server.path(version, kind, SPACE, None))


def is_open(server: Api) -> bool:
    queue = server.read(QUEUE, "Queue", SPACE, None) or {}
    return bool(queue.get("status", {}).get("state") == "Open")


# --- one case


def record(server: Api, name: str, case: Case) -> bool:
    """Play a case, write down what was seen and say how it went; whether that is what its states say."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(name, case, folder)
        raw = play(Scene(server, plan), case)
    read = registry.launcher(case["launcher"]).read_status
    moments = [Moment(at, normal(seen, plan), read(Observation(seen, frozenset(), at)).state) for at, seen in raw]
    told = {"about": case["about"], "launcher": case["launcher"], "controllers": versions(server, case["launcher"])}
    made = {**told, "states": case["states"], "moments": list(written(clocked(settled(moments)), case))}
    (OBSERVED / f"{name}.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    went = [state for state, _ in groupby(moment["expected"] for moment in made["moments"])]
    wrong = "" if went == case["states"] else f"; cases.yaml says {' > '.join(case['states'])}"
    print(f"  {name:<34} {' > '.join(went)}{wrong}", flush=True)
    return not wrong


def play(scene: Scene, case: Case) -> list[tuple[float, Seen]]:
    """Submit the job and do what the case does to it; what was seen from when on, beginning with the job."""
    with Witness(scene.plan) as witness:
        objects.create(scene.plan)
        began = time.time()
        for act in [*case.get("acts", ()), {"at": case["lasts"]}]:
            while time.time() < began + act["at"]:
                witness.changes(0.05)
            for verb in VERBS.keys() & act.keys():
                VERBS[verb](scene, act[verb], act)
    objects.delete_job(scene.plan)
    kind = scene.plan.main["kind"]
    first = next(at for at, (_, seen) in enumerate(witness.kept) if f"{kind}/{scene.plan.job}" in seen)
    return witness.kept[first:]


class Witness(ClusterWatch):
    """A watch that keeps what was seen after every single change."""

    def __init__(self, plan: ManifestPlan) -> None:
        self.kept: list[tuple[float, Seen]] = []
        super().__init__(plan)

    def _take(self, kind: str, name: str, thing: Mapping[str, Any] | None) -> None:
        super()._take(kind, name, thing)
        self.kept.append((time.time(), dict(self.seen)))


def planned(name: str, case: Case, folder: str) -> ManifestPlan:
    """The shipped profile's plan, small, on fake nodes, and with what the case changes in its job."""
    asked = load_profile(f"yolov5-{case['launcher']}", {**FAKE, **case.get("profile", {})})
    pods = {f"torchyard.test/{key}": value for key, value in case.get("pods", {}).items()}
    pod = asked.pod.model_copy(update={"annotations": {**asked.pod.annotations, **pods}})
    options = {"queue": SPACE} if case.get("narrow") else asked.options
    profile = asked.model_copy(update={"pod": pod, "options": options, "cluster": Cluster(namespace=SPACE)})
    run = Run(id=f"{zlib.crc32(name.encode()):032x}", attempt=1, folder=folder)
    plan = registry.launcher(case["launcher"]).plan(profile, run)
    assert isinstance(plan, ManifestPlan)
    job = copy.deepcopy(plan.main)
    for path, value in case.get("job", {}).items():
        change(job, path.split("."), value)
    return plan.model_copy(update={"objects": (job,)})


def change(thing: Any, path: Sequence[str], value: Any) -> None:
    """Set what stands at a path: None takes it away, `{like: other, ...}` is its neighbour with some keys changed."""
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


# --- what is done to a job on its way


def end(scene: Scene, node: str, act: Case) -> None:
    """A pod's containers end with `exit`, for `reason`."""
    annotate(
        scene, node, {"end-now": str(act.get("exit", 0)), **({"reason": act["reason"]} if "reason" in act else {})}
    )


def annotate(scene: Scene, node: str, marks: Mapping[str, str]) -> None:
    marked = {f"torchyard.test/{key}": value for key, value in marks.items()}
    scene.server.ask("PATCH", scene.path(node), body={"metadata": {"annotations": marked}})


def hold(scene: Scene, node: str, act: Case) -> None:
    """A pod's containers wait for a reason; without one they go on."""
    annotate(scene, node, {"waiting": act.get("reason", ""), "exit": "7", "restarts": "1"})


def restarts(scene: Scene, node: str, act: Case) -> None:
    """A pod's container was made anew `times` in all."""
    pod = scene.server.ask("GET", scene.path(node))
    counted = [{**each, "restartCount": act["times"]} for each in pod["status"]["containerStatuses"]]
    scene.server.ask("PATCH", scene.path(node) + "/status", body={"status": {"containerStatuses": counted}})


def say(scene: Scene, node: str, act: Case) -> None:
    """A pod's status as its kubelet would write it."""
    scene.server.ask("PATCH", scene.path(node) + "/status", body={"status": act["status"]})


def delete(scene: Scene, node: str, act: Case) -> None:
    """A pod, or the job, is deleted by somebody else."""
    scene.server.ask("DELETE", scene.path(node), body={"propagationPolicy": act.get("how", "Background")})


def evict(scene: Scene, node: str, _: Case) -> None:
    """A pod is evicted as `kubectl drain` does it."""
    named = {"metadata": {"name": f"{scene.plan.job}-{node}"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", **named}
    scene.server.ask("POST", scene.path(node) + "/eviction", body=eviction)


def close(scene: Scene, *_: Any) -> None:
    """The narrow queue is closed."""
    queue = scene.server.read(QUEUE, "Queue", SPACE, None) or {}
    target = {"apiVersion": QUEUE, "kind": "Queue", "name": SPACE, "uid": queue["metadata"]["uid"], "controller": True}
    order = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": "CloseQueue", "target": target}
    named = {"metadata": {"generateName": "close-", "ownerReferences": [target]}}
    scene.server.ask("POST", scene.server.path(order["apiVersion"], "Command"), body={**order, **named})


VERBS: dict[str, Callable[[Scene, str, Case], None]] = {
    "end": end,
    "hold": hold,
    "restarts": restarts,
    "say": say,
    "delete": delete,
    "evict": evict,
    "close": close,
}


# --- what is kept of it

NODES = re.compile(r"\b(oke-bm-gpu-b4-8|cpu)-\d+\b")
UIDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TIMES = re.compile(r'(?<=")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z(?=")')
META = {"name", "creationTimestamp", "deletionTimestamp"}
NOISE = {"template", "runningDuration", "transitionID", "lastUpdateTime", "lastProbeTime", "observedGeneration"}
POD = {"phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses"}
CONTAINER = {"name", "restartCount", "state", "lastState"}


def normal(seen: Seen, plan: ManifestPlan) -> Seen:
    """What was seen, without what nobody reads and what differs from run to run; the times stay."""
    text = json.dumps({name: trimmed(thing) for name, thing in seen.items()}, sort_keys=True)
    text = UIDS.sub("UID", NODES.sub(r"\1-N", text.replace(plan.job, "job").replace(SPACE, "space")))
    found: Seen = json.loads(text)
    return found


def trimmed(thing: Mapping[str, Any]) -> Case:
    """An object by what its readers may use."""
    spec, status = thing.get("spec", {}), thing.get("status", {})
    if "containers" in spec:
        spec = {"containers": [{"name": spec["containers"][0]["name"]}], "restartPolicy": spec["restartPolicy"]}
        status = only(status, POD)
        lists = {key: [only(each, CONTAINER) for each in status[key]] for key in status if key.endswith("Statuses")}
        status |= lists
    metadata = only(thing["metadata"], META)
    return {"metadata": metadata, "spec": quiet(spec), "status": quiet(status)}


def only(thing: Mapping[str, Any], keys: set[str]) -> Case:
    return {key: thing[key] for key in thing.keys() & keys}


def quiet(thing: Any) -> Any:
    """Without noise; the history of a Volcano Job without its repetitions."""
    if isinstance(thing, list):
        kept = [quiet(each) for each in thing]
        phases = all(isinstance(each, dict) and each.keys() == {"status", "lastTransitionTime"} for each in kept)
        return [next(same) for _, same in groupby(kept, lambda each: each["status"])] if phases and kept else kept
    if isinstance(thing, dict):
        return {key: quiet(each) for key, each in thing.items() if key not in NOISE}
    return thing


def facts(thing: Mapping[str, Any]) -> str:
    """An object by its words, without times and counts."""
    status = thing["status"]
    true = [(each.get("type"), each.get("reason")) for each in status.get("conditions", ()) if each["status"] == "True"]
    waits = [each.get("reason") for each in status.get("conditions", ()) if each.get("type") == "PodScheduled"]
    containers = [
        (each["restartCount"], kind, state.get("reason"), state.get("exitCode"))
        for each in status.get("containerStatuses", ())
        for kind, state in each["state"].items()
    ]
    phase = status.get("phase") or status.get("state", {}).get("phase")
    return str((phase, sorted(map(str, true)), waits, containers, "deletionTimestamp" in thing["metadata"]))


def settled(moments: Sequence[Moment]) -> list[Moment]:
    """Moments that differ in words; of brief ones those alone that show another phase of the job, or another state."""
    jobs = [(moment.state, [facts(moment.seen[key]) for key in moment.seen if not key.startswith("Pod")]) for moment in moments]
    lasts = [later.at - moment.at for moment, later in zip(moments, moments[1:], strict=False)]
    kept: list[tuple[Any, Moment]] = []
    for at, moment in enumerate(moments):
        near = ([kept[-1][0]] if kept else []) + jobs[at + 1 : at + 2]
        if at < len(lasts) and lasts[at] < BRIEF and jobs[at] in near:
            continue
        kept.append((jobs[at], moment))
    words = [{key: facts(thing) for key, thing in moment.seen.items()} for _, moment in kept]
    return [moment for at, (_, moment) in enumerate(kept) if not at or words[at] != words[at - 1]]


def clocked(moments: Sequence[Moment]) -> list[Seen]:
    """The clock of a recording ticks once a moment, so that two recordings tell the same times."""
    texts = [json.dumps(moment.seen) for moment in moments]
    first: dict[str, int] = {}
    for tick, text in enumerate(texts):
        for stamp in TIMES.findall(text):
            first.setdefault(stamp, tick)
    least = len(texts)
    for stamp in sorted(first, reverse=True):
        least = first[stamp] = min(least, first[stamp])
    return [json.loads(TIMES.sub(lambda found: stamped(first[found[0]]), text)) for text in texts]


def stamped(tick: int) -> str:
    return datetime.fromtimestamp(EPOCH + tick, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def written(moments: Sequence[Seen], case: Case) -> Iterator[Case]:
    """Each moment by what has changed in it, with the state and reason that are read from it."""
    read = registry.launcher(case["launcher"]).read_status
    ticks = [(float(tick), seen) for tick, seen in enumerate(moments)]
    ticks += [(len(moments) + case["later"], moments[-1])] if "later" in case else []
    before: Seen = {}
    for tick, seen in ticks:
        status = read(Observation(seen, frozenset(), EPOCH + tick))
        news = {key: seen.get(key) for key in sorted(before.keys() | seen.keys()) if seen.get(key) != before.get(key)}
        yield {"after": tick, "expected": status.state, "reason": status.reason, "news": news}
        before = seen


def versions(server: Api, launcher: str) -> list[str]:
    """The images of the controllers, as their Deployments name them."""
    found = {
        each["image"].rpartition("/")[2]
        for deployment in server.items("apps/v1", "Deployment", everywhere=True)
        for each in deployment["spec"]["template"]["spec"]["containers"]
    }
    return sorted(image for image in found if image.partition(":")[0] in CONTROLLERS[launcher])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
