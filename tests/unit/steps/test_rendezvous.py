"""The rendezvous store: a real etcd, with and without the v2 API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write, load, plan_of
from tests.processes.lone_processes import build_lone_plan
from torchyard.host.processes import find_labelled
from torchyard.model.errors import RendezvousError
from torchyard.model.plan import CommandPlan
from torchyard.steps.rendezvous import describe_dead_store, ensure_rendezvous
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


@pytest.mark.parametrize("retry", [True, False])
def test_attempt_without_a_store_fails(retry: bool) -> None:
    """A store that does not serve fails the attempt; another one is worthwhile only if the store may serve later."""
    outcome = describe_dead_store(RendezvousError("http://etcd:2379/v2/keys", "404", "use etcd 3.5", retry=retry))
    assert outcome.status.state == "failed"
    assert outcome.status.failure
    assert (outcome.status.failure.cause, outcome.status.failure.retry) == ("rendezvous-store", retry)
