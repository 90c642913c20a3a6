"""Reasons that only the controllers report: which of them are a cause, and which are worth another attempt."""

import math
from typing import Any

import pytest

from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.recording import EPOCH
from tests.inputs.stuck_pods import NOW, format_time
from torchyard.diagnosis import pod_reasons
from torchyard.diagnosis.pod_facts import OBSTACLES_KEY
from torchyard.model.run import Failure

RUNNING = {"running": {"startedAt": format_time(90)}}


def build_container(name: str, state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A container's status; `fields` as `restartCount`."""
    return {"name": name, "restartCount": 0, "state": state} | fields


def build_waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def build_terminated(reason: str, exit_code: int, ago_s: float = 10) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": exit_code, "finishedAt": format_time(ago_s)}}


def build_status_pod(phase: str, *containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A pod of the containers `main` and `side` since an hour, which is never restarted; `status`: further fields."""
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(3600)}
    spec = {"restartPolicy": "Never", "containers": [{"name": "main"}, {"name": "side"}]}
    return {
        "spec": spec,
        "status": {"phase": phase, "conditions": [condition], "containerStatuses": list(containers)} | status,
    }


def find_failure(pod: dict[str, Any], now: float = NOW) -> Failure | None:
    return pod_reasons.find_pod_failure({"worker-0": pod}, now)


@pytest.mark.parametrize(("policy", "causes"), [("OnFailure", []), ("Never", ["oom-pod"])])
def test_container_that_is_restarted_has_not_ended(policy: str, causes: list[str]) -> None:
    """An OOMKilled container that its kubelet restarts does not end the job."""
    oom_killed = build_ended_pod("Running", 137, 20)
    oom_killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    oom_killed["spec"]["restartPolicy"] = policy
    failure = pod_reasons.find_pod_failure({"worker-0": oom_killed}, EPOCH)
    assert [failure_cause.cause for failure_cause in (failure,) if failure_cause] == causes


PULLS = {
    'dial tcp: lookup registry.invalid on 10.0.0.1:53: no such host")': ("image-pull", True),
    "unexpected status from HEAD request to https://r/v2/a/manifests/1: 503 Service Unavailable": ("image-pull", True),
    "pull access denied, repository does not exist or may require authorization": ("image-pull", False),
    "r/a:1: not found": ("image-pull", False),
    "UNAUTHORIZED: authentication timed out; unexpected EOF": ("image-pull", False),
    "something new": ("image-pull", False),
}


@pytest.mark.parametrize("message", PULLS)
def test_unreachable_registry_is_not_a_wrong_image_name(message: str) -> None:
    """A registry that does not answer is worth another attempt; an image that it does not have is not."""
    state = {"waiting": {"reason": "ErrImagePull", "message": message}}
    pod = {"status": {"containerStatuses": [{"name": "worker", "state": state}]}}
    failure = pod_reasons.find_pod_failure({"worker-0": pod}, NOW)
    assert failure
    assert (failure.cause, failure.retry) == PULLS[message]


@pytest.mark.parametrize(("is_initialized", "causes"), [("False", ["init-failed"]), ("True", [])])
def test_failed_init_container_is_quoted(is_initialized: str, causes: list[str]) -> None:
    """A pod whose init container failed is explained by its last lines; a sidecar that ends later explains nothing."""
    terminated = {"reason": "Error", "exitCode": 1, "message": "torchyard: cannot unpack the code\n"}
    status = {
        "phase": "Failed",
        "conditions": [{"type": "Initialized", "status": is_initialized}],
        "initContainerStatuses": [{"name": "torchyard-code", "state": {"terminated": terminated}}],
    }
    failure = pod_reasons.find_pod_failure({"worker-0": {"spec": {"restartPolicy": "Never"}, "status": status}}, NOW)
    assert [cause for cause in (failure and failure.cause,) if cause] == causes
    if failure:
        assert failure.sentence.endswith("(InitError: torchyard-code: torchyard: cannot unpack the code)")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("OutOfnvidia.com/gpu", "device-lost"),
        ("OutOfmemory", "device-lost"),
        ("UnexpectedAdmissionError", "device-lost"),
        ("TopologyAffinityError", "numa-topology"),
        ("NodeAffinity", "pod-refused"),
        ("NodeShutdown", "node-lost"),
    ],
)
def test_pod_that_its_node_refuses_is_explained(reason: str, cause: str) -> None:
    """A kubelet that refuses a pod writes the reason into its status; another node may accept it."""
    status = {"phase": "Failed", "reason": reason, "message": "Pod was rejected"}
    failure = pod_reasons.find_pod_failure({"worker-0": {"status": status}}, NOW)
    assert failure
    assert (failure.cause, failure.retry) == (cause, True)
    assert f"({reason}: Pod was rejected)" in failure.sentence


@pytest.mark.parametrize("message", ["", "\n", " \t"])
def test_reason_without_a_message_is_quoted_alone(message: str) -> None:
    """A container's message may be empty, or only a line end."""
    assert pod_reasons.quote_reason("OOMKilled", message) == "OOMKilled"
    assert pod_reasons.quote_reason("OOMKilled", f"{message}too much\n") == "OOMKilled: too much"


MINUTES_WITHOUT_END = {
    "ErrImagePull": (
        "429 Too Many Requests - Server message: denied: Quota exceeded for quota metric",
        "toomanyrequests: You have reached your unauthenticated pull rate limit",
        "pull QPS exceeded",
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
        "lookup r.example on 10.0.0.10:53: server misbehaving",
        "failed to extract layer sha256:ab: write /var/lib/containerd/x: no space left on device: unknown",
        "http2: server sent GOAWAY and closed the connection",
    ),
    "CreateContainerConfigError": (
        "failed to sync secret cache: timed out waiting for the condition",
        "services have not yet been read at least once, cannot construct envvars",
    ),
    "CreateContainerError": (
        "context deadline exceeded",
        'failed to reserve container name "a": name "a" is reserved for "7c54"',
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0",
    ),
}


@pytest.mark.parametrize(
    ("reason", "message"),
    [(reason, message) for reason, messages in MINUTES_WITHOUT_END.items() for message in messages],
)
def test_obstacle_of_a_node_or_a_registry_is_waited_out(reason: str, message: str) -> None:
    """What another minute may solve does not end the job for two minutes, and is worth another attempt after that."""
    pod = build_status_pod("Pending", build_container("main", build_waiting(reason, message)))
    failure = find_failure(pod)
    assert find_failure(pod, NOW - 3480) is None
    assert failure
    assert failure.retry


@pytest.mark.parametrize(
    ("reason", "message", "cause", "clause"),
    [
        (
            "ErrImagePull",
            "no match for platform in manifest: not found",
            "image-pull",
            "no build for its node's platform",
        ),
        ("ErrImagePull", "no matching manifest for linux/arm64/v8 in the manifest list", "image-pull", "no build for"),
        ("ErrImagePull", "no image found in image index for architecture arm64", "image-pull", "no build for"),
        ("CreateContainerConfigError", 'secret "timed out" not found', "pod-config", "cannot be created"),
        ("RunContainerError", 'exec: "i/o timeout": executable file not found in $PATH', "start-error", "its command"),
        ("StartError", "unsatisfied condition: cuda>=12.4, please update", "driver-too-old", "too old for its image"),
    ],
)
def test_fault_of_the_pod_is_permanent(reason: str, message: str, cause: str, clause: str) -> None:
    """What the pod itself names ends the job within two minutes, whatever words its names contain."""
    pod = build_status_pod("Pending", build_container("main", build_waiting(reason, message)))
    failure = find_failure(pod, NOW - 3480)
    assert failure
    assert (failure.cause, failure.retry, clause in failure.sentence) == (cause, False, True)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", "driver-broken"),
        ("nvidia-container-cli: initialization error: libnvidia-ml.so.1: no such file or directory", "driver-broken"),
        ("failed to create shim task: mkdir /run/containerd/x: no space left on device: unknown", "start-error"),
    ],
)
def test_container_that_its_node_could_not_start_is_worth_another_attempt(message: str, cause: str) -> None:
    """A pod that has failed needs no patience: its node's driver, or its full disk, is the cause at once."""
    state = {"terminated": {"reason": "StartError", "message": message, "exitCode": 128}}
    failure = find_failure(build_status_pod("Failed", build_container("main", state)))
    assert failure
    assert (failure.cause, failure.retry) == (cause, True)


@pytest.mark.parametrize(
    ("message", "is_worth"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", False),
        ('Usage of EmptyDir volume "shm" exceeds the limit "8Gi". ', False),
        ('Container a exceeded its local ephemeral storage limit "20Mi". ', False),
        (
            "The node was low on resource: ephemeral-storage. Container a used 7Ki, which exceeds its request of 0",
            True,
        ),
    ],
)
def test_pod_above_its_own_storage_limit_is_evicted_again(message: str, is_worth: bool) -> None:
    """A pod that exceeds its own limit does so in the next attempt too; one on a full node need not."""
    failure = find_failure(build_status_pod("Failed", reason="Evicted", message=message))
    assert failure
    assert (failure.cause, failure.retry) == ("evicted", is_worth)


@pytest.mark.parametrize(
    ("message", "clause"),
    [
        ("Allocate failed due to no healthy devices present", "its node had no working device for it"),
        ("Allocate failed due to not enough cpus available to satisfy request", "could not allocate what it requests"),
        ("failed to prepare dynamic resources: NodePrepareResources failed", "could not allocate what it requests"),
    ],
)
def test_refusal_for_want_of_processors_names_no_device(message: str, clause: str) -> None:
    """A kubelet has one reason for all that it cannot allocate: only the message shows that it was a device."""
    failure = find_failure(build_status_pod("Failed", reason="UnexpectedAdmissionError", message=message))
    assert failure
    assert (failure.cause, failure.retry, clause in failure.sentence) == ("device-lost", True, True)


@pytest.mark.parametrize("reason", ["NodePorts", "InvalidNodeInfo", "AReasonOfALaterVersion"])
def test_pod_that_failed_before_any_container_was_refused(reason: str) -> None:
    """A pod whose containers never started was refused by its node, for whatever reason its status has."""
    failure = find_failure(build_status_pod("Failed", reason=reason, message="no"))
    started = build_status_pod("Failed", build_container("main", build_terminated("Error", 1)), reason=reason)
    assert failure
    assert (failure.cause, failure.retry) == ("pod-refused", True)
    assert failure.sentence == f"worker-0: its node refused it (PodRejected: {reason}: no)"
    assert find_failure(started) is None


@pytest.mark.parametrize(
    ("reason", "message", "cause", "is_requeue"),
    [
        ("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.", "node-lost", True),
        ("TerminationByKubelet", "Preempted in order to admit critical pod", "preempted", True),
        ("TerminationByKubelet", "The node was low on resource: memory.", "evicted", False),
        ("DeletionByDeviceTaintManager", "deleting due to NoExecute taint", "terminated", True),
        ("AReasonOfALaterVersion", "", "terminated", True),
        ("", "ended", "terminated", True),
    ],
)
def test_disruption_is_a_cause_whatever_its_reason(reason: str, message: str, cause: str, is_requeue: bool) -> None:
    """A true DisruptionTarget shows that the cluster ended the pod; its message tells a shutdown from an eviction."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    failure = find_failure(build_status_pod("Running", conditions=[condition]))
    assert failure
    assert (failure.cause, failure.retry, failure.requeue) == (cause, True, is_requeue)
    assert ": :" not in failure.sentence


def test_reason_of_a_pods_status_has_the_time_of_its_end() -> None:
    """A status has no time of its own: a pod that was evicted later is not the cause of an earlier failure."""
    killed = build_status_pod("Failed", build_container("main", build_terminated("OOMKilled", 137, ago_s=300)))
    evicted = build_status_pod("Failed", build_container("main", build_terminated("Error", 137)), reason="Evicted")
    failure = pod_reasons.find_pod_failure({"worker-0": evicted, "worker-1": killed}, NOW)
    assert failure
    assert (failure.cause, failure.node) == ("oom-pod", "worker-1")


@pytest.mark.parametrize("ended_ago_s", [10, None])
def test_stop_by_a_node_that_shuts_down_has_its_time(ended_ago_s: float | None) -> None:
    """The pod is stopped when its disruption is announced, before its container has ended."""
    ended = build_terminated("Error", 143, ago_s=ended_ago_s) if ended_ago_s else build_waiting("ContainerCreating")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    condition["lastTransitionTime"] = format_time(30)
    pod = build_status_pod("Failed", build_container("main", ended), reason="Terminated", conditions=[condition])
    failure = find_failure(pod)
    assert failure
    assert failure.stopped_at == pytest.approx(NOW - 30, abs=1)


def test_pod_whose_end_has_no_time_is_the_last_one() -> None:
    """A reason without any time is not older than one with a time."""
    evicted = build_status_pod("Failed", reason="Evicted", conditions=[])
    killed = build_status_pod("Failed", build_container("main", build_terminated("OOMKilled", 137)))
    failure = pod_reasons.find_pod_failure({"worker-0": evicted, "worker-1": killed}, NOW)
    assert failure
    assert failure.cause == "oom-pod"


def test_unknown_reason_of_a_container_that_waits_is_reported_and_ends_nothing() -> None:
    """A kubelet that reports another reason than a normal start's has an obstacle, which may pass."""
    message = "not enough cpus available"
    pod = build_status_pod("Pending", build_container("main", build_waiting("PreStartHookError", message)))
    failure = find_failure(pod, math.inf)
    assert find_failure(pod) is None
    assert failure
    assert failure.sentence.endswith(f"does not start (ContainerWaiting: PreStartHookError: {message})")
    normal = build_status_pod("Pending", build_container("main", build_waiting("ContainerCreating")))
    assert find_failure(normal, math.inf) is None


# --- obstacles as the watch records them


def record(ago_s: float, previous: dict[str, Any] | None, *waiting: dict[str, Any]) -> dict[str, Any]:
    """A pod that is Pending since an hour, observed `ago_s` seconds ago, with the state of its main container."""
    pod = build_status_pod("Pending", *(build_container("main", state) for state in waiting))
    return dict(pod_reasons.record_obstacles(pod, previous, NOW - ago_s))


def test_patience_counts_from_the_first_observation_of_an_obstacle() -> None:
    """An image that cannot be pulled after an hour's download has failed for a moment; back-offs continue the count."""
    not_found = build_waiting("ErrImagePull", "r/a:1: not found")
    first = record(100, None, not_found)
    second = record(50, first, build_waiting("ImagePullBackOff", 'Back-off pulling image "r/a:1"'))
    assert find_failure(record(0, None, not_found)) is None
    assert find_failure(record(0, second, not_found))
    recovered = record(50, first, RUNNING)
    assert OBSTACLES_KEY not in recovered
    assert find_failure(record(0, recovered, not_found)) is None


def test_patience_of_another_obstacle_starts_anew() -> None:
    """A container that waits for a Secret, after it has waited for its image, is not blocked for as long."""
    first = record(100, None, build_waiting("ErrImagePull", "r/a:1: not found"))
    no_secret = build_waiting("CreateContainerConfigError", 'secret "a" not found')
    assert find_failure(record(0, first, no_secret)) is None
    assert find_failure(record(0, record(70, first, no_secret), no_secret))


def test_back_off_has_the_cause_of_the_pull_that_failed_before_it() -> None:
    """Older kubelets report only that they wait: the registry that did not respond is still the cause."""
    limited = record(200, None, build_waiting("ErrImagePull", "toomanyrequests: Rate exceeded"))
    waits = record(0, limited, build_waiting("ImagePullBackOff", 'Back-off pulling image "r/a:1"'))
    failure = find_failure(waits, math.inf)
    assert find_failure(waits) is None
    assert failure
    assert failure.retry
    assert failure.sentence.endswith("(ImagePullBackOff: toomanyrequests: Rate exceeded)")


@pytest.mark.parametrize(
    "junk", [None, [], {"main": None}, {"main": {"observed_at": "x"}}, {"main": {"observed_at": 1}}]
)
def test_damaged_record_of_obstacles_is_ignored(junk: Any) -> None:
    """A pod is judged by its status, whatever a recording contains beside it."""
    pod = build_status_pod("Pending", build_container("main", build_waiting("InvalidImageName")))
    pod[OBSTACLES_KEY] = junk
    assert find_failure(pod)
    assert pod_reasons.record_obstacles(pod, pod, NOW)


# --- containers beside the main one

COMPANIONS = {
    "killed": build_container("side", build_terminated("OOMKilled", 137)),
    "in a loop": build_container("side", build_waiting("CrashLoopBackOff"), restartCount=9),
    "without an image": build_container("side", build_waiting("ImagePullBackOff")),
    "lost": build_container("side", build_terminated("ContainerStatusUnknown", 137)),
}


@pytest.mark.parametrize("companion", COMPANIONS)
@pytest.mark.parametrize("main_state", [RUNNING, build_terminated("Error", 1)], ids=["runs", "has failed"])
def test_sidecar_does_not_decide_about_a_pod_whose_main_container_started(
    companion: str, main_state: dict[str, Any]
) -> None:
    """A sidecar's end is not the pod's while the main container runs, nor the cause if that one fails by itself."""
    pod = build_status_pod("Running", build_container("main", main_state), COMPANIONS[companion])
    assert find_failure(pod, math.inf) is None


def test_sidecar_that_keeps_the_main_container_from_its_start_is_named() -> None:
    """A pod that cannot start because of a sidecar quotes the sidecar's name."""
    pod = build_status_pod(
        "Pending", build_container("main", build_waiting("PodInitializing")), COMPANIONS["in a loop"]
    )
    failure = find_failure(pod)
    assert failure
    assert failure.sentence == "worker-0: it crashes repeatedly (CrashLoopBackOff: side)"


def test_pod_that_failed_only_by_its_sidecar_has_its_cause() -> None:
    """If the main container has ended with 0, the pod fails because of another container."""
    done = build_container("main", build_terminated("Completed", 0))
    failure = find_failure(build_status_pod("Failed", done, COMPANIONS["killed"]))
    assert failure
    assert failure.cause == "oom-pod"
    assert find_failure(build_status_pod("Running", done, COMPANIONS["killed"])) is None


def test_obstacle_of_a_sidecar_beside_a_running_main_container_is_reported() -> None:
    """A pod stays Pending until its last image is there: that explains the wait, and ends nothing."""
    pod = build_status_pod("Pending", build_container("main", RUNNING), COMPANIONS["without an image"])
    failure = pod_reasons.find_companion_failure({"worker-0": pod})
    assert find_failure(pod, math.inf) is None
    assert failure
    assert failure.sentence == "worker-0: its image cannot be pulled (ImagePullBackOff: side)"


def test_sidecar_among_the_init_containers_is_restarted() -> None:
    """An init container that is always restarted has not ended, also if the pod is never restarted."""
    killed = build_container("proxy", build_terminated("OOMKilled", 137))
    pod = build_status_pod("Pending", build_container("main", build_waiting("PodInitializing")))
    pod["status"]["initContainerStatuses"] = [killed]
    pod["spec"]["initContainers"] = [{"name": "proxy"}]
    assert find_failure(pod)
    pod["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    assert find_failure(pod) is None


def test_first_init_container_that_failed_is_named() -> None:
    """The others are killed when one fails, a sidecar too."""
    containers = [
        build_container("proxy", build_terminated("Error", 143, ago_s=30)),
        build_container("late", build_terminated("Error", 1, ago_s=10)),
        build_container("first", build_terminated("Error", 3, ago_s=20)),
    ]
    pod = build_status_pod("Failed", initContainerStatuses=containers)
    pod["status"]["conditions"].append({"type": "Initialized", "status": "False"})
    pod["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "first"}]
    failure = find_failure(pod)
    assert failure
    assert failure.sentence.endswith("(InitError: first: exit code 3)")
