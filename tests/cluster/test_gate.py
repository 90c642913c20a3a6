"""The gate of `make chaos`: its faults must hit exactly the request that the matrix names."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.gate import Fault, Gate
from tests.cluster.jobs import until

pytestmark = pytest.mark.usefixtures("plane")


@pytest.fixture
def gate(plane: Any, tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path, None)
    yield made
    made.close()


class Client:
    """A client that creates a ConfigMap through the gate; `told` is the answer's status, 0 if there was none."""

    def __init__(self, gate: Gate, server: Any, namespace: str) -> None:
        self._server, self._namespace, self.name = server, namespace, f"held-{gate.port}"
        self._path = f"{gate.address}/api/v1/namespaces/{namespace}/configmaps"
        self.told: int | None = None
        self._thread = threading.Thread(target=self._create)

    def create(self, gate: Gate, answered: bool) -> None:
        """Send the request, and wait until the gate holds it."""
        gate.hold(lambda request: request.startswith("POST"), answered)
        self._thread.start()
        until(gate.held.is_set)

    def _create(self) -> None:
        body = {"metadata": {"name": self.name}}
        try:
            self.told = httpx.post(self._path, json=body, timeout=3, trust_env=False).status_code
        except httpx.HTTPError:
            self.told = 0

    def made(self) -> bool:
        return self._server.get("v1", "ConfigMap", self.name, self._namespace) is not None

    def hear(self) -> int | None:
        self._thread.join()
        return self.told


@pytest.fixture
def client(gate: Gate, plane: Any, namespace: str) -> Client:
    return Client(gate, plane, namespace)


@pytest.mark.parametrize("answered", [True, False])
def test_held_request_is_made_or_not(gate: Gate, client: Client, answered: bool) -> None:
    """A request held after its answer has created its object, unknown to the client; one held before has not."""
    client.create(gate, answered)
    assert (client.made(), client.told) == (answered, None)
    gate.release()
    assert client.hear() == 201


@pytest.mark.parametrize(("fault", "told"), [("500", 500), ("429", 429), ("401", 401), ("reset", 0), ("black hole", 0)])
def test_held_answer_is_replaced(gate: Gate, client: Client, fault: Fault, told: int) -> None:
    """The client gets the fault instead of the held answer, although its object was created."""
    client.create(gate, answered=True)
    gate.fail(fault, 5)
    assert (client.hear(), client.made()) == (told, True)


def test_burst_ends(gate: Gate) -> None:
    """After a burst, requests are answered normally again."""
    gate.fail("500", 0.5)
    assert httpx.get(f"{gate.address}/version", trust_env=False).status_code == 500
    until(lambda: httpx.get(f"{gate.address}/version", trust_env=False).status_code == 200, 5)
