"""The bandwidth that programs/allreduce.py measures over links of a known rate, and that of iperf3.

`python -m tests.bench.links [MBIT ...]`, as root, with iproute2 and iperf3. Two and four ranks of gloo, each in its
own network namespace behind a link of that rate; busbw is the bandwidth of a ring on each link.
"""

import json
import subprocess
import sys
import time

from tests.processes.shaped_nodes import ShapedNodes
from torchyard.common.project_root import ROOT

RATES_MBIT = (100.0, 200.0)
RANKS = (2, 4)
SIZES = "4M,16M"
BITS_PER_GB = 8e9
_ROW = "{:>9} {:>6} {:>9} {:>8} {:>8} {:>7}"


def main(rates: tuple[float, ...]) -> None:
    """Print a row for each rate, number of ranks and size."""
    print(_ROW.format("Mbit/s", "ranks", "size", "busbw", "iperf3", "ratio"))
    for mbits in rates:
        nodes = ShapedNodes(max(RANKS), mbits)
        try:
            sent = measure_link(nodes)
            for ranks in RANKS:
                for row in measure_collective(nodes, ranks):
                    busbw = float(row["busbw"])
                    size = f"{row['size'] >> 20} MiB"
                    print(_ROW.format(f"{mbits:g}", ranks, size, f"{busbw:.4f}", f"{sent:.4f}", f"{busbw / sent:.2f}"))
        finally:
            nodes.stop()


def measure_link(nodes: ShapedNodes) -> float:
    """The bandwidth that iperf3 measures from one node to another, in GB/s of 10^9 bytes."""
    server_prefix, client_prefix = (["nsenter", "--target", str(holder.pid), "--net"] for holder in nodes.holders[:2])
    with subprocess.Popen([*server_prefix, "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL):
        time.sleep(1.0)
        argv = [*client_prefix, "iperf3", "-c", f"{nodes.network}.1", "-t", "5", "-O", "1", "-J"]
        report = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return float(report["end"]["sum_received"]["bits_per_second"]) / BITS_PER_GB


def measure_collective(nodes: ShapedNodes, ranks: int) -> list[dict[str, int]]:
    """The rows that an all-reduce prints, with one rank on each of `ranks` nodes."""
    program = str(ROOT / "programs" / "allreduce.py")
    completed = nodes.run(ranks, program, f"--sizes={SIZES}", "--trials=5", "--warmups=2", "--backend=gloo")
    assert not completed.returncode, completed.stderr
    rows = [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]
    return [row for row in rows if "size" in row and "step" in row]


if __name__ == "__main__":
    main(tuple(map(float, sys.argv[1:])) or RATES_MBIT)
