"""Rules of the fabric: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NCCL WARN NET/IB : Got completion from peer n2 with status=12 opcode=0", "rdma-retry-exceeded"),
        ("NCCL WARN NET/IB : Got completion from peer n2 with status=9 opcode=0", "rdma-error"),
        ("NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out", "rdma-connect"),
        ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "rdma-memlock"),
        ("NCCL WARN Call to ibv_reg_mr failed with error Bad address", "rdma-registration"),
        ("NCCL error in: x.cpp:1, unhandled cuda error", "nccl-cuda-error"),
        ("NCCL error in: x.cpp:1, remote process exited or there was a network error", "nccl-remote-error"),
        ("NCCL error in: x.cpp:1, unhandled system error", "nccl-system-error"),
        ("NCCL error in: x.cpp:1, invalid usage", "nccl-error"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """A line that shows one kind of failure of RDMA or NCCL, and contains the general words too, has that cause."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
