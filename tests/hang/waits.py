"""Faults of one rank that waits for something which never comes, or does nothing useful, as real programs do."""

import asyncio
import fcntl
import http.client
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.hang.truth import record_fault

FOREVER_S = 100_000
FREEZER_VARIABLE = "HANG_FREEZER"  # the folder of a frozen-to-be control group, for freezer


def lock_beside_thread() -> None:
    """Another thread wakes 50 times a second, as a metrics client does."""
    threading.Thread(target=tick_forever, daemon=True).start()
    mutex = threading.Lock()
    mutex.acquire()
    record_fault()
    mutex.acquire()


def tick_forever() -> None:
    while True:
        time.sleep(0.02)


def spin() -> None:
    ready = threading.Event()
    record_fault(2)
    while not ready.is_set():
        pass


def poll() -> None:
    path = Path(tempfile.mkdtemp(), "done")
    record_fault(2)
    while not path.exists():
        time.sleep(0.01)


def child() -> None:
    record_fault()
    subprocess.run(["sleep", str(FOREVER_S)], check=True)


def child_output() -> None:
    record_fault()
    subprocess.run([sys.executable, "-c", "import time; time.sleep(100000)"], check=True, capture_output=True)


def file_lock() -> None:
    """The lock is held by a process that does nothing, and requested 20 times a second."""
    path = Path(tempfile.mkdtemp(), "lock")
    path.touch()
    subprocess.Popen(["flock", str(path), "sleep", str(FOREVER_S)])
    time.sleep(0.5)
    with path.open() as file:
        record_fault(6)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)


def file_lock_blocking() -> None:
    path = Path(tempfile.mkdtemp(), "lock")
    path.touch()
    subprocess.Popen(["flock", str(path), "sleep", str(FOREVER_S)])
    time.sleep(0.5)
    with path.open() as file:
        record_fault()
        fcntl.flock(file, fcntl.LOCK_EX)


def pipe() -> None:
    reader, _ = os.pipe()
    record_fault()
    os.read(reader, 1)


def silent_server() -> None:
    """A server accepts the connection and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        record_fault()
        connection.recv(1)


def http_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
        connection.request("GET", "/model")
        record_fault()
        connection.getresponse()


def thread_queue() -> None:
    batches: queue.Queue[int] = queue.Queue()
    record_fault()
    batches.get()


def condition() -> None:
    ready = threading.Condition()
    with ready:
        record_fault()
        ready.wait()


def event_loop() -> None:
    async def wait_forever() -> None:
        await asyncio.Event().wait()

    record_fault()
    asyncio.run(wait_forever())


def pool() -> None:
    """A worker of a pool never returns."""
    with multiprocessing.get_context("fork").Pool(1) as workers:
        record_fault()
        workers.apply(time.sleep, (FOREVER_S,))


def child_join() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,), daemon=True)
    process.start()
    record_fault()
    process.join()


def semaphore() -> None:
    slots = multiprocessing.get_context("fork").Semaphore(0)
    record_fault()
    slots.acquire()


def failed_beside_thread() -> None:
    """The main thread fails, and waits at its exit for a thread that is not a daemon."""
    threading.Thread(target=threading.Event().wait).start()
    record_fault()
    raise ValueError("the batch is empty")


def freezer() -> None:
    """The rank moves into a control group, and freezes it."""
    group = Path(os.environ[FREEZER_VARIABLE])
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    record_fault(3)
    is_v1 = (group / "freezer.state").exists()
    state_file = group / ("freezer.state" if is_v1 else "cgroup.freeze")
    state_file.write_text("FROZEN" if is_v1 else "1", encoding="utf-8")


def hook() -> None:
    """A hook of a backward pass sleeps."""
    weights = torch.ones(4, requires_grad=True)
    weights.register_hook(sleep_in_hook)
    weights.sum().backward()


def sleep_in_hook(gradient: torch.Tensor) -> None:
    record_fault()
    time.sleep(FOREVER_S)


WAITS: dict[str, Callable[[], None]] = {
    "lock-beside-thread": lock_beside_thread,
    "spin": spin,
    "poll": poll,
    "child": child,
    "child-output": child_output,
    "file-lock": file_lock,
    "file-lock-blocking": file_lock_blocking,
    "pipe": pipe,
    "silent-server": silent_server,
    "http": http_request,
    "queue": thread_queue,
    "condition": condition,
    "event-loop": event_loop,
    "pool": pool,
    "child-join": child_join,
    "semaphore": semaphore,
    "failed-thread": failed_beside_thread,
    "freezer": freezer,
    "hook": hook,
}
