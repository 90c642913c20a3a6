"""Computes pi, the integral of 4 / (1 + x^2) from 0 to 1, on several processes, with the standard library alone.

It demonstrates a run where torch is not installed. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT identify the process
and the rendezvous: rank 0 adds up the shares that the others send, and prints a JSON line for each trial:

    {"trial": 1, "trials": 5, "pi": 3.14159265358, "error": 1.3e-12, "seconds": 0.2, "world_size": 2}
"""

import argparse
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator

JOIN_TIMEOUT_S = 60.0  # until all processes are connected
SHARE = struct.Struct("!d")


def integrate(intervals: int, rank: int, world_size: int) -> float:
    """Add up the rank's trapezoids, each 1 / intervals wide: every world_size-th of them."""
    middles = ((number + 0.5) / intervals for number in range(rank, intervals, world_size))
    return math.fsum(4 / (1 + x * x) for x in middles) / intervals


def accept_peers(port: int, count: int) -> Iterator[socket.socket]:
    """Rank 0's connections, one to each other process."""
    with socket.create_server(("", port)) as server:
        server.settimeout(JOIN_TIMEOUT_S)
        for _ in range(count):
            yield server.accept()[0]


def join(address: str, port: int) -> socket.socket:
    """Another rank's connection to rank 0, which may start later; OSError after at most twice JOIN_TIMEOUT_S."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=JOIN_TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def receive_share(peer: socket.socket) -> float:
    """The share of one process."""
    data = b""
    while len(data) < SHARE.size:
        chunk = peer.recv(SHARE.size - len(data))
        if not chunk:
            raise ConnectionError("a process has closed its connection")
        data += chunk
    return float(SHARE.unpack(data)[0])


def print_row(row: dict[str, float]) -> None:
    """Print a row in one write, so that no other output gets into the line."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Compute pi as one of the processes."""
    parser = argparse.ArgumentParser(description="Computes pi without torch; needs RANK, WORLD_SIZE, MASTER_ADDR, ...")
    parser.add_argument("--intervals", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--data", help="a file that the last process reads first")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    if options.data and rank == world_size - 1:
        open(options.data, "rb").close()
    peers = list(accept_peers(port, world_size - 1)) if rank == 0 else [join(address, port)]
    for trial in range(1, options.trials + 1):
        start = time.perf_counter()
        share = integrate(options.intervals, rank, world_size)
        if rank:
            peers[0].sendall(SHARE.pack(share))
            continue
        pi = share + sum(map(receive_share, peers))
        row = {"trial": trial, "trials": options.trials, "pi": pi, "error": abs(pi - math.pi)}
        print_row(row | {"seconds": round(time.perf_counter() - start, 4), "world_size": world_size})


if __name__ == "__main__":
    main()
