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
_RESTARTING_POLICIES = (
    None,
    "",
    "Always",
    "OnFailure",
)  # left out, Kubernetes means Always and training-operator OnFailure
# What names a run in its pods: torchyard gives the job of a manifest a new name for every run.
_NEW_ID_FIXES = {
    "pytorchjob": "give the container the variable PET_RDZV_ID from the pod's label training.kubeflow.org/job-name",
    "volcano": "take it from the pod's annotation scheduling.k8s.io/group-name",
}
_LASTING_FIELD_PARTS = ("group-name", "job-name")  # in fields of a Volcano Job's pods: values that outlast a restart


def _find_repeated_options(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers:
        for call in container.torchrun_calls:
            names = [name for name, _ in call]
            for name in dict.fromkeys(name for name in names if names.count(name) > 1):
                problem = f"--{name} is given {names.count(name)} times, and the last one counts"
                yield container.script_path, problem, "write it once"


def _find_too_few_pods(job: Workload) -> Iterator[LintFinding]:
    min_nodes, key_path = _find_min_nodes(job)
    max_nodes = yaml_number(yaml_value(job.elastic_policy, "maxReplicas")) or 0
    is_scaled = yaml_value(job.elastic_policy, "metrics") or job.find_option("nnodes") is not None
    if min_nodes > job.pod_count > 0:
        problem = (
            f"torchrun waits for {min_nodes} nodes, and there are pods for {job.pod_count}: the rendezvous times out"
        )
        yield key_path, problem, "write as many replicas as nodes"
    elif job.pod_count == 1 and max_nodes > 1 and not is_scaled:
        problem = f"the rendezvous is for up to {max_nodes} nodes, but one pod is all there will be"
        yield job.groups[0].key_path + ".replicas", problem, "write the number of nodes that are wanted"


def _find_min_nodes(job: Workload) -> tuple[int, str]:
    """The number of nodes with which a training begins, as far as the manifest says, and where it says so."""
    for container in job.containers:
        match = re.fullmatch(r"(\d{1,9})(?::\d{1,9})?", container.find_option("nnodes") or "")
        if match:
            return int(match[1]), container.script_path
    return (yaml_number(yaml_value(job.elastic_policy, "minReplicas")) or 0, "spec.elasticPolicy.minReplicas")


def _find_missing_python_etcd(job: Workload) -> Iterator[LintFinding]:
    for container in job.containers if job.uses_etcd else ():
        if _STOCK_IMAGE_PATTERN.fullmatch(container.image) and "python-etcd" not in " ".join(container.argv):
            problem = f"the rendezvous in etcd needs python-etcd, which `{container.image}` lacks: torchrun ends in 2 s"
            yield f"{container.key_path}.image", problem, "take an image that has it, or write c10d as the backend"


def _find_reused_rendezvous_id(job: Workload) -> Iterator[LintFinding]:
    restart = _find_restart(job)
    if restart and job.uses_etcd and _is_id_reused(job):
        problem = f"{restart[1]} begins again with the same rendezvous id, which etcd holds as closed for 2 hours: "
        yield restart[0], problem + "every further try dies of RendezvousClosedError", restart[2]


def _find_restart(job: Workload) -> LintFinding | None:
    """What restarts the job or one of its pods, if anything does: where, what, and what to write instead."""
    policy_lists = [("spec.policies", job.spec.get("policies"))]
    policy_lists += [(f"{group.key_path}.policies", group.spec.get("policies")) for group in job.groups]
    for key_path, policies in policy_lists if job.kind == "volcano" else ():
        action = next(
            (
                action
                for policy in yaml_list(policies)
                if (action := yaml_text(yaml_value(policy, "action"))).startswith("Restart")
            ),
            "",
        )
        if action:
            return (
                key_path,
                action,
                "write TerminateJob, or an id that ends in the annotation volcano.sh/job-retry-count",
            )
    for group in job.groups:
        key_path, spec = (group.pod_path, group.pod) if job.kind == "volcano" else (group.key_path, group.spec)
        if spec.get("restartPolicy") in _RESTARTING_POLICIES:
            return f"{key_path}.restartPolicy", "a container that is restarted in its pod", "write Never"
    return None


def _is_id_reused(job: Workload) -> bool:
    """Whether the rendezvous id is known to be the same after a restart."""
    value = job.find_option("rdzv-id", "rdzvId")
    if value is None or SUBSTITUTED_TEXT in value:
        return False
    names = re.findall(r"\$[{(]?(\w+)", value)
    return all(any(_is_lasting(container.env.get(name)) for container in job.containers) for name in names)


def _is_lasting(variable: object) -> bool:
    field_path, value = (
        yaml_text(yaml_value(variable, "valueFrom", "fieldRef", "fieldPath")),
        yaml_value(variable, "value"),
    )
    return any(lasting_field in field_path for lasting_field in _LASTING_FIELD_PARTS) or (
        isinstance(value, str) and "$" not in value
    )


def find_shared_rendezvous_ids(
    jobs: Sequence[Workload], objects: Sequence[object]
) -> Iterator[tuple[str, LintFinding]]:
    """Jobs whose rendezvous id is the same in every run, on an etcd that outlives the run, as the manifest has none."""
    is_external_etcd = not any(ETCD_IMAGE_PATTERN.fullmatch(image) for image in _list_images(objects))
    for job in jobs if is_external_etcd else ():
        value = job.find_option("rdzv-id", "rdzvId")
        if not job.uses_etcd or (value and ("$" in value or SUBSTITUTED_TEXT in value)):
            continue
        key_path = "spec.elasticPolicy.rdzvId" if job.elastic_policy else job.containers[0].script_path
        reason = f"the id {value} is the same in every run" if value else "without an id every job is `none`"
        problem = f"{reason}: two jobs on one etcd meet each other, and a second run within 2 hours dies of "
        fix = _NEW_ID_FIXES.get(job.kind, "write an id that is new for every run")
        yield job.location, (key_path, f"{problem}RendezvousClosedError", fix)


def _list_images(value: object) -> Iterator[str]:
    """Every `image` in some objects."""
    if isinstance(value, Mapping):
        yield yaml_text(value.get("image"))
        yield from (image for child in value.values() for image in _list_images(child))
    elif isinstance(value, list | tuple):
        yield from (image for child in value for image in _list_images(child))


def find_etcd_without_v2(jobs: Sequence[Workload]) -> Iterator[tuple[str, LintFinding]]:
    """An etcd beside a job that needs the v2 API, which this etcd does not serve."""
    for job in jobs if any(job.uses_etcd for job in jobs) else ():
        for container in job.containers if job.kind == "pod" else ():
            if ETCD_IMAGE_PATTERN.fullmatch(container.image) and not _is_serving_v2(container):
                problem = "this etcd does not serve the v2 API, which the rendezvous of the job asks for: it gets a 404"
                yield job.location, (container.key_path, problem, "write etcd 3.5 with --enable-v2 in its command")


def _is_serving_v2(container: ManifestContainer) -> bool:
    """Whether an etcd serves the v2 API. One that exits because of --enable-v2 counts: another rule reports it."""
    is_requested = any(arg.startswith("--enable-v2") and not arg.endswith("=false") for arg in container.argv)
    is_set_by_variable = yaml_text(yaml_value(container.env.get("ETCD_ENABLE_V2"), "value")).lower() in ("true", "1")
    is_old_etcd = ":v3.3." in container.image or ":3.3." in container.image
    return is_requested or is_old_etcd or (is_set_by_variable and not is_new_etcd(container.image))


TORCHRUN_RULES = (
    _find_repeated_options,
    _find_too_few_pods,
    _find_missing_python_etcd,
    _find_reused_rendezvous_id,
)
