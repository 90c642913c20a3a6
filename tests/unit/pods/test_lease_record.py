"""The content of a run's Lease: reading one that anyone may have changed, and believing only what is sealed."""

import time
from typing import Any

import pytest

from tests.leases import RUN, lease
from torchyard.model.hang import Hang
from torchyard.model.run import Failure, Outcome, Status
from torchyard.pods import lease_record

KEY = "a" * 64
DONE = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={"worker-0": 0})


# --- reading


def told(key: str, text: str) -> dict[str, Any]:
    return lease(annotations={f"torchyard/{key}": text})


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("9999", 9999), ("0", None), ("-1", None), ("1.0", None), ("²", None), ("", None)]
)
def test_attempt_is_a_bounded_number(text: str, number: int | None) -> None:
    """An invalid attempt is read as unknown, and raises nothing."""
    assert lease_record.read_attempt(told("attempt", text)) == number


@pytest.mark.parametrize("made", [{}, {"metadata": None}, {"metadata": {"annotations": "x"}, "spec": []}])
def test_nothing_raises_on_a_lease_without_anything(made: dict[str, Any]) -> None:
    """Reading a Lease that lacks all of its parts raises nothing."""
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
    """A Lease as we write it has no faults."""
    held = lease()
    held["metadata"]["uid"] = "1"
    assert lease_record.list_lease_faults(held, time.time()) == []


@pytest.mark.parametrize(
    ("spec", "left"),
    [({}, 1790), ({"leaseDurationSeconds": 60}, 50), ({"leaseDurationSeconds": 0}, None), ({"renewTime": "x"}, None)],
)
def test_lease_lasts_from_its_renewal(spec: dict[str, Any], left: float | None) -> None:
    """The time left follows from two fields, and is unknown if one of them is invalid."""
    found = lease_record.measure_time_left(lease(ago=10, spec=spec), time.time())
    assert found is None if left is None else found == pytest.approx(left, abs=1)


@pytest.mark.parametrize(("ahead", "age"), [(0, 0), (590, -590), (610, None), (10**9, None)])
def test_renewal_far_in_the_future_is_of_unknown_age(ahead: float, age: float | None) -> None:
    """A renewal may lie ahead by the difference of two clocks; a later one proves nothing, and is reported."""
    held = lease(ago=-ahead)
    held["metadata"]["uid"] = "1"
    found = lease_record.measure_lease_age(held, time.time())
    assert found is None if age is None else found == pytest.approx(age, abs=2)
    faults = lease_record.list_lease_faults(held, time.time())
    assert [("renewTime is" in each, "not in the future" in each) for each in faults] == [(True, True)] * (age is None)


def test_job_counts_as_submitted_in_its_own_attempt() -> None:
    """A job counts as submitted only if the Lease says so for its own attempt, not for an earlier one."""
    both = [lease(annotations={"torchyard/attempt": "2", "torchyard/submitted": each}) for each in ("2", "1", "x")]
    assert [lease_record.is_submitted(each) for each in both] == [True, False, False]


# --- the seal


def sealed(secret: str = KEY, run: str = RUN, attempt: str = "1") -> dict[str, Any]:
    """A Lease that says that its job has succeeded."""
    return told("outcome", lease_record.seal_outcome(run, attempt, DONE, secret))


def test_sealed_outcome_counts() -> None:
    """An outcome with the run's seal is read back as it was written."""
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
    """An outcome with a missing or wrong seal, of another run or attempt, changed, or malformed reads as none."""
    assert (lease_record.read_outcome(held, secret), lease_record.read_ending(held, secret)) == (None, None)


def test_outcome_is_short_enough_for_an_annotation() -> None:
    """An outcome that is too long is stored without the parts that resuming does not need."""
    failure = Failure(cause="program-error", sentence="it failed", tail=("x" * 5000,) * 50)
    long = DONE.model_copy(update={"status": Status(state="failed", reason="it failed", failure=failure)})
    hang = Hang(kind="unknown", ranks=(), nodes=(), sentence="it hangs", evidence=("x" * 5000,) * 50)
    text = lease_record.seal_outcome(RUN, "1", long.model_copy(update={"hang": hang}), KEY)
    assert len(text) < 1000
    assert (found := lease_record.read_outcome(told("outcome", text), KEY))
    assert (found.status.failure and found.status.failure.cause, found.exit_codes) == ("program-error", DONE.exit_codes)


def test_seal_of_another_attempt_counts_for_that_attempt_alone() -> None:
    """The outcome of attempt 1 says nothing about attempt 2, whichever attempt the text claims to be about."""
    first = lease_record.seal_outcome(RUN, "1", DONE, KEY)
    for text in (first, first.replace('"attempt": "1"', '"attempt": "2"')):
        annotations = {"torchyard/attempt": "2", "torchyard/outcome": text}
        assert lease_record.read_outcome(lease(annotations=annotations), KEY) is None
    assert lease_record.read_outcome(told("outcome", first.replace('"attempt": "1"', '"attempt": "2"')), KEY) is None
    assert lease_record.read_outcome(told("outcome", first), KEY) == DONE
