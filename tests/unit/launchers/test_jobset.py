"""JobSets: a Job with a pod for each node."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.inputs.user_manifests import Launched
from torchyard.launchers import jobset
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
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


def test_coordinator_of_a_manifest_is_the_first_node(launched: Launched) -> None:
    """The Job of a JobSet's coordinator has rank 0."""
    pod = {"spec": {"containers": [{"name": "main", "image": "a:1", "command": ["python3", "a.py"]}]}}
    jobs = [{"name": name, "replicas": 2, "template": {"spec": {"template": pod}}} for name in ("a", "b")]
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}}
    spec = {"coordinator": {"replicatedJob": "b", "jobIndex": 1}, "replicatedJobs": jobs}
    assert list(launched(document | {"spec": spec}).pods) == ["b-1-0", "a-0-0", "a-1-0", "b-0-0"]
