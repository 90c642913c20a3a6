"""A kind of job, and the plan of one."""

import pytest

from tests.builders.plan_parts import list_requirements
from tests.conftest import Planned
from tests.inputs.user_manifests import JOB, PYTORCHJOB, Launched, change_spec
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice, ReferencedObject
from torchyard.pods.job_kind import QUEUE_LABEL, PodSet

KUEUE_LAUNCHERS = ("job", "jobset", "appwrapper", "pytorchjob")


def test_main_container_is_the_operators_own() -> None:
    """The container called pytorch counts, wherever it is; without one the first does."""
    names = [["side", "pytorch"], ["first", "second"]]
    templates = [{"spec": {"containers": [{"name": name} for name in containers]}} for containers in names]
    assert [PodSet("a", 1, template).container for template in templates] == ["pytorch", "first"]


@pytest.mark.parametrize("launcher", KUEUE_LAUNCHERS)
def test_queue_of_kueue_is_on_the_main_object_alone(planned: Planned, launcher: str) -> None:
    """The label with the LocalQueue is on the object that Kueue admits, and preflight checks that the queue exists."""
    plan: ManifestPlan = planned(launcher=launcher, options={"local_queue": "team-a"})
    assert plan.main["metadata"]["labels"][QUEUE_LABEL] == "team-a"
    inner = [obj["metadata"].get("labels", {}) for obj in (plan.pod, plan.wrapped or plan.pod)]
    assert [QUEUE_LABEL in labels for labels in inner] == [False, False]
    assert ReferencedObject(object_kind="LocalQueue", name="team-a") in plan.requires


@pytest.mark.parametrize("launcher", KUEUE_LAUNCHERS)
def test_workload_of_a_queued_job_is_watched(planned: Planned, launcher: str) -> None:
    """The Workload that Kueue makes of a job is found by the job's uid, and watched only if the job is in a queue."""
    queued: ManifestPlan = planned(launcher=launcher, options={"local_queue": "team-a"})
    watched = [(kind.kind, kind.owner_label) for kind in queued.watch]
    assert ("Workload", "kueue.x-k8s.io/job-uid") in watched
    unqueued: ManifestPlan = planned(launcher=launcher)
    assert "Workload" not in [kind.kind for kind in unqueued.watch]


QUEUED_MANIFESTS = {
    "pytorchjob": (PYTORCHJOB, True),
    "volcano": (JOB, False),
    "wrapper": (
        {"apiVersion": "workload.codeflare.dev/v1beta2", "spec": {"components": [{"template": PYTORCHJOB}]}},
        True,
    ),
    "old wrapper": (
        {
            "apiVersion": "mcad.ibm.com/v1beta1",
            "spec": {"resources": {"GenericItems": [{"generictemplate": PYTORCHJOB}]}},
        },
        False,
    ),
}


@pytest.mark.parametrize("name", QUEUED_MANIFESTS)
def test_queue_of_kueue_in_a_manifest(launched: Launched, name: str) -> None:
    """The LocalQueue of a manifest's label must exist; the label is reported where Kueue does not manage the job."""
    document, is_kueue_managed = QUEUED_MANIFESTS[name]
    obj = {"kind": "AppWrapper"} | document | {"metadata": {"name": "train", "labels": {QUEUE_LABEL: "team-a"}}}
    plan = launched(obj, launcher="appwrapper" if "wrapper" in name else name)
    queues = [requirement.name for requirement in list_requirements(plan, ReferencedObject)]
    problems = [advice.finding for advice in list_requirements(plan, Advice) if "Kueue" in advice.finding.what]
    assert queues == ["team-a"] * is_kueue_managed
    assert [problem.where for problem in problems] == [f"{obj['kind']} train, metadata.labels"] * (not is_kueue_managed)


@pytest.mark.parametrize("name", ["pytorchjob", "volcano"])
def test_queue_in_an_annotation_is_reported(launched: Launched, name: str) -> None:
    """Kueue reads its queue from a label alone, so the same key as an annotation holds no job back."""
    document, is_kueue_managed = QUEUED_MANIFESTS[name]
    plan = launched(document | {"metadata": {"name": "train", "annotations": {QUEUE_LABEL: "team-a"}}}, launcher=name)
    places = [
        advice.finding.where
        for advice in list_requirements(plan, Advice)
        if "does not hold the job back" in advice.finding.what
    ]
    assert places == [f"{document['kind']} train, metadata.annotations"] * is_kueue_managed
    assert not list_requirements(plan, ReferencedObject)


@pytest.mark.parametrize("queue", ["team-a", None])
def test_suspended_job_without_a_queue_is_reported(launched: Launched, queue: str | None) -> None:
    """A suspended job waits for Kueue, which resumes only a job that is in a queue."""
    job = change_spec(PYTORCHJOB, runPolicy={"suspend": True})
    plan = launched(job | {"metadata": {"name": "train", "labels": {QUEUE_LABEL: queue}}}, launcher="pytorchjob")
    places = [
        advice.finding.where
        for advice in list_requirements(plan, Advice)
        if "until somebody resumes it" in advice.finding.what
    ]
    assert places == ["PyTorchJob train, spec.runPolicy.suspend"] * (queue is None)


def test_first_pod_is_a_value_of_the_plan(planned: Planned) -> None:
    """The first pod is in the plan as a controller creates it; a JobSet's has a random suffix."""
    volcano = planned(launcher="volcano", nodes=2)
    assert (volcano.pod["kind"], volcano.pod["metadata"]["name"]) == ("Pod", f"{volcano.job}-worker-0")
    jobset = planned(launcher="jobset", nodes=2)
    assert jobset.pod["metadata"]["name"] == f"{jobset.job}-worker-0-0-xxxxx"
    assert jobset.node(f"{jobset.job}-worker-0-1-abcde") == "worker-0-1"


def test_first_node_is_the_one_that_starts_the_ranks(launched: Launched) -> None:
    """Pods that start ranks through an agent or MPI come before pods that only serve them."""
    commands = {"data": ["python3", "serve.py"], "lead": ["mpirun", "train"], "rest": ["torchrun", "train.py"]}
    tasks = [
        {"name": name, "replicas": 1, "template": {"spec": {"containers": [{"name": "main", "command": command}]}}}
        for name, command in commands.items()
    ]
    assert list(launched(change_spec(JOB, tasks=tasks)).pods) == ["lead-0", "data-0", "rest-0"]
