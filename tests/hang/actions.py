"""What one rank of a healthy job does for some seconds while the others wait for it."""

import gc
import hashlib
import json
import mmap
import multiprocessing
import os
import pickle
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.hang.environment import REQUEST

SERVER_VARIABLE = "HANG_SERVER"  # port of a slow server on this machine
_CHUNK_BYTES = 1 << 20
_MAX_FILE_BYTES = 256 << 20


def repeat(work: Callable[[], object], seconds: float) -> None:
    """Call `work` again and again for some seconds of wall-clock time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        work()


def burn(seconds: float) -> None:
    """Compute for some seconds of wall-clock time."""
    repeat(add_numbers, seconds)


def add_numbers() -> int:
    return sum(number * number for number in range(10_000))


def write_checkpoint(seconds: float) -> None:
    """Write and sync for some seconds, in a file that does not grow beyond a limit."""
    chunk = os.urandom(_CHUNK_BYTES)
    with tempfile.TemporaryFile() as file:

        def write_chunks() -> None:
            for _ in range(8):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            if file.tell() >= _MAX_FILE_BYTES:
                file.seek(0)

        repeat(write_chunks, seconds)


def save_weights(seconds: float) -> None:
    weights = torch.ones(1 << 22)
    with tempfile.TemporaryDirectory() as folder:
        repeat(lambda: torch.save(weights, Path(folder, "weights.pt")), seconds)


def compile_program(seconds: float) -> None:
    """Compute in this process, then in a child, as a compiler does."""
    burn(seconds / 2)
    run_child(seconds / 2)


def run_child(seconds: float) -> None:
    code = f"from tests.hang.actions import burn; burn({seconds})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def run_short_children(seconds: float) -> None:
    repeat(lambda: subprocess.run(["sh", "-c", "n=0; while [ $n -lt 9999 ]; do n=$((n+1)); done"], check=True), seconds)


def map_in_pool(seconds: float) -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        workers.map(burn, [seconds, seconds / 2])


def map_in_threads(seconds: float) -> None:
    with ThreadPoolExecutor(2) as executor:
        list(executor.map(burn, [seconds, seconds / 2]))


def download(_: float) -> None:
    """Receive a file at about 200 kB/s for 10 s."""
    with connect() as connection:
        connection.sendall(b"file")
        while connection.recv(1 << 16):
            pass


def evaluate_and_download(seconds: float) -> None:
    """Compute for long, and then transfer for some seconds."""
    burn(seconds)
    download(seconds)


def poll_remote_evaluation(seconds: float) -> None:
    """Ask another machine each second whether it has finished, on one connection, as clients do."""
    with connect() as connection:

        def ask() -> None:
            connection.sendall(REQUEST)
            connection.recv(100)
            time.sleep(1)

        repeat(ask, seconds)


def connect() -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(os.environ[SERVER_VARIABLE])))


def parse_json(seconds: float) -> None:
    """A call in C that holds the GIL for long."""
    text = "[" + "[1.5, 2.5]," * (1 << 20) + "1]"
    repeat(lambda: json.loads(text), seconds)


def load_index(seconds: float) -> None:
    data = pickle.dumps([(number, str(number)) for number in range(1 << 20)])
    repeat(lambda: pickle.loads(data), seconds)


def match_slowly(seconds: float) -> None:
    repeat(lambda: re.match(r"(a+)+$", "a" * 24 + "b"), seconds)


def sort_numbers(seconds: float) -> None:
    numbers = torch.rand(1 << 20).tolist()
    repeat(lambda: sorted(numbers), seconds)


def collect_garbage(seconds: float) -> None:
    objects = [[number] for number in range(1 << 20)]
    repeat(gc.collect, seconds)
    objects.clear()


def decompose(seconds: float) -> None:
    matrix = torch.rand(500, 500)
    repeat(lambda: torch.linalg.svd(matrix), seconds)


def hash_data(seconds: float) -> None:
    data = os.urandom(32 << 20)
    repeat(lambda: hashlib.sha256(data), seconds)


def pack_archive(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").mkdir()
        Path(folder, "data", "numbers").write_bytes(bytes(range(256)) * (1 << 15))
        repeat(lambda: shutil.make_archive(f"{folder}/packed", "gztar", f"{folder}/data"), seconds)


def write_database(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/metrics.db")
        connection.execute("CREATE TABLE metrics (value REAL)")

        def insert() -> None:
            with connection:
                connection.executemany("INSERT INTO metrics VALUES (?)", [(float(number),) for number in range(5000)])

        repeat(insert, seconds)
        connection.close()


def read_mapped_file(seconds: float) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(16 << 20))
        file.flush()
        with mmap.mmap(file.fileno(), 0) as data:
            repeat(lambda: sum(data[offset] for offset in range(0, len(data), 4096)), seconds)


def back_off(_: float) -> None:
    """A request that is tried again, after pauses."""
    for pause_s in (0.5, 1, 2):
        time.sleep(pause_s)
        burn(0.5)


ACTIONS: dict[str, tuple[Callable[[float], None], tuple[float, float]]] = {
    "checkpoint": (write_checkpoint, (8, 15)),
    "evaluation": (burn, (10, 20)),
    "download": (download, (10, 10)),
    "evaluate-download": (evaluate_and_download, (25, 30)),
    "remote-poll": (poll_remote_evaluation, (25, 35)),
    "save": (save_weights, (8, 15)),
    "child-process": (run_child, (10, 15)),
    "short-children": (run_short_children, (10, 15)),
    "process-pool": (map_in_pool, (10, 15)),
    "thread-pool": (map_in_threads, (10, 15)),
    "json": (parse_json, (10, 15)),
    "pickle": (load_index, (10, 15)),
    "regex": (match_slowly, (10, 15)),
    "sort": (sort_numbers, (10, 15)),
    "garbage": (collect_garbage, (10, 15)),
    "svd": (decompose, (10, 15)),
    "hash": (hash_data, (10, 15)),
    "archive": (pack_archive, (10, 15)),
    "database": (write_database, (10, 15)),
    "mapped-file": (read_mapped_file, (10, 15)),
    "back-off": (back_off, (4, 4)),
}
