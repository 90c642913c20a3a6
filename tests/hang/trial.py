"""One cell of the matrix: its torchruns under the black box, and all their lines with the times of their arrival."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.chaos.world import kill_all
from tests.hang.cells import LATE, STRAGGLERS, STYLES, Cell
from tests.hang.figures import Truth
from tests.hang.judge import Judge, Line, replay
from tests.hang.places import Place, limiting_cpu, making_network, mounting_disk, serving_slowly
from torchyard.common.project_root import ROOT
from torchyard.host import black_box

FOLDER_VARIABLE = "HANG_CELL"  # marks all processes of a cell
_SITE = Path(black_box.__file__).parent / "site"
_STEP = '{"step": '
_ARRIVAL_S = 120.0  # until the fault strikes
_WATCHED_S, _LONG_WATCHED_S = 25.0, 330.0  # after the fault
_SLOW_WATCHED_S = 95.0  # after the first line
_AFTERWARDS_S = 4.0  # after a verdict: another may follow


class Settings(NamedTuple):
    """How cells are played. `healthy_s`: how long a healthy job is watched; `python`: that of the jobs, with torch."""

    healthy_s: float = 50.0
    python: str = sys.executable


class Trial:
    """Plays a cell in a folder of its own; `number` is that of its network."""

    def __init__(self, cell: Cell, folder: Path, number: int, settings: Settings) -> None:
        self.cell, self.folder, self._number, self._settings = cell, folder, number, settings
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._cut_at = 0.0
        self._torchruns: list[subprocess.Popen[str]] = []

    def play(self) -> None:
        """Run the job until it has been watched for long enough, or until torchyard has told what happens."""
        self.folder.mkdir(parents=True)
        self._began = time.time()
        note = {"began": self._began, **self.cell._asdict()}
        (self.folder / "cell.json").write_text(json.dumps(note), encoding="utf-8")
        with ExitStack() as stack:
            extra: dict[str, str] = {}
            place = Place()
            if self.cell.name == "network":
                place = stack.enter_context(making_network(self._number, self.cell.nodes))
            elif self.cell.name == "full-disk":
                extra["HANG_DISK"] = str(stack.enter_context(mounting_disk(self.folder / "disk")))
            elif self.cell.name == "download":
                extra["HANG_SERVER"] = str(stack.enter_context(serving_slowly()))
            elif self.cell.name == "throttled":
                extra["HANG_QUOTA"] = str(stack.enter_context(limiting_cpu(f"torchyard-hang-{self._number}")))
            stack.callback(kill_all, f"{FOLDER_VARIABLE}={self.folder}\0")
            for node in range(self.cell.nodes):
                self._start(node, place, extra)
            with (self.folder / "lines.jsonl").open("w", encoding="utf-8") as file:
                for line in self._watch(place, Judge()):
                    file.write(json.dumps(line) + "\n")

    def _start(self, node: int, place: Place, extra: dict[str, str]) -> None:
        records = self.folder / f"records-{node}"
        environment = {
            **os.environ,
            **extra,
            FOLDER_VARIABLE: str(self.folder),
            "HANG_TRUTH": str(self.folder / "truth.jsonl"),
            "TORCHYARD_BLACK_BOX": str(records),
            "PYTHONPATH": f"{_SITE}:{ROOT}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [*place.wrap(node), self._settings.python, *self._build_words(node, place)],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._torchruns.append(process)
        threading.Thread(target=self._read, args=(process, f"node-{node}"), daemon=True).start()

    def _build_words(self, node: int, place: Place) -> list[str]:
        cell = self.cell
        torchrun = f"-m torch.distributed.run --nnodes {cell.nodes} --node-rank {node} --master-addr {place.address}"
        each = f"--master-port {place.port} --nproc-per-node {cell.ranks // cell.nodes} --tee 3"
        if cell.name in STYLES:
            program, words = "healthy.py", f"--style {cell.name}"
        else:
            program, words = "faults.py", f"--fault {cell.name} --rank {cell.culprit} --step {cell.step}"
        return f"{torchrun} {each} {ROOT}/tests/hang/{program} {words} --seed {cell.seed}".split()

    def _read(self, process: subprocess.Popen[str], node: str) -> None:
        assert process.stdout
        for text in process.stdout:
            self._lines.put(Line(round(time.time() - self._began, 3), node, text.rstrip("\n")))
        self._lines.put(None)

    def _watch(self, place: Place, judge: Judge) -> Iterator[Line]:
        """The lines, as they come, up to the end of the watch."""
        end, first = _ARRIVAL_S, 0.0
        while (now := time.time() - self._began) < end:
            line = None
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.25)
                if line is None:
                    return  # a torchrun has ended, and with it the job
            if line:
                first = first or line.at
                self._cut_cable(place, line)
                yield line
                judge.take(line)
            else:
                judge.look(now)
            end = self._find_end(first, judge)

    def _cut_cable(self, place: Place, line: Line) -> None:
        if self.cell.name == "network" and not self._cut_at and f"{_STEP}{self.cell.step}}}" in line.text:
            self._cut_at = time.time()
            place.cut(self.cell.node_of(self.cell.culprit))
            fact = {"at": self._cut_at, "rank": self.cell.culprit, "lines": []}
            (self.folder / "truth.jsonl").write_text(json.dumps(fact) + "\n", encoding="utf-8")

    def _find_end(self, first: float, judge: Judge) -> float:
        """When the watch ends, as far as is known now."""
        if not self.cell.hangs:
            watched = _SLOW_WATCHED_S if self.cell.name in STRAGGLERS else self._settings.healthy_s
            return first + watched if first else _ARRIVAL_S
        truth = read_truth(self.folder)
        if not truth:
            return _ARRIVAL_S
        end = truth.at + (_LONG_WATCHED_S if self.cell.name in LATE else _WATCHED_S)
        return min(end, judge.verdicts[-1].at + _AFTERWARDS_S) if judge.verdicts else end


def read_cell(folder: Path) -> tuple[Cell, float]:
    """The cell that was recorded in a folder, and when it began."""
    note = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    return Cell(note["name"], note["ranks"], note["nodes"], note["seed"]), note["began"]


def read_truth(folder: Path) -> Truth | None:
    """What the program has written of its fault; None if it has not struck."""
    path = folder / "truth.jsonl"
    facts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if not facts:
        return None
    _, began = read_cell(folder)
    lines = tuple(sorted({line for fact in facts for line in fact["lines"]}))
    return Truth(min(fact["at"] for fact in facts) - began, lines)


def replay_cell(folder: Path) -> Judge:
    with (folder / "lines.jsonl").open(encoding="utf-8") as file:
        return replay(Line(*json.loads(text)) for text in file)
