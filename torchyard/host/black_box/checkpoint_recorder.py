"""The recorder of checkpoints: a thread beside the node's recorder that prints which checkpoints are complete."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable

from .checkpoint_watch import POLL_INTERVAL_S, CheckpointWatch
from .descriptors import own_descriptors
from .node_recorder import encode_record
from .slot import has_slot

FOLDER_VARIABLE = "TORCHYARD_CHECKPOINTS"  # the folder in which the program saves
_LAST_POLL_TIMEOUT_S = 5.0  # for the last poll, on a file system that does not answer


class CheckpointRecorder:
    """Print the records of a CheckpointWatch, on the node where rank 0 runs.

    Threads. `run` is the target of a thread of its own, because a file system that does not answer must hold up neither
    the detection of hangs nor the end of the process. `print_last` is called when the process ends: it lets this thread
    poll once more, and waits for that at most `_LAST_POLL_TIMEOUT_S`. Nothing is written except to the log, and all
    errors are ignored.
    """

    def __init__(
        self, records_folder: str, checkpoints: str, print_line: Callable[[bytes], None], output: int = 1
    ) -> None:
        """`records_folder`: of the ranks' slots; `print_line`: writes to the log, which is the descriptor `output`."""
        self._records_folder = records_folder
        self._watch = CheckpointWatch(checkpoints)
        self._print_line = print_line
        self._output = output
        self._pid = os.getpid()
        self._is_ending = threading.Event()
        self._has_ended = threading.Event()

    def run(self) -> None:
        """Poll until the process ends."""
        own_descriptors({self._output})
        while not self._is_ending.wait(POLL_INTERVAL_S):
            self._poll(is_last=False)
        self._poll(is_last=True)
        self._has_ended.set()

    def print_last(self) -> None:
        """Print the records of the last save, because this process ends."""
        if os.getpid() == self._pid:  # else this is a fork, without the thread
            self._is_ending.set()
            self._has_ended.wait(_LAST_POLL_TIMEOUT_S)

    def _poll(self, *, is_last: bool) -> None:
        with contextlib.suppress(Exception):
            if has_slot(self._records_folder, 0):
                for record in self._watch.poll(time.monotonic(), is_last=is_last):
                    self._print_line(encode_record(record))
