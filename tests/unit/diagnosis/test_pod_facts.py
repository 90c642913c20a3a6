"""Facts in one pod's status, any part of which may be missing."""

from typing import Any

import pytest

from tests.inputs.ended_pods import build_ended_pod
from torchyard.diagnosis import pod_facts


def test_sidecar_is_not_taken_for_the_worker() -> None:
    """The worker's container status is found by its name, because a kubelet sorts them by name."""
    pod_with_sidecar = build_ended_pod("Running", 7, 20)
    pod_with_sidecar["status"]["containerStatuses"].insert(0, {"name": "agent", "state": {"running": {}}})
    assert pod_facts.get_pod_exit_code(pod_with_sidecar) == 7


def test_failed_pod_with_exit_code_0_counts_as_1() -> None:
    """A Failed pod whose container exited with 0, as at its deadline, counts as exit code 1."""
    assert pod_facts.get_pod_exit_code(build_ended_pod("Failed", 0, 20)) == 1


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T22:13:20.500000Z", 1_700_000_000.5),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
        ("2023-13-45T99:00:00Z", 0.0),
        ("0001-01-01T00:00:00+14:00", 0.0),
        ("9999-12-31T23:59:59-14:00", 0.0),
        ("yesterday", 0.0),
        ("", 0.0),
        (None, 0.0),
        (1_700_000_000, 0.0),
    ],
)
def test_invalid_time_is_zero(timestamp: Any, seconds: float) -> None:
    """The API server writes UTC with or without fractions; anything else is 0, and not an error."""
    assert pod_facts.parse_timestamp(timestamp) == seconds


def test_deletion_was_requested_before_its_grace() -> None:
    """The stamp of a deletion marks the end of the grace period, so the request came that much earlier."""
    deleted_pod = build_ended_pod(
        "Running", 0, 0, deletionTimestamp="2023-11-14T22:13:50Z", deletionGracePeriodSeconds=30
    )
    assert pod_facts.get_deletion_time(deleted_pod) == 1_700_000_000.0
    assert pod_facts.get_deletion_time(build_ended_pod("Running", 0, 0)) == 0.0


def test_container_that_was_not_seen_to_start_has_no_times() -> None:
    """A container has a start once it runs and an end once it has ended; before that, 0 and infinity."""
    running = {"status": {"containerStatuses": [{"state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}}}]}}
    assert [pod_facts.get_container_start(pod) for pod in (running, {})] == [1_700_000_000.0, 0.0]
    assert [pod_facts.get_container_end(pod) for pod in (build_ended_pod("Failed", 1, 20), running)] == [
        1_700_000_000.0,
        float("inf"),
    ]


@pytest.mark.parametrize(
    ("phase", "condition", "silent_since"),
    [
        ("Running", {"status": "False"}, 1_700_000_000.0),
        ("Running", {"status": "Unknown"}, 1_700_000_000.0),
        ("Running", {"status": "False", "reason": "ContainersNotReady"}, None),
        ("Running", {"status": "True"}, None),
        ("Pending", {"status": "False"}, None),
    ],
)
def test_silence_of_a_node_starts_at_a_transition_without_a_reason(
    phase: str, condition: dict[str, str], silent_since: float | None
) -> None:
    """Only the node controller takes a running pod's readiness away without a reason."""
    ready = {"type": "Ready", "lastTransitionTime": "2023-11-14T22:13:20Z"} | condition
    assert pod_facts.find_silence_start({"status": {"phase": phase, "conditions": [ready]}}) == silent_since


@pytest.mark.parametrize("value", [None, 7, "x", [], {"status": None}, {"status": "x"}, {"status": {"conditions": 7}}])
def test_missing_value_is_empty(value: Any) -> None:
    """A value of the wrong type anywhere on the way counts as missing."""
    assert (
        dict(pod_facts.get_mapping(value, "status", "x")),
        pod_facts.get_mappings(value, "status", "conditions"),
    ) == (
        {},
        [],
    )


@pytest.mark.parametrize(
    ("exit_code", "description"),
    [
        (7, "ended with exit code 7"),
        (128, "ended with exit code 128"),
        (137, "was killed by signal 9"),
        (192, "was killed by signal 64"),
        (193, "ended with exit code 193"),
        (255, "ended with exit code 255"),
        (-9, "was killed by signal 9"),
    ],
)
def test_exit_code_of_a_signal_is_described(exit_code: int, description: str) -> None:
    """A container reports 128 + n for signal n up to 64; a program that exits with -1 has the code 255."""
    assert pod_facts.describe_exit(exit_code) == description


DAEMON = {"name": "daemon", "command": ["/run.sh"], "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "0"}}}
TRAINER = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}
AGENT = {"name": "agent", "command": ["sh", "-c", "torchrun train.py"]}
OPERATED = {"name": "pytorch"}


@pytest.mark.parametrize(
    ("containers", "annotations", "name"),
    [
        ([DAEMON, TRAINER], {}, "trainer"),
        ([DAEMON, {"name": "trainer", "resources": {"requests": {"google.com/tpu": "4"}}}], {}, "trainer"),
        ([DAEMON, AGENT], {}, "agent"),
        ([DAEMON, AGENT, TRAINER], {}, "trainer"),
        ([DAEMON, AGENT, TRAINER, TRAINER | {"name": "second"}], {}, "agent"),
        ([DAEMON, TRAINER, OPERATED], {}, "pytorch"),
        ([DAEMON, TRAINER, OPERATED], {"kubectl.kubernetes.io/default-container": "daemon"}, "daemon"),
        ([DAEMON, TRAINER], {"kubectl.kubernetes.io/default-container": "gone"}, "trainer"),
        ([DAEMON, {"name": "other"}], {}, "daemon"),
        ([{"resources": {"limits": {"nvidia.com/gpu": 8}}}, DAEMON], {}, None),
        ([DAEMON, {}], {}, "daemon"),
        ([], {}, None),
    ],
)
def test_main_container_is_the_one_that_trains(
    containers: list[dict[str, Any]], annotations: dict[str, str], name: str | None
) -> None:
    """The annotation counts first, then the operator's container, accelerators, torchrun and the order."""
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    assert pod_facts.find_main_container(pod) == name
