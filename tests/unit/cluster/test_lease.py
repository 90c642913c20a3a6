"""Holding a run's Lease: acquiring it, renewing it, recording on it, and releasing it."""

import contextlib
import time
from email.utils import formatdate
from typing import Any

import pytest

from tests.conftest import Planned, Write, load, manifest_plan_of
from tests.doubles.fake_api import FakeApi, Handler, ReceivedRequest
from tests.doubles.fake_objects import Object, ObjectKey
from tests.doubles.leases import ID, RUN, build_lease, format_time
from torchyard.cluster import lease as lease_module
from torchyard.cluster.lease import (
    HOLDER_DEAD_AFTER_S,
    RENEW_INTERVAL_S,
    acquire_lease,
    build_holder_identity,
    check_not_held_elsewhere,
    confirm_ownership,
    hand_lease_over,
    is_held_elsewhere,
    read_lease,
    record_ending,
    record_outcome,
    release_lease,
    renew_lease,
)
from torchyard.common.identity import get_user_name, identify_holder
from torchyard.common.project_root import ROOT
from torchyard.host.identity import read_uptime
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Outcome, Status
from torchyard.pods import lease_record, seal
from torchyard.pods.lease_record import RecordedEnding
from torchyard.run.folder import runs_folder

RUN_KEY = "a" * 64
OUTCOME = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={"worker-0": 0})
LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    return planned(deadlines={"lease": "30m"})


@pytest.fixture
def run_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda run_id: RUN_KEY if run_id == ID else "")


def test_lease_names_the_user_and_the_launcher(plan: ManifestPlan, fake_server: Client) -> None:
    """Everyone with access to the cluster can see who has started a run, and with which launcher."""
    acquire_lease(plan)
    lease = read_lease(fake_server, plan) or {}
    assert lease_record.read_annotation(lease, lease_record.USER_ANNOTATION) == get_user_name()
    assert lease_record.read_annotation(lease, lease_record.LAUNCHER_ANNOTATION) == "volcano"


# --- handing it over


def test_handed_over_lease_is_acquired_immediately(plan: ManifestPlan, fake_server: Client) -> None:
    """The next process of a run acquires a Lease that was handed over without waiting, from any machine."""
    acquire_lease(plan)
    hand_lease_over(plan)
    elsewhere = plan.model_copy(update={"folder": "/elsewhere/runs/x/attempt-1"})
    assert not is_held_elsewhere(fake_server, elsewhere, read_lease(fake_server, elsewhere) or {})
    assert lease_record.read_holder(read_lease(fake_server, plan) or {}) == build_holder_identity(plan)
    acquire_lease(elsewhere)
    assert lease_record.read_holder(read_lease(fake_server, plan) or {}) == build_holder_identity(elsewhere)


def test_place_that_handed_a_lease_over_does_not_hold_it(plan: ManifestPlan, fake_server: Client) -> None:
    """A process that starts again where the Lease was handed over from has to acquire it first."""
    acquire_lease(plan)
    hand_lease_over(plan)
    assert not lease_module.is_held_here(plan, read_lease(fake_server, plan) or {})


def test_place_that_handed_a_lease_over_deletes_nothing(plan: ManifestPlan, fake_server: Client) -> None:
    """A proof of ownership ends when the Lease is handed over: another process may own the run at once."""
    acquire_lease(plan)
    confirm_ownership(plan)
    hand_lease_over(plan)
    acquire_lease(plan.model_copy(update={"folder": "/elsewhere/runs/x/attempt-1"}))
    with pytest.raises(RunInUseError):
        confirm_ownership(plan)


def test_only_its_holder_hands_a_lease_over(plan: ManifestPlan, fake_server: Client) -> None:
    """A process whose run was taken over changes nothing on the Lease."""
    acquire_lease(plan)
    with pytest.raises(RunInUseError):
        hand_lease_over(plan.model_copy(update={"folder": "/elsewhere/runs/x/attempt-1"}))
    assert lease_record.read_holder(read_lease(fake_server, plan) or {}) == build_holder_identity(plan)


# --- acquiring it


def put_lease(fake_api: FakeApi, **changes: Any) -> dict[str, Any]:
    return fake_api.put(build_lease(**changes))


def test_first_process_creates_the_lease(plan: ManifestPlan, fake_server: Client) -> None:
    """A run's first process creates the Lease and holds it."""
    acquire_lease(plan)
    run_lease = read_lease(fake_server, plan) or {}
    assert (
        lease_record.read_holder(run_lease),
        lease_record.read_attempt(run_lease),
        run_lease["spec"]["leaseDurationSeconds"],
    ) == (
        build_holder_identity(plan),
        1,
        1800,
    )
    assert (lease_record.measure_lease_age(run_lease, time.time()) or 9.0) < 5.0


def test_dead_holder_is_replaced(plan: ManifestPlan, fake_api: FakeApi, fake_server: Client) -> None:
    """A holder that has not renewed for 130 s loses the run to the next process; what it has recorded stays."""
    put_lease(fake_api, ago=140, annotations={"torchyard/submitted": "1"})
    assert lease_record.is_submitted(acquire_lease(plan))
    assert lease_record.read_holder(read_lease(fake_server, plan) or {}) == build_holder_identity(plan)


def test_living_holder_keeps_the_run(plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that renews while it is observed is alive, and the second process is refused."""

    def sleep(_: float) -> None:
        fake_api.objects.patch(LEASE_KEY, {"spec": {"renewTime": format_time(0)}})

    put_lease(fake_api, ago=100)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        acquire_lease(plan)


def test_holder_that_renews_at_last_keeps_the_run(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that renews just before it would count as dead is alive, too."""

    def sleep(_: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + HOLDER_DEAD_AFTER_S)
        fake_api.objects.patch(LEASE_KEY, {"spec": {"renewTime": format_time(0)}})

    put_lease(fake_api, ago=100)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        acquire_lease(plan)


def test_only_the_faster_process_takes_over(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """If two processes take over a dead holder's run at once, only one succeeds."""
    put_lease(fake_api, ago=140)
    fake_api.fail("PATCH", f"/leases/{RUN}", 422)
    with pytest.raises(RunInUseError):
        acquire_lease(plan)


def test_lease_that_disappears_while_it_is_acquired_is_created(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A Lease that existed when it was created, and did not when it was read, ends no run, also if that repeats."""
    fake_api.fail("POST", "/leases", 409, times=2)
    assert lease_record.read_holder(acquire_lease(plan)) == build_holder_identity(plan)


def test_malformed_lease_is_repaired(plan: ManifestPlan, fake_api: FakeApi, fake_server: Client) -> None:
    """The process that acquires a malformed Lease repairs it."""
    put_lease(fake_api, annotations={"torchyard/attempt": "banana", "torchyard/outcome": "["}, spec={"renewTime": None})
    fake_api.objects.patch(
        LEASE_KEY, {"metadata": {"creationTimestamp": format_time(4000), "labels": {"torchyard/run": None}}}
    )
    acquire_lease(plan)
    run_lease = read_lease(fake_server, plan) or {}
    assert (lease_record.list_lease_faults(run_lease, time.time()), lease_record.read_attempt(run_lease)) == ([], 1)


@pytest.mark.parametrize("hours", [1, -1, 0])
def test_age_of_a_renewal_is_by_the_servers_clock(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A machine whose clock is off by an hour does not take a run from a holder that renewed 20 s ago."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600 * hours, usegmt=True))
    client = get_cluster_client(plan.cluster)
    assert is_held_elsewhere(client, plan, put_lease(fake_api, ago=3600 * hours + 20))
    assert not is_held_elsewhere(client, plan, put_lease(fake_api, ago=3600 * hours + 140))


def test_renewals_are_in_the_servers_time(
    plan: ManifestPlan, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is an hour ahead still writes renewals in the server's time."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600, usegmt=True))
    acquire_lease(plan)
    renew_lease(plan)
    assert (lease_record.measure_lease_age(read_lease(fake_server, plan) or {}, time.time()) or 0.0) == pytest.approx(
        3600, abs=5
    )


def test_lease_of_unknown_age_is_acquired_after_the_wait(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Lease of unknown age goes to a process that has observed it for long enough without a renewal."""
    monkeypatch.setattr(lease_module, "HOLDER_DEAD_AFTER_S", 0.2)
    monkeypatch.setattr(lease_module, "HOLDER_POLL_INTERVAL_S", 0.01)
    put_lease(fake_api, spec={"renewTime": "9999-01-01T00:00:00.000000Z"})
    assert lease_record.read_holder(acquire_lease(plan)) == build_holder_identity(plan)


def test_new_attempt_clears_the_records(plan: ManifestPlan, planned: Planned, fake_server: Client) -> None:
    """A new attempt starts with a clean record: it is not ending, and was not submitted."""
    acquire_lease(plan)
    lease_module.record_submission(plan)
    record_ending(plan, "failed", "it failed")
    acquire_lease(planned(attempt=2, deadlines={"lease": "30m"}))
    run_lease = read_lease(fake_server, plan) or {}
    assert (
        lease_record.read_attempt(run_lease),
        lease_record.is_submitted(run_lease),
        lease_record.read_annotation(run_lease, lease_record.ENDING_ANNOTATION),
    ) == (
        2,
        False,
        "",
    )


@pytest.mark.parametrize(("ago", "is_held"), [(20, True), (140, True), (1900, False)])
def test_unexpired_lease_of_another_machine_protects_the_run(
    plan: ManifestPlan, fake_api: FakeApi, ago: float, is_held: bool
) -> None:
    """A run whose folder is here but whose Lease another machine holds belongs to that one until the Lease expires."""
    put_lease(fake_api, ago=ago)
    try:
        check_not_held_elsewhere(plan)
    except RunInUseError:
        assert is_held
    else:
        assert not is_held


@pytest.mark.parametrize(("remaining_s", "is_held"), [(0.5, True), (0.0, True), (-0.5, False)])
def test_lease_is_held_until_it_has_expired(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch, remaining_s: float, is_held: bool
) -> None:
    """A Lease that expires in half a second, or just now, still protects its run; half a second later it does not."""
    put_lease(fake_api, spec={"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 1800})
    monkeypatch.setattr(Client, "now", lambda _: 1767225600.0 + 1800 - remaining_s)
    with pytest.raises(RunInUseError) if is_held else contextlib.nullcontext():
        check_not_held_elsewhere(plan)


def test_lease_of_unknown_duration_protects_the_run(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A Lease without a duration may still be held by another machine, however old it is."""
    put_lease(fake_api, ago=1900, spec={"leaseDurationSeconds": None})
    with pytest.raises(RunInUseError):
        check_not_held_elsewhere(plan)


def test_lease_of_unknown_age_is_observed(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder whose last renewal has an unknown age keeps the run if it renews while it is observed."""

    def sleep(_: float) -> None:
        fake_api.objects.patch(LEASE_KEY, {"spec": {"renewTime": format_time(0)}})

    put_lease(fake_api, spec={"renewTime": "9999-01-01T00:00:00.000000Z"})
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        acquire_lease(plan)


# --- where it is held


@pytest.fixture
def pod_plan(write: Write, fake_server: Client) -> ManifestPlan:
    runs_folder().mkdir()
    return manifest_plan_of(load(write(launcher="volcano", image="train:v1")), runs_folder() / RUN)


def create_held_lease(client: Client, plan: ManifestPlan, holder: str) -> None:
    """Create a Lease that `holder` has renewed just now."""
    held_lease = lease_module.build_lease(plan, client)
    held_lease["spec"]["holderIdentity"] = holder
    client.create(held_lease)


def test_lease_of_another_container_is_not_held_here(pod_plan: ManifestPlan, fake_server: Client) -> None:
    """The same host name and folder with another id is another holder, which is alive."""
    place = identify_holder(str(runs_folder() / RUN)).partition("#")[0]
    create_held_lease(fake_server, pod_plan, f"{place}#0190c7f0aaaa")
    with pytest.raises(RunInUseError, match="#0190c7f0aaaa"):
        check_not_held_elsewhere(pod_plan)


# --- renewing it, recording on it, and releasing it


def test_renewal_fails_after_a_takeover(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A run that was taken over cannot be renewed; a deleted Lease is not an error, as the job's state will show it."""
    acquire_lease(plan)
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    with pytest.raises(RunInUseError, match="taken it over"):
        renew_lease(plan)
    fake_api.objects.delete(LEASE_KEY, {})
    renew_lease(plan)


def test_refused_renewal_is_an_error(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A user who may no longer change the Lease gets an error: a refusal does not mean that the Lease is gone."""
    acquire_lease(plan)
    fake_api.fail("PATCH", f"/leases/{RUN}", 403)
    with pytest.raises(ClusterError, match="403"):
        renew_lease(plan)


def test_ownership_is_proven_once_a_second(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions of the same second share one proof; one that is older does not count after a takeover."""
    acquire_lease(plan)
    for _ in range(3):
        confirm_ownership(plan)
    assert len(fake_api.find_requests("PATCH", f"/leases/{RUN}")) == 1
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    monkeypatch.setattr(lease_module, "MAX_PROOF_AGE_S", 0.0)
    with pytest.raises(RunInUseError, match="taken it over"):
        confirm_ownership(plan)


def test_proof_of_ownership_ages_while_the_machine_is_suspended(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a suspend, in which the Lease may have expired, the ownership is proven again."""
    acquire_lease(plan)
    confirm_ownership(plan)
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    monkeypatch.setattr(lease_module, "read_uptime", lambda: read_uptime() + 3600)
    with pytest.raises(RunInUseError, match="taken it over"):
        confirm_ownership(plan)


def test_only_the_holder_deletes_the_lease(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """The end of a run deletes its Lease, but not one that another place has taken over."""
    acquire_lease(plan)
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    release_lease(plan)
    assert lease_record.read_holder(fake_api.objects.get(LEASE_KEY)) == "elsewhere:/runs"
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": build_holder_identity(plan)}})
    release_lease(plan)
    assert fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) is None


def test_lease_that_has_changed_since_it_was_read_is_not_deleted(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of a Lease names the version that was read: another process may take it over in between."""
    readings = [acquire_lease(plan)]
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    monkeypatch.setattr(lease_module, "read_lease", lambda *args: readings.pop() if readings else read_lease(*args))
    release_lease(plan)
    assert lease_record.read_holder(fake_api.objects.get(LEASE_KEY)) == "elsewhere:/runs"


def test_lease_that_was_renewed_since_it_was_read_is_deleted(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal that is under way does not keep the Lease of a run that ends; one that always changes is reported."""
    acquired = acquire_lease(plan)
    readings = [acquired]
    renew_lease(plan)
    monkeypatch.setattr(lease_module, "read_lease", lambda *args: readings.pop() if readings else read_lease(*args))
    release_lease(plan)
    assert fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, RUN) is None
    assert caplog.messages == []
    monkeypatch.setattr(lease_module, "read_lease", lambda *_: acquired)
    release_lease(plan)
    assert caplog.messages[0].startswith(f"Lease {RUN} is left")


def test_lease_that_is_deleted_during_a_takeover_is_created(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Lease that is deleted after it was read is created by the process that was about to take it over."""
    handed_over = acquire_lease(plan)
    hand_lease_over(plan)
    change = fake_api.change

    def delete_before_the_patch(request: ReceivedRequest, key: ObjectKey) -> Object:
        if request.method == "PATCH":
            monkeypatch.setattr(fake_api, "change", change)
            fake_api.objects.delete(key, {})
        return change(request, key)

    monkeypatch.setattr(fake_api, "change", delete_before_the_patch)
    assert acquire_lease(plan)["metadata"]["uid"] not in ("", handed_over["metadata"]["uid"])


@pytest.mark.usefixtures("run_key")
def test_records_are_sealed(plan: ManifestPlan, fake_server: Client) -> None:
    """A process with the run's key can read the recorded outcome and ending, and the Lease itself is sealed."""
    acquire_lease(plan)
    record_outcome(plan, OUTCOME)
    record_ending(plan, "cancelled", "cancelled through Prefect")
    run_lease = read_lease(fake_server, plan) or {}
    assert lease_record.read_outcome(run_lease, RUN_KEY) == OUTCOME
    assert lease_record.read_ending(run_lease, RUN_KEY) == RecordedEnding(
        end="cancelled", sentence="cancelled through Prefect"
    )
    assert [lease_record.is_sealed_lease(run_lease, key) for key in (RUN_KEY, "b" * 64, "")] == [True, False, False]
    elsewhere = run_lease | {"metadata": run_lease["metadata"] | {"namespace": "other"}}
    assert not lease_record.is_sealed_lease(elsewhere, RUN_KEY)


@pytest.mark.usefixtures("run_key")
def test_outcome_of_an_attempt_that_continues_is_removed(plan: ManifestPlan, fake_server: Client) -> None:
    """A recorded outcome is removed if the attempt continues, and the attempt still counts as submitted."""
    acquire_lease(plan)
    record_outcome(plan, OUTCOME)
    record_outcome(plan, None)
    run_lease = read_lease(fake_server, plan) or {}
    assert lease_record.read_outcome(run_lease, RUN_KEY) is None
    assert not lease_record.is_marked_as_ending(run_lease)
    assert lease_record.is_submitted(run_lease)


@pytest.mark.parametrize("record", ["submission", "outcome", "ending", "handed over"])
def test_record_survives_the_loss_of_all_annotations(
    plan: ManifestPlan, fake_api: FakeApi, fake_server: Client, record: str
) -> None:
    """A record on a Lease whose annotations were all removed is written, with those that the Lease had at first."""
    acquired = acquire_lease(plan)
    attempt = lease_record.read_attempt(acquired)
    del acquired["metadata"]["annotations"]
    fake_api.put(acquired)
    match record:
        case "submission":
            lease_module.record_submission(plan)
        case "outcome":
            record_outcome(plan, OUTCOME)
        case "ending":
            record_ending(plan, "failed", "it failed")
        case _:
            hand_lease_over(plan)
    lease = read_lease(fake_server, plan) or {}
    annotations = {
        "submission": lease_record.SUBMITTED_ANNOTATION,
        "outcome": lease_record.OUTCOME_ANNOTATION,
        "ending": lease_record.ENDING_ANNOTATION,
        "handed over": lease_record.HANDED_OVER_ANNOTATION,
    }
    assert lease_record.read_annotation(lease, annotations[record])
    assert lease_record.read_attempt(lease) == attempt
    assert lease_record.is_submitted(lease) == (record in ("submission", "outcome"))
    assert lease_record.is_handed_over(lease) == (record == "handed over")


def test_annotations_are_not_restored_on_the_lease_of_another_process(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that takes the run over before the annotations are restored keeps its Lease as it is."""
    acquired = acquire_lease(plan)
    del acquired["metadata"]["annotations"]
    fake_api.put(acquired)

    build_own_lease = lease_module.build_lease

    def build_lease_late(plan: ManifestPlan, client: Client) -> Any:
        fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
        return build_own_lease(plan, client)

    monkeypatch.setattr(lease_module, "build_lease", build_lease_late)
    with pytest.raises(RunInUseError, match="taken it over"):
        lease_module.record_submission(plan)
    assert "annotations" not in fake_api.objects.get(LEASE_KEY)["metadata"]


def test_renewal_that_a_policy_refuses_is_an_error(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A 422 for a Lease that is held from here and was not renewed is no renewal, and proves no ownership."""
    acquire_lease(plan)
    fake_api.fail("PATCH", "/leases/", 422)
    for renew in (renew_lease, confirm_ownership):
        with pytest.raises(ClusterError, match="a fault of the test: 422"):
            renew(plan)


def test_record_that_the_server_refuses_is_an_error(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A record that the API server refuses for another reason than a failed test, such as its size, is an error."""
    acquire_lease(plan)
    fake_api.fail("PATCH", "/leases/", 422)
    with pytest.raises(ClusterError, match="a fault of the test: 422"):
        lease_module.record_submission(plan)


def test_record_whose_response_was_lost_is_not_written_again(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A patch that is refused because it was applied before, as its response was lost, is no error."""
    acquire_lease(plan)
    lease_module.record_submission(plan)
    fake_api.fail("PATCH", "/leases/", 422)
    lease_module.record_submission(plan)
    assert len(fake_api.find_requests("PATCH", "/leases/")) == 2


def test_documented_times_match_the_code() -> None:
    """docs/kubernetes.md gives the renewal interval and the time after which a holder is dead; no other page does."""
    expected = f"within {HOLDER_DEAD_AFTER_S:.0f} s (its holder does so every {RENEW_INTERVAL_S:.0f} s)"
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    assert expected in pages["kubernetes.md"]
    assert [name for name, text in pages.items() if f"{HOLDER_DEAD_AFTER_S:.0f} s" in text] == ["kubernetes.md"]
