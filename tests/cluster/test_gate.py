"""The gate of `make chaos`: its faults must hit exactly the request that the matrix names."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.gate import Fault, Gate
from tests.cluster.jobs import until
from torchyard.model.errors import NotFoundError

pytestmark = pytest.mark.usefixtures("admin_client")


@pytest.fixture
def gate(admin_client: Any, tmp_path: Path) -> Iterator[Gate]:
    """A gate to the API server as the administrator."""
    gate = Gate(tmp_path, None)
    yield gate
    gate.close()


class HeldClient:
    """A client that creates a ConfigMap through the gate, in its own thread.

    `status`: of the response; 0 if there was none, None while the client waits.
    """

    def __init__(self, gate: Gate, admin_client: Any, namespace: str) -> None:
        self._server = admin_client
        self._namespace = namespace
        self.name = f"held-{gate.port}"
        self._path = f"{gate.address}/api/v1/namespaces/{namespace}/configmaps"
        self.status: int | None = None
        self._thread = threading.Thread(target=self._create)

    def create(self, gate: Gate, hold_response: bool) -> None:
        """Send the request, and wait until the gate holds it."""
        gate.hold(lambda request: request.startswith("POST"), hold_response=hold_response)
        self._thread.start()
        until(gate.request_held.is_set)

    def _create(self) -> None:
        body = {"metadata": {"name": self.name}}
        try:
            self.status = httpx.post(self._path, json=body, timeout=3, trust_env=False).status_code
        except httpx.HTTPError:
            self.status = 0

    def has_created(self) -> bool:
        """Whether the ConfigMap exists, by one reading: a proof of its absence takes longer than the client waits."""
        try:
            self._server.request("GET", self._server.path("v1", "ConfigMap", self.name, self._namespace))
        except NotFoundError:
            return False
        return True

    def wait_for_status(self) -> int | None:
        """Wait until the client has a response, and return its status; 0 if there was none."""
        self._thread.join()
        return self.status


@pytest.fixture
def client(gate: Gate, admin_client: Any, namespace: str) -> HeldClient:
    """A client that creates its ConfigMap through the gate."""
    return HeldClient(gate, admin_client, namespace)


@pytest.mark.parametrize("hold_response", [True, False])
def test_held_request_has_created_its_object_only_if_held_after_the_response(
    gate: Gate, client: HeldClient, hold_response: bool
) -> None:
    """A request held after its response has created its object, unknown to the client; one held before has not."""
    client.create(gate, hold_response)
    assert (client.has_created(), client.status) == (hold_response, None)
    gate.release()
    assert client.wait_for_status() == 201


@pytest.mark.parametrize(
    ("fault", "status"), [("500", 500), ("429", 429), ("401", 401), ("reset", 0), ("black hole", 0)]
)
def test_held_response_is_replaced(gate: Gate, client: HeldClient, fault: Fault, status: int) -> None:
    """The client gets the fault instead of the held response, although its object was created."""
    client.create(gate, hold_response=True)
    gate.fail(fault, duration_s=5)
    assert (client.wait_for_status(), client.has_created()) == (status, True)


def test_burst_ends(gate: Gate) -> None:
    """After a burst, requests get normal responses again."""
    gate.fail("500", duration_s=0.5)
    assert httpx.get(f"{gate.address}/version", trust_env=False).status_code == 500
    until(lambda: httpx.get(f"{gate.address}/version", trust_env=False).status_code == 200, timeout_s=5)
