"""A training program of which rank 1 hangs in the first attempt, and the number of the line at which it hangs."""

from torchyard.model.run import Attempt

NAME = "hanging"  # of its file
PROGRAM = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, values = dist.get_rank(), torch.ones(1000)


def load_batch(step):
    if rank == 1 and step == 60 and os.environ["TORCHYARD_ATTEMPT"] == "1":
        print(f"hangs at {time.time()}", flush=True)
        time.sleep(600)  # the line
    time.sleep(0.02)


for step in range(100):
    load_batch(step)
    dist.all_reduce(values)
dist.barrier()
"""
LINE = PROGRAM.splitlines().index("        time.sleep(600)  # the line") + 1


def check_hang(attempt: Attempt) -> None:
    """The attempt must name rank 1 and its line as the cause, and rank 0 as the rank that waits."""
    failure = attempt.collected.failure
    hang = attempt.outcome.hang
    assert failure
    assert hang
    assert (failure.cause, failure.rank, hang.kind, hang.waiting) == ("rank-hangs", 1, "missing-rank", (0,))
    assert f"load_batch ({NAME}.py:{LINE})" in failure.sentence
