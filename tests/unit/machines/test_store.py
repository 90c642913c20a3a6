"""A run's own etcd on machines, and a user's: proven to serve the v2 API, or refused with its last output."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenacity import stop_after_delay

from tests.conftest import Write, load, plan_of
from tests.lone_processes import lone_plan
from torchyard.machines import store
from torchyard.model.errors import RendezvousError
from torchyard.model.plan import CommandPlan
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.teardown import teardown


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """A plan with an etcd of its own, gone after the test."""
    made = lone_plan(load(write(rendezvous="etcd-v2")), tmp_path / "run")
    yield made
    teardown(made)


def altered(plan: CommandPlan, *argv: str) -> CommandPlan:
    """The plan with another command line for its store."""
    assert plan.store
    assert plan.store.submit
    assert plan.store.submit.input
    submit = plan.store.submit.model_copy(update={"input": {**plan.store.submit.input, "argv": argv}})
    return plan.model_copy(update={"store": plan.store.model_copy(update={"submit": submit})})


def etcd_argv(plan: CommandPlan) -> list[str]:
    assert plan.store
    assert plan.store.submit
    assert plan.store.submit.input
    return list(plan.store.submit.input["argv"])


def test_store_without_v2_is_told_at_once(plan: CommandPlan) -> None:
    """An etcd that answers 404 on /v2/keys is refused with the versions that serve it."""
    quiet = altered(plan, *(word for word in etcd_argv(plan) if word != "--enable-v2"))
    with pytest.raises(RendezvousError, match=r"answers 404 to GET /v2/keys; use etcd 3.4 or 3.5"):
        ensure_rendezvous(quiet)


def test_store_that_dies_is_told_with_its_last_words(plan: CommandPlan) -> None:
    """A store that ends at its start is reported at once, with its output."""
    dying = altered(plan, "bash", "-c", "echo flag provided but not defined: -enable-v2; exit 2")
    with pytest.raises(RendezvousError, match=r"ended with 2 and said: .*not defined: -enable-v2"):
        ensure_rendezvous(dying)


def test_named_store_that_does_not_answer_is_told(write: Write, tmp_path: Path) -> None:
    """A user's etcd that does not answer is reported after the waiting time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    absent = plan_of(load(write(rendezvous="etcd-v2", options={"etcd": f"127.0.0.1:{port}"})), tmp_path)
    prove = store._await_store.retry_with(stop=stop_after_delay(0.1))
    assert absent.probe
    with pytest.raises(store.StoreNotReadyError, match="refused"):
        prove(absent.probe, None, None)
