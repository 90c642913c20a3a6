"""What the black box costs: the same training with and without it, in turns, as a ratio; and its memory.

python -m tests.bench_black_box [PAIRS]
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

_RANKS, _STEPS, _PAIRS = 2, 400, 6
# A step of a few milliseconds on one thread, and an all-reduce of 4 MB; rank 0 prints its median, and all memory.
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


def train(folder: Path, is_recorded: bool) -> dict[str, float]:
    """Run the training once; milliseconds of a step, and the ranks' memory in all."""
    program = folder / "train.py"
    program.write_text(_PROGRAM)
    site = build_recorder_spec(load_profile("digits-local"), None)["recorder"]
    recorder_env = {"PYTHONPATH": site, "TORCHYARD_BLACK_BOX": tempfile.mkdtemp(dir=folder)} if is_recorded else {}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={_RANKS}", str(program)]
    completed = subprocess.run(argv, env={**os.environ, **recorder_env}, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(next(line for line in completed.stdout.splitlines() if line.startswith("{")))
    return figures


def main() -> None:
    pairs = int(sys.argv[1]) if sys.argv[1:] else _PAIRS
    ratios, memory = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            order = (False, True) if pair % 2 else (True, False)
            figures = {is_recorded: train(Path(folder), is_recorded) for is_recorded in order}
            ratios.append(figures[True]["step_ms"] / figures[False]["step_ms"])
            memory.append(figures[True]["memory_mb"] - figures[False]["memory_mb"])
            print(f"pair {pair + 1}: {figures[False]['step_ms']:.2f} ms, with the black box {ratios[-1]:.3f} of that")
    print(f"step time: {statistics.median(ratios):.3f} of that without; memory {statistics.median(memory):+.1f} MB")


if __name__ == "__main__":
    main()
