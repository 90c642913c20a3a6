"""The models of a job's network."""

from tests.inputs.nccl_lines import list_rdma_lines, list_socket_lines
from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.diagnosis.nccl.log import parse_nccl_log
from torchyard.model.fabric import FabricVerdict
from torchyard.model.hardware import Expect


def test_verdict_survives_the_disk() -> None:
    """A verdict that was written to report.json is read back the same, with every node."""
    reading = parse_nccl_log([*list_rdma_lines("a"), *list_socket_lines("b", 8)])
    verdict = evaluate_fabric(reading, Expect(transport="roce"), 2)
    assert FabricVerdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict.proof.endswith("via NET/Socket/0")
