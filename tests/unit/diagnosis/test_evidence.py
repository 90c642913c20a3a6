"""Quotes and details from the line that proves a cause."""

import pytest

from tests.inputs.failure_logs import diagnose_lines
from torchyard.diagnosis.evidence import extract_details, quote_match


def test_short_line_is_quoted_whole() -> None:
    """A line of up to 160 characters is quoted as it is, without the spaces around it."""
    assert quote_match("  RuntimeError: boom  ", (2, 5)) == "RuntimeError: boom"


@pytest.mark.parametrize("offset", [0, 20, 300, 600, 1150])
def test_quote_contains_the_match(offset: int) -> None:
    """Of a long line, the text around the match is quoted, wherever the match is."""
    filler = "lorem ipsum " * 100
    text = filler[:offset] + "HERE" + filler[offset:]
    quote = quote_match(text, (offset, offset + 4))
    assert "HERE" in quote
    assert len(quote) <= 160 + len("... ...")
    assert quote.startswith("...") == (offset > 60)


def test_proof_in_the_middle_of_a_line_is_shown() -> None:
    """A sentence quotes the part of the line that proves its cause, not the beginning of the line."""
    line = f"{{{'a: 1, ' * 60}}} RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "CUDA error: an illegal memory access" in diagnose_lines({"node_0": 1}, node_0=[line]).sentence


def test_prefix_of_torch_is_not_quoted() -> None:
    """Time, file and process group of a message of torch's C++ code leave no room for the message."""
    prefix = "[E1127 22:06:13.057624123 ProcessGroupNCCL.cpp:2119] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
    text = (
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    )
    line = prefix + text
    start = line.index("CUDA error")
    assert quote_match(line, (start, start + 10)) == text
    assert quote_match(prefix, (8, 12)).startswith("[E1127 22:06:13")


COMPLETION = "NET/IB: Got completion from peer 10.0.0.5<44> with status=12 opcode=0 len=0 vendor err 129 (Send) "
MODIFY_QP = (
    "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR"
)
GIDS = "local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.0.2"
OOM = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free"
)
OLD_OOM = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 15.78 GiB total capacity; 14.2 GiB already allocated; "
)


@pytest.mark.parametrize(
    ("line", "details"),
    [
        (
            f"{COMPLETION}localGid fe80::1 remoteGids fe80::2 hca mlx5_3",
            "peer 10.0.0.5<44>, HCA mlx5_3, local GID fe80::1, remote GID fe80::2",
        ),
        (f"{MODIFY_QP}, local GID index 3, {GIDS}", f"HCA mlx5_0:1, GID index 3, {GIDS}"),
        ("NET/IB : mlx5_0:1 async fatal event on CQ (0x7f): CQ error", "HCA mlx5_0:1"),
        (OOM, "wanted 2.50 GiB, GPU memory 79.15 GiB, free 1.12 GiB"),
        (f"{OLD_OOM}8.75 MiB free; 14.5 GiB reserved)", "wanted 20.00 MiB, GPU memory 15.78 GiB, free 8.75 MiB"),
        ("RuntimeError: boom", ""),
    ],
)
def test_details_of_the_line_are_extracted(line: str, details: str) -> None:
    """The peer, the adapter, the GIDs and the sizes are named as far as the line has them."""
    assert extract_details(line) == details
