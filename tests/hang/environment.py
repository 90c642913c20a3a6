"""The variable by which the matrix tells its programs with which backend they train; without torch."""

import os

BACKEND_VARIABLE = "HANG_BACKEND"


def get_backend() -> str:
    """`gloo`, or `nccl`, with which all ranks share one GPU."""
    return os.environ.get(BACKEND_VARIABLE, "gloo")
