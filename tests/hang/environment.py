"""What the matrix and its programs share; without torch."""

import os

BACKEND_VARIABLE = "HANG_BACKEND"
REQUEST = b"is it done?"  # to the server of the matrix, which answers that it is not


def get_backend() -> str:
    """`gloo`, or `nccl`, with which all ranks share one GPU."""
    return os.environ.get(BACKEND_VARIABLE, "gloo")
