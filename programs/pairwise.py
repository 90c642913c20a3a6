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
    """What the rounds so far say about the nodes."""

    best: list[float]  # of each node, the speed that it got with its fastest partner; 0 if it had none
    median: float
    good: frozenset[int]
    slow: frozenset[int]
    unknown: frozenset[int]


def grade_nodes(count: int, rounds: Sequence[Speeds], threshold: float, expect: float | None = None) -> Grades:
    """Tell fast nodes from slow ones, and from those of which this is not known yet."""
    met: list[dict[int, float]] = [{} for _ in range(count)]
    for (one, other), speed in (pair for speeds in rounds for pair in speeds.items()):
        met[one][other] = max(speed, met[one].get(other, 0))
        met[other][one] = met[one][other]
    best = [max(partners.values(), default=0.0) for partners in met]
    # First relative to the faster half: with a slow node in most pairs, the median itself is slow.
    fast = statistics.median_high(sorted(best)[count // 2 :])
    median = expect or statistics.median(speed for speed in best if speed >= threshold * fast)
    good = frozenset(node for node in range(count) if best[node] >= threshold * median)
    # One slow result may be chance: a clearly slow node needs two, one of them with a fast partner, others need more.
    needed = [1 if speed < threshold**2 * median else 2 for speed in best]
    slow = frozenset(
        node for node in {*range(count)} - good if len(met[node]) > 1 and len(good & {*met[node]}) >= needed[node]
    )
    if expect is None and len(slow) > len(good):  # a few fast nodes prove nothing: they may share a switch
        slow = frozenset()
    return Grades(best, median, good, slow, frozenset(range(count)) - good - slow)


def count_rounds(count: int) -> int:
    """The most rounds that N nodes may take."""
    return math.ceil(math.log2(count)) + 1


def pair_nodes(count: int, rounds: Sequence[Speeds], threshold: float, expect: float | None = None) -> list[Pair]:
    """The disjoint pairs of the next round; none if all is known, or if no rounds are left."""
    if len(rounds) >= count_rounds(count):
        return []
    if not rounds:
        return [(node, node + 1) for node in range(0, count - 1, 2)]
    grades = grade_nodes(count, rounds, threshold, expect)
    # Where each pair so far had a slow node, all look alike: the less likely, the more rounds and nodes there are.
    if not grades.unknown and len(rounds) >= (3 if count <= 8 or not grades.slow else 2):
        return []
    met = {frozenset(pair) for speeds in rounds for pair in speeds}
    waiting = sorted(grades.good | grades.unknown, key=lambda node: (node in grades.good, -grades.best[node]))
    pairs, paired = list[Pair](), set[int]()
    # New partners before old ones, suspects before others, and with the fastest.
    choices = itertools.combinations(waiting, 2)
    for pair in sorted(choices, key=lambda each: (frozenset(each) in met, 1 - len(grades.unknown & {*each}) % 3 % 2)):
        if not paired & {*pair}:
            pairs.append(pair)
            paired |= {*pair}
    return pairs


def say(row: Row) -> None:
    """Print the row on rank 0 in one write, so that nothing else gets into the line."""
    if distributed.get_rank() == 0:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def read_size(text: str) -> int:
    """Read a number of bytes, `32768` or `32K`."""
    digits, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 32K, 1M, 2G, with K = 1024 bytes")
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
    if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
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


def list_nodes(each_process: bool) -> dict[str, list[int]]:
    """The name of each node, and its ranks; all ranks return the same."""
    rank, local = distributed.get_rank(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    number = rank if each_process else int(os.environ.get("GROUP_RANK", rank // local))
    places: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(places, (socket.gethostname(), number))
    hosts = [host for host, _ in dict.fromkeys(places)]
    nodes: dict[str, list[int]] = {}
    for each, (host, number) in enumerate(places):
        nodes.setdefault(host if hosts.count(host) == 1 else f"{host}:{number}", []).append(each)
    return nodes


class Nodes:
    """The nodes of a job, and what they send each other."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.trials, self.warmups, self.device = options.trials, options.warmups, device
        found = list_nodes(options.each_process)
        self.names, self.ranks = list(found), list(found.values())
        self.given = torch.ones(options.size, dtype=torch.uint8, device=device)
        self.taken = torch.zeros_like(self.given)

    def send(self, peer: int | None, sends: bool) -> float:
        """Send to a rank or receive from it, if there is one, and return the seconds; all ranks start together."""
        distributed.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)
        settle = torch.cuda.synchronize if self.device.type == "cuda" else int  # which does nothing
        settle()
        start = time.perf_counter()
        if peer is not None:
            way, elements = (distributed.isend, self.given) if sends else (distributed.irecv, self.taken)
            for work in distributed.batch_isend_irecv([distributed.P2POp(way, elements, peer)]):
                work.wait()
        settle()
        return time.perf_counter() - start

    def measure(self, pairs: list[Pair]) -> Speeds:
        """Measure all pairs at the same time, in GB/s; all ranks return the same."""
        peers = {one: other for pair in pairs for one, other in self._match_ranks(pair)}
        rank = distributed.get_rank()
        peer = peers.get(rank)
        # First the lower ranks send, then the higher ones: gloo sends and receives at the same time only now and then.
        ways = [peer is not None and rank < peer, peer is not None and rank > peer]
        taken = [[self.send(peer, sends) for sends in ways] for _ in range(self.warmups + self.trials)]
        own = torch.tensor(taken[self.warmups :], dtype=torch.float64, device=self.device)
        everyone = [torch.zeros_like(own) for _ in range(distributed.get_world_size())]
        distributed.all_gather(everyone, own)
        speeds: Speeds = {}
        for one, other in pairs:
            slowest = torch.stack([everyone[rank] for rank in self.ranks[one] + self.ranks[other]]).amax(0)
            seconds = max(statistics.median(way) for way in slowest.T.tolist())
            speeds[one, other] = len(self.given) * len(self.ranks[one]) / seconds / 1e9
        return speeds

    def _match_ranks(self, pair: Pair) -> list[Pair]:
        """Which rank of one node exchanges with which of the other, in both orders."""
        one, other = (self.ranks[node] for node in pair)
        return [*zip(one, other, strict=True), *zip(other, one, strict=True)]


def search(nodes: Nodes, options: argparse.Namespace) -> Grades:
    """Measure and print round after round, then the slow nodes and the verdict."""
    names, rounds, step = nodes.names, list[Speeds](), itertools.count(1)
    judge = (options.threshold, options.expect)
    while pairs := pair_nodes(len(names), rounds, *judge):
        rounds.append(nodes.measure(pairs))
        median = options.expect or statistics.median_high(rounds[-1].values())
        for (one, other), speed in rounds[-1].items():
            row = {"step": next(step), "round": len(rounds), "node": names[one], "peer": names[other], "busbw": speed}
            say({**row, "ratio": speed / median, "slow": speed < options.threshold * median})
    grades = grade_nodes(len(names), rounds, *judge)
    slow = sorted(grades.slow, key=lambda node: grades.best[node])
    for node in slow:
        figures = {"busbw": grades.best[node], "ratio": grades.best[node] / grades.median, "slow": True}
        say({"step": next(step), "node": names[node], **figures})
    counts = {"slow_nodes": len(slow), "unknown_nodes": len(grades.unknown)}
    where = {"rounds": len(rounds), "nodes": len(names), "backend": distributed.get_backend()}
    say({"verdict": describe(names, grades), **counts, "median_busbw": grades.median, **where})
    return grades


def describe(names: list[str], grades: Grades) -> str:
    """The verdict in words, with the slowest node first."""
    slow = sorted(grades.slow, key=lambda node: grades.best[node])
    told = ", ".join(f"{names[node]} ({grades.best[node] / grades.median:.2f} of the median)" for node in slow)
    verb = "is" if len(slow) == 1 else "are"
    found = f"{len(slow)} of {len(names)} nodes {verb} slow: {told}" if slow else "no slow node"
    if not grades.unknown:
        return found
    return f"{found}; not known of {', '.join(names[node] for node in sorted(grades.unknown))}"


@record  # torchrun's report of a failure then has the traceback
def main() -> None:
    """Search as one of the processes."""
    options = read_options()
    device, backend = choose_device()
    distributed.init_process_group(backend)
    try:
        nodes = Nodes(options, device)
        if len(nodes.names) < 2 or len({len(ranks) for ranks in nodes.ranks}) > 1:
            sys.stderr.write("pairwise.py: it needs two nodes or more, each with the same number of processes.\n")
            raise SystemExit(2)
        grades = search(nodes, options)
    finally:
        distributed.destroy_process_group()
    if options.fail_if_slow and (grades.slow or grades.unknown):
        sys.exit(f"pairwise.py: {describe(nodes.names, grades)}.")


if __name__ == "__main__":
    main()
