"""Rules of the rendezvous: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("DistStoreError: Timed out after 9 seconds waiting for clients. 1/3 clients joined.", "rendezvous-timeout"),
        ("DistNetworkError: The server socket has failed to listen: address already in use", "port-taken"),
        ("RendezvousConnectionError: The connection to etcd has failed", "etcd-gone"),
        ("RendezvousConnectionError: The connection to the C10d store has failed", "rendezvous-connection"),
        ("DistStoreError: wait timeout after 60000ms", "peer-timeout"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """The number of nodes that joined, a taken port and etcd are more than a rendezvous that failed."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
