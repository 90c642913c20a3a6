"""What a sweep removes from a cluster, and what it keeps, on a fake API server."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi, Handler
from tests.doubles.fake_objects import ObjectKey, RefusedError
from tests.doubles.leases import (
    ID,
    JOBS,
    NO_RUN_ALIVE,
    RUN,
    Make,
    exists,
    find_kept_reasons,
    find_removable,
    format_time,
    sweep,
)
from torchyard.cluster import orphans
from torchyard.cluster.listing import list_labelled_objects
from torchyard.cluster.orphans import SweepScope
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError

pytestmark = pytest.mark.usefixtures("unwatched")


# --- expired Leases


def test_expired_run_is_removed_with_all_that_it_owns(cast: Make) -> None:
    """A run whose Lease has expired is removed with its job, its pods and, last, the Lease."""
    run = cast()
    assert sweep() == []
    assert run.remaining_kinds == []


def test_run_is_found_in_any_namespace(cast: Make) -> None:
    """A run in another namespace is removed there, and a run of the same name in this one stays."""
    other_run = cast("other")
    local_run = cast(ago=10)
    assert [str(orphan) for orphan in find_removable()] == [f"other/{RUN}"]
    sweep()
    assert (other_run.remaining_kinds, local_run.remaining_kinds) == ([], ["Lease", "Job", "Pod"])


@pytest.mark.parametrize(("ago", "is_orphan"), [(1770, False), (1830, True), (-300, False)])
def test_lease_protects_its_run_until_it_expires(cast: Make, ago: float, is_orphan: bool) -> None:
    """A Lease of half an hour protects its run for half an hour, even if its holder is dead."""
    cast(ago=ago)
    assert [orphan.run for orphan in find_removable()] == [RUN] * is_orphan


def test_run_that_prefect_calls_alive_stays(cast: Make) -> None:
    """A run that Prefect reports as alive stays: its launcher may only be disconnected."""
    cast()
    assert find_removable(SweepScope(check_alive={ID: "Running"}.__getitem__)) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_of_this_machine_does_not_count(cast: Make, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """If the clocks of the API server and this machine differ by an hour, the server's decides."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600 * hours, usegmt=True))
    cast(ago=3600 * hours + 10)
    cast("other", ago=3600 * hours + 1900)
    assert [str(orphan) for orphan in find_removable()] == [f"other/{RUN}"]


def test_renewed_lease_stops_the_removal(cast: Make, fake_api: FakeApi) -> None:
    """If a Lease is renewed between the check and the removal, nothing is deleted: the run has an owner."""
    run = cast()
    (orphan,) = find_removable()
    fake_api.objects.patch(
        ObjectKey(f"{run.lease['apiVersion']}/leases", "default", RUN), {"spec": {"renewTime": format_time(0)}}
    )
    assert orphans.remove_orphan(orphan) is None
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_lease_is_observed_before_the_removal(cast: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lease is observed long enough for a holder whose clock is behind to renew it."""
    slept: list[float] = []
    monkeypatch.setattr(orphans, "LEASE_OBSERVATION_S", 60.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    cast()
    sweep()
    assert 30.0 < max(slept) <= 60.0  # other threads sleep too


def test_lease_is_held_while_its_run_is_removed(cast: Make, fake_api: FakeApi) -> None:
    """A sweep holds the Lease against a resuming run, for no longer than a holder counts as alive."""
    cast()
    fake_api.fail("DELETE", "/jobs/", 403)
    with pytest.raises(ClusterError):
        sweep()
    held_lease = fake_api.find("coordination.k8s.io/v1", "Lease", RUN)
    assert held_lease
    assert held_lease["spec"]["holderIdentity"].startswith("sweep:")
    assert held_lease["spec"]["leaseDurationSeconds"] == 130
    assert find_removable() == []


def test_lease_is_deleted_last(cast: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that cannot be deleted keeps its owner, and the next sweep finds both."""
    monkeypatch.setattr(orphans, "REMOVAL_TIMEOUT_S", 0.1)
    run = cast()
    run.fake.put(run.job | {"metadata": run.job["metadata"] | {"finalizers": ["example.org/hold"]}})
    assert any("example.org/hold" in leftover for leftover in sweep() or ())
    assert "Lease" in run.remaining_kinds


# --- what may not be seen


def test_empty_last_list_releases_nothing(cast: Make, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that the last lists lack is read by name: it is a leftover, and the Lease stays with it."""
    run = cast()
    monkeypatch.setattr(Client, "delete", lambda *_, **__: True)
    list_objects = list_labelled_objects
    lists: list[object] = []

    def list_no_longer(*args: Any, **kwargs: Any) -> Any:
        listing = list_objects(*args, **kwargs)
        lists.append(listing)
        return listing if len(lists) == 1 else listing._replace(objects=[])

    (orphan,) = find_removable()
    monkeypatch.setattr(orphans, "list_labelled_objects", list_no_longer)
    leftovers = orphans.remove_orphan(orphan)
    assert sorted(leftovers or ()) == [f"Job default/{RUN}-1", f"Pod default/{RUN}-1-worker-0"]
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_kind_that_the_last_list_refuses_is_a_leftover(cast: Make, fake_api: FakeApi) -> None:
    """A kind that was searched at first, and may not be listed any more, keeps the Lease: objects may remain."""
    run = cast()
    (orphan,) = find_removable()
    requests = len(fake_api.find_requests("GET", "/services$"))
    respond = fake_api.respond

    def refuse_second_list(request: Any) -> Any:
        if request.path.endswith("/services") and len(fake_api.find_requests("GET", "/services$")) > requests + 1:
            raise RefusedError(403, "Forbidden", "a role was removed")
        return respond(request)

    fake_api.respond = refuse_second_list  # type: ignore[method-assign]
    (leftover,) = orphans.remove_orphan(orphan) or [""]
    assert "Service in default: cannot be listed, so objects may remain: a role was removed" in leftover
    assert run.remaining_kinds == ["Lease"]


def test_pod_whose_owner_is_gone_keeps_the_lease(cast: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that remains after its job is still the run's, and the Lease stays with it."""
    run = cast()
    job_key = ObjectKey(f"{JOBS}/jobs", "default", f"{RUN}-1")

    def delete_job_alone(*_: Any, **__: Any) -> bool:
        if exists(run.fake, run.job):
            run.fake.objects.delete(job_key, {"propagationPolicy": "Orphan"})
        return True

    monkeypatch.setattr(orphans, "REMOVAL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(Client, "delete", delete_job_alone)
    assert sweep() == [f"Pod default/{RUN}-1-worker-0"]
    assert run.remaining_kinds == ["Lease", "Pod"]


def test_refused_list_of_leases_is_an_error(cast: Make, fake_api: FakeApi) -> None:
    """Without the right to list Leases no run counts as dead: nothing is removed, and the error names the right."""
    run = cast(ago=3)
    fake_api.fail("GET", r"/leases\?", 403)
    with pytest.raises(ClusterError, match=r"list leases.*deploy/kubernetes/rbac\.yaml.*torchyard-sweep"):
        find_removable(NO_RUN_ALIVE._replace(without_lease=True))
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_right_to_one_namespace_is_enough(cast: Make, fake_api: FakeApi) -> None:
    """With the right to list the Leases of one namespace only, that namespace is swept."""
    cast("other")
    cast()
    fake_api.fail("GET", r"/v1/leases\?", 403)
    assert [str(orphan) for orphan in find_removable()] == [f"default/{RUN}"]


def test_objects_of_a_namespace_whose_leases_may_not_be_listed_are_no_orphans(cast: Make, fake_api: FakeApi) -> None:
    """Where Leases may be listed in one namespace only, objects of others do not count as having no Lease."""
    cast("other", ago=60)
    fake_api.fail("GET", r"/v1/leases\?", 403)
    assert list(orphans.find_orphans(None, NO_RUN_ALIVE._replace(without_lease=True))) == []
    assert not fake_api.find_requests("GET", "/namespaces/other/")


def test_failed_list_of_leases_is_an_error(fake_api: FakeApi) -> None:
    """A failed list is an error, not an empty list."""
    fake_api.fail("GET", r"/leases\?", 405)
    with pytest.raises(ClusterError):
        find_removable()


def test_run_whose_pods_may_not_be_listed_stays(cast: Make, fake_api: FakeApi) -> None:
    """A run whose pods may not be listed is not deleted, because its removal could not be proven."""
    run = cast()
    fake_api.fail("GET", r"/pods\?", 403)
    with pytest.raises(ClusterError, match="a run whose pods cannot be listed is not removed"):
        sweep()
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_run_whose_lease_may_not_be_claimed_stays(cast: Make, fake_api: FakeApi) -> None:
    """A refused claim is an error, and not a renewal by another process; nothing is deleted."""
    run = cast()
    fake_api.fail("PATCH", "/leases/", 403)
    with pytest.raises(ClusterError):
        sweep()
    assert run.remaining_kinds == ["Lease", "Job", "Pod"]


def test_lease_on_a_later_page_is_found(cast: Make, fake_server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that comes in pages is read to its end."""
    for index in range(3):
        cast(f"space-{index}")
    leases = fake_server.list("coordination.k8s.io/v1", "Lease", {"limit": "1"}, everywhere=True)
    assert [obj["metadata"]["namespace"] for obj in leases] == ["space-0", "space-1", "space-2"]


# --- by name


@pytest.mark.parametrize(
    ("ago", "liveness", "kept_reason"),
    [(200, None, None), (20, None, "renewed its Lease 2"), (200, "Running", "Running: cancel it in Prefect first")],
)
def test_named_run_is_removed_once_its_lease_is_not_renewed(
    cast: Make, ago: float, liveness: str | None, kept_reason: str | None
) -> None:
    """A run that a person names is removed before its Lease expires, but not while it has an owner."""
    cast(ago=ago)
    scope = SweepScope(check_alive=lambda _: liveness, runs=frozenset({RUN}))
    assert [orphan.run for orphan in find_removable(scope)] == [RUN] * (kept_reason is None)
    assert kept_reason is None or kept_reason in find_kept_reasons(scope)[RUN]


def test_sweep_by_name_removes_only_named_runs(cast: Make) -> None:
    """A run that is not named stays, even if its Lease has expired."""
    cast()
    assert find_removable(NO_RUN_ALIVE._replace(runs=frozenset({"another-a1b2c3d4"}))) == []
    assert find_removable(NO_RUN_ALIVE._replace(runs=frozenset())) == []


def test_sweep_stops_once_a_launcher_takes_the_run_over(
    cast: Make, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deletion of a sweep follows a renewal of its claim: after a takeover nothing more is deleted."""
    run = cast()
    service = run.add("v1", "Service", run.lease)
    key = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)
    delete = fake_api.objects.delete

    def delete_and_take_over(*args: Any) -> Any:
        fake_api.objects.patch(key, {"spec": {"holderIdentity": "elsewhere:/runs"}})
        return delete(*args)

    (orphan,) = find_removable()
    monkeypatch.setattr(fake_api.objects, "delete", delete_and_take_over)
    with pytest.raises(ClusterError, match="another process has taken the run over"):
        orphans.remove_orphan(orphan)
    assert [exists(fake_api, obj) for obj in (run.lease, run.job, service)].count(True) == 2
    assert len(fake_api.find_requests("DELETE", ".")) == 1


# --- lost runs


def test_unrenewed_leases_are_those_of_lost_launchers(cast: Make) -> None:
    """An unexpired Lease that is not renewed shows a lost launcher; a malformed one shows nothing."""
    cast("a", ago=60)
    cast("b", ago=600)
    cast("c", ago=2000)
    cast("d", ago=600, annotations={"torchyard/flow-run": "x"})
    assert [obj["metadata"]["namespace"] for obj in orphans.find_unrenewed_leases(None)] == ["b"]


def test_named_context_must_exist(fake_api: FakeApi) -> None:
    """A context that does not exist, and a broken kubeconfig, are errors; without a kubeconfig there is no cluster."""
    assert orphans.has_cluster(None)
    with pytest.raises(ClusterError):
        orphans.has_cluster("nowhere")
    fake_api.kubeconfig.write_text("")
    get_cluster_client.cache_clear()
    with pytest.raises(ClusterError):
        orphans.has_cluster(None)
    fake_api.kubeconfig.unlink()
    get_cluster_client.cache_clear()
    assert not orphans.has_cluster(None)
