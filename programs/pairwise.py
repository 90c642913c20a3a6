"""Finds the slow nodes among those of a job, by rounds in which disjoint pairs of nodes send to each other.

    torchrun --nnodes 8 --nproc-per-node 8 ... programs/pairwise.py --size 64M

A node is what one agent starts: each of its processes sends a buffer to the one in its place on the other node, then
the other way round, all pairs at the same time. A pair is as fast as the slower of its two nodes, so the first round
leaves the nodes of slow pairs as suspects; in the next ones suspects meet nodes that are known to be fast. A node
counts as slow if each of two or more partners, one of them fast, got less than `--threshold` times the median out of
it. N nodes take at most ceil(log2 N) + 1 rounds, mostly three. Rank 0 prints a JSON line for each pair, for each slow
node and for the whole run:

    {"step": 1, "round": 1, "node": "host-a", "peer": "host-b", "busbw": 11.9, "ratio": 0.99, "slow": false}
    {"step": 9, "node": "host-c", "busbw": 3.1, "ratio": 0.26, "slow": true}
    {"verdict": "1 of 8 nodes is slow: host-c (0.26)", "slow_nodes": 1, "median_busbw": 12.0, "rounds": 2, "nodes": 8}

`busbw` is what one node sends the other in its slower direction, in GB/s of 10^9 bytes: the median over the trials,
each as long as the pair's slowest process took. A node's is the highest that it got with any partner. `ratio` is
relative to `median_busbw`, which is over the nodes that are not slow, or in a pair's row to the median of the round;
with `--expect`, to that.
"""

import argparse
import itertools
import json
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
Row = dict[str, Any]
Pair = tuple[int, int]
Speeds = dict[Pair, float]  # of the pairs of a round, in GB/s


class Grades(NamedTuple):
    """The verdicts on the nodes after some rounds."""

    best: list[float]  # of each node, the speed that it got with its fastest partner; 0 if it had none
    median: float
    fast: frozenset[int]
    slow: frozenset[int]
    unknown: frozenset[int]


def grade_nodes(count: int, rounds: Sequence[Speeds], threshold: float, expect: float | None = None) -> Grades:
    """Classify the nodes as fast, slow, or not decided yet.

    threshold: the share of the usual speed that a fast node reaches, between 0 and 1.
    expect: the usual speed, in the unit of `rounds`; None for the median of the nodes.
    """
    speeds_by_partner: list[dict[int, float]] = [{} for _ in range(count)]
    for speeds in rounds:
        for (first, second), speed in speeds.items():
            best_speed = max(speed, speeds_by_partner[first].get(second, 0))
            speeds_by_partner[first][second] = best_speed
            speeds_by_partner[second][first] = best_speed
    best = [max(partners.values(), default=0.0) for partners in speeds_by_partner]
    # First relative to the faster half: with a slow node in most pairs, the median itself is slow.
    fast_speed = statistics.median_high(sorted(best)[count // 2 :])
    median = expect or statistics.median(speed for speed in best if speed >= threshold * fast_speed)
    fast = frozenset(node for node in range(count) if best[node] >= threshold * median)
    slow_nodes: set[int] = set()
    for node in set(range(count)) - fast:
        partners = speeds_by_partner[node].keys()
        # One slow result may be chance: a clearly slow node needs two, one of them with a fast partner; others more.
        required_count = 1 if best[node] < threshold**2 * median else 2
        if len(partners) > 1 and len(fast & partners) >= required_count:
            slow_nodes.add(node)
    if expect is None and len(slow_nodes) > len(fast):  # a few fast nodes prove nothing: they may share a switch
        slow_nodes = set()
    slow = frozenset(slow_nodes)
    return Grades(best, median, fast, slow, frozenset(range(count)) - fast - slow)


def count_rounds(count: int) -> int:
    """The most rounds that N nodes may take."""
    return math.ceil(math.log2(count)) + 1


def pair_nodes(count: int, rounds: Sequence[Speeds], threshold: float, expect: float | None = None) -> list[Pair]:
    """The disjoint pairs of the next round; none if all nodes are decided, or no rounds remain.

    threshold, expect: as in `grade_nodes`.
    """
    if len(rounds) >= count_rounds(count):
        return []
    if not rounds:
        return [(node, node + 1) for node in range(0, count - 1, 2)]
    grades = grade_nodes(count, rounds, threshold, expect)
    # Where each pair so far had a slow node, all look alike: the less likely, the more rounds and nodes there are.
    if not grades.unknown and len(rounds) >= (3 if count <= 8 or not grades.slow else 2):
        return []
    past_pairs = {frozenset(pair) for speeds in rounds for pair in speeds}
    candidates = sorted(grades.fast | grades.unknown, key=lambda node: (node in grades.fast, -grades.best[node]))
    pairs: list[Pair] = []
    paired: set[int] = set()
    # New partners before old ones, suspects before others, and with the fastest.

    def rank_pair(pair: Pair) -> tuple[bool, int]:
        return frozenset(pair) in past_pairs, 1 - len(grades.unknown & {*pair}) % 3 % 2

    for pair in sorted(itertools.combinations(candidates, 2), key=rank_pair):
        if not paired & {*pair}:
            pairs.append(pair)
            paired |= {*pair}
    return pairs


def print_row(row: Row) -> None:
    """Print the row on rank 0 in one write, so that no other output gets into the line."""
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def read_size(text: str) -> int:
    """Read a number of bytes, `32768` or `32K`."""
    unit = UNITS.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, or 32K, 1M, 2G, with K = 1024 bytes")
    return int(digits) * unit


def read_options() -> argparse.Namespace:
    """Read the command line; print one sentence and exit with 2 if the options are wrong."""
    # Without a usage text the parser reports an error in one line.
    parser = argparse.ArgumentParser(prog="pairwise.py", usage=argparse.SUPPRESS)
    add = parser.add_argument
    add("--size", type=read_size, default="16M", help="what each process sends to its partner, in bytes or 16M")
    add("--trials", type=int, default=5, help="of each round; their median counts")
    add("--warmups", type=int, default=1, help="before the trials of each round, not counted")
    add("--threshold", type=float, default=0.8, metavar="RATIO", help="a node below it, times the median, is slow")
    add("--expect", type=float, metavar="GB/S", help="what a node should get, in place of the median over the nodes")
    add("--each-process", action="store_true", help="each process counts as a node of its own")
    add("--fail-if-slow", action="store_true", help="exit code 1 if a node is slow, or if that stays unknown")
    options = parser.parse_args()
    if options.trials < 1 or options.warmups < 0:
        parser.error("there must be one trial or more, and no fewer than 0 warmups")
    if not 0 < options.threshold < 1 or (options.expect is not None and not 0 < options.expect < math.inf):
        parser.error("--threshold must be between 0 and 1, and --expect above 0")
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        parser.error(f"{', '.join(missing)} must be set; start it with torchrun")
    return options


def choose_device() -> tuple[torch.device, str]:
    """Give this process a GPU of its own and NCCL if there are enough of them here, else the CPU and gloo."""
    count = torch.cuda.device_count()
    if not 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= count:
        return torch.device("cpu"), "gloo"
    # Without torchrun the local rank may be missing.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % count)
    torch.cuda.set_device(device)
    return device, "nccl"


def list_nodes(*, each_process: bool) -> dict[str, list[int]]:
    """The name of each node, and its ranks; all ranks return the same."""
    own_rank = distributed.get_rank()
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own_number = own_rank if each_process else int(os.environ.get("GROUP_RANK", own_rank // local_world_size))
    locations: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(locations, (socket.gethostname(), own_number))
    hosts = [host for host, _ in dict.fromkeys(locations)]
    nodes: dict[str, list[int]] = {}
    for rank, (host, number) in enumerate(locations):
        name = host if hosts.count(host) == 1 else f"{host}:{number}"
        nodes.setdefault(name, []).append(rank)
    return nodes


class Nodes:
    """The nodes of a job, and the buffers that they send each other; all ranks call the same methods together."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.trials = options.trials
        self.warmups = options.warmups
        self.device = device
        ranks_by_node = list_nodes(each_process=options.each_process)
        self.names = list(ranks_by_node)
        self.ranks = list(ranks_by_node.values())
        self.send_buffer = torch.ones(options.size, dtype=torch.uint8, device=device)
        self.receive_buffer = torch.zeros_like(self.send_buffer)

    def exchange(self, peer: int | None, *, is_sender: bool) -> float:
        """Send to a rank or receive from it, if there is one, and return the seconds; all ranks start together."""
        distributed.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)
        synchronize = torch.cuda.synchronize if self.device.type == "cuda" else int  # which does nothing
        synchronize()
        start = time.perf_counter()
        if peer is not None:
            if is_sender:
                operation = distributed.P2POp(distributed.isend, self.send_buffer, peer)
            else:
                operation = distributed.P2POp(distributed.irecv, self.receive_buffer, peer)
            for work in distributed.batch_isend_irecv([operation]):
                work.wait()
        synchronize()
        return time.perf_counter() - start

    def measure(self, pairs: list[Pair]) -> Speeds:
        """Measure all pairs at the same time, in GB/s; all ranks return the same."""
        peers = dict(match for pair in pairs for match in self._match_ranks(pair))
        rank = distributed.get_rank()
        peer = peers.get(rank)
        # First the lower ranks send, then the higher ones: gloo sends and receives at the same time only now and then.
        directions = [peer is not None and rank < peer, peer is not None and rank > peer]
        times: list[list[float]] = []
        for _ in range(self.warmups + self.trials):
            times.append([self.exchange(peer, is_sender=is_sender) for is_sender in directions])
        own_times = torch.tensor(times[self.warmups :], dtype=torch.float64, device=self.device)
        times_by_rank = [torch.zeros_like(own_times) for _ in range(distributed.get_world_size())]
        distributed.all_gather(times_by_rank, own_times)
        speeds: Speeds = {}
        for first, second in pairs:
            slowest = torch.stack([times_by_rank[rank] for rank in self.ranks[first] + self.ranks[second]]).amax(0)
            seconds = max(statistics.median(direction_times) for direction_times in slowest.T.tolist())
            speeds[first, second] = len(self.send_buffer) * len(self.ranks[first]) / seconds / 1e9
        return speeds

    def _match_ranks(self, pair: Pair) -> list[Pair]:
        """The pairs of ranks of two nodes that exchange, in both orders."""
        first_ranks, second_ranks = (self.ranks[node] for node in pair)
        return [*zip(first_ranks, second_ranks, strict=True), *zip(second_ranks, first_ranks, strict=True)]


def search(nodes: Nodes, options: argparse.Namespace) -> Grades:
    """Measure and print round after round, then the slow nodes and the verdict."""
    names = nodes.names
    rounds: list[Speeds] = []
    step = itertools.count(1)
    while pairs := pair_nodes(len(names), rounds, options.threshold, options.expect):
        rounds.append(nodes.measure(pairs))
        median = options.expect or statistics.median_high(rounds[-1].values())
        for (first, second), speed in rounds[-1].items():
            print_row(
                {
                    "step": next(step),
                    "round": len(rounds),
                    "node": names[first],
                    "peer": names[second],
                    "busbw": speed,
                    "ratio": speed / median,
                    "slow": speed < options.threshold * median,
                }
            )
    grades = grade_nodes(len(names), rounds, options.threshold, options.expect)
    slow = sorted(grades.slow, key=lambda node: grades.best[node])
    for node in slow:
        busbw = grades.best[node]
        print_row(
            {"step": next(step), "node": names[node], "busbw": busbw, "ratio": busbw / grades.median, "slow": True}
        )
    print_row(
        {
            "verdict": describe(names, grades),
            "slow_nodes": len(slow),
            "unknown_nodes": len(grades.unknown),
            "median_busbw": grades.median,
            "rounds": len(rounds),
            "nodes": len(names),
            "backend": distributed.get_backend(),
        }
    )
    return grades


def describe(names: list[str], grades: Grades) -> str:
    """The verdict as a sentence, with the slowest node first."""
    verdict = "no slow node"
    if grades.slow:
        slow = sorted(grades.slow, key=lambda node: grades.best[node])
        ratios = [f"{names[node]} ({grades.best[node] / grades.median:.2f} of the median)" for node in slow]
        verb = "is" if len(slow) == 1 else "are"
        verdict = f"{len(slow)} of {len(names)} nodes {verb} slow: {', '.join(ratios)}"
    if grades.unknown:
        verdict += f"; not known of {', '.join(names[node] for node in sorted(grades.unknown))}"
    return verdict


@record  # torchrun's report of a failure then has the traceback
def main() -> None:
    """Search as one of the processes."""
    options = read_options()
    device, backend = choose_device()
    distributed.init_process_group(backend)
    try:
        nodes = Nodes(options, device)
        if len(nodes.names) < 2 or len({len(ranks) for ranks in nodes.ranks}) > 1:
            sys.stderr.write("pairwise.py: requires two nodes or more, each with the same number of processes.\n")
            raise SystemExit(2)
        grades = search(nodes, options)
    finally:
        distributed.destroy_process_group()
    if options.fail_if_slow and (grades.slow or grades.unknown):
        sys.exit(f"pairwise.py: {describe(nodes.names, grades)}.")


if __name__ == "__main__":
    main()
