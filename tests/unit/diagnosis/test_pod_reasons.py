"""Reasons that only the controllers report: which of them are a cause, and which are worth another attempt."""

import pytest

from tests.inputs.ended_pods import build_ended_pod
from tests.inputs.recording import EPOCH
from tests.inputs.stuck_pods import NOW
from torchyard.diagnosis import pod_reasons


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
