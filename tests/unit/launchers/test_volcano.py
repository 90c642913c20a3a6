"""Volcano: a Job whose pods start together."""

from typing import Any

import pytest

from tests.builders.plan_parts import get_local_address, list_requirements
from tests.conftest import Planned
from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.observed_moments import explain_wait, find_moments, get_job, get_phase, get_pods
from tests.inputs.user_manifests import JOB, Launched, change_spec
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.launchers import volcano as volcano_launcher
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice, OpenQueue
from torchyard.model.run import Observation, Status

HOST = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host"}
ELASTIC = {"nodes": {"min": 2, "max": 8}}


def volcano(plan: ManifestPlan) -> dict[str, Any]:
    spec: dict[str, Any] = plan.main["spec"]
    return spec


def test_gang_has_explicit_counts(planned: Planned) -> None:
    """minAvailable is the minimum of nodes, for the job and its task, and replicas the maximum, without a webhook."""
    spec = volcano(planned(**ELASTIC))
    (task,) = spec["tasks"]
    assert (spec["minAvailable"], task["minAvailable"], task["replicas"]) == (2, 2, 8)


def test_pod_that_fails_or_is_deleted_ends_the_job(planned: Planned) -> None:
    """A failed or deleted pod ends the job, so that its peers do not hold their GPUs forever."""
    actions = {policy["event"]: policy["action"] for policy in volcano(planned(nodes=2))["policies"]}
    assert actions == {"PodFailed": "TerminateJob", "PodEvicted": "TerminateJob"}


def test_elastic_job_continues_without_a_deleted_pod(planned: Planned) -> None:
    """An elastic job has no policies, so that the other pods continue while Volcano recreates a deleted one."""
    assert "policies" not in volcano(planned(**ELASTIC))


def test_volcano_gives_pods_an_index_and_a_name(planned: Planned) -> None:
    """The plugin env gives a pod its index, and svc gives it a DNS name before it is ready."""
    assert volcano(planned())["plugins"] == {"env": [], "svc": ["--publish-not-ready-addresses=true"]}


def test_names_are_those_of_the_svc_plugin(planned: Planned) -> None:
    """A pod of Volcano is <job>-<task>-<i>.<job>."""
    plan = planned(nodes=2)
    assert get_local_address(plan) == f"{plan.job}-worker-$(TORCHYARD_NODE).{plan.job}"
    assert plan.pods == {f"worker-{index}": f"{plan.job}-worker-{index}" for index in range(2)}
    assert find_main_container(plan.pod) == volcano(plan)["tasks"][0]["name"]


def test_volcano_pods_have_no_ports(planned: Planned) -> None:
    """Volcano pods declare no ports: with the host network, two jobs could then not share a node."""
    assert "ports" not in planned(**HOST, nodes=2).pod["spec"]["containers"][0]


def test_volcano_does_not_retry(planned: Planned) -> None:
    """Volcano does not retry, because that would delete the logs and reuse a closed rendezvous id."""
    assert volcano(planned())["maxRetry"] == 1


def test_queue_is_used_and_checked(planned: Planned) -> None:
    """The job uses the queue of the options, and preflight checks that it is open."""
    plan = planned(options={"queue": "research"})
    assert volcano(plan)["queue"] == "research"
    assert OpenQueue(name="research") in plan.requires


def test_queue_of_kueue_gets_a_warning(planned: Planned) -> None:
    """Kueue does not manage Volcano's Jobs: its label would be ignored without a message."""
    plan = planned(job={"labels": {"kueue.x-k8s.io/queue-name": "team-a"}})
    problems = [advice.finding.what for advice in list_requirements(plan, Advice)]
    assert problems == [
        "kueue.x-k8s.io/queue-name has no effect: Kueue does not manage a Job of batch.volcano.sh/v1alpha1"
    ]


def test_queue_is_that_of_the_manifest(launched: Launched) -> None:
    """Preflight checks the queue that the job names, or else Volcano's default queue."""
    plans = [launched(JOB), launched(change_spec(JOB, queue=None))]
    assert [
        requirement.name for plan in plans for requirement in plan.requires if isinstance(requirement, OpenQueue)
    ] == [
        "research",
        "default",
    ]


# --- its status, as it was recorded


def test_pods_are_counted_after_completed() -> None:
    """The pods are counted, because Volcano drops its own counts when a Job is Completed."""
    last = find_moments("volcano-ok", "succeeded")[-1]
    assert ("succeeded" in get_job(last)["status"], last.reason) == (False, "2 of 2 pods succeeded")


def test_one_crash_is_not_a_loop() -> None:
    """A job with a container that was restarted once is still running."""
    assert any("CrashLoopBackOff" in str(get_pods(moment)) for moment in find_moments("volcano-crash-loop", "running"))


def test_pending_again_has_started() -> None:
    """A Volcano Job that is Pending again because a pod is recreated counts as running."""
    assert "Pending" in [get_phase(moment) for moment in find_moments("volcano-pod-deleted-no-policies", "running")]


def test_job_fails_with_its_first_pod() -> None:
    """A job has failed with its first pod, even if without policies Volcano reports Running while a peer hangs."""
    first = find_moments("volcano-no-policies-fails", "failed")[0]
    assert (get_phase(first), first.reason) == ("Running", "worker-1 ended with exit code 7")


def test_closed_queue_is_the_reason_before_there_are_pods(planned: Planned) -> None:
    """The explanation names the queue that does not admit a job, although its PodGroup has no message."""
    explanation = explain_wait(planned(nodes=2), find_moments("volcano-queue", "pending")[-1])
    assert "waits in queue space-volcano-queue since" in explanation
    assert "(its PodGroup is Pending: the queue is full or closed" in explanation


# --- statuses that the recordings do not have


def read_job(phase: str, spec: dict[str, Any], metadata: dict[str, Any], *pods: dict[str, Any]) -> Status:
    """The status of a Job of two workers in a phase."""
    tasks = [{"name": "worker", "replicas": 2}]
    job = {"metadata": metadata, "spec": {"tasks": tasks} | spec, "status": {"state": {"phase": phase}}}
    states = {"Job/train": job} | {f"Pod/worker-{index}": pod for index, pod in enumerate(pods)}
    return volcano_launcher.read_status(Observation(states, frozenset()))


@pytest.mark.parametrize(("min_success", "state"), [(1, "running"), (2, "failed"), (None, "failed")])
def test_job_continues_while_enough_pods_can_succeed(min_success: int | None, state: str) -> None:
    """A pod that fails ends a Job only if the others are too few for its minSuccess, or without one for its gang."""
    failed = build_ended_pod("Failed", 7, 20)
    running = {"status": {"phase": "Running"}}
    status = read_job("Running", {"minSuccess": min_success}, {}, running, failed)
    assert status.state == state


@pytest.mark.parametrize(
    ("phase", "state"), [("Failed", "failed"), ("Terminated", "failed"), ("Terminating", "gone"), ("Running", "gone")]
)
def test_failed_job_that_its_ttl_deletes_has_ended(phase: str, state: str) -> None:
    """Volcano's TTL deletes a Job that has ended; any other Job was deleted by somebody else."""
    metadata = {"deletionTimestamp": "2023-11-14T22:13:40Z"}
    assert read_job(phase, {}, metadata, build_ended_pod("Failed", 7, 20)).state == state


@pytest.mark.parametrize(
    ("plugins", "first"),
    [
        ({}, "worker-0"),
        ({"pytorch": []}, "master-0"),
        ({"pytorch": ["--master=chief", "--worker=worker"]}, "chief-0"),
        ({"mpi": ["--master=chief"], "ssh": []}, "chief-0"),
    ],
)
def test_master_of_a_plugin_is_the_first_node(launched: Launched, plugins: dict[str, list[str]], first: str) -> None:
    """The task that a plugin gives rank 0, or that starts MPI's ranks, comes first, wherever the manifest lists it."""
    template = {"spec": {"containers": [{"name": "main", "image": "a:1", "command": ["python3", "a.py"]}]}}
    tasks = [{"name": name, "replicas": 1, "template": template} for name in ("worker", "master", "chief")]
    plan = launched(change_spec(JOB, minAvailable=3, plugins=plugins, tasks=tasks))
    assert next(iter(plan.pods)) == first
    assert plan.pod["metadata"]["name"] == plan.pods[first]
