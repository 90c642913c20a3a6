"""A training that counts steps and saves as its argument says; what it does is written to a truth file.

    program.py SAVE TRUTH_FILE SAVE_S HANG_STEP

SAVE_S is how long it saves at the stop. At HANG_STEP rank 0 hangs; 0 means never. Each line of the truth file is
`host NAME`, `start N`, `step N` or `saved N`, where N is a step
and the host is rank 0's. It saves with torch.save, into a temporary file that it renames,
except where SAVE says that it is torn. A later attempt ends after some steps.
"""

import io
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch
from torch import distributed

_STEP_S = 0.05
_FIRST_SAVE = 40  # the step after which it saves for the first time
_RESUMED_STEPS = 40  # of a later start
_PAYLOAD = 100_000
_PIECES = 20  # of a checkpoint


class Training:
    """Counts steps until SIGTERM; rank 0 saves."""

    def __init__(self, save: str, truth: Path, save_s: float, hang_step: int) -> None:
        self.save_kind = save
        self.truth = truth
        self.stop_save_s = save_s
        self.hang_step = hang_step
        self.rank = int(os.environ["RANK"])
        self.folder = Path(os.environ["TORCHYARD_CHECKPOINTS"])
        self.step = 0
        self.stop = threading.Event()

    def run(self) -> None:
        resume = os.environ.get("TORCHYARD_RESUME")
        if resume:
            self.step = int(torch.load(resume)["step"])
        is_resumed = os.environ["TORCHYARD_ATTEMPT"] != "1"
        end = self.step + _RESUMED_STEPS if is_resumed else sys.maxsize
        if self.save_kind not in ("no-handler", "none"):
            signal.signal(signal.SIGTERM, self._note_stop)
        if self.hang_step:
            distributed.init_process_group("gloo")
        self.note("host", socket.gethostname())
        self.note("start")
        print(f"training from step {self.step}", flush=True)
        while not self.stop.is_set():
            if self.step == end:
                return
            self.train_step()
        self.save_at_stop()
        sys.exit(0 if self.save_kind == "exit-0" else 1)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop.set()

    def train_step(self) -> None:
        time.sleep(_STEP_S)
        is_hanging = self.hang_step == self.step and os.environ["TORCHYARD_ATTEMPT"] == "1"
        if self.hang_step and is_hanging and self.rank == 0:
            self.stop.wait()
            return
        if self.hang_step:
            distributed.all_reduce(torch.ones(1))
        self.step += 1
        self.note("step")
        if self.step == _FIRST_SAVE and self.save_kind != "none":
            self.save()

    def note(self, event: str, value: object = None) -> None:
        """Write a line to the truth file; `value` is the step if it is None."""
        if self.rank == 0:
            with self.truth.open("a") as file:
                file.write(f"{event} {self.step if value is None else value}\n")

    def save_at_stop(self) -> None:
        if self.rank:
            return
        if self.save_kind in ("torn", "overwrite"):
            path = self.path()
            self.write(path, 0.0)
            os.truncate(path, path.stat().st_size // 2)
            os._exit(9)
        self.save(self.stop_save_s)

    def path(self) -> Path:
        return self.folder / ("last.pt" if self.save_kind == "overwrite" else f"step-{self.step}.pt")

    def save(self, save_s: float = 0.0) -> None:
        if self.rank:
            return
        path = self.path()
        temp_path = path.with_suffix(".tmp")
        self.write(temp_path, save_s)
        temp_path.replace(path)
        self.note("saved")
        print(json.dumps({"checkpoint": str(path), "step": self.step}), flush=True)

    def write(self, path: Path, save_s: float) -> None:
        """Write a checkpoint in pieces, which takes `save_s` in total."""
        buffer = io.BytesIO()
        torch.save({"step": self.step, "weights": torch.zeros(_PAYLOAD)}, buffer)
        content = buffer.getvalue()
        piece_size = len(content) // _PIECES + 1
        with path.open("wb") as file:
            for start in range(0, len(content), piece_size):
                file.write(content[start : start + piece_size])
                file.flush()
                time.sleep(save_s / _PIECES)


if __name__ == "__main__":
    Training(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])).run()
