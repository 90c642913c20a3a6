"""Jobs of Kubernetes itself: an Indexed Job with a pod for each node, and the Service that resolves their names."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.user_manifests import Launched, change_spec
from torchyard.launchers import job
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice, Capacity, Permission, ReferencedObject
from torchyard.model.run import Observation, Status

MANIFEST = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "template": {"spec": {"subdomain": "train", "containers": [{"name": "main", "image": "a:1"}]}},
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "train"},
    "spec": {"clusterIP": "None", "selector": {"job-name": "train"}},
}


@pytest.fixture
def planned_job(planned: Planned) -> Planned:
    """Plan a Job of three nodes."""

    def plan(**keys: Any) -> ManifestPlan:
        return planned(**({"launcher": "job", "nodes": 3} | keys))

    return plan


def list_advice(plan: ManifestPlan) -> list[str]:
    """What each advice about a queue is about: a key, or an object and its key."""
    advice = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    return [finding.where for finding in advice if "starts all pods or none" in finding.remedy]


# --- plans


def test_each_node_is_a_pod_with_an_index(planned_job: Planned) -> None:
    """The Job is Indexed, which gives pods stable names, all of its pods run at once, and none has a second try."""
    spec = planned_job().main["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_pods_are_named_by_their_index_alone(planned_job: Planned) -> None:
    """A pod is named <job>-<index> and a random suffix; its node is named as those of other launchers."""
    plan = planned_job()
    assert plan.node(f"{plan.job}-2-x7k2p") == "worker-2"
    assert list(plan.nodes) == ["worker-0", "worker-1", "worker-2"]
    assert plan.pod["metadata"]["name"] == f"{plan.job}-0-xxxxx"


def test_service_resolves_the_pods(planned_job: Planned) -> None:
    """The endpoint is the first pod's host name in a headless Service, which is created before the Job.

    It resolves the Job's pods, ready or not, and no other pod of the run.
    """
    plan = planned_job(rendezvous="c10d")
    service = plan.objects[0]
    assert service["kind"] == "Service"
    assert service["metadata"]["name"] == plan.main["spec"]["template"]["spec"]["subdomain"] == plan.job
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"job-name": plan.job},
    }
    command = " ".join(plan.pod["spec"]["containers"][0]["command"])
    assert f"--rdzv_endpoint={plan.job}-0.{plan.job}:" in command


def test_user_must_be_allowed_to_manage_the_job_and_its_service(planned_job: Planned) -> None:
    """Preflight checks the rights on what the run creates, proves to be gone and deletes."""
    rights = {
        requirement.resource: set(requirement.verbs)
        for requirement in planned_job().requires
        if isinstance(requirement, Permission)
    }
    assert rights["jobs.batch"] == {"create", "get", "list", "watch", "delete"}
    assert rights["services"] == {"create", "get", "list", "delete"}


def test_range_of_nodes_is_refused(planned_job: Planned) -> None:
    """A range of nodes is refused, because a Job with fewer pods than completions never ends."""
    with pytest.raises(ProfileError, match=r"nodes: must be one number, not 2:4: a Job needs all of its pods"):
        planned_job(nodes={"min": 2, "max": 4})


def test_queue_of_kueue_is_a_label(planned_job: Planned) -> None:
    """The queue is a label of the Job, and not of the Service; preflight checks that it exists."""
    plan = planned_job(options={"local_queue": "team"})
    assert plan.main["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in plan.objects[0]["metadata"]["labels"]
    assert ReferencedObject(object_kind="LocalQueue", name="team") in plan.requires


@pytest.mark.parametrize(
    ("keys", "advised"),
    [
        ({}, ["options.local_queue"]),
        ({"options": {"local_queue": "team"}}, []),
        ({"job": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}, []),
        ({"nodes": 1}, []),
    ],
    ids=["no queue", "queue", "queue of a label", "one pod"],
)
def test_pods_that_start_one_by_one_are_reported(
    planned_job: Planned, keys: dict[str, Any], advised: list[str]
) -> None:
    """Preflight warns that nothing starts several pods together, unless Kueue does."""
    assert list_advice(planned_job(**keys)) == advised


# --- manifests


def test_users_own_job_is_launched(launched: Launched) -> None:
    """An Indexed Job and its Service keep their fields, and get the run's name and labels."""
    plan = launched(SERVICE, MANIFEST, launcher="job")
    assert plan.pods == {f"worker-{index}": f"{plan.job}-{index}" for index in range(3)}
    pod = MANIFEST["spec"]["template"]["spec"]  # type: ignore[index]
    assert plan.main["spec"]["template"]["spec"] == pod | {"subdomain": plan.job}
    assert [(obj["kind"], obj["metadata"]["name"]) for obj in plan.store] == [("Service", plan.job)]
    assert plan.pod["metadata"]["labels"].items() >= plan.labels.items()


def test_capacity_is_for_the_pods_that_run_at_a_time(launched: Launched) -> None:
    """A Job needs room for as many pods as its parallelism allows."""
    plans = [launched(change_spec(MANIFEST, parallelism=count), launcher="job") for count in (2, 3, 8)]
    requirements = [requirement for plan in plans for requirement in plan.requires if isinstance(requirement, Capacity)]
    assert [requirement.pods for requirement in requirements] == [2, 3, 3]


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"completions": 3}, "write Indexed$"),
        ({"completionMode": "NonIndexed", "parallelism": 2}, "write Indexed, and spec.completions: 2"),
    ],
)
def test_job_whose_pods_have_random_names_is_refused(launched: Launched, spec: dict[str, Any], remedy: str) -> None:
    """A Job of several pods that is not Indexed is refused with the key that makes it so."""
    document = MANIFEST | {"spec": {"template": MANIFEST["spec"]["template"]} | spec}  # type: ignore[index]
    with pytest.raises(ProfileError, match=rf"Job train, spec.completionMode: without Indexed .*; {remedy}"):
        launched(document, launcher="job")


def test_indexed_job_without_completions_is_refused(launched: Launched) -> None:
    """The API server requires the number of pods of an Indexed Job, and the refusal says which to write."""
    spec = {"template": MANIFEST["spec"]["template"], "completionMode": "Indexed", "parallelism": 2}  # type: ignore[index]
    with pytest.raises(ProfileError, match=r"Job train, spec.completions: the API server rejects .*; write 2$"):
        launched(MANIFEST | {"spec": spec}, launcher="job")


@pytest.mark.parametrize("spec", [{}, {"completions": 1, "parallelism": 4}, {"parallelism": 1}])
def test_job_of_one_pod_needs_no_index(launched: Launched, spec: dict[str, Any]) -> None:
    """The only pod of a Job is its node, although its name has no number."""
    document = MANIFEST | {"spec": {"template": MANIFEST["spec"]["template"]} | spec}  # type: ignore[index]
    plan = launched(document, launcher="job")
    assert plan.pods == {"worker-0": plan.job}
    assert plan.node(f"{plan.job}-x7x7x") == "worker-0"
    status = read_conditions(plan, pods={"worker-0": {"status": {"phase": "Running"}}})
    assert (status.state, status.reason) == ("running", "1 of 1 pods run")


@pytest.mark.parametrize(
    ("labels", "completions", "scheduler", "advised"),
    [
        ({}, 3, None, ["Job train, metadata.labels"]),
        ({"kueue.x-k8s.io/queue-name": "team"}, 3, None, []),
        ({}, 1, None, []),
        ({}, 3, "volcano", []),
    ],
    ids=["no queue", "queue", "one pod", "scheduler of gangs"],
)
def test_queue_of_a_manifest_is_read(
    launched: Launched, labels: dict[str, str], completions: int, scheduler: str | None, advised: list[str]
) -> None:
    """A manifest's own LocalQueue is checked, and its absence is reported unless another scheduler may start gangs."""
    pod = MANIFEST["spec"]["template"]["spec"] | {"schedulerName": scheduler}  # type: ignore[index]
    document = change_spec(MANIFEST, completions=completions, template={"spec": pod})
    document |= {"metadata": {"name": "train", "labels": labels}}
    plan = launched(document, launcher="job")
    assert list_advice(plan) == advised
    queues = [requirement.name for requirement in plan.requires if isinstance(requirement, ReferencedObject)]
    assert queues == list(labels.values())


@pytest.mark.parametrize(("parallelism", "is_reported"), [(3, False), (2, True), (None, True)])
def test_pods_that_never_run_at_the_same_time_are_reported(
    launched: Launched, parallelism: int | None, is_reported: bool
) -> None:
    """Preflight warns of a Job whose pods cannot meet; without the key one pod runs at a time."""
    plan = launched(change_spec(MANIFEST, parallelism=parallelism), launcher="job")
    advice = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    keys = [finding.where for finding in advice if "of the 3 pods run at a time" in finding.what]
    assert keys == (["Job train, spec.parallelism"] if is_reported else [])


# --- statuses


def read_conditions(plan: ManifestPlan, *true: str, pods: dict[str, Any] | None = None) -> Status:
    """The status of a Job with these conditions, and with these pods by their node."""
    conditions = [{"type": condition, "status": "True", "message": "why"} for condition in true]
    states: dict[str, Any] = {f"Job/{plan.job}": plan.main | {"status": {"conditions": conditions}}}
    states |= {f"Pod/{node}": pod for node, pod in (pods or {}).items()}
    return job.read_status(Observation(states, frozenset()))


@pytest.mark.parametrize(
    ("true", "state"),
    [
        ((), "pending"),
        (("Suspended",), "pending"),
        (("SuccessCriteriaMet", "Complete"), "succeeded"),
        (("FailureTarget", "Failed"), "failed"),
    ],
)
def test_conditions_decide_without_pods(planned_job: Planned, true: tuple[str, ...], state: str) -> None:
    """The conditions of a Job decide its state if its pods were not observed."""
    assert read_conditions(planned_job(), *true).state == state


@pytest.mark.parametrize("early", ["FailureTarget", "SuccessCriteriaMet"])
def test_end_that_is_only_certain_is_not_the_end(planned_job: Planned, early: str) -> None:
    """A Job has not ended while its controller still removes pods: their logs and exit codes are not complete."""
    pods = {"worker-0": {"status": {"phase": "Running"}}, "worker-1": build_ended_pod("Failed", 7, 10)}
    pods["worker-2"] = {"status": {"phase": "Running"}}
    status = read_conditions(planned_job(), early, pods=pods)
    assert (status.state, status.reason) == ("running", "2 of 3 pods run, 1 has failed")


def test_failed_pod_is_the_reason(planned_job: Planned) -> None:
    """A Job that failed is explained by the pod that did, and not by those that the controller then killed."""
    pods = {"worker-1": build_ended_pod("Failed", 7, 10)}
    status = read_conditions(planned_job(), "FailureTarget", "Failed", pods=pods)
    assert (status.state, status.reason) == ("failed", "worker-1 ended with exit code 7")


def test_pods_that_run_one_after_the_other_are_a_running_job(launched: Launched) -> None:
    """A Job whose parallelism is less than its completions runs as soon as so many of its pods do."""
    plan = launched(change_spec(MANIFEST, parallelism=1), launcher="job")
    assert read_conditions(plan, pods={"worker-0": {"status": {"phase": "Running"}}}).state == "running"


def test_deleted_job_is_gone() -> None:
    """A Job that no longer exists is gone."""
    assert job.read_status(Observation({}, frozenset())).state == "gone"
