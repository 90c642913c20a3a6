"""What torchrun and its rendezvous will do in a job that its author does not expect. Measured with torch 2.13."""

import re
from collections.abc import Iterator, Mapping, Sequence

from torchyard.pods.workload import (
    ETCD_IMAGE_PATTERN,
    SUBSTITUTED_TEXT,
    LintFinding,
    ManifestContainer,
    Workload,
    is_new_etcd,
    yaml_list,
    yaml_number,
    yaml_text,
    yaml_value,
)

_STOCK_IMAGE_PATTERN = re.compile(
    r"(?:docker\.io/)?(?:ultralytics/yolov5|pytorch/pytorch)(?:[:@].*)?"
)  # without python-etcd
_RESTART_POLICIES = (
    None,
    "",
    "Always",
    "OnFailure",
)  # left out, Kubernetes means Always and training-operator OnFailure
# What names a run in its pods: torchyard gives the job of a manifest a new name for every run.
_NEW_ID = {
    "pytorchjob": "give the container the variable PET_RDZV_ID from the pod's label training.kubeflow.org/job-name",
    "volcano": "take it from the pod's annotation scheduling.k8s.io/group-name",
}
_LASTING_FIELDS = ("group-name", "job-name")  # in fields of a Volcano Job's pods: values that outlast a restart


def _find_repeated_options(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        for call in container.calls:
            names = [name for name, _ in call]
            for name in dict.fromkeys(name for name in names if names.count(name) > 1):
                happens = f"--{name} is given {names.count(name)} times, and the last one counts"
                yield container.script_at, happens, "write it once"


def _find_too_few_pods(job: Workload) -> Iterator[LintFinding]:
    least, at = _read_least_nodes(job)
    most = yaml_number(yaml_value(job.elastic, "maxReplicas")) or 0
    grows = yaml_value(job.elastic, "metrics") or job.option("nnodes") is not None
    if least > job.total > 0:
        happens = f"torchrun waits for {least} nodes, and there are pods for {job.total}: the rendezvous times out"
        yield at, happens, "write as many replicas as nodes"
    elif job.total == 1 and most > 1 and not grows:
        happens = f"the rendezvous is for up to {most} nodes, but one pod is all there will be"
        yield job.groups[0].at + ".replicas", happens, "write the number of nodes that are wanted"


def _read_least_nodes(job: Workload) -> tuple[int, str]:
    """The number of nodes with which a training begins, as far as the manifest says, and where it says so."""
    for container in job.containers:
        match = re.fullmatch(r"(\d{1,9})(?::\d{1,9})?", container.option("nnodes") or "")
        if match:
            return int(match[1]), container.script_at
    return (yaml_number(yaml_value(job.elastic, "minReplicas")) or 0, "spec.elasticPolicy.minReplicas")


def _find_missing_python_etcd(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers if job.meets_in_etcd else ():
        if _STOCK_IMAGE_PATTERN.fullmatch(container.image) and "python-etcd" not in " ".join(container.argv):
            happens = f"the rendezvous in etcd needs python-etcd, which `{container.image}` lacks: torchrun ends in 2 s"
            yield f"{container.at}.image", happens, "take an image that has it, or write c10d as the backend"


def _find_kept_rendezvous_id(job: Workload) -> Iterator[LintFinding]:
    again = _find_restart(job)
    if again and job.meets_in_etcd and _is_id_kept(job):
        happens = f"{again[1]} begins again with the same rendezvous id, which etcd holds as closed for 2 hours: "
        yield again[0], happens + "every further try dies of RendezvousClosedError", again[2]


def _find_restart(job: Workload) -> LintFinding | None:
    """What restarts the job or one of its pods, if anything does: where, what, and what to write instead."""
    lists = [("spec.policies", job.spec.get("policies"))]
    lists += [(f"{group.at}.policies", group.spec.get("policies")) for group in job.groups]
    for at, policies in lists if job.kind == "volcano" else ():
        action = next(
            (each for it in yaml_list(policies) if (each := yaml_text(yaml_value(it, "action"))).startswith("Restart")),
            "",
        )
        if action:
            return at, action, "write TerminateJob, or an id that ends in the annotation volcano.sh/job-retry-count"
    for group in job.groups:
        at, spec = (group.pod_at, group.pod) if job.kind == "volcano" else (group.at, group.spec)
        if spec.get("restartPolicy") in _RESTART_POLICIES:
            return f"{at}.restartPolicy", "a container that is restarted in its pod", "write Never"
    return None


def _is_id_kept(job: Workload) -> bool:
    """Whether the rendezvous id is known to be the same after a restart."""
    value = job.option("rdzv-id", "rdzvId")
    if value is None or SUBSTITUTED_TEXT in value:
        return False
    names = re.findall(r"\$[{(]?(\w+)", value)
    return all(any(_is_lasting(container.env.get(name)) for container in job.containers) for name in names)


def _is_lasting(variable: object) -> bool:
    field, value = yaml_text(yaml_value(variable, "valueFrom", "fieldRef", "fieldPath")), yaml_value(variable, "value")
    return any(name in field for name in _LASTING_FIELDS) or (isinstance(value, str) and "$" not in value)


def find_shared_rendezvous_ids(
    jobs: Sequence[Workload], objects: Sequence[object]
) -> Iterator[tuple[str, LintFinding]]:
    """Jobs whose rendezvous id is the same in every run, on an etcd that outlives the run, as the manifest has none."""
    lasting = not any(ETCD_IMAGE_PATTERN.fullmatch(image) for image in _list_images(objects))
    for job in jobs if lasting else ():
        value = job.option("rdzv-id", "rdzvId")
        if not job.meets_in_etcd or (value and ("$" in value or SUBSTITUTED_TEXT in value)):
            continue
        at = "spec.elasticPolicy.rdzvId" if job.elastic else job.containers[0].script_at
        same = f"the id {value} is the same in every run" if value else "without an id every job is `none`"
        happens = f"{same}: two jobs on one etcd meet each other, and a second run within 2 hours dies of "
        instead = _NEW_ID.get(job.kind, "write an id that is new for every run")
        yield job.where, (at, f"{happens}RendezvousClosedError", instead)


def _list_images(thing: object) -> Iterator[str]:
    """Every `image` in some objects."""
    if isinstance(thing, Mapping):
        yield yaml_text(thing.get("image"))
        yield from (image for value in thing.values() for image in _list_images(value))
    elif isinstance(thing, list | tuple):
        yield from (image for value in thing for image in _list_images(value))


def find_etcd_without_v2(jobs: Sequence[Workload]) -> Iterator[tuple[str, LintFinding]]:
    """An etcd beside a job that needs the v2 API, which this etcd does not serve."""
    for job in jobs if any(job.meets_in_etcd for job in jobs) else ():
        for container in job.containers if job.kind == "pod" else ():
            if ETCD_IMAGE_PATTERN.fullmatch(container.image) and not _is_serving_v2(container):
                happens = "this etcd does not serve the v2 API, which the rendezvous of the job asks for: it gets a 404"
                yield job.where, (container.at, happens, "write etcd 3.5 with --enable-v2 in its command")


def _is_serving_v2(container: ManifestContainer) -> bool:
    """Whether an etcd serves the v2 API. One that exits because of --enable-v2 counts: another rule reports it."""
    asked = any(word.startswith("--enable-v2") and not word.endswith("=false") for word in container.argv)
    said = yaml_text(yaml_value(container.env.get("ETCD_ENABLE_V2"), "value")).lower() in ("true", "1")
    old = ":v3.3." in container.image or ":3.3." in container.image
    return asked or old or (said and not is_new_etcd(container.image))


TORCHRUN_RULES = (
    _find_repeated_options,
    _find_too_few_pods,
    _find_missing_python_etcd,
    _find_kept_rendezvous_id,
)
