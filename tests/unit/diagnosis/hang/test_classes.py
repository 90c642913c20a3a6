"""What depends on the class of a hang."""

from typing import get_args

from torchyard.diagnosis.hang.classes import get_fault_facts, points_at_node
from torchyard.model.hang import FaultClass, HangClass


def test_faults_have_one_order() -> None:
    """No two classes of faults are equally certain; a stopped rank is the most certain, one that computes the least."""
    faults = sorted(get_args(FaultClass), key=lambda fault: get_fault_facts(fault).priority)
    assert (faults[0], faults[-1]) == ("stopped", "compute")
    assert len({get_fault_facts(fault).priority for fault in faults}) == len(faults)


def test_hang_of_the_program_does_not_point_at_a_node() -> None:
    """Another node may cure a stopped rank, a network or a storage, and does not cure what the program itself does."""
    node_classes = {kind for kind in get_args(HangClass) if points_at_node(kind)}
    assert node_classes == {"missing-rank", "stopped", "network", "storage", "unknown"}
