"""The name of a checkpoint in sentences."""

import pytest

from torchyard.model.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("path", "step", "name"),
    [("/c/last.pt", 1204, "step 1,204"), ("/c/last.pt", None, "last.pt"), ("/c/a/", None, "a")],
)
def test_checkpoint_is_named_by_its_step(path: str, step: int | None, name: str) -> None:
    """Its step names it; without one, the last part of its path."""
    assert Checkpoint(path=path, state="complete", step=step, saved_at=1.0).name == name
