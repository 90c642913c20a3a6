"""A run's own etcd on machines, and a user's: proven to serve the v2 API, or refused with its last output."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenacity import stop_after_delay

from tests.conftest import Write, load, plan_of
from tests.processes.lone_processes import build_lone_plan
from torchyard.machines import store
from torchyard.model.errors import RendezvousError
from torchyard.model.plan import CommandPlan
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.teardown import teardown


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """A plan with its own etcd, which is removed after the test."""
    job_plan = build_lone_plan(load(write(rendezvous="etcd-v2")), tmp_path / "run")
    yield job_plan
    teardown(job_plan)


def with_store_argv(plan: CommandPlan, *argv: str) -> CommandPlan:
    """The plan with another command line for its store."""
    assert plan.store
    assert plan.store.spec
    spec = plan.store.spec | {"argv": argv}
    return plan.model_copy(update={"store": plan.store.model_copy(update={"spec": spec})})


def get_store_argv(plan: CommandPlan) -> list[str]:
    assert plan.store
    assert plan.store.spec
    return list(plan.store.spec["argv"])


def test_store_without_v2_is_refused(plan: CommandPlan) -> None:
    """An etcd that answers 404 on /v2/keys is refused with the versions that serve it."""
    plan_without_v2 = with_store_argv(plan, *(arg for arg in get_store_argv(plan) if arg != "--enable-v2"))
    with pytest.raises(RendezvousError, match=r"answers 404 to GET /v2/keys; use etcd 3.4 or 3.5"):
        ensure_rendezvous(plan_without_v2)


def test_store_that_exits_is_reported_with_its_output(plan: CommandPlan) -> None:
    """A store that exits at its start is reported immediately, with its output."""
    failing_plan = with_store_argv(plan, "bash", "-c", "echo flag provided but not defined: -enable-v2; exit 2")
    with pytest.raises(RendezvousError, match=r"ended with 2 and printed: .*not defined: -enable-v2"):
        ensure_rendezvous(failing_plan)


def test_unreachable_store_is_reported(write: Write, tmp_path: Path) -> None:
    """A user's etcd that does not answer is reported after the waiting time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    unreachable_plan = plan_of(load(write(rendezvous="etcd-v2", options={"etcd": f"127.0.0.1:{port}"})), tmp_path)
    wait_for_store = store.wait_for_store.retry_with(stop=stop_after_delay(0.1))
    assert unreachable_plan.probe
    with pytest.raises(store.StoreNotReadyError, match="refused"):
        wait_for_store(unreachable_plan.probe, None, None)
