"""A job that the user wrote himself: launched as it is, with a name, labels and a run id of the run's own."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torchyard.diagnosis import pod_facts
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan, Watched, at
from torchyard.model.profile import Profile
from torchyard.model.requirements import Admitted, Advice, ClusterNeed, Right, Room, WritableFolder, plural
from torchyard.model.run import Run
from torchyard.pods import etcd, lease_record, requirements
from torchyard.pods import template as _pod
from torchyard.pods.lint import traps
from torchyard.pods.template import Part, Way

# What the manifest says itself; a profile that says it too would be believed and not obeyed.
ITS_OWN = (
    *("args", "env", "fabric", "hardware", "image", "mounts", "nodes", "options"),
    *("pod", "processes", "rendezvous", "resources", "setup"),
)
LONGEST = 63  # characters of a host name


class Frame(NamedTuple):
    """What the launcher knows about its kind of job."""

    api: str
    kind: str
    launcher: str
    watch: tuple[Watched, ...]
    requires: tuple[ClusterNeed, ...]
    parts: Callable[[Mapping[str, Any]], Iterable[Part]]  # of the object that makes the pods
    inside: Callable[[Mapping[str, Any]], Way] = lambda _: ()  # where the main object has that one, if it is another
    ports: bool = False  # the controller gives each pod a port
    suffixed: bool = False  # pods' names end in a random word


class Task(NamedTuple):
    """A part, its template, and the container in it that counts."""

    part: Part
    template: dict[str, Any]
    container: str


def plan(profile: Profile, run: Run, frame: Frame) -> ManifestPlan:
    """The manifest's job, after whatever else the file holds. ProfileError where it holds no such job, or two."""
    refuse(profile, run, frame)
    documents = [copy.deepcopy(each) for each in profile.manifest]
    main = next(each for each in documents if is_main(each, frame))
    companions = [each for each in documents if each is not main]
    for each in companions:
        mark(each, _companion_labels(each, profile, run))
    tasks = make_ours(main, profile, run, frame)
    first = tasks[0]
    return ManifestPlan(
        launcher=frame.launcher,
        cluster=profile.cluster.model_copy(update={"namespace": next(iter(namespaces(profile)), None)}),
        store=tuple(companions),
        objects=(main,),
        tasks={task.part.name: task.part.pods for task in tasks},
        suffixed=frame.suffixed,
        container=first.container,
        template=(*frame.inside(main), *first.part.template),
        inside=frame.inside(main),
        watch=frame.watch,
        ranks="teed" if "--tee" in str(first.template) else "logged",
        requires=(*frame.requires, *rights(companions), *requires(profile, run, main, frame)),
        **lease_record.of_run(profile, run),
    )


def make_ours(main: dict[str, Any], profile: Profile, run: Run, frame: Frame) -> list[Task]:
    """Give the job, what is inside it and its pods the run's name, labels and rendezvous id; the job's parts."""
    job = at(main, frame.inside(main))
    for each in (main, job):
        mark(each, _pod.labels(profile, run))
        each["metadata"]["name"] = run.job(profile)
    tasks = tasks_of(job, frame)
    for task in tasks:
        mark(task.template, _pod.labels(profile, run))
    elastic = job["spec"].get("elasticPolicy")
    if isinstance(elastic, dict) and not elastic.get("rdzvId"):
        elastic["rdzvId"] = run.job(profile)
    return tasks


def _companion_labels(document: Mapping[str, Any], profile: Profile, run: Run) -> dict[str, str]:
    """What makes a companion the run's, so that it goes with it; nothing does so to one that holds data."""
    if document.get("kind") not in etcd.WITH_DATA:
        return {**_pod.labels(profile, run), _pod.ROLE: "companion"}
    return {**_pod.labels(profile, run), _pod.ROLE: etcd.DISPOSABLE} if profile.on_companion_data == "delete" else {}


def holds_data(thing: Mapping[str, Any]) -> bool:
    """Whether deleting an object would lose data that no profile lets go."""
    return (
        thing.get("kind") in etcd.WITH_DATA
        and pod_facts.part(thing, "metadata", "labels").get(_pod.ROLE) != etcd.DISPOSABLE
    )


def requires(profile: Profile, run: Run, main: dict[str, Any], frame: Frame) -> tuple[ClusterNeed, ...]:
    """What any job needs, and what this one will do that its author does not expect."""
    job = at(main, frame.inside(main))
    return (
        WritableFolder(host="localhost", path=run.folder),
        *requirements.rights(profile),
        room(job, tasks_of(job, frame), frame),
        Admitted(what="objects"),
        Admitted(what="pod"),
        *(Advice(about="manifest", detail=trap) for trap in traps(profile.manifest)),
    )


def refuse(profile: Profile, run: Run, frame: Frame) -> None:
    """What the profile must not say beside a manifest, and what the manifest must hold."""
    twice = [key for key in ITS_OWN if key in profile.model_fields_set and getattr(profile, key)]
    found = [f"{key}: the manifest says it; change it there" for key in twice]
    jobs = sum(is_main(each, frame) for each in profile.manifest)
    if jobs != 1:
        kinds = ", ".join(str(each.get("kind")) for each in profile.manifest)
        found.append(f"manifest: holds {jobs} of kind {frame.kind} ({frame.api}), one is needed; it has: {kinds}")
    else:
        found += unfit(next(each for each in profile.manifest if is_main(each, frame)), run.job(profile), frame)
    places = namespaces(profile)
    if len(places) > 1:
        found.append(f"manifest: one namespace is needed for all of it; named are {', '.join(places)}")
    if found:
        raise ProfileError(profile.name, tuple(found))


def unfit(main: dict[str, Any], name: str, frame: Frame) -> list[str]:
    """Why the job cannot be launched as it is."""
    try:
        job = at(main, frame.inside(main))
        tasks = tasks_of(job, frame)
        room(job, tasks, frame)
        for thing in (job, *(task.template for task in tasks)):
            mark(dict(thing), {})
        pods = ["-".join((name, task.part.name, str(max(task.part.pods - 1, 0)))) for task in tasks]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        tasks, pods = [], []
    if not any(task.part.pods for task in tasks):
        return [f"manifest: the {main['kind']} has no task with replicas and a pod template with a named container"]
    containers = dict.fromkeys(task.container for task in tasks)
    found = [f"manifest: the pod {pod} has a name of over {LONGEST} characters" for pod in pods if len(pod) > LONGEST]
    if len(containers) > 1:
        found.append(f"manifest: the first containers of all tasks need one name; they are {', '.join(containers)}")
    return found


def is_main(document: dict[str, Any], frame: Frame) -> bool:
    return document.get("kind") == frame.kind and document.get("apiVersion") == frame.api


def namespaces(profile: Profile) -> list[str]:
    """Every namespace that the profile and the manifest name."""
    said = [profile.cluster.namespace, *((each["metadata"] or {}).get("namespace") for each in profile.manifest)]
    return list(dict.fromkeys(each for each in said if each))


def tasks_of(job: dict[str, Any], frame: Frame) -> list[Task]:
    """The parts of a job that have a pod template; the container that counts is the operator's own, else the first."""
    tasks = []
    for part in frame.parts(job):
        template = at(job, part.template)
        names = [str(each["name"]) for each in template["spec"]["containers"]]
        tasks.append(Task(part, template, "pytorch" if "pytorch" in names else names[0]))
    return tasks


def mark(thing: dict[str, Any], labels: dict[str, str]) -> None:
    """Add labels, where `metadata:` or `labels:` may stand empty."""
    metadata = thing.get("metadata") or {}
    thing["metadata"] = {**{key: value for key, value in metadata.items() if value is not None}}
    if joined := {**(metadata.get("labels") or {}), **labels}:
        thing["metadata"]["labels"] = joined


def rights(companions: list[dict[str, Any]]) -> list[Right]:
    kinds = sorted({resource_of(each) for each in companions})
    return [Right(verbs=etcd.VERBS, resource=kind) for kind in kinds]


def resource_of(document: dict[str, Any]) -> str:
    """The full name of a document's kind: networkpolicies.networking.k8s.io."""
    group = str(document["apiVersion"]).rpartition("/")[0]
    return plural(str(document["kind"])) + (f".{group}" if group else "")


def room(job: dict[str, Any], tasks: list[Task], frame: Frame) -> Room:
    """What the first part's pods need of the nodes. Under the host's network a port is the node's: one pod has it.

    As many pods as Volcano is told are waited for, else all.
    """
    spec = tasks[0].template["spec"]
    container = spec["containers"][0]
    asked = container.get("resources") or {}
    resources = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    return Room(
        pods=int(job["spec"].get("minAvailable") or 0) or sum(task.part.pods for task in tasks),
        labels=spec.get("nodeSelector") or {},
        tolerations=tuple(each.get("key") or "" for each in spec.get("tolerations") or ()),
        resources={name: str(amount) for name, amount in resources.items()},
        alone=bool(spec.get("hostNetwork") and (frame.ports or container.get("ports"))),
    )
