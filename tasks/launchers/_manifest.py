"""A job that the user wrote himself: launched as it is, with a name, labels and a run id of the run's own."""

import copy
from typing import Any, NamedTuple

from tasks.errors import ProfileError
from tasks.launchers import _pod
from tasks.launchers._traps import traps
from tasks.model import ManifestPlan, Run, Watched
from tasks.needs import Admitted, Advice, ClusterNeed, Right, Room, WritableFolder
from tasks.spec import Profile

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


def plan(profile: Profile, run: Run, frame: Frame) -> ManifestPlan:
    """The manifest's job, after whatever else the file holds. ProfileError where it holds no such job, or two."""
    refuse(profile, run, frame)
    documents = [copy.deepcopy(each) for each in profile.manifest]
    main = next(each for each in documents if is_main(each, frame))
    companions = [each for each in documents if each is not main]
    for each in companions:
        mark(each, {**_pod.labels(profile, run), _pod.ROLE: "companion"})
    mark(main, _pod.labels(profile, run))
    main["metadata"]["name"] = run.job(profile)
    tasks = tasks_of(main)
    for task in tasks.values():
        mark(task.template, _pod.labels(profile, run))
    elastic = main["spec"].get("elasticPolicy")
    if isinstance(elastic, dict) and not elastic.get("rdzvId"):
        elastic["rdzvId"] = run.job(profile)
    first = next(iter(tasks.values()))
    return ManifestPlan(
        launcher=frame.launcher,
        job=run.job(profile),
        labels=_pod.labels(profile, run),
        cluster=profile.cluster.model_copy(update={"namespace": next(iter(namespaces(profile)), None)}),
        store=tuple(companions),
        objects=(main,),
        tasks={name: task.pods for name, task in tasks.items()},
        container=first.container,
        template=template_at(main),
        watch=frame.watch,
        teed="--tee" in str(first.template),
        folder=f"{run.folder}/attempt-{run.attempt}",
        requires=(
            *frame.requires,
            *rights(companions),
            WritableFolder(host="localhost", path=run.folder),
            room(main, first.template),
            Admitted(what="objects"),
            Admitted(what="pod"),
            *(Advice(about="manifest", detail=trap) for trap in traps(profile.manifest)),
        ),
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
        found += unfit(next(each for each in profile.manifest if is_main(each, frame)), run.job(profile))
    places = namespaces(profile)
    if len(places) > 1:
        found.append(f"manifest: one namespace is needed for all of it; named are {', '.join(places)}")
    if found:
        raise ProfileError(profile.name, tuple(found))


def unfit(job: dict[str, Any], name: str) -> list[str]:
    """Why the job cannot be launched as it is."""
    try:
        tasks = tasks_of(job)
        for task in tasks.values():
            room(job, task.template)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        tasks = {}
    if not any(task.pods for task in tasks.values()):
        return [f"manifest: the {job['kind']} has no task with replicas and a pod template with a named container"]
    containers = dict.fromkeys(task.container for task in tasks.values())
    pods = [f"{name}-{each}-{max(task.pods - 1, 0)}" for each, task in tasks.items()]
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


class Task(NamedTuple):
    """Pods of one template."""

    pods: int
    template: dict[str, Any]
    container: str


def tasks_of(job: dict[str, Any]) -> dict[str, Task]:
    """The parts of a job that have a pod template, by the name that their pods carry."""
    spec = job["spec"]
    if "pytorchReplicaSpecs" in spec:
        return {name.lower(): read_task(part, 1) for name, part in spec["pytorchReplicaSpecs"].items()}
    return {part.get("name") or f"default{index}": read_task(part, 0) for index, part in enumerate(spec["tasks"])}


def read_task(part: dict[str, Any], default: int) -> Task:
    """Its pods, and the container that counts: the operator's own, `pytorch`, else the first."""
    names = [str(each["name"]) for each in part["template"]["spec"]["containers"]]
    pods = default if part.get("replicas") is None else int(part["replicas"])
    return Task(pods, part["template"], "pytorch" if "pytorch" in names else names[0])


def template_at(job: dict[str, Any]) -> tuple[str | int, ...]:
    """Where the template of the first pod stands."""
    specs = job["spec"].get("pytorchReplicaSpecs")
    return ("spec", "pytorchReplicaSpecs", next(iter(specs)), "template") if specs else ("spec", "tasks", 0, "template")


def mark(thing: dict[str, Any], labels: dict[str, str]) -> None:
    """Add labels, where `metadata:` or `labels:` may stand empty."""
    metadata = thing.get("metadata") or {}
    thing["metadata"] = {**{key: value for key, value in metadata.items() if value is not None}}
    thing["metadata"]["labels"] = {**(metadata.get("labels") or {}), **labels}


def rights(companions: list[dict[str, Any]]) -> list[Right]:
    kinds = sorted({str(each["kind"]).lower() + "s" for each in companions if "/" not in str(each["apiVersion"])})
    return [Right(verbs=("create", "delete", "patch"), resource=kind) for kind in kinds]


def gang(job: dict[str, Any]) -> int:
    """The pods without which nothing starts: as many as Volcano is told, else all."""
    return int(job["spec"].get("minAvailable") or 0) or sum(task.pods for task in tasks_of(job).values())


def room(job: dict[str, Any], template: dict[str, Any]) -> Room:
    """What the manifest's pods need of the nodes. Under the host's network a port is the node's: one pod has it.

    The operator gives a port to every pod of a PyTorchJob.
    """
    spec = template["spec"]
    container = spec["containers"][0]
    asked = container.get("resources") or {}
    resources = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    return Room(
        pods=gang(job),
        labels=spec.get("nodeSelector") or {},
        tolerations=tuple(each.get("key") or "" for each in spec.get("tolerations") or ()),
        resources={name: str(amount) for name, amount in resources.items()},
        alone=bool(spec.get("hostNetwork") and (container.get("ports") or "pytorchReplicaSpecs" in job["spec"])),
    )
