"""A run's Lease: what is read from one that anybody may have written on, and how it is taken, renewed and told."""

import time
from email.utils import formatdate
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi, Handler
from tests.leases import ID, RUN, lease, stamp
from torchyard.cluster import lease as holding
from torchyard.cluster.lease import (
    _await_holder,
    _holder_identity,
    _is_held_elsewhere,
    acquire_lease,
    read_lease,
    record_ending,
    record_outcome,
    refuse_held_lease,
    renew_lease,
)
from torchyard.cluster.lease_renewal import LeaseRenewer
from torchyard.kube import client
from torchyard.kube.client import Client
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Failure, Outcome, Status
from torchyard.pods import lease_record, seal
from torchyard.pods.lease_record import RecordedEnding

KEY = "a" * 64
DONE = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exits={"worker-0": 0})
WHERE = ("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    return planned(deadlines={"lease": "30m"})


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has a key."""
    monkeypatch.setattr(seal, "get_run_key", lambda run_id: KEY if run_id == ID else "")


# --- reading


def told(key: str, text: str) -> dict[str, Any]:
    return lease(annotations={f"torchyard/{key}": text})


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("9999", 9999), ("0", None), ("-1", None), ("1.0", None), ("²", None), ("", None)]
)
def test_attempt_is_a_bounded_number(text: str, number: int | None) -> None:
    """What is no attempt is unknown, and raises nothing."""
    assert lease_record.read_attempt(told("attempt", text)) == number


@pytest.mark.parametrize("made", [{}, {"metadata": None}, {"metadata": {"annotations": "x"}, "spec": []}])
def test_nothing_raises_on_a_lease_without_anything(made: dict[str, Any]) -> None:
    """A Lease may lack all of its parts."""
    assert (lease_record.read_attempt(made), lease_record.read_flow_run_id(made)) == (None, "")
    assert (lease_record.read_outcome(made, KEY), lease_record.read_ending(made, KEY)) == (None, None)
    assert (
        lease_record.measure_lease_age(made, 0.0),
        lease_record.measure_time_left(made, 0.0),
        lease_record.is_submitted(made),
    ) == (
        None,
        None,
        False,
    )
    assert len(lease_record.list_lease_faults(made, time.time())) == 4


def test_sound_lease_has_no_fault() -> None:
    """What we write ourselves can be judged."""
    held = lease()
    held["metadata"]["uid"] = "1"
    assert lease_record.list_lease_faults(held, time.time()) == []


@pytest.mark.parametrize(
    ("spec", "left"),
    [({}, 1790), ({"leaseDurationSeconds": 60}, 50), ({"leaseDurationSeconds": 0}, None), ({"renewTime": "x"}, None)],
)
def test_lease_lasts_from_its_renewal(spec: dict[str, Any], left: float | None) -> None:
    """How long it lasts is known from two fields, and unknown where one of them is none."""
    found = lease_record.measure_time_left(lease(ago=10, spec=spec), time.time())
    assert found is None if left is None else found == pytest.approx(left, abs=1)


def test_job_counts_as_submitted_in_its_own_attempt() -> None:
    """That an earlier attempt was submitted says nothing of this one."""
    both = [lease(annotations={"torchyard/attempt": "2", "torchyard/submitted": each}) for each in ("2", "1", "x")]
    assert [lease_record.is_submitted(each) for each in both] == [True, False, False]


# --- the seal


def sealed(secret: str = KEY, run: str = RUN, attempt: str = "1") -> dict[str, Any]:
    """A Lease that says that its job has succeeded."""
    return told("outcome", lease_record.seal_outcome(run, attempt, DONE, secret))


def test_sealed_outcome_counts() -> None:
    """An outcome that a launcher of the run wrote is what it wrote."""
    assert lease_record.read_outcome(sealed(), KEY) == DONE


@pytest.mark.parametrize(
    ("held", "secret"),
    [
        (sealed("b" * 64), KEY),
        (sealed(""), KEY),
        (sealed(), ""),
        (sealed(""), ""),
        (sealed(run="other-a1b2c3d4"), KEY),
        (sealed(attempt="2"), KEY),
        (told("outcome", sealed()["metadata"]["annotations"]["torchyard/outcome"].replace('": 0}', '": 1}')), KEY),
        (told("outcome", "{"), KEY),
        (told("outcome", "[" * 100_000), KEY),
        (told("outcome", '{"attempt": "1", "outcome": {}, "seal": "\\ud800"}'), KEY),
        (told("outcome", '{"attempt": "1", "outcome": {"x": 1}, "seal": 7}'), KEY),
        (told("ending", sealed()["metadata"]["annotations"]["torchyard/outcome"]), KEY),
    ],
)
def test_outcome_without_its_seal_is_none(held: dict[str, Any], secret: str) -> None:
    """Another key, none, another run's, another attempt's, changed, or no JSON: it says nothing and raises nothing."""
    assert (lease_record.read_outcome(held, secret), lease_record.read_ending(held, secret)) == (None, None)


def test_outcome_is_short_enough_for_an_annotation() -> None:
    """What is not needed to go on is left out of an outcome that is too long, and the rest counts."""
    failure = Failure(cause="program-error", sentence="it failed", tail=("x" * 5000,) * 50)
    long = DONE.model_copy(update={"status": Status(state="failed", reason="it failed", failure=failure)})
    text = lease_record.seal_outcome(RUN, "1", long, KEY)
    assert len(text) < 1000
    assert (found := lease_record.read_outcome(told("outcome", text), KEY))
    assert (found.status.failure and found.status.failure.cause, found.exits) == ("program-error", DONE.exits)


@pytest.mark.usefixtures("key")
def test_what_is_told_is_sealed(plan: ManifestPlan, fake_server: Client) -> None:
    """An outcome and an ending reach whoever has the run's key, and the Lease itself bears its seal."""
    acquire_lease(plan)
    record_outcome(plan, DONE)
    record_ending(plan, "cancelled", "cancelled through Prefect")
    held = read_lease(fake_server, plan) or {}
    assert lease_record.read_outcome(held, KEY) == DONE
    assert lease_record.read_ending(held, KEY) == RecordedEnding(end="cancelled", sentence="cancelled through Prefect")
    assert [lease_record.is_sealed_lease(held, each) for each in (KEY, "b" * 64, "")] == [True, False, False]
    elsewhere = {**held, "metadata": {**held["metadata"], "namespace": "other"}}
    assert not lease_record.is_sealed_lease(elsewhere, KEY)


# --- taking it


def put(fake_api: FakeApi, **keys: Any) -> dict[str, Any]:
    return fake_api.put(lease(**keys))


def test_lease_is_made(plan: ManifestPlan, fake_server: Client) -> None:
    """A run's first process makes it, and holds it."""
    acquire_lease(plan)
    held = read_lease(fake_server, plan) or {}
    assert (lease_record.read_holder(held), lease_record.read_attempt(held), held["spec"]["leaseDurationSeconds"]) == (
        _holder_identity(plan),
        1,
        1800,
    )
    assert (lease_record.measure_lease_age(held, time.time()) or 9.0) < 5.0


def test_dead_holder_is_replaced(plan: ManifestPlan, fake_api: FakeApi, fake_server: Client) -> None:
    """Who has not renewed for 130 s has lost the run to whoever comes; what it has told stays told."""
    put(fake_api, ago=140, annotations={"torchyard/submitted": "1"})
    assert lease_record.is_submitted(acquire_lease(plan))
    assert lease_record.read_holder(read_lease(fake_server, plan) or {}) == _holder_identity(plan)


def test_living_holder_keeps_the_run(plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that renews while it is looked at is alive: the second process ends."""

    def sleep(_: float) -> None:
        fake_api.objects.patch(WHERE, {"spec": {"renewTime": stamp(0)}})

    put(fake_api, ago=100)
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(RunInUseError, match="elsewhere:/runs"):
        acquire_lease(plan)


def test_quicker_process_keeps_the_run(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """Of two that take over a dead holder's run at once, one has it."""
    put(fake_api, ago=140)
    fake_api.fail("PATCH", f"/leases/{RUN}", 422)
    with pytest.raises(RunInUseError):
        acquire_lease(plan)


def test_malformed_lease_is_set_right(plan: ManifestPlan, fake_api: FakeApi, fake_server: Client) -> None:
    """Whoever carries the run knows what belongs on its Lease, whatever others have written there."""
    put(fake_api, annotations={"torchyard/attempt": "banana", "torchyard/outcome": "["}, spec={"renewTime": None})
    fake_api.objects.patch(WHERE, {"metadata": {"creationTimestamp": stamp(4000), "labels": {"torchyard/run": None}}})
    acquire_lease(plan)
    held = read_lease(fake_server, plan) or {}
    assert (lease_record.list_lease_faults(held, time.time()), lease_record.read_attempt(held)) == ([], 1)


@pytest.mark.parametrize("hours", [1, -1, 0])
def test_holder_is_judged_by_the_servers_clock(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A machine whose clock differs by an hour takes no run from a holder that renewed 20 s ago."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600 * hours, usegmt=True))
    server = client.get_cluster_client(plan.cluster)
    assert _is_held_elsewhere(server, plan, put(fake_api, ago=3600 * hours + 20))
    assert not _is_held_elsewhere(server, plan, put(fake_api, ago=3600 * hours + 140))


def test_renewals_are_in_the_servers_time(
    plan: ManifestPlan, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a machine writes whose clock is an hour ahead is right for all others."""
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(time.time() - 3600, usegmt=True))
    acquire_lease(plan)
    renew_lease(plan)
    assert (lease_record.measure_lease_age(read_lease(fake_server, plan) or {}, time.time()) or 0.0) == pytest.approx(
        3600, abs=5
    )


def test_renewal_in_the_future_is_waited_out(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Lease of which nobody can say how old it is belongs to whoever has watched it for long enough."""
    monkeypatch.setattr(holding, "HOLDER_DEAD_AFTER_S", 0.2)
    monkeypatch.setattr(holding, "_HOLDER_POLL_INTERVAL_S", 0.01)
    put(fake_api, spec={"renewTime": "9999-01-01T00:00:00.000000Z"})
    assert _await_holder(client.get_cluster_client(plan.cluster), plan)


def test_new_attempt_begins_with_nothing_told(plan: ManifestPlan, planned: Planned, fake_server: Client) -> None:
    """Of an attempt that begins nothing is known: it is not ending, and was not submitted."""
    acquire_lease(plan)
    holding.record_submission(plan)
    record_ending(plan, "failed", "it failed")
    acquire_lease(planned(attempt=2, deadlines={"lease": "30m"}))
    held = read_lease(fake_server, plan) or {}
    assert (
        lease_record.read_attempt(held),
        lease_record.is_submitted(held),
        lease_record.read_annotation(held, lease_record.ENDING_ANNOTATION),
    ) == (
        2,
        False,
        "",
    )


@pytest.mark.parametrize(("ago", "carried"), [(20, True), (140, True), (1900, False)])
def test_sweep_here_leaves_what_another_machine_may_come_back_to(
    plan: ManifestPlan, fake_api: FakeApi, ago: float, carried: bool
) -> None:
    """A run whose folder is here, and whose Lease another machine holds, is that one's while the Lease lasts."""
    put(fake_api, ago=ago)
    try:
        refuse_held_lease(plan)
    except RunInUseError:
        assert carried
    else:
        assert not carried


# --- renewing it


def test_renewal_needs_the_lease(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A launcher whose run was taken over ends; one whose Lease was deleted is told so by its job."""
    acquire_lease(plan)
    fake_api.objects.patch(WHERE, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    with pytest.raises(RunInUseError, match="taken it over"):
        renew_lease(plan)
    fake_api.objects.delete(WHERE, {})
    renew_lease(plan)


def test_renewer_outlives_its_own_trouble(
    plan: ManifestPlan, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that fails for want of a descriptor is one renewal, and not the end of all."""
    renewals: list[str] = []

    class EndError(BaseException):
        """The test is over."""

    def fail(each: ManifestPlan) -> None:
        renewals.append(each.run)
        if len(renewals) == 3:
            raise EndError
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("torchyard.cluster.lease_renewal._RENEW_INTERVAL_S", 0.0)
    monkeypatch.setattr(holding, "renew_lease", fail)
    renewer = LeaseRenewer()
    renewer.add(plan)
    with pytest.raises(EndError):
        renewer.run()
    assert renewals == [RUN] * 3
