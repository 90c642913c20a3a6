"""A Prefect server, a worker and a supervisor that restarts them, as systemd would."""

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
from torchyard.common.project_root import ROOT

BIN = Path(sys.executable).parent
HANGS_S = 40.0  # how long a stopped server does not answer
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def until(what: str, found: Callable[[], Any], seconds: float, every: float = 0.05) -> Any:
    """Poll until the function returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
            if something := found():
                return something
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s")


def carries(pid: str, *marks: str) -> bool:
    """Whether a process has one of these texts in its environment or its command line."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as words:
            said = environ.read() + words.read()
    except OSError:
        return False
    return any(mark.encode() in said for mark in marks)


def holders(*marks: str) -> list[int]:
    """Every process that has one of these texts in its environment or its command line."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and carries(pid, *marks)]


def kill_all(*marks: str) -> None:
    for pid in holders(*marks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class World:
    """A place for runs: `worker` is on this machine; `other` acts as another machine, with its own runs folder."""

    def __init__(self, folder: Path, database: str = "") -> None:
        # A new port: a worker left over from an earlier, killed matrix must not find this server and take its runs.
        folder.mkdir(parents=True)
        self.folder, self.port = folder, _find_free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.runs = {"worker": folder / "runs", "other": folder / "elsewhere"}
        self.gates = folder / "gates.yaml"
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in SERVER},
            **({"PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if database else {}),
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
        until("server", self.healthy, 180)
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
        """Stop a process group for a while: connections are accepted, but get no answer."""
        group = self.processes[name].pid
        os.killpg(group, signal.SIGSTOP)
        threading.Timer(HANGS_S, os.killpg, (group, signal.SIGCONT)).start()

    def cut_power(self) -> None:
        """Kill everything on this machine, with agents and supervisors; then start it again as `make up` does."""
        with self._mine:
            for process in self.processes.values():
                process.kill()
            kill_all(f"TORCHYARD_RUNS={self.runs['worker']}", f"PREFECT_HOME={self.folder}/")
        threading.Thread(target=self._come_up, daemon=True).start()

    def _come_up(self) -> None:
        """Do what `make up` does once the server answers; `supervise` restarts server and worker."""
        until("the server", self.healthy, 180, 0.5)
        environment = {**self.env, "TORCHYARD_RUNS": str(self.runs["worker"])}
        subprocess.run(
            [sys.executable, "-m", "torchyard.tasks.recovery", "back"], env=environment, check=False, cwd=ROOT
        )

    def lose_machine(self) -> None:
        """Kill everything on the worker's machine; from now on another machine's worker takes the runs."""
        with self._mine:
            self.processes.pop("worker").kill()
            kill_all(f"TORCHYARD_RUNS={self.runs['worker']}")
            self.start("other")

    def find_machine(self) -> None:
        """Bring the worker's machine back, and stop the other one at once: a worker that ends slowly takes runs."""
        with self._mine:
            self.processes.pop("other").kill()
            kill_all(f"TORCHYARD_RUNS={self.runs['other']}")
            self.start("worker")

    # --- the API

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.api}{path}", json=body, timeout=30).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.api}{path}", timeout=30).raise_for_status().json()

    def begin(self, profile: Path) -> str:
        """Create a run of a profile, and return its id."""
        deployment = until("the deployment", lambda: self.get("/deployments/name/train/digits-local"), 180, 0.5)
        # A server with a busy SQLite answers 503: retry, with an idempotency key so that only one run is created.
        body = {"parameters": {"profile": str(profile)}, "idempotency_key": str(profile)}
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return str(until("a run", lambda: self.post(path, body), 180, 0.5)["id"])

    def set_state(self, run_id: str, kind: str, **more: Any) -> None:
        body = {"state": {"type": kind, **more}, "force": bool(more)}
        until(f"state {kind}", lambda: self.post(f"/flow_runs/{run_id}/set_state", body), 180, 0.5)

    # --- access to the cluster

    def open_gate(self, name: str, address: str) -> None:
        """Add a context to the kubeconfig of this world's flow processes."""
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
