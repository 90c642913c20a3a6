"""Why a job makes no progress: what is read from its objects, events, nodes and queues, without a cluster."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Planned
from tests.inputs.kueue import WAITING, build_workload
from tests.inputs.observed_moments import EACH_MOMENT, explain_wait, get_pods
from tests.inputs.recorded_jobs import damaged_observations, nested_keys
from tests.inputs.recording import RecordedMoment
from tests.inputs.stuck_pods import (
    KINDS,
    NOT_FOUND,
    NOW,
    PODS,
    READS,
    build_job_event,
    build_pod,
    build_pod_event,
    build_stalled_job,
    build_unschedulable_pod,
    explain,
    format_time,
    summarize,
)
from torchyard.diagnosis.no_progress import (
    ClusterContext,
    Diagnosis,
    explain_no_progress,
    explain_waiting_processes,
    find_unscheduled_pods,
)
from torchyard.diagnosis.queues.queue import Queue
from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Observation
from torchyard.testing.sample_observations import JUNK

OPEN = passed_check("room", "2 fit on 4 of 9 nodes")
ROOM = failed_check("room", "2 needed, 0 fit; 4 nodes: no nvidia.com/gpu", "ask for less nvidia.com/gpu")
TAINT = Finding("room", "2 needed, 0 fit; 4 nodes: taint team-b", "tolerate team-b", lacks_toleration=True)
CLOSED = Queue(name="default", refusal="is Closed", open_queues=())


# --- events


@pytest.mark.parametrize("min_pods", [1, 2])
def test_elastic_job_continues_without_one_pod(planned: Planned, min_pods: int) -> None:
    """A pod that will never start ends only a job that needs it."""
    plan = planned(nodes={"min": min_pods, "max": 2})
    diagnosis = explain(
        plan,
        ClusterContext([build_pod_event(plan, "FailedMount", NOT_FOUND, 100)]),
        worker_0=build_pod(),
        worker_1=build_pod(),
    )
    assert diagnosis
    assert diagnosis.is_final == (min_pods == 2)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pod that runs": ({}, build_pod("Running")),
    "a pod that was there before": ({}, build_pod() | {"metadata": {"uid": "new"}}),
    "long ago": ({"lastTimestamp": format_time(200), "firstTimestamp": format_time(300)}, build_pod()),
    "another reason": ({"reason": "BackOff"}, build_pod()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_unrelated_event_explains_nothing(plan: ManifestPlan, case: str) -> None:
    """An event counts only if it is recent and about this pod, and the pod has not started."""
    override, seen_pod = OTHERS[case]
    assert (
        explain(plan, ClusterContext([build_pod_event(plan, "FailedMount", NOT_FOUND) | override]), worker_0=seen_pod)
        is None
    )


def test_event_of_a_later_attempt_explains_nothing(plan: ManifestPlan) -> None:
    """An event of attempt 10 does not count for attempt 1, although its name begins with that of attempt 1."""
    override = {"involvedObject": {"kind": "Job", "name": f"{plan.job}0"}}
    diagnosis = explain(plan, ClusterContext([build_job_event(plan, "FailedCreate", "no") | override]))
    assert diagnosis == explain(plan)


@pytest.mark.parametrize("name", ["{job}-1", "{job}-1-7c6f0a51-3b5e-4c8e-9d0a-0f1e2d3c4b5a", "{job}-etl", "{job}0"])
def test_event_of_another_job_explains_nothing(plan: ManifestPlan, name: str) -> None:
    """An event about a job or a PodGroup whose name only begins with the job's name does not count."""
    involved = {"kind": "PodGroup", "name": name.format(job=plan.job)}
    failed_create = build_job_event(plan, "FailedCreate", "no") | {"involvedObject": involved}
    quota = failed_create | {"reason": "Unschedulable", "message": "queue resource quota insufficient"}
    assert explain(plan, ClusterContext([failed_create, quota])) == explain(plan)


# --- nodes, queues, schedulers


def test_node_that_does_not_answer_is_named(plan: ManifestPlan) -> None:
    """A running pod that loses its readiness without a reason is on a node that does not answer."""
    silent = build_pod("Running", type="Ready", status="False")
    explanation = summarize(explain(plan, worker_0=build_pod("Running"), worker_1=silent))
    assert explanation == ("node-lost", "worker-1: its node n-1 has not answered since 22:12:50 UTC", True)


def test_container_that_is_not_ready_is_not_on_a_lost_node(plan: ManifestPlan) -> None:
    """A pod that is not ready for a given reason is not on a lost node: its kubelet answers."""
    busy = build_pod("Running", type="Ready", status="False", reason="ContainersNotReady")
    assert explain(plan, worker_0=build_pod("Running"), worker_1=busy) is None


ROOMS: dict[str, tuple[Finding | None, str, str]] = {
    "too small": (ROOM, "unschedulable", "and even empty nodes would not do: 2 needed, 0 fit; 4 nodes: no nvidia"),
    "tainted": (TAINT, "taint", "4 nodes: taint team-b; tolerate team-b"),
    "busy": (OPEN, "unschedulable", "; nodes would do if they were free: 0/9 nodes are available"),
    "not to be seen": (None, "unschedulable", ": 0/9 nodes are available"),
}


@pytest.mark.parametrize("case", ROOMS)
def test_gang_without_room_is_explained(plan: ManifestPlan, case: str) -> None:
    """The explanation names the gang's request, and whether its nodes are too small, tainted, or only busy."""
    capacity, cause, part = ROOMS[case]
    explanation = summarize(
        explain(
            plan,
            ClusterContext(capacity=capacity),
            worker_0=build_unschedulable_pod(),
            worker_1=build_unschedulable_pod(),
        )
    )
    assert explanation[1].startswith("waits for the gang: it needs 2 pods x 8 nvidia.com/gpu")
    assert (explanation[0], part in explanation[1], explanation[2]) == (cause, True, False)


def test_pod_that_only_waits_for_its_gang_is_not_to_blame(plan: ManifestPlan) -> None:
    """The explanation quotes the scheduler about the pod that does not fit, not about one that would."""
    fits = build_unschedulable_pod("can possibly be assigned to n-1", "Schedulable")
    assert summarize(explain(plan, worker_0=fits, worker_1=build_unschedulable_pod("no cpu")))[1].endswith(": no cpu")


def test_pod_for_which_others_could_be_preempted_has_the_reason_of_its_group(plan: ManifestPlan) -> None:
    """Volcano then reports a node that could be freed; why none is free is in the PodGroup's condition."""
    message = (
        "1/1 tasks in gang unschedulable: pod group is not ready, 1 Pipelined, 1 minAvailable. Origin reason is "
        "train-worker-0: 0/181 nodes are unavailable: 1 node(s) didn't have free ports for the requested pod ports."
    )
    condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": message}
    pipelined = build_unschedulable_pod("Pod a/b can possibly be assigned to n-1, once resource is released")
    pods = {"worker-0": pipelined}
    group = {"PodGroup/podgroup-1": {"status": {"conditions": [condition]}}}
    assert "free ports" in find_unscheduled_pods(pods, group)["worker-0"].message
    assert "can possibly" in find_unscheduled_pods(pods, {})["worker-0"].message


SCHEDULER_MESSAGES = {
    "0/2 nodes are available: pod has unbound PersistentVolumeClaims. preemption: 2 Insufficient": "volume-mount",
    '0/3 nodes are available: persistentvolumeclaim "a" not found.': "volume-mount",
    "0/3 nodes are available: 1 node(s) had untolerated taint {a: }, 2 node(s) had volume node affinity conflict.": (
        "volume-mount"
    ),
    "0/9 nodes are available: 2 node(s) had volume node affinity conflict, 7 Insufficient memory.": "unschedulable",
    "0/8 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 7 Insufficient cpu.": (
        "host-port"
    ),
    "0/3 nodes are available: 1 node(s) didn't have free ports, 2 node(s) didn't match node selector.": "host-port",
    "0/2 nodes are available: 2 node(s) had untolerated taint. no new claims to deallocate, preemption: x": "taint",
    "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't have free ports.": "host-port",
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: x": "unschedulable",
    "0/4 nodes are available: 1 node(s) had untolerated taint {a: }, 3 node(s) didn't match Pod's node affinity.": (
        "unschedulable-selector"
    ),
    "0/3 nodes are available: 3 node(s) had taints that the pod didn't tolerate. preemption: not helpful": "taint",
    "0/3 nodes are available: 1 node(s) had untolerated taint {a: }, 2 Insufficient nvidia.com/gpu.": "unschedulable",
}


@pytest.mark.parametrize("message", SCHEDULER_MESSAGES)
def test_scheduler_names_the_cause(plan: ManifestPlan, message: str) -> None:
    """A volume, labels or taints are the cause only if no node merely lacks room; none of them is final."""
    diagnosis = explain(plan, ClusterContext(capacity=OPEN), worker_0=build_unschedulable_pod(message))
    cause = summarize(diagnosis)[0]
    assert cause == SCHEDULER_MESSAGES[message]
    assert diagnosis
    assert not diagnosis.is_final
    assert ("if they were free" in diagnosis.sentence) is (cause == "unschedulable")


def test_pod_that_the_scheduler_skipped_is_not_to_blame(plan: ManifestPlan) -> None:
    """Volcano skips pods after one that fits no node, which has the reason; a gated pod does not lack room."""
    skipped = build_unschedulable_pod("pod group is not ready", reason="Undetermined")
    diagnosis = explain(plan, worker_0=skipped, worker_1=build_unschedulable_pod("9 Insufficient cpu"))
    assert summarize(diagnosis)[1].endswith(": 9 Insufficient cpu")
    gated = build_unschedulable_pod("Scheduling is blocked", reason="SchedulingGated")
    assert "if they were free" not in summarize(explain(plan, ClusterContext(capacity=OPEN), worker_0=gated))[1]


def test_port_is_free_on_no_node_with_room(plan: ManifestPlan) -> None:
    """If other nodes lack room, the sentence does not claim that their port is in use."""
    message = (
        "0/8 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 7 Insufficient cpu."
    )
    sentence = summarize(explain(plan, worker_0=build_unschedulable_pod(message)))[1]
    assert sentence.endswith("no node has port of the host free among those with room")


def test_run_that_holds_the_port_is_named(plan: ManifestPlan) -> None:
    """The run that holds the port is named if this user may see its pod."""
    spec = {"containers": [{"ports": [{"hostPort": 23456}]}], "nodeName": "n-1"}
    own_pod = build_unschedulable_pod("1 node(s) didn't have free ports for the requested pod ports") | {"spec": spec}
    holder = {"metadata": {"labels": {"torchyard/run": "other"}}, "spec": spec}
    explanation = summarize(explain(plan, ClusterContext(capacity=OPEN, other_pods=[holder]), worker_0=own_pod))
    assert (explanation[0], explanation[2]) == ("host-port", True)
    assert explanation[1].endswith("no node has port 23456 free (run other has it)")


@pytest.mark.parametrize(
    ("context", "cause", "part"),
    [
        ({"queue": CLOSED}, "queue-closed", "waits for queue default, which is Closed"),
        ({"message": "queue resource quota insufficient: insufficient cpu"}, "queue-full", "insufficient cpu"),
        ({"message": "resource in cluster is overused"}, "unschedulable", "is overused"),
        ({"capacity": ROOM}, "unschedulable", "even empty nodes would not do"),
    ],
)
def test_job_without_pods_is_explained(plan: ManifestPlan, context: dict[str, Any], cause: str, part: str) -> None:
    """Before there are pods, the queue, an event about the PodGroup, or the nodes explain the wait."""
    message = context.pop("message", None)
    explanation = summarize(
        explain(plan, ClusterContext([build_job_event(plan, "Unschedulable", message)] if message else [], **context))
    )
    assert (explanation[0], part in explanation[1]) == (cause, True)


def test_job_without_a_status_has_a_silent_controller(plan: ManifestPlan) -> None:
    """A job without any status has a controller that does not run, or is far behind."""
    diagnosis = explain_no_progress(
        plan, Observation({f"Job/{plan.job}": {"status": {}}}, frozenset(), NOW), ClusterContext()
    )
    assert summarize(diagnosis)[0] == "controller-silent"


@pytest.mark.parametrize(
    ("phase", "ago", "is_missed"), [("Inqueue", 40, True), ("Inqueue", 5, False), ("Pending", 40, False)]
)
def test_admitted_gang_without_pods_was_missed(plan: ManifestPlan, phase: str, ago: float, is_missed: bool) -> None:
    """A gang that is out of its queue and gets no pods waits for its controller; another attempt may be noticed."""
    states: dict[str, Any] = {
        f"Job/{plan.job}": {"status": {"state": {"phase": "Pending"}}},
        "PodGroup/x": {"status": {"phase": phase}},
    }
    states[f"Job/{plan.job}"]["metadata"] = {"creationTimestamp": format_time(ago)}
    diagnosis = explain_no_progress(plan, Observation(states, frozenset(), NOW), ClusterContext())
    assert diagnosis
    assert bool(diagnosis.failure) == is_missed
    if diagnosis.failure:
        assert (diagnosis.failure.cause, diagnosis.failure.retry) == ("controller-silent", True)
        assert "its controller has created no pods so far" in diagnosis.failure.sentence


def test_controller_that_has_created_pods_is_not_silent(plan: ManifestPlan) -> None:
    """A gang whose pods were removed waits, but its controller did its work."""
    states: dict[str, Any] = {
        f"Job/{plan.job}": {"metadata": {}, "status": {"state": {"phase": "Restarting"}}},
        "PodGroup/x": {"status": {"phase": "Inqueue"}},
        "Removed/worker-0": build_pod(),
    }
    diagnosis = explain_no_progress(plan, Observation(states, frozenset(), NOW), ClusterContext())
    assert diagnosis
    assert diagnosis.failure is None


def test_turn_in_the_queue_is_not_a_cause(plan: ManifestPlan) -> None:
    """A job that waits for its turn has an explanation that names the queue, and no cause of a failure."""
    group = {"spec": {"queue": "spare"}, "status": {"phase": "Pending"}}
    job = {"status": {"state": {"phase": "Pending"}}}
    states: dict[str, Any] = {f"Job/{plan.job}": job, "PodGroup/x": group}
    diagnosis = explain_no_progress(plan, Observation(states, frozenset(), NOW), ClusterContext())
    assert diagnosis
    assert (diagnosis.failure, diagnosis.is_final) == (None, False)
    assert diagnosis.sentence.startswith("the gang of 2 pods x 8 nvidia.com/gpu waits in queue spare (its PodGroup is")


def test_quota_of_kueue_is_a_cause(planned: Planned) -> None:
    """The message of Kueue about a job's quota explains the wait, and is the cause if the job is given up."""
    plan = planned(nodes=2, launcher="appwrapper", rendezvous="c10d")
    quota = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for nvidia.com/gpu"}
    wrapper = {"status": {"phase": "Suspended", "conditions": [quota]}}
    observed = Observation({f"AppWrapper/{plan.job}": wrapper}, frozenset(), NOW)
    cause, sentence, retry = summarize(explain_no_progress(plan, observed, ClusterContext()))
    assert (cause, retry) == ("queue-full", False)
    assert sentence.endswith("waits in its queue: insufficient unused quota for nvidia.com/gpu")


@pytest.mark.parametrize("refusal", ["LocalQueue q doesn't exist", "ClusterQueue c is inactive"])
def test_queue_of_kueue_that_admits_nothing_is_closed(planned: Planned, refusal: str) -> None:
    """A queue that does not exist or is inactive is not full."""
    diagnosis = explain_suspended(planned, build_workload(WAITING | {"message": refusal}))
    assert summarize(diagnosis)[0] == "queue-closed"


def test_admission_check_that_is_not_ready_is_quoted(planned: Planned) -> None:
    """A job with a quota may wait for its machines: the check reports for what."""
    workload = build_workload({"type": "QuotaReserved", "status": "True"})
    ready = {"name": "a", "state": "Ready"}
    workload["status"]["admissionChecks"] = [ready, {"name": "b", "state": "Pending", "message": "ETA: 5m"}]
    diagnosis = explain_suspended(planned, workload)
    assert diagnosis
    assert diagnosis.sentence.endswith("waits in queue q (its admission check b is Pending: ETA: 5m)")


def explain_suspended(planned: Planned, workload: dict[str, Any]) -> Diagnosis | None:
    """Why a PyTorchJob waits that Kueue has suspended."""
    plan = planned(launcher="pytorchjob")
    job = {
        "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "status": {"conditions": [{"type": "Suspended", "status": "True"}]},
    }
    states = {f"PyTorchJob/{plan.job}": job, "Workload/w": workload}
    return explain_no_progress(plan, Observation(states, frozenset(), NOW), ClusterContext())


@EACH_MOMENT
def test_recorded_gang_without_pods_is_explained(planned: Planned, moment: RecordedMoment) -> None:
    """A recorded job that has a PodGroup and no pods has an explanation."""
    has_pod_group = any(key.startswith("PodGroup/") for key in moment.observed.states)
    if moment.expected == "pending" and has_pod_group and not get_pods(moment):
        plan = planned(nodes=2, launcher=moment.case.partition("-")[0], rendezvous="c10d")
        assert explain_wait(plan, moment)


def test_pod_of_a_running_job_is_explained(plan: ManifestPlan) -> None:
    """A job whose pods have all started has an explanation if a pod reports a problem."""
    drained = build_pod("Running", type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI")
    explanation = summarize(explain(plan, worker_0=build_pod("Running"), worker_1=drained))
    assert explanation[0] == "evicted"


def test_healthy_start_needs_no_explanation(plan: ManifestPlan) -> None:
    """A healthy start has no explanation, despite the warning that Volcano gives at every start."""
    warning = build_job_event(plan, "Unschedulable", "0/2 tasks in gang unschedulable: pod group is ready")
    assert explain(plan, ClusterContext([warning]), worker_0=build_pod(), worker_1=build_pod("Running")) is None


# --- anything


@st.composite
def broken(draw: st.DrawFn) -> tuple[Observation, ClusterContext]:
    """A damaged observation, with damaged events and pods around it."""
    event_body: dict[str, Any] = {"involvedObject": {"kind": "Pod", "name": "job-worker-0"}, "reason": "FailedMount"}
    event_body |= {
        "message": "not found",
        "firstTimestamp": format_time(9),
        "series": {"lastObservedTime": format_time(1)},
    }
    other_pod = {"metadata": {"labels": {"torchyard/run": "a"}}, "spec": {"containers": [{"ports": [{"hostPort": 1}]}]}}
    objects = [
        copy.deepcopy(event_body),
        event_body | {"reason": draw(st.sampled_from(["FailedCreate", "Unschedulable"]))},
        other_pod,
    ]
    for _ in range(draw(st.integers(0, 4))):
        container, key = draw(nested_keys(objects))
        container[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        objects = [obj if obj else {"x": 1} for obj in objects]
    capacity = draw(st.sampled_from([None, OPEN, ROOM]))
    queue = draw(st.sampled_from([None, Queue(name="default"), CLOSED]))
    observed = draw(damaged_observations(with_host_states=False))[1]
    return observed, ClusterContext(objects[:2], capacity, queue, objects[2:])


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(broken())
def test_anything_is_explained_or_not(plan: ManifestPlan, damage: tuple[Observation, ClusterContext]) -> None:
    """Damaged input raises nothing, and an explanation always has a cause and a sentence."""
    diagnosis = explain_no_progress(plan.model_copy(update={"job": "job"}), *damage)
    assert diagnosis is None or diagnosis.sentence
    assert diagnosis is None or diagnosis.failure is None or diagnosis.failure.cause


@pytest.mark.parametrize("launcher", KINDS)
def test_a_warning_costs_one_scan_of_its_pod(planned: Planned, launcher: str) -> None:
    """More warnings add only a few reads of the pod that each one is about."""
    plan = planned(nodes=PODS, launcher=launcher)
    few = build_stalled_job(plan, 1)
    many = build_stalled_job(plan, 3)
    for observed, context, _ in (few, many):
        diagnosis = explain_no_progress(plan, observed, context)
        assert summarize(diagnosis)[0] == "volume-mount"
    reads = [max(pod.reads for pod in pods) for _, _, pods in (few, many)]
    assert reads[0] <= READS
    assert reads[1] - reads[0] <= 2 * 2 * 2  # two more warnings, each in two places


def test_process_that_cannot_be_observed_is_explained() -> None:
    """The reason why the state of a supervised process is an old one is named with its process."""
    states = {"node-0": {"phase": "running"}, "node-1": {"phase": "running", "detail": "its files cannot be read"}}
    diagnosis = explain_waiting_processes(states, ())
    assert diagnosis
    assert diagnosis.sentence == "node-1: its files cannot be read"
