"""The rows of a cluster's runs, from Leases and pods that anyone may have written."""

import time
from typing import Any

import pytest

from tests.doubles.leases import build_lease
from tests.doubles.lost_machines import seal_ending, seal_outcome
from torchyard.listing.lease_rows import build_lease_row

SUBMITTED = {"torchyard/submitted": "1", "torchyard/user": "alice", "torchyard/launcher": "volcano"}


def build_stored_lease(**changes: Any) -> dict[str, Any]:
    """A Lease that was renewed ten seconds ago, as an API server returns it."""
    lease = build_lease(**{"ago": 10} | changes)
    lease["metadata"]["uid"] = "a-uid"
    return lease


def build_pod(phase: str, attempt: str = "1", role: str = "") -> dict[str, Any]:
    labels = {"torchyard/attempt": attempt} | ({"torchyard/role": role} if role else {})
    containers = [{"name": "main", "command": ["torchrun", "--nproc_per_node=4"]}]
    return {"metadata": {"labels": labels}, "spec": {"containers": containers}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("lease", "phases", "state", "note"),
    [
        ({"annotations": {}}, [], "preparing", ""),
        ({}, [], "waiting", "0 of 0 pods run"),
        ({}, ["Pending", "Pending"], "waiting", "0 of 2 pods run"),
        ({}, ["Running", "Pending"], "running", "1 of 2 pods run"),
        ({}, ["Running", "Running"], "running", ""),
        ({}, ["Succeeded", "Succeeded"], "running", "0 of 2 pods run"),
        ({"annotations": SUBMITTED | {"torchyard/outcome": seal_outcome("", "1")}}, [], "ending", ""),
        ({"annotations": SUBMITTED | {"torchyard/ending": seal_ending("", "1")}}, ["Running"], "ending", ""),
        ({"annotations": SUBMITTED | {"torchyard/outcome": seal_outcome("", "0")}}, ["Running"], "running", ""),
        ({"annotations": SUBMITTED | {"torchyard/outcome": "[" * 9000}}, ["Running"], "running", ""),
        ({}, None, "running", "submitted; its pods may not be listed"),
        ({"ago": 200}, ["Running"], "lost", "no launcher renews its Lease, which has not expired yet"),
        ({"ago": 4000}, ["Running"], "lost", "no launcher renews its Lease, which has expired"),
        ({"spec": {"holderIdentity": ""}}, ["Running"], "lost", "its launcher has handed it over to the next process"),
        (
            {"spec": {"renewTime": "never"}},
            [],
            "unreadable",
            "its Lease is malformed: renewTime is 'never': it must be",
        ),
    ],
)
def test_lease_and_pods_show_the_state(lease: dict[str, Any], phases: list[str] | None, state: str, note: str) -> None:
    """The Lease shows whether a launcher owns the run, and the pods of the last attempt whether its job runs."""
    pods = None
    if phases is not None:
        pods = [build_pod(phase) for phase in phases] + [build_pod("Running", "2"), build_pod("Running", role="store")]
    lease_object = build_stored_lease(**{"annotations": SUBMITTED} | lease)
    row = build_lease_row(lease_object, pods, time.time(), holder_dead_after_s=130.0, location="lab/team-a")
    assert (row.state, row.note[: len(note)], row.is_over) == (state, note, False)
    assert bool(note) is bool(row.note)


def test_lease_names_the_user_and_the_machine() -> None:
    """A row has who started the run, the launcher's machine, and the size of the job by its pods."""
    lease = build_stored_lease(annotations=SUBMITTED, spec={"holderIdentity": "login-1:/runs#id"})
    pods = [build_pod("Running")] * 2
    row = build_lease_row(lease, pods, time.time(), holder_dead_after_s=130.0, location="lab/team-a")
    assert (row.user, row.host, row.launcher, row.profile) == ("alice", "login-1", "volcano", "sample")
    assert (row.nodes, row.processes, row.attempt, row.location) == (2, 4, 1, "lab/team-a")


def test_forged_annotation_is_bounded() -> None:
    """A value that anyone may have written cannot fill the terminal or change it."""
    lease = build_stored_lease(annotations=SUBMITTED | {"torchyard/user": "\x1b[2J" + "x" * 5000})
    row = build_lease_row(lease, [], time.time(), holder_dead_after_s=130.0, location="")
    assert len(row.user) <= 100
    assert "\x1b" not in row.user
