"""What the command of a pod shows of its job."""

import pytest

from tests.conftest import Planned
from torchyard.listing.pod_commands import find_process_count, find_rank_layout
from torchyard.steps.rank_output import RankLayout


@pytest.mark.parametrize(
    ("containers", "count"),
    [
        ([{"command": ["torchrun", "--nproc-per-node", "8"]}], 8),
        ([{"args": ["exec torchrun --nproc_per_node=2 a.py"]}], 2),
        ([{"command": ["torchrun", "--nproc-per-node=gpu"]}], None),
        ("torn", None),
    ],
)
def test_processes_are_those_that_torchrun_starts(containers: object, count: int | None) -> None:
    """The number is in the command, in any spelling; without one it is unknown."""
    assert find_process_count({"spec": {"containers": containers}}) == count


@pytest.mark.parametrize("keys", [{}, {"agent": "none", "rendezvous": "env"}, {"env": {"LOGLEVEL": "ERROR"}}])
def test_layout_is_that_of_the_plan(planned: Planned, keys: dict[str, str]) -> None:
    """The pods of our own plans show how their lines name their rank."""
    plan = planned(processes=1, **keys)
    assert find_rank_layout(plan.pod).ranks == plan.ranks


def test_agent_without_tee_logs_the_ranks() -> None:
    """The agent of a manifest that does not tee its workers' lines still names the ranks of its node."""
    container = {"name": "main", "command": ["torchrun", "--nproc_per_node=4", "train.py"]}
    pod = {"spec": {"containers": [container | {"env": [{"name": "LOGLEVEL", "value": "INFO"}]}]}}
    assert find_rank_layout(pod) == RankLayout("logged", 4)
