"""The flow runs that a flow run has started; real ones are in tests/local/test_lost_benchmark.py."""

from uuid import UUID

import pytest

from tests.conftest import RUN_ID
from tests.fake_prefect import STATE, FakePrefect
from torchyard.tasks.flow_run.children import cancel_children, is_run_cancelled
from torchyard.tasks.flow_run.states import open_bounded_client

ENDED = [("FAILED", "Failed")]
RETRIED = [("FAILED", "Failed"), ("SCHEDULED", "AwaitingRetry")]


@pytest.mark.parametrize(
    ("earlier_states", "expected_states"), [([], ["Cancelling"]), (ENDED, ["Cancelling"]), (RETRIED, [])]
)
def test_child_that_a_user_requested_again_is_not_cancelled(
    fake_prefect: FakePrefect, earlier_states: list[tuple[str, str]], expected_states: list[str]
) -> None:
    """A run is cancelled with its parent, unless a user has requested it again since it ended."""
    fake_prefect.responses = {
        "/flow_runs/filter": [fake_prefect.flow_run],
        "/flow_run_states/": [STATE | {"type": state_type, "name": name} for state_type, name in earlier_states],
    }
    with open_bounded_client() as client:
        names = cancel_children(client, [UUID(RUN_ID)])
    assert (fake_prefect.requested_states, names) == (expected_states, ["a-run"] * len(expected_states))


@pytest.mark.parametrize(("state", "is_cancelled"), [("RUNNING", False), ("CANCELLING", True), ("CANCELLED", True)])
def test_cancel_is_seen_in_the_state(fake_prefect: FakePrefect, state: str, is_cancelled: bool) -> None:
    """A run counts as cancelled from the moment on in which a user has requested it."""
    fake_prefect.state = state
    assert is_run_cancelled(RUN_ID) is is_cancelled
