"""A training that counts steps and saves as its argument says; what it does is written to a truth file.

    program.py SAVE TRUTH_FILE SLOW_SAVE_S TOO_LONG_SAVE_S

Each line of the truth file is `step N` or `saved N`. It saves with torch.save, into a temporary file that it renames,
except where SAVE says that it is torn.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch

_STEP_S = 0.05
_FIRST_SAVE = 40  # the step after which it saves for the first time
_PAYLOAD = 100_000


class Training:
    """Counts steps until SIGTERM; rank 0 saves."""

    def __init__(self, save: str, truth: Path, slow_save_s: float, too_long_save_s: float) -> None:
        self.save_kind = save
        self.truth = truth
        self.delays_s = {"slow": slow_save_s, "too-long": too_long_save_s}
        self.rank = int(os.environ["RANK"])
        self.folder = Path(os.environ["TORCHYARD_CHECKPOINTS"])
        self.step = 0
        self.is_stopped = False

    def run(self) -> None:
        resume = os.environ.get("TORCHYARD_RESUME")
        if resume:
            self.step = int(torch.load(resume)["step"])
        if self.save_kind not in ("no-handler", "none"):
            signal.signal(signal.SIGTERM, self._note_stop)
        print(f"training from step {self.step}", flush=True)
        while not self.is_stopped:
            time.sleep(_STEP_S)
            self.step += 1
            self.note("step")
            if self.step == _FIRST_SAVE and self.save_kind != "none":
                self.save()
        self.save_at_stop()
        sys.exit(1)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = True

    def note(self, event: str) -> None:
        if self.rank == 0:
            with self.truth.open("a") as file:
                file.write(f"{event} {self.step}\n")

    def save_at_stop(self) -> None:
        if self.rank:
            return
        if self.save_kind in ("torn", "overwrite"):
            path = self.path()
            self.write(path)
            os.truncate(path, path.stat().st_size // 2)
            os._exit(9)
        self.save(self.delays_s.get(self.save_kind, 0.0))

    def path(self) -> Path:
        return self.folder / ("last.pt" if self.save_kind == "overwrite" else f"step-{self.step}.pt")

    def save(self, delay_s: float = 0.0) -> None:
        if self.rank:
            return
        path = self.path()
        temp_path = path.with_suffix(".tmp")
        self.write(temp_path)
        time.sleep(delay_s)
        temp_path.replace(path)
        self.note("saved")
        print(json.dumps({"checkpoint": str(path), "step": self.step}), flush=True)

    def write(self, path: Path) -> None:
        torch.save({"step": self.step, "weights": torch.zeros(_PAYLOAD)}, path)


if __name__ == "__main__":
    Training(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])).run()
