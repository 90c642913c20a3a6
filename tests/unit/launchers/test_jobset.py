"""JobSets: a Job with a pod for each node."""

import re
from typing import Any

import pytest

from tests.builders.plan_parts import list_requirements
from tests.conftest import Planned
from tests.inputs.user_manifests import Launched
from torchyard.launchers import jobset
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity
from torchyard.model.run import Observation


@pytest.fixture
def planned_set(planned: Planned) -> Planned:
    """Plan a JobSet of three nodes."""

    def plan(**keys: Any) -> ManifestPlan:
        return planned(**({"launcher": "jobset", "nodes": 3} | keys))

    return plan


def job(plan: ManifestPlan) -> dict[str, Any]:
    spec: dict[str, Any] = plan.main["spec"]["replicatedJobs"][0]["template"]["spec"]
    return spec


def seen(plan: ManifestPlan, *true: str) -> Observation:
    conditions = [{"type": condition, "status": "True", "message": "why"} for condition in true]
    job = plan.main | {"status": {"conditions": conditions}}
    return Observation({f"JobSet/{plan.job}": job}, frozenset())


def test_each_node_is_a_pod_with_an_index(planned_set: Planned) -> None:
    """The Job is Indexed, which gives pods stable names, and each of its pods must succeed."""
    spec = job(planned_set())
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)


def test_jobset_does_not_restart(planned_set: Planned) -> None:
    """One failed pod ends the JobSet, because only the run retries, with a new rendezvous."""
    plan = planned_set()
    assert (job(plan)["backoffLimit"], plan.main["spec"]["failurePolicy"]) == (0, {"maxRestarts": 0})


def test_pod_names_lose_their_random_suffix(planned_set: Planned) -> None:
    """A pod is mapped to its node without the random suffix of its name, and another object's name is unchanged."""
    plan = planned_set()
    assert plan.node(f"{plan.job}-worker-0-2-x7k2p") == "worker-0-2"
    assert list(plan.nodes) == ["worker-0-0", "worker-0-1", "worker-0-2"]
    assert plan.node(f"{plan.job}-etcd") == "etcd"


def test_endpoint_is_the_first_pod(planned_set: Planned) -> None:
    """The rendezvous endpoint is the first pod's host name, which has no random suffix."""
    plan = planned_set()
    command = " ".join(plan.pod["spec"]["containers"][0]["command"])
    assert f"--rdzv_endpoint={plan.job}-worker-0-0.{plan.job}:" in command


def test_range_of_nodes_is_refused(planned_set: Planned) -> None:
    """A range of nodes is refused, because a Job with fewer pods than completions never ends."""
    with pytest.raises(ProfileError, match=r"nodes: must be one number, not 2:4"):
        planned_set(nodes={"min": 2, "max": 4})


@pytest.mark.parametrize(
    ("true", "state"),
    [((), "pending"), (("Suspended",), "pending"), (("Completed",), "succeeded"), (("Failed",), "failed")],
)
def test_conditions_decide_without_pods(planned_set: Planned, true: tuple[str, ...], state: str) -> None:
    """The conditions of a JobSet decide its state if its pods were not observed."""
    assert jobset.read_status(seen(planned_set(), *true)).state == state


def test_deleted_set_is_gone() -> None:
    """A JobSet that no longer exists is gone."""
    assert jobset.read_status(Observation({}, frozenset())).state == "gone"


def test_queue_of_kueue_is_a_label(planned_set: Planned) -> None:
    """The queue is a label, by which Kueue holds the JobSet back until there is room."""
    labels = planned_set(options={"local_queue": "team"}).main["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "team"


def build_manifest(**job_spec: Any) -> dict[str, Any]:
    """A JobSet of two Jobs with this spec."""
    pod = {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}
    job = {"name": "w", "replicas": 2, "template": {"spec": {"template": pod} | job_spec}}
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}}
    return document | {"spec": {"replicatedJobs": [job]}}


def test_completions_are_the_pods_of_a_manifest(launched: Launched) -> None:
    """A Job creates as many pods as completions, so a JobSet runs once these do, whatever its parallelism is."""
    plan = launched(build_manifest(parallelism=8, completions=2))
    nodes = ["w-0-0", "w-0-1", "w-1-0", "w-1-1"]
    assert list(plan.pods) == nodes
    assert [requirement.pods for requirement in list_requirements(plan, Capacity)] == [4]
    states = {f"Pod/{node}": {"status": {"phase": "Running"}} for node in nodes}
    status = jobset.read_status(Observation({f"JobSet/{plan.job}": plan.main} | states, frozenset()))
    assert (status.state, status.reason) == ("running", "4 of 4 pods run")


def test_pods_that_run_one_after_the_other_are_a_running_jobset(launched: Launched) -> None:
    """Without parallelism one pod of each Job runs at a time: the JobSet runs, and needs room, for so many."""
    plan = launched(build_manifest(completions=3))
    assert len(plan.pods) == 6
    assert [requirement.pods for requirement in list_requirements(plan, Capacity)] == [2]
    states = {f"Pod/{node}": {"status": {"phase": "Running"}} for node in ("w-0-0", "w-1-0")}
    observed = Observation({f"JobSet/{plan.job}": plan.main} | states, frozenset())
    assert jobset.read_status(observed).state == "running"


def build_staged_manifest(status: str) -> dict[str, Any]:
    """A JobSet of which one Job prepares, and another one of three pods waits until the first one has this status."""
    template = {"spec": {"containers": [{"name": "main", "image": "a:1", "resources": {"limits": {"cpu": "8"}}}]}}
    train_spec = {"parallelism": 3, "completions": 3, "template": template}
    jobs = [
        {"name": "prepare", "template": {"spec": {"template": template}}},
        {
            "name": "train",
            "dependsOn": [{"name": "prepare", "status": status}],
            "template": {"spec": train_spec},
        },
        {
            "name": "watch",
            "dependsOn": [{"name": "train", "status": "Ready"}],
            "template": {"spec": {"template": template}},
        },
    ]
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "staged"}}
    return document | {"spec": {"replicatedJobs": jobs}}


@pytest.mark.parametrize(("status", "state", "room"), [("Complete", "running", 4), ("Ready", "pending", 5)])
def test_job_that_waits_for_the_success_of_another_is_a_later_stage(
    launched: Launched, status: str, state: str, room: int
) -> None:
    """A JobSet runs once its first stage does, and needs room for its largest stage, however long the first one takes.

    A Job that waits until another one is ready belongs to the stage of that one.
    """
    plan = launched(build_staged_manifest(status))
    assert [requirement.pods for requirement in list_requirements(plan, Capacity)] == [room]
    states = {"Pod/prepare-0-0": {"status": {"phase": "Running"}}}
    observed = Observation({f"JobSet/{plan.job}": plan.main} | states, frozenset())
    assert jobset.read_status(observed).state == state


@pytest.mark.parametrize(
    ("spec", "key", "remedy"),
    [
        ({"parallelism": 4}, "completions: the API server rejects", "write 4"),
        ({"completionMode": "NonIndexed", "completions": 2}, "completionMode: without Indexed", "write Indexed"),
    ],
)
def test_job_that_a_jobset_cannot_run_is_refused(
    launched: Launched, spec: dict[str, Any], key: str, remedy: str
) -> None:
    """A Job of a JobSet is refused as the same Job alone is, also in an AppWrapper."""
    document = build_manifest(**spec)
    wrapper = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "outer"}}
    path = "JobSet train, spec.replicatedJobs[0].template.spec"
    for documents in (document, wrapper | {"spec": {"components": [{"template": document}]}}):
        with pytest.raises(ProfileError, match=rf"{re.escape(path)}\.{key}.*; {remedy}"):
            launched(documents)


def test_job_of_one_pod_without_an_index(launched: Launched) -> None:
    """The only pod of a Job that is not Indexed has no number in its name."""
    plan = launched(build_manifest(completionMode="NonIndexed"))
    assert plan.pods == {f"w-{index}-0": f"{plan.job}-w-{index}" for index in (0, 1)}
    assert plan.node(f"{plan.job}-w-1-x7x7x") == "w-1-0"


def test_coordinator_of_a_manifest_is_the_first_node(launched: Launched) -> None:
    """The Job of a JobSet's coordinator has rank 0."""
    pod = {"spec": {"containers": [{"name": "main", "image": "a:1", "command": ["python3", "a.py"]}]}}
    jobs = [{"name": name, "replicas": 2, "template": {"spec": {"template": pod}}} for name in ("a", "b")]
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}}
    spec = {"coordinator": {"replicatedJob": "b", "jobIndex": 1}, "replicatedJobs": jobs}
    assert list(launched(document | {"spec": spec}).pods) == ["b-1-0", "a-0-0", "a-1-0", "b-0-0"]
