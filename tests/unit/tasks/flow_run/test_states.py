"""The state of a run in Prefect: how an end is shown, and calls that end although Prefect is busy."""

import os
import threading
import time
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from httpx import HTTPStatusError, Request, Response
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import STATE, FakePrefect
from torchyard.model.errors import PrefectError
from torchyard.tasks.flow_run.states import (
    build_final_state,
    delete_runs_with_same_end,
    get_flow_run_pool,
    open_bounded_client,
    read_liveness,
    read_reported_end,
    read_reported_states,
    report_state,
)


@pytest.mark.parametrize(
    ("end", "state_type", "name"),
    [
        ("succeeded", "COMPLETED", "Completed"),
        ("failed", "FAILED", "Failed"),
        ("cancelled", "CANCELLED", "Cancelled"),
        ("stopped", "CRASHED", "Stopped"),
        ("swept", "CRASHED", "Swept"),
        ("gave-up", "CRASHED", "GaveUp"),
    ],
)
def test_intended_end_is_never_named_crashed(end: str, state_type: str, name: str) -> None:
    """An end has one of Prefect's types and a separate name: a run whose state is named Crashed would be resumed."""
    state = build_final_state(end, "a sentence")
    assert (state.type.value, state.name, state.message) == (state_type, name, "a sentence")


def test_busy_prefect_does_not_delay_a_watchdog(server: FakePrefect) -> None:
    """A watchdog's call is made once, because it polls; Prefect's default client would retry for a minute."""
    server.status = 503
    server.answering.set()
    with open_bounded_client() as client, pytest.raises(HTTPStatusError):
        client.read_flow_run(UUID(RUN_ID))
    assert server.request_count == 1


def test_end_is_reported_again_if_prefect_was_busy(server: FakePrefect) -> None:
    """The report of an end is retried: without it the run would stay Running forever."""
    server.status = 503
    server.answering.set()
    threading.Timer(0.5, lambda: setattr(server, "status", 200)).start()
    report_state(RUN_ID, build_final_state("swept", "it was lost"))
    assert server.requested_states == ["Swept"]


@pytest.mark.parametrize(
    ("body", "is_proof"),
    [(b'{"detail": "Flow run not found"}', True), (b'{"detail": "Not Found"}', False), (b"<h1>no site</h1>", False)],
)
def test_only_prefect_proves_that_a_run_does_not_exist(
    fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch, body: bytes, is_proof: bool
) -> None:
    """A 404 of a proxy, or for an unknown path, leaves a run that may be alive."""
    response = Response(404, content=body, request=Request("GET", f"{fake_prefect.url}/flow_runs/1"))
    refusal = ObjectNotFound(http_exc=HTTPStatusError("404", request=response.request, response=response))
    monkeypatch.setattr(SyncPrefectClient, "read_flow_run", Mock(side_effect=refusal))
    assert (read_liveness(RUN_ID) is None) == is_proof


@pytest.mark.parametrize("body", ["log in first", {"id": RUN_ID}], ids=["a login page", "another document"])
def test_response_that_is_not_prefects_leaves_a_run_that_may_be_alive(fake_prefect: FakePrefect, body: Any) -> None:
    """What a proxy returns with 200 in place of a flow run proves nothing, although its parser raises a ValueError."""
    fake_prefect.responses[f"/flow_runs/{RUN_ID}"] = body
    assert "cannot query Prefect" in str(read_liveness(RUN_ID))
    with pytest.raises(PrefectError, match="cannot find out from Prefect whether a run has ended elsewhere"):
        read_reported_end(RUN_ID)


def test_run_without_prefect_is_not_alive_there(fake_prefect: FakePrefect) -> None:
    """The id of a run without Prefect is not one of a flow run."""
    assert (read_liveness("local-1"), read_reported_end("local-1"), fake_prefect.request_count) == (None, None, 0)


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("COMPLETED", "succeeded"),
        ("FAILED", "failed"),
        ("CANCELLED", "cancelled"),
        ("RUNNING", None),
        ("CRASHED", None),
    ],
)
def test_end_is_what_prefect_reports_of_a_run_that_was_not_lost(
    fake_prefect: FakePrefect, state: str, end: str | None
) -> None:
    """A final state is an end, except that of a run that was lost and is resumed."""
    fake_prefect.state = state
    reported_end = read_reported_end(RUN_ID)
    assert (reported_end.end if reported_end else None) == end


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0, -7200.0])
def test_age_of_a_state_is_measured_by_prefects_clock(fake_prefect: FakePrefect, ahead_s: float) -> None:
    """A machine whose clock is two hours ahead of Prefect's, or behind, does not take a new state for an old one."""
    fake_prefect.clock_ahead_s = ahead_s
    timestamp = datetime.fromtimestamp(time.time() + ahead_s - 60, UTC).isoformat()
    fake_prefect.responses["/flow_run_states/"] = [STATE | {"type": "PENDING", "timestamp": timestamp}]
    (state,) = read_reported_states(RUN_ID)
    assert 58 < state.age_s < 70


def test_earlier_runs_that_ended_alike_are_deleted(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a deployment's runs, those with the same message are deleted; this run and the others stay."""
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", RUN_ID)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", RUN_ID)
    ids = [RUN_ID[:-1] + end for end in "012"]
    messages = ["swept 0 runs", "swept 1 run", "swept 0 runs"]
    fake_prefect.state = "COMPLETED"
    runs = [fake_prefect.flow_run | {"id": run_id} for run_id in (*ids, RUN_ID)]
    for run, message in zip(runs, [*messages, "swept 0 runs"], strict=True):
        run["state"] = run["state"] | {"message": message}
    fake_prefect.responses["/flow_runs/filter"] = runs
    delete_runs_with_same_end(State(type=StateType.COMPLETED, message="swept 0 runs"))
    assert fake_prefect.deleted == [ids[0], ids[2]]


def test_process_without_a_worker_has_its_installations_pool() -> None:
    """Outside of a flow run the environment names the pool, as for `make up` and a watchdog."""
    os.environ["TORCHYARD_POOL"] = "team-b"
    assert get_flow_run_pool() == "team-b"


def test_flow_run_has_its_workers_pool(fake_prefect: FakePrefect) -> None:
    """A flow run that a worker has taken belongs to that worker's pool, even if the environment names another one."""
    flow_run = FlowRun.model_validate({"flow_id": RUN_ID, "work_pool_name": "team-b"})
    context: Any = FlowRunContext
    with open_bounded_client() as client, context.model_construct(flow_run=flow_run, client=client):
        assert get_flow_run_pool() == "team-b"
