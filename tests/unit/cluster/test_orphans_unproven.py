"""Runs that a sweep cannot prove to be dead: without a Lease, or with one that is forged or malformed."""

from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import (
    ID,
    JOBS,
    NO_RUN_ALIVE,
    RUN,
    Make,
    build_lease,
    build_object,
    exists,
    find_kept_reasons,
    find_removable,
    format_time,
    sweep,
)
from torchyard.model.errors import ClusterError

pytestmark = pytest.mark.usefixtures("unwatched")


# --- without a Lease


@pytest.fixture
def unleased(fake_api: FakeApi) -> list[dict[str, Any]]:
    """A job with a run's label, its pod, and no Lease."""
    job = fake_api.put(build_object(JOBS, "Job", f"{RUN}-1"))
    return [job, fake_api.put(build_object("v1", "Pod", f"{RUN}-1-worker-0", job))]


def test_objects_without_a_lease_are_listed_and_stay(unleased: list[Any]) -> None:
    """Objects without a Lease may belong to any user: they are listed with the option that removes them."""
    assert find_removable() == []
    assert find_kept_reasons() == {RUN: "`--without-lease` removes it"}


def test_lease_of_the_same_name_elsewhere_protects_nothing(cast: Make, unleased: list[Any]) -> None:
    """A run is a namespace and a name: a Lease in another namespace is not the Lease of these objects."""
    cast("other", ago=10)
    assert find_kept_reasons() == {RUN: "`--without-lease` removes it"}


def test_objects_without_a_lease_are_removed_with_the_option(unleased: list[Any], fake_api: FakeApi) -> None:
    """Objects without a Lease are removed with the option, unless Prefect has a living run of that name."""
    scope = NO_RUN_ALIVE._replace(without_lease=True)
    assert find_kept_reasons(scope._replace(check_alive_by_name={RUN: "Prefect calls it Running"}.__getitem__)) == {
        RUN: "Prefect calls it Running"
    }
    assert sweep(scope) == []
    assert [exists(fake_api, obj) for obj in unleased] == [False, False]


def test_claim_without_a_lease_stays(unleased: list[Any], fake_api: FakeApi) -> None:
    """A sweep never deletes a volume claim, which holds data; it is reported if somebody gave it the run's label."""
    claim = fake_api.put(build_object("v1", "PersistentVolumeClaim", "checkpoints"))
    assert sweep(NO_RUN_ALIVE._replace(without_lease=True)) == ["PersistentVolumeClaim default/checkpoints"]
    assert exists(fake_api, claim)


def test_young_objects_are_not_listed(fake_api: FakeApi) -> None:
    """Young objects without a Lease are not listed: their run may just be starting."""
    young_job = build_object(JOBS, "Job", f"{RUN}-1")
    young_job["metadata"]["creationTimestamp"] = format_time(60)
    fake_api.put(young_job)
    assert (find_removable(), find_kept_reasons()) == ([], {})


def test_refused_read_of_a_lease_is_an_error(unleased: list[Any], fake_api: FakeApi) -> None:
    """A Lease counts as absent only if reading it by name returns 404."""
    fake_api.fail("GET", f"/leases/{RUN}", 403)
    with pytest.raises(ClusterError):
        find_removable(NO_RUN_ALIVE._replace(without_lease=True))


def test_lease_without_the_label_protects_its_run(unleased: list[Any], fake_api: FakeApi) -> None:
    """A Lease that has lost its label is found by its name."""
    unlabelled_lease = build_lease(ago=3)
    del unlabelled_lease["metadata"]["labels"]
    fake_api.put(unlabelled_lease)
    assert find_removable(NO_RUN_ALIVE._replace(without_lease=True)) == []
    assert "lacks the label" in find_kept_reasons()[RUN]


# --- forged and malformed Leases


def test_forged_lease_removes_nothing_of_another_run(cast: Make, fake_api: FakeApi) -> None:
    """An expired Lease with another run's label is listed and removes nothing."""
    run = cast(ago=3)
    claim = run.add("v1", "PersistentVolumeClaim")
    fake_api.put(build_lease("forged-a1b2c3d4", labels={"torchyard/run": RUN}))
    assert find_removable() == []
    assert "and not its own name" in find_kept_reasons()["forged-a1b2c3d4"]
    assert (run.remaining_kinds, exists(fake_api, claim)) == (["Lease", "Job", "Pod"], True)


def test_label_alone_does_not_make_an_object_the_runs(cast: Make, fake_api: FakeApi) -> None:
    """An object with a dead run's label that its Lease does not own is reported and stays."""
    run = cast()
    foreign_objects = [run.add("v1", "PersistentVolumeClaim"), run.add("v1", "ConfigMap"), run.add(JOBS, "Job")]
    leftovers = sweep()
    assert [exists(fake_api, obj) for obj in foreign_objects] == [True, True, True]
    assert len(leftovers or ()) == 3
    assert all("only carries the run's label" in leftover for leftover in leftovers or ())
    assert run.remaining_kinds == []


def test_claim_that_a_lease_owns_is_kept(cast: Make, fake_api: FakeApi) -> None:
    """A claim that somebody gave to the Lease is reported, and the Lease stays: with it the claim would be deleted."""
    run = cast()
    claim = run.add("v1", "PersistentVolumeClaim", run.lease)
    assert sweep() == [f"PersistentVolumeClaim default/{claim['metadata']['name']}"]
    assert (run.remaining_kinds, exists(fake_api, claim)) == (["Lease"], True)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"annotations": {"torchyard/flow-run": "../../admin"}}, "flow-run is '../../admin'"),
    ({"annotations": {"torchyard/flow-run": ID.replace("d4", "d5")}}, "whose last 8 digits end the name"),
    ({"annotations": {"torchyard/attempt": "-1"}}, "attempt is '-1'"),
    ({"annotations": {"torchyard/attempt": "9" * 50}}, "a number from 1 to 9999"),
    ({"spec": {"renewTime": None}}, "renewTime is"),
    ({"spec": {"renewTime": "9999-01-01T00:00:00.000000Z"}}, "not in the future"),
    ({"spec": {"leaseDurationSeconds": None}}, "leaseDurationSeconds must be"),
    ({"spec": {"leaseDurationSeconds": 2**31 - 1}}, "leaseDurationSeconds must be"),
]


@pytest.mark.parametrize(("changes", "expected"), MALFORMED, ids=[expected for _, expected in MALFORMED])
def test_malformed_lease_is_reported_and_nothing_is_removed(cast: Make, changes: dict[str, Any], expected: str) -> None:
    """A malformed Lease is reported and nothing of its run is removed, even if the run is named."""
    run = cast(**changes)
    for scope in (NO_RUN_ALIVE, NO_RUN_ALIVE._replace(runs=frozenset({RUN}))):
        assert find_removable(scope) == []
        assert expected in find_kept_reasons(scope)[RUN]
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]
