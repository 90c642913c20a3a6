"""Traps of torchrun and its rendezvous: what they will do that the author does not expect. Measured with torch 2.13."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.lint.workload import (
    ETCD_IMAGE_PATTERN,
    SUBSTITUTED_TEXT,
    ManifestContainer,
    ReplicaGroup,
    Workload,
    is_new_etcd,
    yaml_list,
    yaml_number,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

# Images without python-etcd.
_STOCK_IMAGE_PATTERN = re.compile(r"(?:docker\.io/)?(?:ultralytics/yolov5|pytorch/pytorch)(?:[:@].*)?")
# If it is left out, Kubernetes takes Always and training-operator OnFailure.
_RESTARTING_POLICIES = (None, "", "Always", "OnFailure")
# Where a pod finds its run's name: torchyard gives the job of a manifest a new name for every run.
_NEW_ID_FIXES = {
    "pytorchjob": "give the container the variable PET_RDZV_ID from the pod's label training.kubeflow.org/job-name",
    "volcano": "take it from the pod's annotation scheduling.k8s.io/group-name",
}
_RANK_FIX = "--node-rank with the pod's index"
_ADDRESS_FIX = "--rdzv-backend=c10d with the first pod's address as --rdzv-endpoint"
_INDEX_PATTERN = re.compile(r"\$[{(]?(?:V[CK]_TASK_INDEX|JOB_COMPLETION_INDEX)[})]?")
# Parts of the names of fields in a Volcano Job's pods whose values do not change at a restart.
_LASTING_FIELD_PARTS = ("group-name", "job-name")


def _find_repeated_options(job: Workload) -> Iterator[Finding]:
    for container in job.containers:
        for call in container.torchrun_calls:
            names = [option.name for option in call.options]
            for name in dict.fromkeys(names):
                count = names.count(name)
                if count > 1:
                    problem = f"--{name} is given {count} times, and the last one counts"
                    yield Finding(container.script_path, problem, "write it once")


def _find_missing_rendezvous(job: Workload) -> Iterator[Finding]:
    agents = list(_list_agents(job))
    pod_count = sum(agent.group.replicas for agent in agents)
    for agent in agents:
        key_path = agent.container.script_path
        if pod_count < 2 and not (agent.nodes or "").isdecimal():  # one pod is enough for a number that is not known
            continue
        if agent.nodes is None:
            other_fix = ""
            if not agent.has_address:
                other_fix = f", and {_ADDRESS_FIX}"
            elif _find_fixed_rank(job, agent):
                other_fix = f", and {_RANK_FIX}"
            problem = f"torchrun without --nnodes starts a training of its own in each of the {pod_count} pods"
            yield Finding(key_path, problem, f"write --nnodes={pod_count}{other_fix}")
        elif not agent.has_address:
            problem = "torchrun has no address of the first pod: each pod waits for the others at its own 127.0.0.1"
            fix = f"write {_ADDRESS_FIX}"
            if job.kind == "pytorchjob":
                fix = "write a Master, or an elasticPolicy: the operator then sets the address"
            yield Finding(key_path, problem, fix)


def _find_same_node_rank(job: Workload) -> Iterator[Finding]:
    for agent in _list_agents(job):
        rank = _find_fixed_rank(job, agent)
        if rank and agent.nodes is not None and agent.has_address and agent.group.replicas > 1:
            problem = f"each of the {agent.group.replicas} pods has the node rank {rank}: they do not find each other"
            yield Finding(agent.container.script_path, problem, f"write {_RANK_FIX}, or {_ADDRESS_FIX}")


def _find_repeated_ranks(job: Workload) -> Iterator[Finding]:
    """Yield a node rank that is the pod's number in its task or Job, if pods of several of them train together."""
    agents = [agent for agent in _list_agents(job) if _is_rank_an_index(job, agent)]
    set_sizes: list[int] = []
    for agent in agents:
        job_size = yaml_number(agent.group.spec.get("parallelism")) or 1
        is_one_set = job.kind != "jobset"
        set_sizes += [agent.group.replicas] if is_one_set else [job_size] * (agent.group.replicas // max(job_size, 1))
    nodes = {_read_max_nodes(agent.nodes) for agent in agents}
    if len(set_sizes) > 1 and len(nodes) == 1 and (nodes.pop() or 0) > max(set_sizes):
        agent = agents[-1]
        rank = agent.container.find_option("node-rank")
        set_name = "Job" if job.kind == "jobset" else "task"
        problem = f"{rank} counts the pods of each {set_name} from 0: the first pods of all have the same node rank"
        yield Finding(agent.container.script_path, problem, f"write {_ADDRESS_FIX}")


def _is_rank_an_index(job: Workload, agent: "_Agent") -> bool:
    """Whether an agent's node rank in a static rendezvous is the number of its pod in its task or Job."""
    rank = agent.container.find_option("node-rank") or ""
    backend = agent.container.find_option("rdzv-backend")
    return job.kind in ("volcano", "jobset") and backend in (None, "static") and bool(_INDEX_PATTERN.fullmatch(rank))


class _Agent(NamedTuple):
    """A container that starts one torchrun for a job of several nodes, with options that are all written out.

    nodes: the option --nnodes, or what the operator sets in its place; None if torchrun takes its default, one node.
    has_address: whether torchrun gets the address of a rendezvous.
    """

    group: ReplicaGroup
    container: ManifestContainer
    nodes: str | None
    has_address: bool


def _list_agents(job: Workload) -> Iterator[_Agent]:
    for group in job.groups if job.is_job else ():
        for container in group.containers:
            nodes = container.find_option("nnodes")
            if nodes is None and job.kind == "pytorchjob":
                nodes = "$PET_NNODES"  # set by the operator
            if len(container.torchrun_calls) != 1 or nodes in ("1", "1:1") or _may_have_more_options(container):
                continue
            if container.find_option("rdzv-backend") in ("etcd", "etcd-v2"):  # torchrun then requires an address itself
                continue
            options = [container.find_option(name) for name in ("rdzv-endpoint", "master-addr")]
            yield _Agent(group, container, nodes, options != [None, None] or job.has_operator_rendezvous)


def _may_have_more_options(container: ManifestContainer) -> bool:
    """Whether torchrun may get options that are not written out, or is to train in each pod alone (--standalone)."""
    if container.spec.get("envFrom") or "PET_" in " ".join(container.argv):
        return True
    is_alone = container.find_option("standalone") is not None
    return is_alone or any(call.has_hidden_options for call in container.torchrun_calls)


def _find_fixed_rank(job: Workload, agent: _Agent) -> str | None:
    """The node rank of all pods of an agent's group in a static rendezvous; None if it may differ or is not used."""
    if agent.container.find_option("rdzv-backend") not in (None, "static") or job.elastic_policy is not None:
        return None
    rank = agent.container.find_option("node-rank")
    if rank is None and not job.has_operator_rendezvous:
        return "0"  # torchrun's default
    return rank if rank and rank.isdecimal() else None


class _MinNodes(NamedTuple):
    """The number of nodes that start a training, and the key that sets it."""

    nodes: int
    key_path: str


def _find_too_few_pods(job: Workload) -> Iterator[Finding]:
    if not job.runs_torchrun or job.has_hidden_options:
        return
    minimum = _get_min_nodes(job)
    max_nodes = yaml_number(yaml_value(job.elastic_policy, "maxReplicas")) or 0
    is_scaled = yaml_value(job.elastic_policy, "metrics") or job.find_option("nnodes") is not None
    if minimum.nodes > job.pod_count > 0:
        problem = (
            f"torchrun waits for {minimum.nodes} nodes, and there are pods for {job.pod_count}: "
            "the rendezvous times out"
        )
        yield Finding(minimum.key_path, problem, "write as many replicas as nodes")
    elif job.pod_count == 1 and max_nodes > 1 and not is_scaled:
        problem = f"the rendezvous is for up to {max_nodes} nodes, but the job has only one pod"
        yield Finding(f"{job.groups[0].key_path}.replicas", problem, "write the number of nodes")


def _find_too_many_pods(job: Workload) -> Iterator[Finding]:
    """Yield a rendezvous of fewer nodes than there are pods. A set of exactly as many pods may be one of several."""
    agents = list(_list_agents(job))
    max_nodes = {_read_max_nodes(agent.nodes) for agent in agents}
    if len(max_nodes) != 1 or None in max_nodes or job.elastic_policy is not None:
        return
    nodes = max_nodes.pop()
    pod_count = sum(agent.group.replicas for agent in agents)
    set_sizes = []
    for agent in agents:
        parallelism = yaml_number(agent.group.spec.get("parallelism")) or 1
        set_sizes.append(parallelism if job.kind == "jobset" else agent.group.replicas)
    if nodes is not None and pod_count > nodes and nodes not in set_sizes:
        problem = f"the rendezvous takes {nodes} nodes, and {pod_count} pods start torchrun: the others find no place"
        yield Finding(agents[0].container.script_path, problem, f"write --nnodes={pod_count}")


def _read_max_nodes(nodes: str | None) -> int | None:
    """The largest number of nodes of the option --nnodes; None if it is not written out."""
    match = re.fullmatch(r"(?:\d{1,9}:)?(\d{1,9})", nodes or "")
    return int(match[1]) if match else None


def _get_min_nodes(job: Workload) -> _MinNodes:
    """The number of nodes that start a training; 0 if the manifest does not set it, or a shell computes it."""
    for container in job.containers:
        match = re.fullmatch(r"(\d{1,9})(?::\d{1,9})?", container.find_option("nnodes") or "")
        if match:
            return _MinNodes(int(match[1]), container.script_path)
    min_replicas = yaml_number(yaml_value(job.elastic_policy, "minReplicas")) or 0
    return _MinNodes(min_replicas, "spec.elasticPolicy.minReplicas")


def _find_missing_python_etcd(job: Workload) -> Iterator[Finding]:
    if not job.uses_etcd:
        return
    for container in job.containers:
        is_stock_image = _STOCK_IMAGE_PATTERN.fullmatch(container.image)
        if is_stock_image and container.torchrun_calls and "python-etcd" not in " ".join(container.argv):
            yield Finding(
                f"{container.key_path}.image",
                f"the rendezvous in etcd needs python-etcd, which `{container.image}` lacks: torchrun exits within 2 s",
                "use an image that has it, or the backend c10d",
            )


class _Restart(NamedTuple):
    """The restart of a job or of one of its pods: the key that causes it, the cause in words, and how to avoid it."""

    key_path: str
    cause: str
    fix: str


def _find_reused_rendezvous_id(job: Workload) -> Iterator[Finding]:
    restart = _find_restart(job)
    if restart and job.uses_etcd and _is_id_reused(job):
        problem = (
            f"{restart.cause} starts again with the same rendezvous id, which stays closed in etcd for 2 hours: "
            "every further attempt fails with RendezvousClosedError"
        )
        yield Finding(restart.key_path, problem, restart.fix)


def _find_restart(job: Workload) -> _Restart | None:
    """The first restart of the job or of one of its pods that the manifest allows; None if it allows none."""
    if job.kind == "volcano":
        policy_lists = [("spec.policies", job.spec.get("policies"))]
        policy_lists += [(f"{group.key_path}.policies", group.spec.get("policies")) for group in job.groups]
        for key_path, policies in policy_lists:
            for policy in yaml_list(policies):
                action = yaml_text(yaml_value(policy, "action"))
                if action.startswith("Restart"):
                    fix = "write TerminateJob, or an id that ends in the annotation volcano.sh/job-retry-count"
                    return _Restart(key_path, action, fix)
    for group in job.groups:
        # training-operator overwrites the pod's key with that of the replica type.
        key_path = group.pod_path if job.kind == "volcano" else group.key_path
        spec = group.pod if job.kind == "volcano" else group.spec
        if spec.get("restartPolicy") in _RESTARTING_POLICIES:
            return _Restart(f"{key_path}.restartPolicy", "a container that is restarted in its pod", "write Never")
    return None


def _is_id_reused(job: Workload) -> bool:
    """Whether the rendezvous id is certainly the same after a restart."""
    rendezvous_id = job.find_option("rdzv-id", "rdzvId")
    if rendezvous_id is None:  # it is `none`, or the one that a run adds
        return not any(_may_have_more_options(container) for container in job.containers)
    if SUBSTITUTED_TEXT in rendezvous_id:
        return False
    for name in re.findall(r"\$[{(]?(\w+)", rendezvous_id):
        if not any(_is_lasting(container.env.get(name)) for container in job.containers):
            return False
    return True


def _is_lasting(variable: object) -> bool:
    """Whether a variable certainly has the same value after a restart."""
    field_path = yaml_text(yaml_value(variable, "valueFrom", "fieldRef", "fieldPath"))
    if any(part in field_path for part in _LASTING_FIELD_PARTS):
        return True
    value = yaml_value(variable, "value")
    return isinstance(value, str) and "$" not in value


def find_shared_rendezvous_ids(
    jobs: Sequence[Workload], objects: Sequence[object], *, is_adopted: bool
) -> Iterator[tuple[str, Finding]]:
    """Yield jobs whose rendezvous id is the same in every run, if their etcd outlives the run.

    An etcd in the manifest is new for every run. `is_adopted`: a run gives an elasticPolicy without an id its own.
    """
    if any(ETCD_IMAGE_PATTERN.fullmatch(image) for image in _list_images(objects)):
        return
    for job in jobs:
        rendezvous_id = job.find_option("rdzv-id", "rdzvId")
        if not job.uses_etcd or (rendezvous_id and ("$" in rendezvous_id or SUBSTITUTED_TEXT in rendezvous_id)):
            continue
        if not rendezvous_id and is_adopted and job.elastic_policy is not None:
            continue
        if not rendezvous_id and any(_may_have_more_options(container) for container in job.containers):
            continue
        key_path = "spec.elasticPolicy.rdzvId" if job.elastic_policy else job.containers[0].script_path
        fix = _NEW_ID_FIXES.get(job.kind, "write an id that is new for every run")
        if rendezvous_id and is_adopted and yaml_value(job.elastic_policy, "rdzvId") == rendezvous_id:
            fix = "remove it: each run adds an id of its own"
        if rendezvous_id:
            reason = f"the id {rendezvous_id} is the same in every run"
        else:
            reason = "without an id, every job has the id `none`"
        problem = (
            f"{reason}: two jobs on one etcd join each other, and a second run within 2 hours fails with "
            "RendezvousClosedError"
        )
        yield job.location, Finding(key_path, problem, fix)


def _list_images(value: object) -> Iterator[str]:
    """Yield every `image` in a value and below it; an empty text for a mapping without one."""
    if isinstance(value, Mapping):
        yield yaml_text(value.get("image"))
        for child in value.values():
            yield from _list_images(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _list_images(child)


def find_etcd_without_v2(jobs: Sequence[Workload]) -> Iterator[tuple[str, Finding]]:
    """Yield each etcd beside the jobs that does not serve the v2 API, if one of them needs that API."""
    if not any(job.uses_etcd for job in jobs):
        return
    for companion in jobs:
        for container in companion.containers if not companion.is_job else ():
            if ETCD_IMAGE_PATTERN.fullmatch(container.image) and not _is_serving_v2(container):
                problem = "this etcd does not serve the v2 API, which the job's rendezvous requests: it gets a 404"
                finding = Finding(container.key_path, problem, "use etcd 3.5 with --enable-v2 in its command")
                yield companion.location, finding


def _is_serving_v2(container: ManifestContainer) -> bool:
    """Whether an etcd serves the v2 API. One that exits because of --enable-v2 counts: another rule reports it."""
    for arg in container.script_argv:
        if arg.startswith("--enable-v2") and not arg.endswith("=false"):
            return True
    if ":v3.3." in container.image or ":3.3." in container.image:  # the API was on by default until 3.3
        return True
    is_set_by_variable = yaml_text(yaml_value(container.env.get("ETCD_ENABLE_V2"), "value")).lower() in ("true", "1")
    return is_set_by_variable and not is_new_etcd(container.image)


TORCHRUN_RULES = (
    _find_repeated_options,
    _find_missing_rendezvous,
    _find_same_node_rank,
    _find_repeated_ranks,
    _find_too_few_pods,
    _find_too_many_pods,
    _find_missing_python_etcd,
    _find_reused_rendezvous_id,
)
