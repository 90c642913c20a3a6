"""The gate of `make chaos`: it must strike exactly where the matrix says that it does."""

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
    """Somebody who creates a ConfigMap through the gate; `told` is the status, 0 where there was none."""

    def __init__(self, gate: Gate, server: Any, namespace: str) -> None:
        self._server, self._namespace, self.name = server, namespace, f"held-{gate.port}"
        self._path = f"{gate.address}/api/v1/namespaces/{namespace}/configmaps"
        self.told: int | None = None
        self._thread = threading.Thread(target=self._create)

    def create(self, gate: Gate, answered: bool) -> None:
        """Begin, and wait until the request is held."""
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
        return self._server.read("v1", "ConfigMap", self.name, self._namespace) is not None

    def hear(self) -> int | None:
        self._thread.join()
        return self.told


@pytest.fixture
def client(gate: Gate, plane: Any, namespace: str) -> Client:
    return Client(gate, plane, namespace)


@pytest.mark.parametrize("answered", [True, False])
def test_held_request_is_made_or_not(gate: Gate, client: Client, answered: bool) -> None:
    """What is held after its answer is in the cluster, though its client knows nothing; before it, it is not."""
    client.create(gate, answered)
    assert (client.made(), client.told) == (answered, None)
    gate.release()
    assert client.hear() == 201


@pytest.mark.parametrize(("fault", "told"), [("500", 500), ("429", 429), ("401", 401), ("reset", 0), ("black hole", 0)])
def test_held_answer_is_replaced(gate: Gate, client: Client, fault: Fault, told: int) -> None:
    """A client whose object was made hears the fault in its place."""
    client.create(gate, answered=True)
    gate.fail(fault, 5)
    assert (client.hear(), client.made()) == (told, True)


def test_burst_ends(gate: Gate) -> None:
    """After its seconds requests are answered as ever."""
    gate.fail("500", 0.5)
    assert httpx.get(f"{gate.address}/version", trust_env=False).status_code == 500
    until(lambda: httpx.get(f"{gate.address}/version", trust_env=False).status_code == 200, 5)
