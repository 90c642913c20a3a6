"""What a sweep takes from a cluster, and what it leaves: on a fake API server."""

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from tests.fake_api import FakeApi, Handler
from tests.leases import ID, JOBS, RUN, Cast, is_there, lease, stamp, thing
from torchyard.cluster import orphans
from torchyard.cluster.orphans import Orphan, SweepScope
from torchyard.kube import client
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError

DEAD = SweepScope(alive=lambda _: "", alive_by_name=lambda _: "")
Make = Callable[..., Cast]


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 0.0)
    monkeypatch.setattr(orphans, "_REMOVAL_POLL_INTERVAL_S", 0.01)


@pytest.fixture
def cast(fake_api: FakeApi) -> Make:
    """Put a run into the cluster, an hour dead unless told otherwise."""

    def make(namespace: str = "default", **keys: Any) -> Cast:
        return Cast(fake_api, lease(**keys), namespace)

    return make


def due(terms: SweepScope = DEAD) -> list[Orphan]:
    return [each for each in orphans.find_orphans(None, terms) if not each.kept]


def kept(terms: SweepScope = DEAD) -> dict[str, str]:
    """Why runs stay, by name."""
    return {each.run: each.kept for each in orphans.find_orphans(None, terms) if each.kept}


def sweep(terms: SweepScope = DEAD) -> list[str] | None:
    """What is left of the one run that goes."""
    (found,) = due(terms)
    return orphans.remove_orphan(found)


# --- whose Lease has run out


def test_expired_run_goes_with_all_it_owns(cast: Make) -> None:
    """The job, its pods and last the Lease of a run that nobody renewed for longer than its Lease."""
    run = cast()
    assert sweep() == []
    assert run.left == []


def test_run_is_found_in_any_namespace(cast: Make) -> None:
    """A run of another namespace is removed there, and one of the same name here is left alone."""
    there, here = cast("other"), cast(ago=10)
    assert [str(each) for each in due()] == [f"other/{RUN}"]
    sweep()
    assert (there.left, here.left) == ([], ["Lease", "Job", "Pod"])


@pytest.mark.parametrize(("ago", "goes"), [(1700, False), (1900, True), (-300, False)])
def test_lease_counts_to_its_end(cast: Make, ago: float, goes: bool) -> None:
    """A Lease of half an hour protects its run for half an hour, however dead its holder is."""
    cast(ago=ago)
    assert [each.run for each in due()] == [RUN] * goes


def test_run_that_prefect_calls_alive_stays(cast: Make) -> None:
    """A launcher that is cut off keeps its run."""
    cast()
    assert due(SweepScope(alive={ID: "Running"}.__getitem__)) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_of_this_machine_does_not_count(cast: Make, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """Where the API server's clock differs by an hour from ours, a run is judged by the server's."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600 * hours, usegmt=True))
    cast(ago=3600 * hours + 10)
    cast("other", ago=3600 * hours + 1900)
    assert [str(each) for each in due()] == [f"other/{RUN}"]


def test_renewal_in_the_middle_saves_the_run(cast: Make, fake_api: FakeApi) -> None:
    """A Lease that is renewed between the look and the removal is somebody's: nothing is deleted."""
    run = cast()
    (found,) = due()
    fake_api.objects.patch((f"{run.lease['apiVersion']}/leases", "default", RUN), {"spec": {"renewTime": stamp(0)}})
    assert orphans.remove_orphan(found) is None
    assert run.left == ["Lease", "Job", "Pod"]


def test_lease_is_watched_before_it_is_believed(cast: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder whose clock is behind renews within the time that its Lease is watched."""
    slept: list[float] = []
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 60.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    cast()
    sweep()
    assert 30.0 < slept[0] <= 60.0


def test_lease_is_held_while_its_run_is_removed(cast: Make, fake_api: FakeApi) -> None:
    """Who comes back in the middle of a sweep finds the Lease held, for no longer than a holder counts as alive."""
    cast()
    fake_api.fail("DELETE", "/jobs/", 403)
    with pytest.raises(ClusterError):
        sweep()
    found = fake_api.find("coordination.k8s.io/v1", "Lease", RUN)
    assert found
    assert found["spec"]["holderIdentity"].startswith("sweep:")
    assert found["spec"]["leaseDurationSeconds"] == 130
    assert due() == []


# --- what may not be seen


def test_refused_list_of_leases_is_a_fault(cast: Make, fake_api: FakeApi) -> None:
    """Who may not list Leases knows of no run that it is dead: nothing goes, and the missing right is named."""
    run = cast(ago=3)
    fake_api.fail("GET", r"/leases\?", 403)
    with pytest.raises(ClusterError, match=r"list leases.*docs/rbac\.yaml.*torchyard-sweep"):
        due(DEAD._replace(without_lease=True))
    assert run.left == ["Lease", "Job", "Pod"]


def test_own_namespace_is_enough(cast: Make, fake_api: FakeApi) -> None:
    """Who may list the Leases of one namespace alone sweeps that one."""
    cast("other")
    cast()
    fake_api.fail("GET", r"/v1/leases\?", 403)
    assert [str(each) for each in due()] == [f"default/{RUN}"]


def test_failed_list_of_leases_is_a_fault(fake_api: FakeApi) -> None:
    """An answer that is no list is not an empty one."""
    fake_api.fail("GET", r"/leases\?", 405)
    with pytest.raises(ClusterError):
        due()


def test_run_whose_pods_may_not_be_seen_stays(cast: Make, fake_api: FakeApi) -> None:
    """Nothing is deleted of which cannot be seen that it is gone."""
    run = cast()
    fake_api.fail("GET", r"/pods\?", 403)
    with pytest.raises(ClusterError, match="what cannot be seen is not removed"):
        sweep()
    assert run.left == ["Lease", "Job", "Pod"]


def test_lease_beyond_the_first_page_is_seen(cast: Make, fake_server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that comes in pages is read to its end."""
    for index in range(3):
        cast(f"space-{index}")
    asked = fake_server.items("coordination.k8s.io/v1", "Lease", {"limit": "1"}, everywhere=True)
    assert [each["metadata"]["namespace"] for each in asked] == ["space-0", "space-1", "space-2"]


# --- without a Lease


@pytest.fixture
def bare(fake_api: FakeApi) -> list[dict[str, Any]]:
    """A job with a run's label, its pod, and no Lease."""
    job = fake_api.put(thing(JOBS, "Job", f"{RUN}-1"))
    return [job, fake_api.put(thing("v1", "Pod", f"{RUN}-1-worker-0", job))]


def test_objects_without_a_lease_are_listed_and_stay(bare: list[Any]) -> None:
    """They may be anybody's: they are told with the word that removes them."""
    assert due() == []
    assert kept() == {RUN: "`--without-lease` removes it"}


def test_objects_without_a_lease_go_at_a_persons_word(bare: list[Any], fake_api: FakeApi) -> None:
    """With the explicit word, and where Prefect knows no living run of that name."""
    asked = DEAD._replace(without_lease=True)
    assert kept(asked._replace(alive_by_name={RUN: "Prefect calls it Running"}.__getitem__)) == {
        RUN: "Prefect calls it Running"
    }
    assert sweep(asked) == []
    assert [is_there(fake_api, each) for each in bare] == [False, False]


def test_claim_without_a_lease_stays_at_any_word(bare: list[Any], fake_api: FakeApi) -> None:
    """What holds data is not deleted by a sweep."""
    claim = fake_api.put(thing("v1", "PersistentVolumeClaim", "checkpoints"))
    assert sweep(DEAD._replace(without_lease=True)) == []
    assert is_there(fake_api, claim)


def test_young_objects_are_not_listed(fake_api: FakeApi) -> None:
    """A run that is being made has objects before it is seen with its Lease."""
    young = thing(JOBS, "Job", f"{RUN}-1")
    young["metadata"]["creationTimestamp"] = stamp(60)
    fake_api.put(young)
    assert (due(), kept()) == ([], {})


def test_lease_that_cannot_be_read_by_name_is_a_fault(bare: list[Any], fake_api: FakeApi) -> None:
    """That a Lease is absent is believed of its own name alone."""
    fake_api.fail("GET", f"/leases/{RUN}", 403)
    with pytest.raises(ClusterError):
        due(DEAD._replace(without_lease=True))


def test_lease_without_the_label_still_protects(bare: list[Any], fake_api: FakeApi) -> None:
    """A Lease that somebody took the label from is there by its name."""
    held = lease(ago=3)
    del held["metadata"]["labels"]
    fake_api.put(held)
    assert due(DEAD._replace(without_lease=True)) == []
    assert "lacks the label" in kept()[RUN]


# --- a Lease that is not what it says


def test_forged_lease_takes_nothing_of_another_run(cast: Make, fake_api: FakeApi) -> None:
    """An expired Lease with another run's label is listed and stands for nothing."""
    run = cast(ago=3)
    claim = run.add("v1", "PersistentVolumeClaim")
    fake_api.put(lease("forged-a1b2c3d4", labels={"torchyard/run": RUN}))
    assert due() == []
    assert "and not its own name" in kept()["forged-a1b2c3d4"]
    assert (run.left, is_there(fake_api, claim)) == (["Lease", "Job", "Pod"], True)


def test_label_alone_makes_nothing_the_runs(cast: Make, fake_api: FakeApi) -> None:
    """What carries a dead run's label, and is not owned by its Lease, is told and stays."""
    run = cast()
    strange = [run.add("v1", "PersistentVolumeClaim"), run.add("v1", "ConfigMap"), run.add(JOBS, "Job")]
    left = sweep()
    assert [is_there(fake_api, each) for each in strange] == [True, True, True]
    assert len(left or ()) == 3
    assert all("only carries the run's label" in each for each in left or ())
    assert run.left == []


def test_claim_that_a_lease_owns_is_kept(cast: Make, fake_api: FakeApi) -> None:
    """A checkpoint claim of a version before goes neither with the sweep nor with the garbage collector."""
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
    """What cannot be judged is unknown: also where the run is named."""
    run = cast(**changes)
    for terms in (DEAD, DEAD._replace(runs=frozenset({RUN}))):
        assert due(terms) == []
        assert said in kept(terms)[RUN]
    assert run.left == ["Lease", "Job", "Pod"]


# --- by name


@pytest.mark.parametrize(
    ("ago", "alive", "said"),
    [(200, "", None), (20, "", "renewed its Lease 2"), (200, "Running", "Running: cancel it in Prefect first")],
)
def test_named_run_goes_once_nobody_renews_it(cast: Make, ago: float, alive: str, said: str | None) -> None:
    """A run that a person names goes before its Lease has ended, but not while it is carried."""
    cast(ago=ago)
    terms = SweepScope(alive=lambda _: alive, runs=frozenset({RUN}))
    assert [each.run for each in due(terms)] == [RUN] * (said is None)
    assert said is None or said in kept(terms)[RUN]


def test_sweep_by_name_takes_nothing_else(cast: Make) -> None:
    """A run that is not named stays, though its Lease has run out."""
    cast()
    assert due(DEAD._replace(runs=frozenset({"another-a1b2c3d4"}))) == []
    assert due(DEAD._replace(runs=frozenset())) == []


# --- who may have no launcher


def test_lost_runs_are_those_that_nobody_renews(cast: Make) -> None:
    """A Lease that lasts and is not renewed tells of a lost launcher; a malformed one tells nothing."""
    cast("a", ago=60)
    cast("b", ago=600)
    cast("c", ago=2000)
    cast("d", ago=600, annotations={"torchyard/flow-run": "x"})
    assert [each["metadata"]["namespace"] for each in orphans.find_unrenewed_leases(None)] == ["b"]


def test_context_must_be_there(fake_api: FakeApi) -> None:
    """A context that is named and is not there is a fault; none at all is no cluster."""
    assert orphans.has_cluster(None)
    with pytest.raises(ClusterError):
        orphans.has_cluster("nowhere")
    fake_api.kubeconfig.unlink()
    client.get_cluster_client.cache_clear()
    assert not orphans.has_cluster(None)
