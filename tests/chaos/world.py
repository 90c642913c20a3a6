"""A Prefect server, a worker and a supervisor that brings them back, as systemd would."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from scripts.server import _find_free_port
from tests.caller import SERVER
from torchyard.loading.profile import ROOT

BIN = Path(sys.executable).parent
HANGS_S = 40.0  # how long a server that is stopped answers nobody
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def until(what: str, found: Callable[[], Any], seconds: float, every: float = 0.05) -> Any:
    """Ask again and again until there is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
            if something := found():
                return something
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s")


def carries(pid: str, *marks: str) -> bool:
    """Whether a process has one of some texts in its environment or its words."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as words:
            said = environ.read() + words.read()
    except OSError:
        return False
    return any(mark.encode() in said for mark in marks)


def holders(*marks: str) -> list[int]:
    """Every process that carries one of some texts."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and carries(pid, *marks)]


def kill_all(*marks: str) -> None:
    for pid in holders(*marks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class World:
    """Where runs are played. `worker` is on this machine; `other` has run folders of its own, as another machine."""

    def __init__(self, folder: Path) -> None:
        # A port of its own: a worker left by an earlier, killed matrix must not find this server and take its runs.
        folder.mkdir(parents=True)
        self.folder, self.port = folder, _find_free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.runs = {"worker": folder / "runs", "other": folder / "elsewhere"}
        self.gates = folder / "gates.yaml"
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in SERVER},
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
            "KUBECONFIG": os.pathsep.join(filter(None, (os.environ.get("KUBECONFIG"), str(self.gates)))),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.closing = threading.Event()
        self._mine = threading.RLock()
        self._contexts: dict[str, dict[str, Any]] = {}
        self._write()

    def __enter__(self) -> "World":
        self.start("server")
        until("server", self.healthy, 90)
        self.prefect("work-pool", "create", "torchyard", "--type", "process", "--overwrite")
        self.prefect("--no-prompt", "deploy", "--name", "digits-local", "--name", "crashed")
        subprocess.run([sys.executable, "-m", "scripts.automations"], env=self.env, check=True, cwd=ROOT)
        self.start("worker")
        threading.Thread(target=self.supervise, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with self._mine:
            for process in self.processes.values():
                process.kill()
            kill_all(f"PREFECT_HOME={self.folder}/")

    # --- processes

    def healthy(self) -> bool:
        return httpx.get(f"{self.api}/health", timeout=2).is_success

    def prefect(self, *words: str) -> None:
        subprocess.run([BIN / "prefect", *words], env=self.env, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    def start(self, name: str) -> None:
        worker = ("worker", "start", "--pool", "torchyard", "--type", "process", "--name", f"{name}-{self.port}")
        server = ("server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        runs = {"TORCHYARD_RUNS": str(self.runs[name])} if name in self.runs else {}
        with self._mine, (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / "prefect", *(worker if name in self.runs else server)],
                env={**self.env, **runs},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def supervise(self) -> None:
        while not self.closing.wait(0.5):
            with self._mine:
                for name, process in list(self.processes.items()):
                    if process.poll() is not None and not self.closing.wait(2):
                        self.start(name)

    def strike(self, name: str, how: str) -> None:
        if how == "STOP":
            self.hang(name)
        else:
            os.kill(self.processes[name].pid, SIGNALS[how])

    def hang(self, name: str) -> None:
        """Stop a process with all of its own for a while: connections are accepted, and nobody answers."""
        group = self.processes[name].pid
        os.killpg(group, signal.SIGSTOP)
        threading.Timer(HANGS_S, os.killpg, (group, signal.SIGCONT)).start()

    def cut_power(self) -> None:
        """Everything of this machine dies at once, agents and keepers too; then it starts, as `make up` starts it."""
        with self._mine:
            for process in self.processes.values():
                process.kill()
            kill_all(f"TORCHYARD_RUNS={self.runs['worker']}", f"PREFECT_HOME={self.folder}/")
        threading.Thread(target=self._come_up, daemon=True).start()

    def _come_up(self) -> None:
        """What `make up` does once the server answers; server and worker are the supervisor's."""
        until("the server", self.healthy, 180, 0.5)
        environment = {**self.env, "TORCHYARD_RUNS": str(self.runs["worker"])}
        subprocess.run([sys.executable, "-m", "tasks.recovery", "back"], env=environment, check=False, cwd=ROOT)

    def lose_machine(self) -> None:
        """Everything of the worker's machine dies at once; another machine's worker looks for runs from now on."""
        with self._mine:
            self.processes.pop("worker").kill()
            kill_all(f"TORCHYARD_RUNS={self.runs['worker']}")
            self.start("other")

    def find_machine(self) -> None:
        """The machine is there again, and the other one is given back."""
        with self._mine:
            self.processes.pop("other").terminate()
            self.start("worker")

    # --- the API

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.api}{path}", json=body, timeout=30).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.api}{path}", timeout=30).raise_for_status().json()

    def begin(self, profile: Path) -> str:
        """The id of a new run of a profile."""
        deployment = until("the deployment", lambda: self.get("/deployments/name/train/digits-local"), 180, 0.5)
        # A busy SQLite answers 503: ask again, with a key that makes one run of all the asking.
        body = {"parameters": {"profile": str(profile)}, "idempotency_key": str(profile)}
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return str(until("a run", lambda: self.post(path, body), 180, 0.5)["id"])

    def set_state(self, run_id: str, kind: str, **more: Any) -> None:
        body = {"state": {"type": kind, **more}, "force": bool(more)}
        until(f"state {kind}", lambda: self.post(f"/flow_runs/{run_id}/set_state", body), 180, 0.5)

    # --- ways to the cluster

    def open_gate(self, name: str, address: str) -> None:
        """A context that flow processes of this world find in their kubeconfig."""
        with self._mine:
            self._contexts[name] = {"server": address}
            self._write()

    def _write(self) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster} for name, cluster in self._contexts.items()],
            "users": [{"name": "gate", "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "gate"}} for name in self._contexts],
        }
        part = self.gates.with_suffix(".part")
        part.write_text(yaml.safe_dump(document))
        part.replace(self.gates)
