"""The status of a job of supervised processes, from what their supervisors report."""

from typing import Any

import pytest

from torchyard.diagnosis.process_status import read_status
from torchyard.model.run import Observation


@pytest.mark.parametrize(
    ("rebooted", "cause", "sentence"),
    [
        (True, "host-rebooted", "the host of node-1 was restarted, and no process of the job is left there"),
        (False, "supervisor-killed", "the supervisor of node-1 was killed"),
    ],
)
def test_lost_supervisor_is_worth_another_attempt(rebooted: bool, cause: str, sentence: str) -> None:
    """Neither a restart nor a killed supervisor is the program's fault, so another attempt is worthwhile."""
    states: dict[str, dict[str, Any]] = {
        "node-0": {"phase": "running"},
        "node-1": {"phase": "unsupervised", "exit": None, "rebooted": rebooted},
    }
    failure = read_status(Observation(states, frozenset(states))).failure
    assert failure
    assert (failure.cause, failure.sentence, failure.node, failure.retry) == (cause, sentence, "node-1", True)


RUNNING = {"phase": "running", "exit": None}
DONE = {"phase": "exited", "exit": 0}
BOTH = frozenset({"node-0", "node-1"})


@pytest.mark.parametrize(
    ("states", "joined", "state", "reason"),
    [
        ({}, BOTH, "pending", "every node"),
        ({"node-0": DONE, "node-1": {}}, BOTH, "running", "2 of 2"),
        ({"node-0": RUNNING, "node-1": RUNNING}, frozenset({"node-0"}), "pending", "waits for node-1"),
        ({"node-0": RUNNING, "node-1": RUNNING}, BOTH, "running", "2 of 2 nodes joined"),
        ({"node-0": DONE, "node-1": RUNNING}, BOTH, "running", "2 of 2"),
        ({"node-0": DONE, "node-1": DONE}, BOTH, "succeeded", "2 of 2 agents ended with 0"),
        (
            {"node-0": RUNNING, "node-1": {"phase": "exited", "exit": 7}},
            BOTH,
            "failed",
            "node-1 ended with exit code 7",
        ),
        ({"node-0": RUNNING, "node-1": {"phase": "exited", "exit": -9}}, BOTH, "failed", "killed by signal 9"),
        ({"node-0": RUNNING, "node-1": {"phase": "exited"}}, BOTH, "failed", "exit code None"),
        (
            {"node-0": RUNNING, "node-1": {"phase": "unsupervised"}},
            BOTH,
            "failed",
            "the supervisor of node-1 was killed",
        ),
        ({"node-0": RUNNING, "node-1": {"phase": "absent"}}, BOTH, "gone", "removed by another process"),
        ({"node-0": RUNNING, "etcd": DONE}, BOTH, "failed", "the rendezvous store ended before the job"),
        ({"node-0": {"phase": "no such phase"}}, frozenset(), "pending", "waits for node-0"),
    ],
)
def test_status_follows_from_the_states(states: Any, joined: frozenset[str], state: str, reason: str) -> None:
    """One failed agent fails the job, success needs every agent, and an unknown phase is not a success."""
    status = read_status(Observation(states, joined))
    assert (status.state, reason in status.reason) == (state, True), status


@pytest.mark.parametrize("other_state", [
    {"phase": "running"},
    {"phase": "exited", "exit": 1},
    {"phase": "exited", "exit": 0},
    {},
])  # fmt: skip
def test_end_of_a_lease_is_the_cause(other_state: dict[str, Any]) -> None:
    """If a supervisor has ended its process with the lease, that is the cause, and the job is not retried."""
    states = {"node-0": other_state, "node-1": {"phase": "exited", "exit": 0, "abandoned": 1800.0}}
    status = read_status(Observation(states, frozenset(states)))
    reason = "node-1 was ended by its supervisor: its lease was not renewed for 1800 s (deadlines.lease)"
    assert (status.state, status.reason) == ("failed", reason)
    assert status.failure
    assert (status.failure.cause, status.failure.retry) == ("lease-ended", False)
