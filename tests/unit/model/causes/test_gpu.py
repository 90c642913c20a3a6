"""Rules of GPUs: the order within the family."""

import pytest

from tests.inputs.failure_logs import diagnose_lines


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("CUDA error: no kernel image is available", "cuda-no-kernel"),
        ("CUDA error: uncorrectable ECC error encountered", "gpu-fault"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "gpu-busy"),
        ("CUDA error: invalid device ordinal", "gpu-missing"),
        ("CUDA error: device-side assert triggered", "cuda-error"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, MMU Fault", "cuda-error"),
        ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink", "nvlink-fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 32, Channel ID 8", "gpu-xid"),
    ],
)
def test_specific_cause_precedes_the_general_one(line: str, cause: str) -> None:
    """The number of an Xid or the text of a CUDA error decides; without a known one it is a CUDA error."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == cause
