"""The cost of the black box: the step time and memory of one training with it and without it, in turns.

python -m tests.bench.black_box [PAIRS]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from torchyard.agents.black_box import build_recorder_spec
from torchyard.loading.profile import load_profile

_RANKS = 2
_STEPS = 400
_PAIRS = 6
# A step of a few milliseconds on one thread, and an all-reduce of 4 MB; rank 0 prints its mean step and all memory.
_PROGRAM = f"""
import json, os, statistics, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
weights, values, times = torch.rand(256, 256), torch.ones(1 << 20), []
for step in range({_STEPS}):
    began = time.perf_counter()
    for _ in range(8):
        weights = torch.tanh(weights @ weights)
    dist.all_reduce(values)
    times.append(time.perf_counter() - began)
memory = torch.tensor([int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6])
dist.all_reduce(memory)
if dist.get_rank() == 0:
    print(json.dumps({{"step_ms": 1e3 * sum(times[20:]) / len(times[20:]), "memory_mb": memory.item()}}))
dist.barrier()
"""


def train(folder: Path, *, is_recorded: bool) -> dict[str, float]:
    """Run the training once; return the milliseconds of a step and the ranks' total memory in MB."""
    program = folder / "train.py"
    program.write_text(_PROGRAM)
    site = build_recorder_spec(load_profile("digits-local"), None)["recorder"]
    env = dict(os.environ)
    if is_recorded:
        env |= {"PYTHONPATH": site, "TORCHYARD_BLACK_BOX": tempfile.mkdtemp(dir=folder)}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={_RANKS}", str(program)]
    completed = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(next(line for line in completed.stdout.splitlines() if line.startswith("{")))
    return figures


def main() -> None:
    pairs = int(sys.argv[1]) if sys.argv[1:] else _PAIRS
    ratios: list[float] = []
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            order = (False, True) if pair % 2 else (True, False)
            figures = {is_recorded: train(Path(folder), is_recorded=is_recorded) for is_recorded in order}
            ratios.append(figures[True]["step_ms"] / figures[False]["step_ms"])
            memory.append(figures[True]["memory_mb"] - figures[False]["memory_mb"])
            print(f"pair {pair + 1}: {figures[False]['step_ms']:.2f} ms, with the black box {ratios[-1]:.3f} of that")
    print(f"step time: {statistics.median(ratios):.3f} of that without; memory {statistics.median(memory):+.1f} MB")


if __name__ == "__main__":
    main()
