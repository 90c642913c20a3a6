"""Event rules: the cause that an event shows, and whether waiting longer is pointless."""

from typing import Any

import pytest

from tests.inputs.stuck_pods import (
    NOT_FOUND,
    NOW,
    build_job_event,
    build_pod,
    build_pod_event,
    explain,
    format_time,
    summarize,
)
from torchyard.diagnosis.event_rules import find_event_rules, get_first_seen, get_last_seen
from torchyard.diagnosis.no_progress import ClusterContext
from torchyard.model.plan import ManifestPlan

GO = 'err: &errors.StatusError{ListMeta:{Self:""}, Message:"pods \\"a\\" is forbidden: exceeded quota: q, '
USED = 'requested: cpu=2, used: cpu=7, limited: cpu=8", Code:403}'
WHOLE = 'requested: cpu=9, used: cpu=0, limited: cpu=8", Code:403}'
EVENTS = {
    "volume that is not there": ("FailedMount", NOT_FOUND, "volume-mount", False),
    "volume that is late": ("FailedMount", "timed out waiting for the condition", "volume-mount", True),
    "disk": ("FailedAttachVolume", "Multi-Attach error for volume", "volume-mount", True),
    "network": ("FailedCreatePodSandBox", 'network-attachment-definitions "a" not found', "pod-network", False),
    "network that refuses": ("FailedCreatePodSandBox", "network-attachment a: Unauthorized", "pod-network", True),
    "network that cannot be read": (
        "FailedCreatePodSandBox",
        'cannot find a network-attachment-definition (a) in namespace (b): Get "https://10.96.0.1": i/o timeout',
        "pod-network",
        True,
    ),
    "group of processes": ("FailedCreatePodContainer", "mkdir /sys/fs/cgroup: no space left", "start-error", True),
    "sandbox": ("FailedCreatePodSandBox", "failed to assign an IP address", "pod-network", True),
}


@pytest.mark.parametrize("case", EVENTS)
def test_event_of_a_pod_explains(plan: ManifestPlan, case: str) -> None:
    """An event gives a cause with the pod's name, and whether another attempt may succeed."""
    reason, message, cause, retry = EVENTS[case]
    diagnosis = summarize(explain(plan, ClusterContext([build_pod_event(plan, reason, message)]), worker_0=build_pod()))
    assert (diagnosis[0], diagnosis[2]) == (cause, retry)
    assert diagnosis[1].startswith("worker-0: ")
    assert diagnosis[1].endswith(f"({reason}: {message})")


def test_event_ends_the_job_after_the_patience_of_its_cause(plan: ManifestPlan) -> None:
    """A missing Secret may still be created: it ends the job after 90 s, not at once."""
    diagnoses = [
        explain(plan, ClusterContext([build_pod_event(plan, "FailedMount", NOT_FOUND, ago)]), worker_0=build_pod())
        for ago in (30, 100)
    ]
    assert [diagnosis.is_final for diagnosis in diagnoses if diagnosis] == [False, True]


@pytest.mark.parametrize(("error_tail", "is_final"), [(USED, False), (WHOLE, True)])
def test_quota_used_by_other_jobs_does_not_end_the_job(plan: ManifestPlan, error_tail: str, is_final: bool) -> None:
    """A quota that others use up may become free; a request above the whole quota never succeeds."""
    diagnosis = explain(plan, ClusterContext([build_job_event(plan, "FailedCreate", GO + error_tail)]))
    assert summarize(diagnosis)[0] == "quota"
    assert diagnosis
    assert diagnosis.is_final is is_final


@pytest.mark.parametrize(
    ("message", "clause"),
    [
        (
            'admission webhook "policy" denied the request: no latest tag',
            "the cluster's admission rules refuse its pods",
        ),
        ('pods "a" is forbidden: violates PodSecurity "restricted:latest"', "the cluster's admission rules refuse"),
        ('pods "a" is forbidden: error looking up service account', "its pods cannot be created"),
    ],
)
def test_refused_pods_name_the_reason(plan: ManifestPlan, message: str, clause: str) -> None:
    """A refusal by a webhook, a policy or Pod Security is distinguished from a missing object."""
    diagnosis = summarize(explain(plan, ClusterContext([build_job_event(plan, "FailedCreate", message)])))
    assert (diagnosis[0], clause in diagnosis[1], message in diagnosis[1]) == ("pod-refused", True, True)


@pytest.mark.parametrize(
    "message",
    [
        'Internal error occurred: failed calling webhook "a": failed to call webhook: Post "https://b": EOF',
        'Operation cannot be fulfilled on resourcequotas "q": the object has been modified',
        "etcdserver: request timed out",
        'pods "a" is forbidden: status unknown for quota: q, resources: requests.cpu',
    ],
)
def test_fault_of_the_api_server_does_not_refuse_the_pods(plan: ManifestPlan, message: str) -> None:
    """A controller tries again after a webhook that does not respond or a conflict; a refusal stays."""
    for text, is_final in ((message, False), (f'admission webhook "a" denied the request: {message}', True)):
        diagnosis = explain(plan, ClusterContext([build_job_event(plan, "FailedCreate", text)]))
        assert diagnosis
        assert diagnosis.failure
        assert (diagnosis.failure.cause, diagnosis.failure.retry) == ("pod-refused", not is_final)
        assert diagnosis.is_final is is_final


@pytest.mark.parametrize(("created_ago_s", "is_refused"), [(300, True), (50, False)])
def test_controller_that_has_created_a_pod_since_is_not_refused(
    plan: ManifestPlan, created_ago_s: float, is_refused: bool
) -> None:
    """A refusal that was last seen before the newest pod was created is over, while the job still lacks pods."""
    event = build_job_event(plan, "FailedCreate", "service account not found") | {"lastTimestamp": format_time(80)}
    pod = build_pod()
    pod["metadata"]["creationTimestamp"] = format_time(created_ago_s)
    diagnosis = explain(plan, ClusterContext([event]), worker_0=pod)
    assert (diagnosis is not None and diagnosis.is_final) is is_refused


def test_only_the_message_of_a_go_error_is_quoted(plan: ManifestPlan) -> None:
    """Only the API server's message is quoted from an error that Volcano prints as a Go struct."""
    sentence = summarize(explain(plan, ClusterContext([build_job_event(plan, "FailedCreate", GO + USED)])))[1]
    quote = 'pods "a" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=7, limited: cpu=8'
    assert sentence.endswith(f"(FailedCreate: {quote})")


@pytest.mark.parametrize(
    ("reason", "slug"),
    [
        ("FailedMount", "volume-mount"),
        ("FailedAttachVolume", "volume-mount"),
        ("NetworkNotReady", "pod-network"),
        ("FailedCreatePodSandBox", "pod-network"),
        ("FailedCreatePodGroup", "quota"),
        ("FailedMountOnHost", ""),
        ("Unschedulable", ""),
        ("BackOff", ""),
    ],
)
def test_most_warnings_match_no_rule(reason: str, slug: str) -> None:
    """Only events that no healthy job has are a cause; a pod's sandbox is not an object that cannot be created."""
    rules = find_event_rules(reason)
    assert (rules[0].pod_rule.cause if rules else "") == slug


@pytest.mark.parametrize(
    ("times", "first", "last"),
    [
        ({"firstTimestamp": format_time(90), "lastTimestamp": format_time(10)}, NOW - 90, NOW - 10),
        ({"eventTime": format_time(90), "series": {"lastObservedTime": format_time(5)}}, NOW - 90, NOW - 5),
        ({"firstTimestamp": None, "metadata": {"creationTimestamp": format_time(70)}}, NOW - 70, NOW - 70),
        ({"firstTimestamp": 7, "series": "x"}, 0.0, 0.0),
    ],
)
def test_times_of_an_event_are_read_in_either_form(times: dict[str, Any], first: float, last: float) -> None:
    """The times of both event APIs are read; an event without times has 0."""
    assert (get_first_seen(times), get_last_seen(times)) == (first, last)
