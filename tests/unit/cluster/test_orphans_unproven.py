"""Runs that a sweep cannot prove to be dead: without a Lease, or with one that is forged or malformed."""

from typing import Any

import pytest

from tests.fake_api import FakeApi
from tests.leases import DEAD, ID, JOBS, RUN, Make, due, is_there, kept, lease, stamp, sweep, thing
from torchyard.model.errors import ClusterError

pytestmark = pytest.mark.usefixtures("unwatched")


# --- without a Lease


@pytest.fixture
def bare(fake_api: FakeApi) -> list[dict[str, Any]]:
    """A job with a run's label, its pod, and no Lease."""
    job = fake_api.put(thing(JOBS, "Job", f"{RUN}-1"))
    return [job, fake_api.put(thing("v1", "Pod", f"{RUN}-1-worker-0", job))]


def test_objects_without_a_lease_are_listed_and_stay(bare: list[Any]) -> None:
    """Objects without a Lease may belong to anyone: they are listed with the option that removes them."""
    assert due() == []
    assert kept() == {RUN: "`--without-lease` removes it"}


def test_lease_of_the_same_name_elsewhere_protects_nothing(cast: Make, bare: list[Any]) -> None:
    """A run is a namespace and a name: a Lease in another namespace is not the Lease of these objects."""
    cast("other", ago=10)
    assert kept() == {RUN: "`--without-lease` removes it"}


def test_objects_without_a_lease_go_at_a_persons_word(bare: list[Any], fake_api: FakeApi) -> None:
    """Objects without a Lease are removed with the option, unless Prefect knows a living run of that name."""
    asked = DEAD._replace(without_lease=True)
    assert kept(asked._replace(alive_by_name={RUN: "Prefect calls it Running"}.__getitem__)) == {
        RUN: "Prefect calls it Running"
    }
    assert sweep(asked) == []
    assert [is_there(fake_api, each) for each in bare] == [False, False]


def test_claim_without_a_lease_stays_at_any_word(bare: list[Any], fake_api: FakeApi) -> None:
    """A sweep never deletes a volume claim, which holds data."""
    claim = fake_api.put(thing("v1", "PersistentVolumeClaim", "checkpoints"))
    assert sweep(DEAD._replace(without_lease=True)) == []
    assert is_there(fake_api, claim)


def test_young_objects_are_not_listed(fake_api: FakeApi) -> None:
    """Young objects without a Lease are not listed: their run may just be starting."""
    young = thing(JOBS, "Job", f"{RUN}-1")
    young["metadata"]["creationTimestamp"] = stamp(60)
    fake_api.put(young)
    assert (due(), kept()) == ([], {})


def test_lease_that_cannot_be_read_by_name_is_a_fault(bare: list[Any], fake_api: FakeApi) -> None:
    """A Lease counts as absent only if reading it by name says so; a refused read is an error."""
    fake_api.fail("GET", f"/leases/{RUN}", 403)
    with pytest.raises(ClusterError):
        due(DEAD._replace(without_lease=True))


def test_lease_without_the_label_still_protects(bare: list[Any], fake_api: FakeApi) -> None:
    """A Lease that has lost its label is found by its name."""
    held = lease(ago=3)
    del held["metadata"]["labels"]
    fake_api.put(held)
    assert due(DEAD._replace(without_lease=True)) == []
    assert "lacks the label" in kept()[RUN]


# --- forged and malformed Leases


def test_forged_lease_takes_nothing_of_another_run(cast: Make, fake_api: FakeApi) -> None:
    """An expired Lease with another run's label is listed and removes nothing."""
    run = cast(ago=3)
    claim = run.add("v1", "PersistentVolumeClaim")
    fake_api.put(lease("forged-a1b2c3d4", labels={"torchyard/run": RUN}))
    assert due() == []
    assert "and not its own name" in kept()["forged-a1b2c3d4"]
    assert (run.left, is_there(fake_api, claim)) == (["Lease", "Job", "Pod"], True)


def test_label_alone_makes_nothing_the_runs(cast: Make, fake_api: FakeApi) -> None:
    """An object with a dead run's label that its Lease does not own is reported and stays."""
    run = cast()
    strange = [run.add("v1", "PersistentVolumeClaim"), run.add("v1", "ConfigMap"), run.add(JOBS, "Job")]
    left = sweep()
    assert [is_there(fake_api, each) for each in strange] == [True, True, True]
    assert len(left or ()) == 3
    assert all("only carries the run's label" in each for each in left or ())
    assert run.left == []


def test_claim_that_a_lease_owns_is_kept(cast: Make, fake_api: FakeApi) -> None:
    """Neither the sweep nor the garbage collector deletes a checkpoint claim of an earlier version."""
    run = cast()
    claim = run.add("v1", "PersistentVolumeClaim", run.lease)
    assert sweep() == []
    assert (run.left, is_there(fake_api, claim)) == ([], True)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"annotations": {"torchyard/flow-run": "../../admin"}}, "flow-run is '../../admin'"),
    ({"annotations": {"torchyard/flow-run": ID.replace("d4", "d5")}}, "whose last 8 digits end the name"),
    ({"annotations": {"torchyard/attempt": "-1"}}, "attempt is '-1'"),
    ({"annotations": {"torchyard/attempt": "9" * 50}}, "a number from 1 to 9999"),
    ({"spec": {"renewTime": None}}, "renewTime is"),
    ({"spec": {"renewTime": "9999-01-01T00:00:00.000000Z"}}, "not in the future"),
    ({"spec": {"leaseDurationSeconds": None}}, "leaseDurationSeconds is not"),
    ({"spec": {"leaseDurationSeconds": 2**31 - 1}}, "leaseDurationSeconds is not"),
]


@pytest.mark.parametrize(("changes", "said"), MALFORMED, ids=[said for _, said in MALFORMED])
def test_malformed_lease_is_told_and_nothing_is_removed(cast: Make, changes: dict[str, Any], said: str) -> None:
    """A malformed Lease is reported and nothing of its run is removed, even if the run is named."""
    run = cast(**changes)
    for terms in (DEAD, DEAD._replace(runs=frozenset({RUN}))):
        assert due(terms) == []
        assert said in kept(terms)[RUN]
    assert run.left == ["Lease", "Job", "Pod"]
