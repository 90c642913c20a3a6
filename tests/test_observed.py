"""Readers of a job's status, held to what the real controllers said (`make observe` records it)."""

import copy
import json
from itertools import groupby
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Planned
from tests.recording import EPOCH, OBSERVED, Recorded, recorded
from torchyard.cluster.pod_logs import PodLogs
from torchyard.diagnosis import job_status, pod_facts, pod_reasons
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.model.run import Observation, Status

FILES = {file.stem: recorded(file.stem, json.loads(file.read_text())) for file in sorted(OBSERVED.glob("*.json"))}
MOMENTS = [moment for moments in FILES.values() for moment in moments]
EVERY = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment.case}-{moment.number}")


def read(case: str, observed: Observation) -> Status:
    return registry.load_launcher(case.partition("-")[0]).read_status(observed)


def pods_of(moment: Recorded) -> dict[str, Any]:
    return {name: thing for name, thing in moment.observed.seen.items() if name.startswith("Pod/")}


def moments(case: str, state: str) -> list[Recorded]:
    """The moments of a case whose state is this."""
    found = [moment for moment in FILES[case] if moment.expected == state]
    assert found, f"{case} is never {state}"
    return found


def job_of(moment: Recorded) -> dict[str, Any]:
    return next(dict(thing) for name, thing in moment.observed.seen.items() if not name.startswith("Pod"))


def true_conditions(moment: Recorded) -> set[str]:
    return {each["type"] for each in job_of(moment)["status"].get("conditions", ()) if each["status"] == "True"}


def phase_of(moment: Recorded) -> str:
    return str(job_of(moment)["status"].get("state", {}).get("phase"))


def group_of(moment: Recorded) -> dict[str, Any]:
    groups = [dict(thing) for name, thing in moment.observed.seen.items() if name.startswith("PodGroup/")]
    return groups[0] if groups else {"status": {}}


# --- every recording


@EVERY
def test_state_is_as_recorded(moment: Recorded) -> None:
    """What a job is follows from what was seen, at every moment."""
    status = read(moment.case, moment.observed)
    assert (status.state, status.reason) == (moment.expected, moment.reason)


@pytest.mark.parametrize("case", FILES)
def test_states_are_those_stated(case: str) -> None:
    """A job goes through the states that cases.yaml states of it, and no others."""
    launcher, _, name = case.partition("-")
    stated = yaml.safe_load((OBSERVED / "cases.yaml").read_text())[launcher][name]["states"]
    assert [state for state, _ in groupby(moment.expected for moment in FILES[case])] == stated


def test_every_case_is_recorded() -> None:
    """No case lacks its recording, and no recording its case."""
    stated = yaml.safe_load((OBSERVED / "cases.yaml").read_text())
    assert FILES.keys() == {f"{launcher}-{name}" for launcher, cases in stated.items() for name in cases}


@EVERY
def test_success_is_that_of_every_pod(moment: Recorded) -> None:
    """A job that succeeded has no pod that failed or goes on."""
    if moment.expected == "succeeded":
        assert {pod["status"]["phase"] for pod in pods_of(moment).values()} <= {"Succeeded"}


@EVERY
def test_failure_has_evidence(moment: Recorded) -> None:
    """A job that failed has a pod that says so, or a controller that does."""
    if moment.expected == "failed":
        said = str([thing["status"] for thing in moment.observed.seen.values()])
        assert any(word in said for word in ("Fail", "BackOff", "Terminat", "Abort", "Evict"))


# --- what the controllers' words hide


@pytest.mark.parametrize("case", ["volcano-image", "pytorchjob-image"])
def test_pod_group_that_runs_proves_nothing(case: str) -> None:
    """A PodGroup is Running as soon as its pods have nodes, also where their image cannot be had."""
    assert "Running" in [group_of(moment)["status"].get("phase") for moment in moments(case, "pending")]


@pytest.mark.parametrize("case", ["volcano-image", "pytorchjob-image"])
def test_image_that_cannot_be_had_is_the_cause(case: str) -> None:
    """After its patience an ImagePullBackOff ends the job, with a cause that no log could tell."""
    failure = read(case, moments(case, "failed")[0].observed).failure
    assert failure is not None
    assert (failure.cause, failure.retry) == ("image", False)


@pytest.mark.parametrize("case", ["volcano-image-late", "pytorchjob-image-late"])
def test_image_that_is_late_is_waited_for(case: str) -> None:
    """One ErrImagePull is no failure, and its words are told meanwhile."""
    assert "ErrImagePull" in "".join(moment.reason for moment in moments(case, "pending"))


def test_elastic_success_of_one_worker_is_none_of_the_job() -> None:
    """The operator says Succeeded when one worker is done; the other one still runs."""
    assert any("Succeeded" in true_conditions(moment) for moment in moments("pytorchjob-ok", "running"))


@pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok"])
def test_healthy_job_is_warned_of(case: str) -> None:
    """A job that succeeds has a warning that its gang cannot be scheduled: a warning alone proves nothing."""
    said = json.loads((OBSERVED / f"{case}.json").read_text())["events"]
    assert any("Warning Unschedulable:" in each for each in said)


def test_worker_may_fail_after_success() -> None:
    """The operator goes on saying Succeeded when the other worker fails."""
    last = moments("pytorchjob-ok-then-fails", "failed")[-1]
    assert ("Succeeded" in true_conditions(last), "worker-1 ended with exit code 7") == (True, last.reason)


def test_running_operator_has_a_worker_that_never_fits() -> None:
    """Without a gang the PyTorchJob is Running while one of its workers has no node."""
    last = moments("pytorchjob-one-does-not-fit-no-gang", "pending")[-1]
    assert ("Running" in true_conditions(last), "4 of 5 pods run; worker-" in last.reason) == (True, True)


@pytest.mark.parametrize("case", ["volcano-elastic-one-does-not-fit", "pytorchjob-elastic-one-does-not-fit"])
def test_elastic_job_runs_with_fewer(case: str) -> None:
    """An elastic job has started once its least number of workers has."""
    assert "4 of 5 pods run" in moments(case, "running")[-1].reason


@pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok"])
def test_normal_start_is_not_alarming(case: str) -> None:
    """Before its pods are bound nothing is told of a healthy job but how many run."""
    assert all("chedul" not in moment.reason for moment in FILES[case])


def test_counts_vanish_after_completed() -> None:
    """Volcano forgets its counts when a Job is Completed: the pods tell."""
    last = moments("volcano-ok", "succeeded")[-1]
    assert ("succeeded" in job_of(last)["status"], last.reason) == (False, "2 of 2 pods succeeded")


@pytest.mark.parametrize("case", ["volcano-oom-zero", "pytorchjob-oom-zero"])
def test_memory_is_told_of_a_success(case: str) -> None:
    """OOMKilled beside exit code 0 is a success, and told."""
    assert moments(case, "succeeded")[-1].reason == "2 of 2 pods succeeded; but worker-1 ran out of memory on the way"


@pytest.mark.parametrize(
    ("case", "cause", "retry"),
    [("oom", "oom-pod", False), ("evicted", "evicted", True), ("drained", "evicted", True)],
)
@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_cause_is_known_to_the_cluster_alone(launcher: str, case: str, cause: str, retry: bool) -> None:
    """What killed a pod from outside is told with its node, and whether a new try is worth it."""
    name = f"{launcher}-{case}"
    failure = read(name, moments(name, "failed")[0].observed).failure
    assert failure is not None
    assert (failure.cause, failure.retry, failure.node) == (cause, retry, "worker-1")


@pytest.mark.parametrize("case", ["volcano-deleted", "pytorchjob-deleted"])
def test_pods_of_a_deleted_job_fail(case: str) -> None:
    """A deleted job is gone, although its pods end as Failed."""
    assert any("'Failed'" in str(pods_of(moment)) for moment in moments(case, "gone"))


@pytest.mark.parametrize("case", ["volcano-crash-loop", "pytorchjob-crash-loop"])
def test_crash_loop_is_seen_through(case: str) -> None:
    """With restartPolicy OnFailure every controller says Running for ever."""
    last = moments(case, "failed")[-1]
    assert ("Running" in (phase_of(last), *true_conditions(last)), "CrashLoopBackOff" in last.reason) == (True, True)


def test_one_crash_is_not_a_loop() -> None:
    """A container that was restarted once is running."""
    assert any("CrashLoopBackOff" in str(pods_of(moment)) for moment in moments("volcano-crash-loop", "running"))


def test_pending_again_has_started() -> None:
    """A Volcano Job that is Pending once more, because a pod is made anew, is under way."""
    assert "Pending" in [phase_of(moment) for moment in moments("volcano-pod-deleted-no-policies", "running")]


def test_hopeless_job_does_not_wait_for_its_last_pod() -> None:
    """Without policies Volcano says Running as long as a peer of the failed pod hangs."""
    first = moments("volcano-no-policies-fails", "failed")[0]
    assert (phase_of(first), first.reason) == ("Running", "worker-1 ended with exit code 7")


@pytest.mark.parametrize("case", ["pytorchjob-clean-running", "pytorchjob-clean-all", "volcano-completes"])
def test_pods_that_a_controller_removes_do_not_fail(case: str) -> None:
    """What is killed because the job is done says nothing against it."""
    assert "'exitCode': 137" in "".join(str(pods_of(moment)) for moment in FILES[case])


def test_gang_that_does_not_fit_is_created_and_no_more() -> None:
    """With a gang scheduler the PyTorchJob stays Created, and the scheduler's words are told."""
    last = moments("pytorchjob-never-fits", "pending")[-1]
    assert (true_conditions(last), "Insufficient nvidia.com/gpu" in last.reason) == ({"Created"}, True)


def test_queue_is_told_before_there_are_pods() -> None:
    """A PodGroup that its queue does not admit says nothing itself."""
    assert "space-volcano-queue is full or closed" in moments("volcano-queue", "pending")[-1].reason


# --- what no recording has


# JSON that has no place in a status: each of another kind than what stands there, or of the kind and out of its range.
JUNK: list[Any] = [None, "", "x", "1", "Failed", "Running", "2023-13-45T99:00:00Z", "0001-01-01T00:00:00+14:00", 0, -1]
JUNK += [
    10**30,
    1.5,
    True,
    [],
    [None],
    ["x", 7],
    [[]],
    {},
    {"x": None},
    {"status": "x"},
    [{"status": []}, {"name": {}}],
]
# What the launchers on machines read, as their keepers and Run:ai's CLI say it.
SPOKEN: dict[str, dict[str, Any]] = {
    "baremetal": {"node-0": {"phase": "exited", "exit": 0}, "etcd": {"phase": "running"}},
    "runai": {
        "node-0": {"phase": "exited", "exit": 1, "word": "Failed", "ended": 5.0},
        "node-1": {"phase": "starting", "word": "ErrImagePull", "since": 3.0, "detail": "no route"},
    },
}


@st.composite
def damaged(draw: st.DrawFn, spoken: bool = True) -> tuple[str, Observation]:
    """What was seen, with some values taken away, or with any JSON in their place; an object may be no object."""
    moment = draw(st.sampled_from(MOMENTS))
    case, seen = moment.case, copy.deepcopy(dict(moment.observed.seen))
    if spoken and draw(st.integers(0, 9)) == 0:
        case = draw(st.sampled_from(sorted(SPOKEN)))
        seen = copy.deepcopy(SPOKEN[case])
    for _ in range(draw(st.integers(0, 6)) if seen else 0):
        thing, key = draw(places(seen))
        if draw(st.booleans()):
            del thing[key]
        else:
            thing[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        if not seen:
            break
    return case, Observation(seen, frozenset(), moment.observed.at)


@st.composite
def places(draw: st.DrawFn, thing: Any) -> tuple[Any, Any]:
    """A place in a thing, with what holds it: near its surface as often as deep inside."""
    while True:
        key = draw(st.sampled_from(range(len(thing)) if isinstance(thing, list) else sorted(thing)))
        if not isinstance(thing[key], dict | list) or not thing[key] or draw(st.integers(0, 3)) == 0:
            return thing, key
        thing = thing[key]


@settings(max_examples=1000)
@given(damaged())
def test_damaged_status_is_read(damage: tuple[str, Observation]) -> None:
    """Whatever a status holds or lacks, a state is read from it, and never success where a pod failed."""
    status = read(*damage)
    pods = job_status.select_job_pods(damage[1]).values()
    failed = any(pod_facts.read_pod_phase(pod) == "Failed" and not pod_facts.is_being_deleted(pod) for pod in pods)
    assert not (failed and status.state == "succeeded")


PODS = pytest.mark.parametrize("case", ["volcano-ok", "pytorchjob-ok", "appwrapper-ok", "jobset-ok"])


@PODS
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_unknown_phase_is_no_success(case: str, junk: Any) -> None:
    """A job that is done has not succeeded with a pod whose phase is anything else."""
    moment = moments(case, "succeeded")[-1]
    seen = copy.deepcopy(dict(moment.observed.seen))
    next(thing for name, thing in seen.items() if name.startswith("Pod/"))["status"]["phase"] = junk
    assert read(case, Observation(seen, frozenset(), moment.observed.at)).state != "succeeded"


@PODS
@pytest.mark.parametrize("junk", [each for each in JUNK if each is not None and each != 0], ids=repr)
def test_unknown_exit_code_is_no_success(case: str, junk: Any) -> None:
    """An exit code that is no number, or not 0, is taken for a failure."""
    moment = moments(case, "succeeded")[-1]
    seen = copy.deepcopy(dict(moment.observed.seen))
    pod = next(thing for name, thing in seen.items() if name.startswith("Pod/"))
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = junk
    assert read(case, Observation(seen, frozenset(), moment.observed.at)).state != "succeeded"


@pytest.mark.parametrize("case", SPOKEN)
@given(st.sampled_from(JUNK))
def test_word_that_is_none_is_no_success(case: str, junk: Any) -> None:
    """A launcher on machines that is told no object at all does not take it for the end."""
    assert read(case, Observation({"node-0": junk}, frozenset(), EPOCH)).state in ("pending", "failed")


def inside_kinds() -> set[str]:
    """What `damaged` has put in the place of an object's parts, by kind."""
    found: set[str] = set()

    @settings(max_examples=1000, database=None, derandomize=True)
    @given(damaged())
    def draw(damage: tuple[str, Observation]) -> None:
        for thing in damage[1].seen.values():
            parts = {"object": thing} | (thing if isinstance(thing, dict) else {})
            found.update(f"{key}: {type(value).__name__}" for key, value in parts.items())

    draw()
    return found


def test_damage_is_of_any_kind() -> None:
    """Objects and their parts really become texts, numbers, lists and nothing: else the properties above are idle."""
    found = inside_kinds()
    wanted = {
        f"{key}: {kind}" for key in ("object", "metadata", "status") for kind in ("str", "int", "list", "NoneType")
    }
    assert wanted <= found


BARE: list[dict[str, Any]] = [
    {},
    {"metadata": {"uid": "u"}},
    {"metadata": {"uid": "u"}, "spec": "x", "status": {"containerStatuses": "x"}},
    {"metadata": {"uid": "u"}, "spec": {"containers": []}, "status": {"containerStatuses": [{"state": 7}]}},
    {"metadata": [], "spec": {"containers": ["x", {}]}, "status": []},
]


@pytest.mark.parametrize("bare", BARE, ids=range(len(BARE)))
def test_pod_without_containers_has_no_log(planned: Planned, bare: dict[str, Any]) -> None:
    """A pod of which next to nothing is known is taken, and its log is not begun."""
    pumps = PodLogs(cast(Client, None), planned(nodes=2))
    pumps.take("worker-0", "sample-worker-0", bare)
    assert not pumps.settling()


def pod(phase: str, exit_code: int, second: int, **metadata: Any) -> dict[str, Any]:
    """A pod that has ended."""
    over = {"exitCode": exit_code, "finishedAt": f"2023-11-14T22:13:{second}Z", "reason": "Error"}
    status = {"phase": phase, "containerStatuses": [{"name": "worker", "state": {"terminated": over}}]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "worker"}]}, "status": status}


def test_pod_that_was_killed_with_the_job_is_not_its_cause() -> None:
    """Of two that ended in the same second the one that was not deleted failed first."""
    killed = pod("Failed", 137, 20, deletionTimestamp="2023-11-14T22:13:35Z")
    seen = {"Pod/worker-0": killed, "Pod/worker-1": pod("Failed", 7, 20)}
    status = job_status.failed_status(Observation(seen, frozenset()), "")
    assert status.reason == "worker-1 ended with exit code 7"


def test_pod_that_was_deleted_before_the_others_failed_is_the_cause() -> None:
    """A peer that lost a deleted pod fails by itself: the deletion is told, and is worth another attempt."""
    gone = pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:35Z", deletionGracePeriodSeconds=15)
    seen = {"Pod/worker-1": pod("Failed", 1, 21), "Removed/worker-0": gone}
    failure = job_status.failed_status(Observation(seen, frozenset()), "").failure
    assert failure
    assert (failure.cause, failure.node, failure.retry) == ("pod-deleted", "worker-0", True)


def test_pod_that_failed_before_another_was_deleted_is_the_cause() -> None:
    """A pod that was taken away after the failure has nothing to do with it."""
    gone = pod("Running", 0, 0, deletionTimestamp="2023-11-14T22:13:38Z", deletionGracePeriodSeconds=15)
    seen = {"Pod/worker-1": pod("Failed", 1, 21), "Removed/worker-0": gone}
    assert job_status.failed_status(Observation(seen, frozenset()), "").reason == "worker-1 ended with exit code 1"


def test_sidecar_is_not_taken_for_the_worker() -> None:
    """A kubelet sorts statuses by name: the worker's is found by it."""
    both = pod("Running", 7, 20)
    both["status"]["containerStatuses"].insert(0, {"name": "agent", "state": {"running": {}}})
    assert pod_facts.read_pod_exit_code(both) == 7


def test_pod_that_failed_in_spite_of_zero_failed() -> None:
    """A container that obeys its deadline ends with 0, and its pod is Failed."""
    assert pod_facts.read_pod_exit_code(pod("Failed", 0, 20)) == 1


@pytest.mark.parametrize(("policy", "causes"), [("OnFailure", []), ("Never", ["oom-pod"])])
def test_container_that_is_restarted_has_not_ended(policy: str, causes: list[str]) -> None:
    """An OOMKilled container that its kubelet starts again does not end the job."""
    killed = pod("Running", 137, 20)
    killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    killed["spec"]["restartPolicy"] = policy
    found = pod_reasons.find_pod_failure({"worker-0": killed}, EPOCH)
    assert [each.cause for each in (found,) if each] == causes


@pytest.mark.parametrize(("least", "failed"), [(1, False), (2, True)])
def test_elastic_job_does_without_a_node_that_has_no_image(least: int, failed: bool) -> None:
    """A pod that cannot start ends only a job that needs it."""
    waiting = {"state": {"waiting": {"reason": "InvalidImageName"}}}
    pods: dict[str, dict[str, Any]]
    pods = {"worker-0": {"status": {"phase": "Running"}}, "worker-1": {"status": {"containerStatuses": [waiting]}}}
    status = job_status.unfinished_status(Observation({}, frozenset(), EPOCH), pods, job_status.Gang(2, least))
    assert (status.state == "failed") is failed


def test_job_whose_nodes_had_joined_has_started() -> None:
    """A PyTorchJob that makes a pod anew is not taken for one that never started."""
    seen = FILES["pytorchjob-ok"][1].observed.seen
    status = read("pytorchjob-ok", Observation(seen, frozenset({"worker-0", "worker-1"}), EPOCH))
    assert status.state == "running"


@pytest.mark.parametrize(("deleted", "says"), [("10:00:00", "exit code 7"), ("09:59:58", "deleted by somebody else")])
def test_peer_that_a_controller_removed_at_once_hides_no_exit_code(deleted: str, says: str) -> None:
    """Of what happened within one second nobody knows the order: then the program's own end is told."""
    day, grace = "2026-11-22T", 0
    ended = {"terminated": {"exitCode": 7, "finishedAt": f"{day}10:00:00Z", "reason": "Error"}}
    failed = {
        "metadata": {"name": "a"},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "w", "state": ended}]},
    }
    going = {"name": "b", "deletionTimestamp": f"{day}{deleted}Z", "deletionGracePeriodSeconds": grace}
    removed = {"metadata": going, "status": {"phase": "Running"}}
    seen = {"Pod/worker-0": failed, "Removed/worker-1": removed}
    assert says in job_status.failed_status(Observation(seen, frozenset(), 0.0), "it failed").reason
