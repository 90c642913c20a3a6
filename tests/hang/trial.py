"""One cell of the matrix: its torchruns with the black box, and all their lines with their times of arrival."""

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.chaos.world import find_processes, kill_all
from tests.hang.cells import DEVICE_STYLES, STRAGGLERS, STYLES, Cell
from tests.hang.environment import BACKEND_VARIABLE
from tests.hang.figures import Truth
from tests.hang.judge import Line, VerdictRecorder, replay
from tests.hang.places import LoopbackNetwork, create_freezer, create_network, limit_cpu, mount_small_disk, serve_slowly
from torchyard.common.project_root import ROOT
from torchyard.host import black_box

FOLDER_VARIABLE = "HANG_CELL"  # marks all processes of a cell
_SITE = Path(black_box.__file__).parent / "site"
_WITH_SERVER = ("download", "evaluate-download", "remote-poll")
_STEP = '{"step": '
_ARRIVAL_S = 120.0  # until the fault strikes
_WATCHED_S = 25.0  # after the fault
_LONG_WATCHED_S = 330.0  # after a fault that is reported late
_SLOW_WATCHED_S = 95.0  # after the first line


class Settings(NamedTuple):
    """How cells are played.

    healthy_s: seconds that a healthy job is watched.
    python: the interpreter of the jobs, with torch.
    afterwards_s: seconds that a job is watched after a verdict, because another may follow, or the end of the attempt.
    """

    healthy_s: float = 50.0
    python: str = sys.executable
    afterwards_s: float = 4.0


class Trial:
    """Plays a cell in its own folder; `number` is that of its network.

    Each torchrun has a thread that puts its lines into a queue. The thread that calls `play` takes, judges and records
    them in `lines.jsonl`. At the end all processes of the cell are killed.
    """

    def __init__(self, cell: Cell, folder: Path, number: int, settings: Settings) -> None:
        self.cell = cell
        self.folder = folder
        self._number = number
        self._settings = settings
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._struck_at = 0.0
        self._torchruns: list[subprocess.Popen[str]] = []

    def play(self) -> None:
        """Run the job until its watch ends, or until some seconds after torchyard has reported a verdict."""
        self.folder.mkdir(parents=True)
        self._started_at = time.time()
        cell_record = {"began": self._started_at} | self.cell._asdict()
        (self.folder / "cell.json").write_text(json.dumps(cell_record), encoding="utf-8")
        with ExitStack() as stack:
            extra_env: dict[str, str] = {}
            network = LoopbackNetwork()
            if self.cell.name == "network":
                network = stack.enter_context(create_network(self._number, self.cell.nodes))
            elif self.cell.name == "full-disk":
                extra_env["HANG_DISK"] = str(stack.enter_context(mount_small_disk(self.folder / "disk")))
            elif self.cell.name == "freezer":
                extra_env["HANG_FREEZER"] = str(stack.enter_context(create_freezer(f"torchyard-hang-{self._number}")))
            elif self.cell.name in _WITH_SERVER:
                extra_env["HANG_SERVER"] = str(stack.enter_context(serve_slowly()))
            elif self.cell.name == "throttled":
                extra_env["HANG_QUOTA"] = str(stack.enter_context(limit_cpu(f"torchyard-hang-{self._number}")))
            stack.callback(kill_all, f"{FOLDER_VARIABLE}={self.folder}\0")
            for node in range(self.cell.nodes):
                self._start(node, network, extra_env)
            with (self.folder / "lines.jsonl").open("w", encoding="utf-8") as file:
                for line in self._watch(network, VerdictRecorder()):
                    file.write(json.dumps(line) + "\n")

    def _start(self, node: int, network: LoopbackNetwork, extra_env: dict[str, str]) -> None:
        records = self.folder / f"records-{node}"
        environment = (
            os.environ
            | extra_env
            | {
                FOLDER_VARIABLE: str(self.folder),
                "HANG_TRUTH": str(self.folder / "truth.jsonl"),
                "TORCHYARD_BLACK_BOX": str(records),
                "PYTHONPATH": f"{_SITE}:{ROOT}",
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": network.interface,
                "NCCL_SOCKET_IFNAME": network.interface,
                "NCCL_HOSTID": f"node-{node}",  # it refuses two ranks of one host on one GPU
                BACKEND_VARIABLE: self.cell.backend,
            }
        )
        process = subprocess.Popen(
            [*network.build_prefix(node), self._settings.python, *self._build_args(node, network)],
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

    def _build_args(self, node: int, network: LoopbackNetwork) -> list[str]:
        cell = self.cell
        torchrun = f"-m torch.distributed.run --nnodes {cell.nodes} --node_rank {node} --master_addr {network.address}"
        agent_options = f"--master_port {network.port} --nproc_per_node {cell.ranks // cell.nodes} --tee 3"
        if cell.name in (*STYLES, *DEVICE_STYLES):
            program = f"healthy.py --style {cell.name}"
        elif cell.name == "before-torch":
            program = f"stuck_start.py --rank {cell.culprit} --step 0"
        else:
            program = f"faults.py --fault {cell.name} --rank {cell.culprit} --step {cell.step}"
        return f"{torchrun} {agent_options} {ROOT}/tests/hang/{program} --seed {cell.seed}".split()

    def _read(self, process: subprocess.Popen[str], node: str) -> None:
        assert process.stdout
        for text in process.stdout:
            self._lines.put(Line(round(time.time() - self._started_at, 3), node, text.rstrip("\n")))
        self._lines.put(None)

    def _watch(self, network: LoopbackNetwork, recorder: VerdictRecorder) -> Iterator[Line]:
        """Yield the lines as they arrive, up to the end of the watch or of a torchrun."""
        deadline_s = _ARRIVAL_S
        first_line_s = 0.0  # 0 until there is a line
        while time.time() - self._started_at < deadline_s:
            line = None
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.25)
                if line is None:
                    return  # a torchrun has ended, and with it the job
            if line:
                first_line_s = first_line_s or line.time_s
                self._strike(network, line)
                yield line
                recorder.process_line(line)
            else:
                recorder.advance_to(time.time() - self._started_at)
            deadline_s = self._find_end(first_line_s, recorder)

    def _strike(self, network: LoopbackNetwork, line: Line) -> None:
        """Cut a node's cable, or stop all of its processes, at the step of the fault."""
        is_due = f"{_STEP}{self.cell.step}}}" in line.text
        if self.cell.name not in ("network", "silent-node") or self._struck_at or not is_due:
            return
        node = self.cell.get_node(self.cell.culprit)
        self._struck_at = time.time()
        if self.cell.name == "network":
            network.isolate(node)
        else:
            for pid in find_processes(f"TORCHYARD_BLACK_BOX={self.folder}/records-{node}\0"):
                os.kill(pid, signal.SIGSTOP)
        fault_record = {"at": self._struck_at, "rank": self.cell.culprit, "lines": []}
        (self.folder / "truth.jsonl").write_text(json.dumps(fault_record) + "\n", encoding="utf-8")

    def _find_end(self, first_line_s: float, recorder: VerdictRecorder) -> float:
        """The end of the watch by the current observations, in seconds since the cell's start."""
        if not self.cell.is_hang:
            watched_s = _SLOW_WATCHED_S if self.cell.name in STRAGGLERS else self._settings.healthy_s
            return first_line_s + watched_s if first_line_s else _ARRIVAL_S
        truth = read_truth(self.folder)
        if not truth:
            return _ARRIVAL_S
        end_s = truth.time_s + (_LONG_WATCHED_S if self.cell.is_reported_late else _WATCHED_S)
        if not recorder.verdicts:
            return end_s
        afterwards_s = self._settings.afterwards_s
        return min(end_s + afterwards_s, recorder.verdicts[-1].time_s + afterwards_s)


def read_cell(folder: Path) -> tuple[Cell, float]:
    """The cell that was recorded in a folder, and the time of its start."""
    cell_record = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    started_at = cell_record.pop("began")
    return Cell(**cell_record), started_at


def read_truth(folder: Path) -> Truth | None:
    """The record of the fault by the program; None if it has not started."""
    path = folder / "truth.jsonl"
    if not path.exists():
        return None
    fault_records = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    if not fault_records:
        return None
    _, started_at = read_cell(folder)
    first_fault_at = min(fault_record["at"] for fault_record in fault_records)
    lines = set(itertools.chain(*(fault_record["lines"] for fault_record in fault_records)))
    return Truth(first_fault_at - started_at, tuple(sorted(lines)))


def replay_cell(folder: Path) -> VerdictRecorder:
    with (folder / "lines.jsonl").open(encoding="utf-8") as file:
        return replay(Line(*json.loads(text)) for text in file)
