"""The key of a run in Prefect, also if Prefect hangs or refuses; tests/local uses a real Prefect."""

import threading
from typing import Any

import pytest

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from tests.doubles.leases import build_lease
from torchyard.pods import lease_record
from torchyard.tasks.flow_run.ownership import confirm_flow_run, obtain_key, read_liveness_by_name

KEY = "a" * 64


def build_sealed_lease(key: str) -> dict[str, Any]:
    """The Lease of the fake server's flow run, sealed with a key."""
    obj = build_lease("sample-a1b2c3d4", annotations={"torchyard/flow-run": RUN_ID})
    obj["metadata"]["namespace"] = "default"
    obj["metadata"]["annotations"][lease_record.SEAL_ANNOTATION] = lease_record.seal_lease(obj, "default", key)
    return obj


@pytest.mark.parametrize(("key", "run_id"), [(KEY, RUN_ID), ("b" * 64, None), ("", None)])
def test_lease_names_its_flow_run_only_with_the_seal(fake_prefect: FakePrefect, key: str, run_id: str | None) -> None:
    """A Lease is trusted only if it was sealed with the key that Prefect stores for the flow run."""
    fake_prefect.run_fields = {"labels": {"torchyard.key": KEY}}
    fake_prefect.responses[f"/flows/{RUN_ID}"] = {"id": RUN_ID, "name": "train", "created": "2026-01-01T00:00:00Z"}
    assert (obtain_key(RUN_ID), confirm_flow_run(build_sealed_lease(key))) == (KEY, run_id)


def test_run_continues_without_a_key(fake_prefect: FakePrefect) -> None:
    """If Prefect hangs, the run has no key and does not wait for it."""
    fake_prefect.answering.clear()
    assert obtain_key(RUN_ID, timeout_s=0.2) == ""
    assert [thread.name for thread in threading.enumerate() if thread.name == "run-key"] == ["run-key"]  # it still asks


def test_prefect_that_refuses_confirms_nothing(fake_prefect: FakePrefect) -> None:
    """A refused request confirms no Lease, and may hide a living run: that run then counts as alive."""
    fake_prefect.status = 500
    assert (obtain_key(RUN_ID), confirm_flow_run(build_sealed_lease(KEY))) == ("", None)
    assert str(read_liveness_by_name("sample-a1b2c3d4")).startswith("cannot query Prefect: ")


def test_living_flow_run_is_found_by_the_end_of_its_id(fake_prefect: FakePrefect) -> None:
    """A run of which only the name is known counts as alive if the id of a living flow run has the same end."""
    fake_prefect.responses["/flow_runs/filter"] = [fake_prefect.flow_run | {"state_name": "Running"}]
    assert read_liveness_by_name("sample-a1b2c3d4") == "Prefect reports it as Running"
    fake_prefect.responses["/flow_runs/filter"] = []
    assert read_liveness_by_name("sample-a1b2c3d4") is None
