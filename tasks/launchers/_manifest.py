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
ITS_OWN = ("args", "env", "fabric", "hardware", "image", "mounts", "nodes", "pod", "processes", "resources", "setup")


class Frame(NamedTuple):
    """What the launcher knows about its kind of job."""

    api: str
    kind: str
    launcher: str
    watch: tuple[Watched, ...]
    requires: tuple[ClusterNeed, ...]


def plan(profile: Profile, run: Run, frame: Frame) -> ManifestPlan:
    """The manifest's job, after whatever else the file holds. ProfileError where it holds no such job, or two."""
    refuse(profile, frame)
    documents = [copy.deepcopy(each) for each in profile.manifest]
    main = next(each for each in documents if is_main(each, frame))
    companions = [each for each in documents if each is not main]
    for each in companions:
        mark(each, {**_pod.labels(profile, run), _pod.ROLE: "companion"})
    mark(main, _pod.labels(profile, run))
    main["metadata"]["name"] = run.job(profile)
    tasks = {name: (int(spec.get("replicas") or 1), spec["template"]) for name, spec in tasks_of(main).items()}
    for _, template in tasks.values():
        mark(template, _pod.labels(profile, run))
    elastic = main["spec"].get("elasticPolicy")
    if elastic and not elastic.get("rdzvId"):
        elastic["rdzvId"] = run.job(profile)
    template = next(iter(tasks.values()))[1]
    return ManifestPlan(
        launcher=frame.launcher,
        job=run.job(profile),
        labels=_pod.labels(profile, run),
        cluster=profile.cluster,
        store=tuple(companions),
        objects=(main,),
        tasks={name: count for name, (count, _) in tasks.items()},
        container=template["spec"]["containers"][0]["name"],
        template=template_at(main),
        watch=frame.watch,
        teed="--tee" in str(template),
        folder=f"{run.folder}/attempt-{run.attempt}",
        requires=(
            *frame.requires,
            *rights(companions),
            WritableFolder(host="localhost", path=run.folder),
            room(template, sum(count for count, _ in tasks.values())),
            Admitted(what="objects"),
            Admitted(what="pod"),
            *(Advice(about="manifest", detail=trap) for trap in traps(profile.manifest)),
        ),
    )


def refuse(profile: Profile, frame: Frame) -> None:
    """What the profile must not say beside a manifest, and what the manifest must hold."""
    twice = [key for key in ITS_OWN if key in profile.model_fields_set and getattr(profile, key)]
    found = [f"{key}: the manifest says it; change it there" for key in twice]
    jobs = sum(is_main(each, frame) for each in profile.manifest)
    if jobs != 1:
        kinds = ", ".join(str(each.get("kind")) for each in profile.manifest)
        found.append(f"manifest: holds {jobs} of kind {frame.kind} ({frame.api}), one is needed; it has: {kinds}")
    if found:
        raise ProfileError(profile.name, tuple(found))
    job = next(each for each in profile.manifest if is_main(each, frame))
    try:
        containers = [spec["template"]["spec"]["containers"][0]["name"] for spec in tasks_of(job).values()]
    except (KeyError, IndexError, TypeError, AttributeError):
        containers = []
    if not containers:
        raise ProfileError(profile.name, (f"manifest: the {frame.kind} has no pod template with a named container",))


def is_main(document: dict[str, Any], frame: Frame) -> bool:
    return document.get("kind") == frame.kind and document.get("apiVersion") == frame.api


def tasks_of(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of a job that have a pod template, by the name that their pods carry."""
    spec = job.get("spec") or {}
    if "pytorchReplicaSpecs" in spec:
        return {name.lower(): part for name, part in spec["pytorchReplicaSpecs"].items()}
    return {part.get("name") or f"default{index}": part for index, part in enumerate(spec.get("tasks") or ())}


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


def room(template: dict[str, Any], pods: int) -> Room:
    """What the manifest's pods need of the nodes."""
    spec = template["spec"]
    container = spec["containers"][0]
    asked = container.get("resources") or {}
    resources = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    return Room(
        pods=pods,
        labels=spec.get("nodeSelector") or {},
        tolerations=tuple(each.get("key") or "" for each in spec.get("tolerations") or ()),
        resources={name: str(amount) for name, amount in resources.items()},
        alone=bool(spec.get("hostNetwork") and container.get("ports")),
    )
