"""A kind of job in a cluster, and the plan of a job of that kind: our own jobs and those of manifests go this way."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from torchyard.agents import command
from torchyard.agents.job_code import plan_code
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.queues import kueue
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import ManifestPlan, ObjectKind, Ranks, WatchedKind
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice, ClusterRequirement, ReferencedObject
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import etcd, lease_record, requirements
from torchyard.pods.code.upload import build_code_upload, list_upload_requirements
from torchyard.pods.files import build_files
from torchyard.pods.patch import patch_job
from torchyard.pods.template import attempt_labels
from torchyard.pods.volumes import Manifest

QUEUE_LABEL = kueue.QUEUE_LABEL
_MPI_PATTERN = re.compile(r"\bmpi(?:run|exec)\b")
# v1beta1, because also the newest Kueue serves it.
_WATCHED_WORKLOAD = WatchedKind(
    api="kueue.x-k8s.io/v1beta1", kind=kueue.WORKLOAD_KIND, owner_label="kueue.x-k8s.io/job-uid"
)


def get_name(document: Manifest) -> str:
    """The name of an object; empty if it has none."""
    return pod_facts.to_text(pod_facts.get_mapping(document, "metadata").get("name"))


def describe_object(document: Manifest) -> str:
    """An object's kind and name, with which findings about it begin; its kind alone if it has no name."""
    return f"{document.get('kind')} {get_name(document)}".strip()


class PodSet(NamedTuple):
    """The pods of one template in a job. The nodes are called <name>-<i>.

    naming: of the pods: <job>-<name>-<i> (by set); <job>-<i> (by job); of a single pod <job>-<name> (as set), <job> (as
        job), or <name>, its own name.
    parallel_count: of the pods that run at a time; None if all do.
    stage: the pods of a later stage start once all pods of an earlier one have succeeded.
    """

    name: str
    pod_count: int
    template: Manifest
    naming: Literal["by set", "by job", "as set", "as job", "own"] = "by set"
    parallel_count: int | None = None
    stage: int = 0

    def name_pods(self, job_name: str) -> dict[str, str]:
        """The name of each pod by that of its node, without the random suffix that it may have."""
        if self.naming == "own":
            return {self.name.removeprefix(f"{job_name}-"): self.name}
        if self.naming == "as job":
            return {f"{self.name}-0": job_name}
        if self.naming == "as set":
            return {f"{self.name}-0": f"{job_name}-{self.name}"}
        prefix = f"{job_name}-{self.name}" if self.naming == "by set" else job_name
        return {f"{self.name}-{index}": f"{prefix}-{index}" for index in range(self.pod_count)}

    @property
    def container(self) -> str | None:
        """The name of the main container; None if there is no named container."""
        return pod_facts.find_main_container(self.template)


def _find_main(main: Manifest) -> Manifest:
    """The object that creates the pods, if that is the job's main object itself."""
    return main


def _contain_nothing(_: Manifest) -> list[Manifest]:
    """A job without objects beside it."""
    return []


def _find_no_leader(_: Manifest) -> None:
    """The leader of a job whose first set of pods has rank 0."""


def _list_no_faults(_: Manifest) -> list[Finding]:
    """The faults of a job whose launcher can follow every job of its kind."""
    return []


class JobKind(NamedTuple):
    """A kind of job.

    launcher: the name of its launcher.
    api, kind: of its main object.
    watch: the kinds of objects that a run watches.
    list_pod_sets: from the object that creates the pods to its sets of pods. It may raise KeyError, IndexError,
        TypeError, AttributeError or ValueError for an object of another shape.
    made: the kinds of the other objects that controllers make for a job.
    find_job: from the main object to the object in it that creates the pods, such as the job that an AppWrapper wraps;
        the main object itself if they are the same. It may raise the same errors.
    list_companions: the objects beside the job that its main object contains, and its controller creates.
    list_faults: from the main object of a manifest to the reasons why a run cannot follow it, although the API server
        accepts it. It raises nothing for an object of another shape.
    find_leader: from the object that creates the pods to the name of the set of pods of which the first pod has rank 0;
        None if it is the first set. It may raise the errors of list_pod_sets.
    has_ports: the controller gives each pod a port, which is the node's under its network.
    has_random_suffix: the pods' names end in a random word.
    has_service: the controller creates a headless Service of the job's name, through which the pods find each other.
    config_map_suffix: what follows the job's name in that of the ConfigMap that the controller creates for it; empty if
        it creates none.
    kueue_alternative: what to do instead of naming a queue of Kueue, which does not manage jobs of this kind; empty if
        it does.
    """

    launcher: str
    api: str
    kind: str
    watch: tuple[WatchedKind, ...]
    list_pod_sets: Callable[[Manifest], Iterable[PodSet]]
    made: tuple[ObjectKind, ...] = (ObjectKind(api="v1", kind="Service"),)
    find_job: Callable[[Manifest], Manifest] = _find_main
    list_companions: Callable[[Manifest], list[Manifest]] = _contain_nothing
    list_faults: Callable[[Manifest], list[Finding]] = _list_no_faults
    find_leader: Callable[[Manifest], str | None] = _find_no_leader
    has_ports: bool = False
    has_random_suffix: bool = False
    has_service: bool = False
    config_map_suffix: str = ""
    kueue_alternative: str = ""


class JobObjects(NamedTuple):
    """The objects of a job.

    main: the job itself.
    files: what its pods mount; created before it.
    store: the rendezvous store, or the companions of a manifest; created first.
    """

    main: Manifest
    files: tuple[Manifest, ...] = ()
    store: tuple[Manifest, ...] = ()


def build_metadata(profile: Profile, run: Run, local_queue: str | None = None) -> Manifest:
    """The metadata of a job's main object: its name and labels. `local_queue`: of Kueue, which then admits the job."""
    labels = attempt_labels(profile, run)
    if local_queue:
        labels[QUEUE_LABEL] = local_queue
    return {"name": run.job(profile), "labels": labels}


def list_queue_requirements(job_kind: JobKind, main: Manifest, location: str) -> tuple[ClusterRequirement, ...]:
    """The LocalQueue of Kueue that a label of the job's main object names, which must exist; empty without the label.

    A kind of job that Kueue does not manage gets advice instead: the label would not hold it back. `location`: of the
    labels, in the profile or the manifest.
    """
    local_queue = _get_local_queue(main)
    if not local_queue:
        return ()
    if job_kind.kueue_alternative:
        problem = f"{QUEUE_LABEL} has no effect: Kueue does not manage a {job_kind.kind} of {job_kind.api}"
        return (Advice(finding=warning_check(location, problem, job_kind.kueue_alternative)),)
    return (ReferencedObject(object_kind="LocalQueue", name=local_queue),)


def list_queue_traps(job_kind: JobKind, main: Manifest) -> list[Finding]:
    """What makes a manifest's job without a queue of Kueue start too early, or never."""
    if _get_local_queue(main) or job_kind.kueue_alternative:
        return []
    location = describe_object(main)
    traps: list[Finding] = []
    if pod_facts.get_mapping(main, "metadata", "annotations").get(QUEUE_LABEL):
        problem = f"Kueue reads {QUEUE_LABEL} from the labels: as an annotation it does not hold the job back"
        traps.append(warning_check(f"{location}, metadata.annotations", problem, "write it in metadata.labels"))
    for keys in (("spec",), ("spec", "runPolicy")):
        if pod_facts.get_mapping(main, *keys).get("suspend") is True:
            problem = (
                "the job is suspended, and Kueue resumes only a job in a queue: it waits until somebody resumes it"
            )
            fix = f"remove it, or name a LocalQueue in metadata.labels, {QUEUE_LABEL}"
            traps.append(warning_check(f"{location}, {'.'.join(keys)}.suspend", problem, fix))
    return traps


def _get_local_queue(main: Manifest) -> str:
    """The queue of Kueue that a label of the job's main object names; "" without the label."""
    return pod_facts.to_text(pod_facts.get_mapping(main, "metadata", "labels").get(QUEUE_LABEL))


def plan_job(
    profile: ResolvedProfile,
    run: Run,
    job_kind: JobKind,
    objects: JobObjects,
    requires: Iterable[ClusterRequirement],
    *,
    ranks: Ranks,
) -> ManifestPlan:
    """The plan of a job of this kind. `ranks`: how rank 0's lines are found."""
    main = objects.main
    job = job_kind.find_job(main)
    job_name = str(main["metadata"]["name"])
    pod_sets = list_by_rank(job, job_kind)
    pods: dict[str, str] = {}
    for pod_set in pod_sets:
        pods |= pod_set.name_pods(job_name)
    contained_kinds = [(obj["apiVersion"], obj["kind"]) for obj in job_kind.list_companions(main)]
    made = [*job_kind.made]
    for api, kind in contained_kinds:
        if kind != "Secret":  # nothing here reads Secrets
            made.append(ObjectKind(api=api, kind=kind))
    return ManifestPlan(
        job=job_name,
        launcher=job_kind.launcher,
        cluster=profile.cluster,
        code=plan_code(profile, run),
        store=objects.store,
        objects=(*objects.files, main),
        wrapped=None if job is main else job,
        pods=pods,
        pod=_build_first_pod(next(iter(pods.values())), pod_sets[0].template, job_kind),
        has_random_suffix=job_kind.has_random_suffix,
        watch=_list_watched_kinds(job_kind, main),
        made=tuple(dict.fromkeys(made)),
        ranks=ranks,
        requires=tuple(requires),
        **lease_record.build_plan_fields(profile, run),
    )


def list_by_rank(job: Manifest, job_kind: JobKind) -> list[PodSet]:
    """The sets of pods of a job that have pods: the one with rank 0 first, and the others in their order.

    That is the leader of the job's kind, else the first set whose command starts ranks, else the first one.
    """
    pod_sets = [pod_set for pod_set in job_kind.list_pod_sets(job) if pod_set.pod_count]
    leader_name = job_kind.find_leader(job)
    leaders = [pod_set for pod_set in pod_sets if pod_set.name == leader_name]
    leaders += [pod_set for pod_set in pod_sets if _starts_ranks(pod_set)]
    if leaders:
        pod_sets.remove(leaders[0])
        pod_sets.insert(0, leaders[0])
    return pod_sets


def _starts_ranks(pod_set: PodSet) -> bool:
    """Whether the main container of pods names an agent or MPI's launcher, whose output is that of its ranks."""
    for container in pod_facts.get_mappings(pod_set.template, "spec", "containers"):
        if container.get("name") == pod_set.container:
            command = pod_facts.get_command_text(container)
            return pod_facts.runs_agent(container) or bool(_MPI_PATTERN.search(command))
    return False


def _list_watched_kinds(job_kind: JobKind, main: Manifest) -> tuple[WatchedKind, ...]:
    """The kinds of objects that a run of this job watches; a job in a queue of Kueue has a Workload."""
    if _get_local_queue(main) and not job_kind.kueue_alternative:
        return (*job_kind.watch, _WATCHED_WORKLOAD)
    return job_kind.watch


def plan_own_job(
    profile: ResolvedProfile,
    run: Run,
    job_kind: JobKind,
    main: Manifest,
    etcd_image: str,
    job_requirements: Iterable[ClusterRequirement],
) -> ManifestPlan:
    """The plan of a job that a launcher has built, with the run's files and its own store.

    `job_requirements`: of every job of this kind; those of the store and of the pods follow them.
    """
    main = patch_job(profile, main)
    pod_sets = list(job_kind.list_pod_sets(job_kind.find_job(main)))
    store = etcd.build_etcd(profile, run, etcd_image) if profile.rendezvous == "etcd-v2" else ()
    store += build_code_upload(profile, run, pod_sets[0].template)
    all_requirements = [
        *job_requirements,
        *etcd.list_etcd_requirements(profile),
        *list_upload_requirements(profile),
        *requirements.list_pod_requirements(profile, run, pod_sets[0].template, has_ports=job_kind.has_ports),
    ]
    all_requirements += list_queue_requirements(job_kind, main, "job.labels")
    objects = JobObjects(main, build_files(profile, run), store)
    return plan_job(profile, run, job_kind, objects, all_requirements, ranks=command.rank_source(profile))


def _build_first_pod(name: str, template: Manifest, job_kind: JobKind) -> dict[str, Any]:
    """The first pod, as a controller will create it from its template."""
    if job_kind.has_random_suffix:
        name += "-xxxxx"
    return {"apiVersion": "v1", "kind": "Pod"} | template | {"metadata": template["metadata"] | {"name": name}}
