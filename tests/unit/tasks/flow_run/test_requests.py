"""The requests of a run to Prefect: all are made on a separate thread, and the run never waits for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate

from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from tests.support.waiting import wait_until
from torchyard.tasks.flow_run.requests import PrefectRequests


def _read_flow_run(client: SyncPrefectClient) -> None:
    client.read_flow_run(UUID(RUN_ID))


@contextmanager
def open_requests() -> Iterator[PrefectRequests]:
    """Requests that poll the server's flow run."""
    requests = PrefectRequests(_read_flow_run)
    requests.start()
    yield requests
    requests.close(0.0)


def build_progress_call(value: float) -> Callable[[SyncPrefectClient], None]:
    """A call that sets a run's progress bar."""

    def call(client: SyncPrefectClient) -> None:
        body = ArtifactUpdate(data=value).model_dump(mode="json")
        client.request("PATCH", "/artifacts/{id}", path_params={"id": "a"}, json=body)

    return call


def test_latest_value_wins_where_prefect_hangs(server: FakePrefect) -> None:
    """Of all values sent to a hanging server, only the newest one arrives once the server responds."""
    with open_requests() as requests:
        requests.send("bar", build_progress_call(1.0))
        wait_until(lambda: server.request_count > 2)
        future = [requests.send("bar", build_progress_call(float(number))) for number in range(2, 100)][-1]
        server.answering.set()
        future.result(30)
        assert 99.0 in server.artifact_updates
        assert len(set(server.artifact_updates)) <= 3  # a call in flight that was given up may still arrive


@pytest.mark.parametrize(("status", "is_retried"), [(503, True), (500, True), (422, False), (404, False)])
def test_refused_call_is_not_repeated(server: FakePrefect, status: int, is_retried: bool) -> None:
    """A call is retried while the server is broken, and dropped if the server refuses it."""
    server.status = status
    server.answering.set()
    with open_requests() as requests:
        future = requests.send("bar", build_progress_call(1.0))
        wait_until(lambda: server.request_count > 4)
        assert future.done() is not is_retried
        server.status = 200
        wait_until(future.done)
        assert server.artifact_updates == ([1.0] if is_retried else [])


def test_pending_calls_are_made_at_the_end(server: FakePrefect) -> None:
    """A call that waits when the run ends is made before the thread ends, unless Prefect was given up."""
    server.answering.set()
    for has_given_up in (False, True):
        server.artifact_updates.clear()
        server.status = 503
        requests = PrefectRequests(lambda client: None)
        requests.start()
        requests.send("bar", build_progress_call(1.0))
        count = server.request_count
        wait_until(lambda count=count: server.request_count > count)  # type: ignore[misc]
        if has_given_up:
            requests.give_up()
        else:
            server.status = 200
        requests.close(10.0)
        assert server.artifact_updates == ([] if has_given_up else [1.0])


def test_discarded_call_is_not_made(server: FakePrefect) -> None:
    """A call that is discarded while Prefect is broken is not made later."""
    server.status = 503
    server.answering.set()
    with open_requests() as requests:
        requests.send("bar", build_progress_call(1.0))
        requests.discard("bar")
        server.status = 200
        requests.send("other", build_progress_call(2.0)).result(30)
    assert server.artifact_updates == [2.0]
