"""The job whose diagnosis is tested."""

import pytest

from tests.conftest import Planned
from torchyard.model.plan import ManifestPlan


@pytest.fixture
def plan(planned: Planned) -> ManifestPlan:
    """A gang of two pods with 8 GPUs each."""
    return planned(nodes=2, resources={"gpus": 8})
