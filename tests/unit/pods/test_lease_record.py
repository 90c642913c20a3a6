"""The content of a run's Lease: reading one that anyone may have changed, and accepting only sealed values."""

import time
from typing import Any

import pytest

from tests.doubles.leases import RUN, build_lease
from torchyard.model.hang import Hang
from torchyard.model.run import Failure, Outcome, Status
from torchyard.pods import lease_record

KEY = "a" * 64
DONE = Outcome(status=Status(state="succeeded", reason="2 of 2 pods succeeded"), exit_codes={"worker-0": 0})


# --- reading


def build_annotated_lease(key: str, text: str) -> dict[str, Any]:
    return build_lease(annotations={f"torchyard/{key}": text})


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("9999", 9999), ("0", None), ("-1", None), ("1.0", None), ("²", None), ("", None)]
)
def test_attempt_is_a_bounded_number(text: str, number: int | None) -> None:
    """An invalid attempt is read as unknown, and raises nothing."""
    assert lease_record.read_attempt(build_annotated_lease("attempt", text)) == number


@pytest.mark.parametrize("lease", [{}, {"metadata": None}, {"metadata": {"annotations": "x"}, "spec": []}])
def test_nothing_raises_on_a_lease_without_anything(lease: dict[str, Any]) -> None:
    """Reading a Lease that lacks all of its parts raises nothing."""
    assert (lease_record.read_attempt(lease), lease_record.read_flow_run_id(lease)) == (None, "")
    assert (lease_record.read_outcome(lease, KEY), lease_record.read_ending(lease, KEY)) == (None, None)
    assert (
        lease_record.measure_lease_age(lease, 0.0),
        lease_record.measure_time_left(lease, 0.0),
        lease_record.is_submitted(lease),
    ) == (
        None,
        None,
        False,
    )
    assert len(lease_record.list_lease_faults(lease, time.time())) == 4


def test_sound_lease_has_no_fault() -> None:
    """A Lease as we write it has no faults."""
    lease = build_lease()
    lease["metadata"]["uid"] = "1"
    assert lease_record.list_lease_faults(lease, time.time()) == []


@pytest.mark.parametrize(
    ("spec", "remaining_s"),
    [({}, 1790), ({"leaseDurationSeconds": 60}, 50), ({"leaseDurationSeconds": 0}, None), ({"renewTime": "x"}, None)],
)
def test_lease_lasts_from_its_renewal(spec: dict[str, Any], remaining_s: float | None) -> None:
    """The time left follows from two fields, and is unknown if one of them is invalid."""
    measured_s = lease_record.measure_time_left(build_lease(ago=10, spec=spec), time.time())
    assert measured_s is None if remaining_s is None else measured_s == pytest.approx(remaining_s, abs=1)


@pytest.mark.parametrize(("ahead_s", "age_s"), [(0, 0), (590, -590), (610, None), (10**9, None)])
def test_renewal_far_in_the_future_is_of_unknown_age(ahead_s: float, age_s: float | None) -> None:
    """A renewal may lie ahead by the difference of two clocks; a later one proves nothing, and is reported."""
    lease = build_lease(ago=-ahead_s)
    lease["metadata"]["uid"] = "1"
    measured_s = lease_record.measure_lease_age(lease, time.time())
    assert measured_s is None if age_s is None else measured_s == pytest.approx(age_s, abs=2)
    faults = lease_record.list_lease_faults(lease, time.time())
    assert [("renewTime is" in fault, "not in the future" in fault) for fault in faults] == [(True, True)] * (
        age_s is None
    )


def test_job_counts_as_submitted_in_its_own_attempt() -> None:
    """A job counts as submitted only if the Lease records it for the current attempt, not for an earlier one."""
    leases = [
        build_lease(annotations={"torchyard/attempt": "2", "torchyard/submitted": submitted})
        for submitted in ("2", "1", "x")
    ]
    assert [lease_record.is_submitted(lease) for lease in leases] == [True, False, False]


# --- the seal


def build_sealed_lease(secret: str = KEY, run: str = RUN, attempt: str = "1") -> dict[str, Any]:
    """A Lease with the sealed outcome of a job that has succeeded."""
    return build_annotated_lease("outcome", lease_record.seal_outcome(run, attempt, DONE, secret))


def test_sealed_outcome_counts() -> None:
    """An outcome with the run's seal is read back as it was written."""
    assert lease_record.read_outcome(build_sealed_lease(), KEY) == DONE


@pytest.mark.parametrize(
    ("lease", "secret"),
    [
        (build_sealed_lease("b" * 64), KEY),
        (build_sealed_lease(""), KEY),
        (build_sealed_lease(), ""),
        (build_sealed_lease(""), ""),
        (build_sealed_lease(run="other-a1b2c3d4"), KEY),
        (build_sealed_lease(attempt="2"), KEY),
        (
            build_annotated_lease(
                "outcome",
                build_sealed_lease()["metadata"]["annotations"]["torchyard/outcome"].replace('": 0}', '": 1}'),
            ),
            KEY,
        ),
        (build_annotated_lease("outcome", "{"), KEY),
        (build_annotated_lease("outcome", "[" * 100_000), KEY),
        (build_annotated_lease("outcome", '{"attempt": "1", "outcome": {}, "seal": "\\ud800"}'), KEY),
        (build_annotated_lease("outcome", '{"attempt": "1", "outcome": {"x": 1}, "seal": 7}'), KEY),
        (build_annotated_lease("ending", build_sealed_lease()["metadata"]["annotations"]["torchyard/outcome"]), KEY),
    ],
)
def test_outcome_without_its_seal_is_none(lease: dict[str, Any], secret: str) -> None:
    """An outcome with a missing or wrong seal, of another run or attempt, changed, or malformed reads as none."""
    assert (lease_record.read_outcome(lease, secret), lease_record.read_ending(lease, secret)) == (None, None)


def test_outcome_is_short_enough_for_an_annotation() -> None:
    """An outcome that is too long is stored without the parts that resuming does not need."""
    failure = Failure(cause="program-error", sentence="it failed", tail=("x" * 5000,) * 50)
    long_outcome = DONE.model_copy(update={"status": Status(state="failed", reason="it failed", failure=failure)})
    hang = Hang(kind="unknown", ranks=(), nodes=(), sentence="it hangs", evidence=("x" * 5000,) * 50)
    text = lease_record.seal_outcome(RUN, "1", long_outcome.model_copy(update={"hang": hang}), KEY)
    assert len(text) < 1000
    outcome = lease_record.read_outcome(build_annotated_lease("outcome", text), KEY)
    assert outcome
    assert outcome.status.failure
    assert (outcome.status.failure.cause, outcome.exit_codes) == ("program-error", DONE.exit_codes)


def test_seal_of_another_attempt_counts_for_that_attempt_alone() -> None:
    """The outcome of attempt 1 is not read as that of attempt 2, even if its text names attempt 2."""
    sealed_text = lease_record.seal_outcome(RUN, "1", DONE, KEY)
    for text in (sealed_text, sealed_text.replace('"attempt": "1"', '"attempt": "2"')):
        annotations = {"torchyard/attempt": "2", "torchyard/outcome": text}
        assert lease_record.read_outcome(build_lease(annotations=annotations), KEY) is None
    assert (
        lease_record.read_outcome(
            build_annotated_lease("outcome", sealed_text.replace('"attempt": "1"', '"attempt": "2"')), KEY
        )
        is None
    )
    assert lease_record.read_outcome(build_annotated_lease("outcome", sealed_text), KEY) == DONE
