"""The rendezvous store: a real etcd, with and without the v2 API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write, load, plan_of
from tests.processes.lone_processes import build_lone_plan
from torchyard.host.processes import find_labelled
from torchyard.model.plan import CommandPlan
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.teardown import teardown


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """A plan with its own etcd, which is removed after the test."""
    plan = build_lone_plan(load(write(rendezvous="etcd-v2")), tmp_path / "run")
    yield plan
    teardown(plan)


def test_store_serves_and_is_gone_after_teardown(plan: CommandPlan) -> None:
    """The run's own etcd answers on /v2/keys, and teardown leaves neither process nor port."""
    assert ensure_rendezvous(plan) == plan.probe
    assert find_labelled(f"{plan.label}etcd")
    assert teardown(plan) == ()
    assert not find_labelled(f"{plan.label}etcd")


def test_store_is_adopted_the_second_time(plan: CommandPlan) -> None:
    """A second call starts no second etcd."""
    ensure_rendezvous(plan)
    processes = find_labelled(f"{plan.label}etcd")
    ensure_rendezvous(plan)
    assert find_labelled(f"{plan.label}etcd") == processes


def test_other_backends_need_no_store(write: Write, tmp_path: Path) -> None:
    """With c10d no store is started."""
    assert ensure_rendezvous(plan_of(load(write()), tmp_path)) is None
