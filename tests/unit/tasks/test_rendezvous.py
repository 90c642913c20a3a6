"""The Prefect task that ensures that a rendezvous store responds."""

import pytest

from torchyard.model.errors import RendezvousError
from torchyard.model.plan import CommandPlan
from torchyard.tasks.rendezvous import ensure_rendezvous


def test_task_asks_for_a_store_only_if_there_is_one(plan: CommandPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `ensure_rendezvous` returns immediately without a store, and fails if the store does not respond."""
    monkeypatch.setattr("torchyard.machines.store.wait_for_store.retry.stop", lambda _: True)
    assert (ensure_rendezvous.name, ensure_rendezvous.fn(plan)) == ("ensure_rendezvous", None)
    with pytest.raises(RendezvousError, match="is it running there"):
        ensure_rendezvous.fn(plan.model_copy(update={"probe": "http://127.0.0.1:9/v2/keys"}))
