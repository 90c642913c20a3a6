"""`make chaos`: every fault at every step, on a real Prefect server, worker and job; prints a table.

    python tests/chaos.py [--only TEXT] [--jobs N]

A cell starts a run through the API, waits for its phase, strikes, and then touches nothing any more; a supervisor
brings back a server or a worker that was struck, as systemd would. It is good when the run ends as `EXPECTED` says
and leaves no process, no port, no second start of a rank and no lost line behind.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from scripts.yard import free_port
from tasks.folder import RunFolder
from tasks.host.state import listening, read_state
from tasks.launchers._torchrun import first_port
from tasks.model import Run
from tasks.profile import ROOT

BIN = Path(sys.executable).parent
TICK = ROOT / "tests" / "programs" / "tick.py"
PHASES = ("before submit", "rendezvous", "training", "teardown")
FAULTS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
# Which ends are right. In the phase "teardown" the run was cancelled before the fault, and must end Cancelled.
EXPECTED: dict[tuple[str, str], set[str]] = {
    ("flow", "TERM"): {"Stopped"},
    ("flow", "KILL"): {"Completed"},
    ("worker", "TERM"): {"Completed"},
    ("worker", "KILL"): {"Completed"},
    ("agent", "TERM"): {"Completed"},
    ("agent", "KILL"): {"Completed"},
    ("rank", "TERM"): {"Completed", "Failed"},
    ("rank", "KILL"): {"Completed", "Failed"},
    ("etcd", "TERM"): {"Completed"},
    ("etcd", "KILL"): {"Completed"},
    ("server", "TERM"): {"Completed"},
    ("server", "KILL"): {"Completed"},
    ("run", "cancel"): {"Cancelled"},
}
NOT_THERE = {("before submit", "agent"), ("before submit", "rank"), ("before submit", "etcd"), ("rendezvous", "rank")}


class Cell(NamedTuple):
    """One fault at one step."""

    phase: str
    target: str
    fault: str

    def __str__(self) -> str:
        return f"{self.phase:<13} {self.target:<7} {self.fault:<6}"


class Result(NamedTuple):
    """What a cell showed."""

    cell: Cell
    end: str
    seconds: float
    faults: tuple[str, ...]
    sentence: str


def until(what: str, found: Callable[[], Any], seconds: float) -> Any:
    """Ask every twentieth of a second until there is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
            if something := found():
                return something
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s")


class World:
    """A Prefect server, a worker and a supervisor that brings them back."""

    def __init__(self, folder: Path) -> None:
        # A port of its own: a worker left by an earlier, killed matrix must not find this server and take its runs.
        self.folder, self.port = folder, free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
            "TORCHYARD_RUNS": str(folder / "runs"),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.closing = threading.Event()

    def __enter__(self) -> "World":
        self.start("server")
        until("server", self.healthy, 90)
        self.prefect("work-pool", "create", "torchyard", "--type", "process", "--overwrite")
        self.prefect("--no-prompt", "deploy", "--all")
        self.automate()
        self.start("worker")
        threading.Thread(target=self.supervise, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for process in self.processes.values():
            process.kill()

    def healthy(self) -> bool:
        return httpx.get(f"{self.api}/health", timeout=2).is_success

    def prefect(self, *words: str) -> None:
        subprocess.run([BIN / "prefect", *words], env=self.env, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    def automate(self) -> None:
        command = [sys.executable, "-m", "scripts.automations"]
        subprocess.run(command, env=self.env, check=True, cwd=ROOT)

    def start(self, name: str) -> None:
        command = {
            "server": ("server", "start", "--host", "127.0.0.1", "--port", str(self.port)),
            "worker": ("worker", "start", "--pool", "torchyard", "--type", "process"),
        }[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / "prefect", *command], env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def supervise(self) -> None:
        while not self.closing.wait(0.5):
            for name, process in list(self.processes.items()):
                if process.poll() is not None and not self.closing.wait(2):
                    self.start(name)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.api}{path}", json=body, timeout=10).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.api}{path}", timeout=10).raise_for_status().json()


class Trial:
    """One cell, played."""

    def __init__(self, world: World, cell: Cell) -> None:
        self.world, self.cell = world, cell
        name = "-".join((cell.phase.split()[0], cell.target, cell.fault)).lower()
        self.truth = world.folder / "truth" / name
        self.truth.mkdir(parents=True)
        self.profile = self.truth / "chaos.yaml"
        self.profile.write_text(yaml.safe_dump(self.document()))

    def document(self) -> dict[str, Any]:
        """Two agents with one rank each; a slow interpreter where the time before submit must be hit."""
        stubborn = ["--stubborn"] if self.cell.phase == "teardown" else []
        slow = self.truth / "python"
        slow.write_text(f'#!/bin/sh\nsleep 3\nexec {sys.executable} "$@"\n')
        slow.chmod(0o755)
        return {
            "about": str(self.cell),
            "launcher": "baremetal",
            "program": str(TICK),
            "args": [f"--truth={self.truth}", *stubborn],
            "nodes": 2,
            "rendezvous": "etcd-v2" if self.cell.target == "etcd" else "c10d",
            "deadlines": {"start": "2m", "run": "5m", "silence": "1m", "lease": "3m", "grace": "5s"},
            "attempts": 2,
            "metrics": "json-lines",
            "options": {"python": str(slow)} if self.cell.phase == "before submit" else {},
        }

    def play(self) -> Result:
        path = "/deployments/name/train/digits-local"
        # A busy SQLite answers 503: ask again, with a key that makes one run of all the asking.
        body = {"parameters": {"profile": str(self.profile)}, "idempotency_key": str(self.truth)}
        deployment = until("the deployment", lambda: self.world.get(path), 30)
        made = until("a run", lambda: self.world.post(f"/deployments/{deployment['id']}/create_flow_run", body), 30)
        self.run_id = made["id"]
        self.folder = RunFolder(self.world.folder / "runs" / f"chaos-{self.run_id.replace('-', '')[-8:]}")
        self.reach()
        self.strike()
        began = time.monotonic()
        try:
            state = until("the end", self.ended, 240)
        except TimeoutError as error:
            state = {"name": "no end", "message": str(error)}
        seconds = time.monotonic() - began
        return Result(self.cell, state["name"], seconds, tuple(self.wrong(state["name"])), state["message"] or "")

    # --- getting there

    def reach(self) -> None:
        """Wait for the phase."""
        match self.cell.phase:
            case "before submit":
                until("preflight", lambda: self.folder.last("step").get("name") == "preflight", 60)
            case "rendezvous":
                until("agents", lambda: self.folder.last("step").get("name") == "wait" and self.agent("node-1"), 60)
            case _:
                until("training", lambda: len(self.told()) == 2 and min(self.told().values()) >= 5, 60)
        if self.cell.phase == "teardown":
            self.cancel()
            until("teardown", lambda: self.folder.last("ending"), 60)

    def told(self) -> dict[str, int]:
        """How many lines each rank has printed."""
        return {path.name: len(path.read_text().splitlines()) for path in self.truth.glob("[0-9]*-[0-9]*-[0-9]*")}

    def agent(self, block: str) -> int:
        state = read_state(str(self.folder.attempt(1) / block))
        return int(state["agent"]) if state else 0

    def cancel(self) -> None:
        self.world.post(f"/flow_runs/{self.run_id}/set_state", {"state": {"type": "CANCELLING"}, "force": False})

    def strike(self) -> None:
        if self.cell.fault == "cancel":
            self.cancel()
            return
        os.kill(self.victim(), FAULTS[self.cell.fault])

    def victim(self) -> int:
        """The process that is struck; where there are two, the one of node 1."""
        match self.cell.target:
            case "flow":
                return int(self.folder.last("start")["pid"])
            case "agent":
                return self.agent("node-1")
            case "etcd":
                return self.agent("etcd")
            case "rank":
                return next(int(name.rpartition("-")[2]) for name in self.told() if name.startswith("1-1-"))
            case name:
                return self.world.processes[name].pid

    # --- looking back

    def ended(self) -> Any:
        """The state, once it is one that stays: a run that is merely Crashed is on its way back."""
        state = self.world.get(f"/flow_runs/{self.run_id}")["state"]
        stays = state["type"] in ("COMPLETED", "FAILED", "CANCELLED") or (
            state["type"] == "CRASHED" and state["name"] != "Crashed"
        )
        return state if stays else None

    def wrong(self, end: str) -> Iterator[str]:
        """Everything that should not be."""
        expected = {"Cancelled"} if self.cell.phase == "teardown" else EXPECTED[self.cell.target, self.cell.fault]
        if end not in expected:
            yield f"ended {end}, not {' or '.join(sorted(expected))}"
        with contextlib.suppress(TimeoutError):
            until("silence", lambda: not self.left(), 12)  # a guard may still be telling a busy server
        yield from self.left()
        starts = [name.rpartition("-")[0] for name in self.told()]
        yield from {f"attempt-rank {each} started twice" for each in starts if starts.count(each) > 1}
        yield from self.lost()

    def left(self) -> list[str]:
        """Processes that carry the run's label or folder, and ports of the run that somebody listens on."""
        marks = (f"TORCHYARD_JOB={self.folder.name}/".encode(), str(self.folder.path).encode())
        held = [f"process {pid} left" for pid in os.listdir("/proc") if pid.isdigit() and carries(pid, marks)]
        firsts = [first_port(Run(id=self.run_id, attempt=number, folder="")) for number in (1, 2)]
        ports = {first + more for first in firsts for more in (0, 1)}
        return held + [f"port {port} left" for port in ports & listening()]

    def lost(self) -> list[str]:
        """Printed lines that are in no log."""
        logs = "".join(path.read_text() for path in self.folder.path.glob("attempt-*/node-*/log"))
        kept = {line.partition("]:")[2] for line in logs.splitlines()}
        printed = [line for path in self.truth.glob("[0-9]*-[0-9]*-[0-9]*") for line in path.read_text().splitlines()]
        missing = [line for line in printed if line not in kept]
        return [f"{len(missing)} of {len(printed)} lines lost"] if missing else []


def carries(pid: str, marks: tuple[bytes, bytes]) -> bool:
    label, folder = marks
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as words:
            return label in environ.read() or folder in words.read()
    except OSError:
        return False


def cells(only: str) -> list[Cell]:
    all_cells = [
        Cell(phase, target, fault) for phase in PHASES for target, fault in EXPECTED if (phase, target) not in NOT_THERE
    ]
    return [cell for cell in all_cells if only in " ".join(str(cell).split())]


def play_all(folder: Path, todo: "queue.Queue[Cell]", done: list[Result]) -> None:
    """One lane: a world of its own, cell after cell."""
    folder.mkdir(parents=True)
    with World(folder) as world, contextlib.suppress(queue.Empty):
        while True:
            done.append(play(world, todo.get_nowait()))
            print(row(done[-1]), flush=True)


def play(world: World, cell: Cell) -> Result:
    try:
        return Trial(world, cell).play()
    except Exception as error:  # a cell that cannot be played is a wrong one, and the others go on
        return Result(cell, "not played", 0.0, (f"{type(error).__name__}: {error}",), "")


def row(result: Result) -> str:
    verdict = "ok" if not result.faults else "WRONG: " + "; ".join(result.faults)
    return f"{result.cell}  {result.end:<10} {result.seconds:6.1f} s  {verdict:<4} | {result.sentence[:110]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the cells whose line holds this, such as 'training flow'")
    parser.add_argument("--jobs", type=int, default=2, help="worlds side by side")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    asked = parser.parse_args()
    todo: queue.Queue[Cell] = queue.Queue()
    for cell in cells(asked.only):
        todo.put(cell)
    total, done = todo.qsize(), list[Result]()
    folder = Path(tempfile.mkdtemp(prefix="torchyard-chaos-"))
    print(f"{total} cells in {folder}", flush=True)
    lanes = [
        threading.Thread(target=play_all, args=(folder / f"world-{lane}", todo, done))
        for lane in range(min(asked.jobs, total))
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    table(done)
    good = sum(not result.faults for result in done)
    print(f"{good} of {total} cells as expected")
    if not asked.keep and good == total:
        shutil.rmtree(folder)
    return 0 if good == total else 1


def table(done: list[Result]) -> None:
    """The matrix: a row for each target and fault, a column for each phase."""
    by_cell = {result.cell: result for result in done}
    print("\n| target | fault |" + "".join(f" {phase} |" for phase in PHASES) + "\n|---|---|" + "---|" * len(PHASES))
    for target, fault in EXPECTED:
        found = [by_cell.get(Cell(phase, target, fault)) for phase in PHASES]
        texts = ["-" if each is None else each.end + (" (wrong)" if each.faults else "") for each in found]
        print(f"| {target} | {fault} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    sys.exit(main())
