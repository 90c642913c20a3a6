"""A rank that waits before it imports torch, while the others set up their process group: `--rank R`."""

import argparse
import os
import threading

from tests.hang.truth import record_fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("rank", "step", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--fault")
    args = parser.parse_args()
    if int(os.environ["RANK"]) == args.rank:
        record_fault()
        threading.Event().wait()
    import torch
    import torch.distributed as dist

    from tests.hang.training import start

    start()
    dist.all_reduce(torch.ones(1))  # NCCL's process group does not wait for its ranks before that


if __name__ == "__main__":
    main()
