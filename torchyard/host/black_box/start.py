"""Start the recorders of a process: a rank's in a rank, the node's in torchrun, both in a rank without an agent."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from typing import Callable

from . import checkpoint_recorder, node_recorder, rank_recorder, torch_facts
from .slot import RecordSlot

FOLDER_VARIABLE = "TORCHYARD_BLACK_BOX"  # the folder of this node's records; no other node uses it
_AGENT_SCRIPT = "torchrun"
_thread_ids: list[int] = []  # of the recorders' threads in this process, by their numbers in the kernel
_AGENT_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def start_recorders() -> None:
    """Start the recorders of this process. Helper processes of a rank inherit its environment, and start none."""
    folder = os.environ[FOLDER_VARIABLE]
    if is_agent(_read_command_line()):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _start_node_recorder(folder)
        return
    rank = os.environ.get("RANK", "")
    world = os.environ.get("WORLD_SIZE", "")
    if not rank.isdigit() or not world.isdigit():
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    slot = RecordSlot.claim(folder, int(rank))
    if slot is None:
        return  # a helper of the rank that has the slot
    torch_facts.enable_flight_recorder()
    recorder = rank_recorder.RankRecorder(slot, int(rank), int(world), _thread_ids)
    slot.start_writer(_start_thread)
    _start_thread(recorder.run)
    if "LOCAL_RANK" not in os.environ:
        _start_node_recorder(folder)
    atexit.register(recorder.write_last)  # the last one registered: what the node's recorder prints last contains it


def _start_node_recorder(folder: str) -> node_recorder.NodeRecorder:
    """Start to print the records of the node's ranks, and of the checkpoints if there is a folder for them."""
    node = node_recorder.NodeRecorder(folder)
    _start_thread(node.run)
    atexit.register(node.print_last)
    checkpoints = os.environ.get(checkpoint_recorder.FOLDER_VARIABLE)
    if checkpoints:
        recorder = checkpoint_recorder.CheckpointRecorder(folder, checkpoints, node.print_line)
        _start_thread(recorder.run)
        atexit.register(recorder.print_last)
    return node


def is_agent(argv: list[str]) -> bool:
    """Whether a command line starts torchrun, as a script or a module; the program's own arguments do not count."""
    if os.path.basename(argv[0]) == _AGENT_SCRIPT:
        return True
    remaining = iter(argv[1:])
    for arg in remaining:
        if arg == "-m":
            return next(remaining, "") in _AGENT_MODULES
        if arg in ("-X", "-W"):  # their value is the next word
            next(remaining, "")
        elif not arg.startswith("-") or arg == "-c":
            return os.path.basename(arg) == _AGENT_SCRIPT
    return False


def _read_command_line() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(arg) for arg in file.read().split(b"\0")]


def _start_thread(run: Callable[[], None]) -> None:
    """Start a daemon thread in which all signals are blocked.

    A program may block a signal in its own threads and wait for it with `sigwait`. The kernel would deliver the signal
    to a thread that does not block it, and end the process.
    """

    def run_known() -> None:
        _thread_ids.append(threading.get_native_id())
        run()

    thread = threading.Thread(target=run_known, name="torchyard-recorder", daemon=True)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
