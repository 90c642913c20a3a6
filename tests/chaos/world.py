"""A Prefect server, a worker and a supervisor that restarts them, as systemd would."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from scripts.server import find_free_port
from tests.support.caller import SERVER
from torchyard.common.project_root import ROOT

BIN = Path(sys.executable).parent
HANG_S = 40.0  # how long a stopped server does not answer
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


def wait_until(description: str, condition: Callable[[], Any], timeout_s: float, interval_s: float = 0.05) -> Any:
    """Poll until the condition returns a true value; return that value.

    Errors of HTTP and the operating system count as false. Raises TimeoutError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
            result = condition()
            if result:
                return result
        time.sleep(interval_s)
    raise TimeoutError(f"{description}: not within {timeout_s:.0f} s")


def has_text(pid: str, *texts: str) -> bool:
    """Whether a process has one of these texts in its environment or its command line."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as command_line:
            contents = environ.read() + command_line.read()
    except OSError:
        return False
    return any(text.encode() in contents for text in texts)


def find_processes(*texts: str) -> list[int]:
    """Every process that has one of these texts in its environment or its command line."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and has_text(pid, *texts)]


def kill_all(*texts: str) -> None:
    for pid in find_processes(*texts):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class World:
    """A Prefect server with a work pool, and two machines as runs folders: `worker`, and `other` after `lose_machine`.

    As a context manager it starts the server, deploys, and starts the worker. A daemon thread (`supervise`) restarts
    server and worker whenever they exit, until `closing` is set on exit. `_lock` guards `processes` and the kubeconfig.
    """

    def __init__(self, folder: Path, database: str = "") -> None:
        # A new port: a worker left over from an earlier, killed matrix must not find this server and take its runs.
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = find_free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.runs_folders = {"worker": folder / "runs", "other": folder / "elsewhere"}
        self.kubeconfig = folder / "gates.yaml"
        self.env = {name: value for name, value in os.environ.items() if name not in SERVER}
        if database:
            self.env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
        self.env |= {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
            "KUBECONFIG": os.pathsep.join(filter(None, (os.environ.get("KUBECONFIG"), str(self.kubeconfig)))),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.closing = threading.Event()
        self._lock = threading.RLock()
        self._contexts: dict[str, dict[str, Any]] = {}
        self._write_kubeconfig()

    def __enter__(self) -> "World":
        try:
            self._start_all()
        except BaseException:  # also Ctrl-C: then `__exit__` is not called
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        self.start("server")
        wait_until("server", self.is_healthy, 180)
        self.run_prefect("work-pool", "create", "torchyard", "--type", "process", "--overwrite")
        self.run_prefect("--no-prompt", "deploy", "--name", "digits-local", "--name", "crashed")
        subprocess.run([sys.executable, "-m", "scripts.automations"], env=self.env, check=True, cwd=ROOT)
        self.start("worker")
        threading.Thread(target=self.supervise, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with self._lock:
            for process in self.processes.values():
                process.kill()
            kill_all(f"PREFECT_HOME={self.folder}/")

    # --- processes

    def is_healthy(self) -> bool:
        return httpx.get(f"{self.api}/health", timeout=2).is_success

    def run_prefect(self, *args: str) -> None:
        subprocess.run([BIN / "prefect", *args], env=self.env, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    def start(self, name: str) -> None:
        worker_args = ("worker", "start", "--pool", "torchyard", "--type", "process", "--name", f"{name}-{self.port}")
        server_args = ("server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        runs_env = {"TORCHYARD_RUNS": str(self.runs_folders[name])} if name in self.runs_folders else {}
        with self._lock, (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / "prefect", *(worker_args if name in self.runs_folders else server_args)],
                env=self.env | runs_env,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def supervise(self) -> None:
        while not self.closing.wait(0.5):
            with self._lock:
                for name, process in list(self.processes.items()):
                    if process.poll() is not None and not self.closing.wait(2):
                        self.start(name)

    def strike(self, name: str, signal_name: str) -> None:
        if signal_name == "STOP":
            self.hang(name)
        else:
            os.kill(self.processes[name].pid, SIGNALS[signal_name])

    def hang(self, name: str) -> None:
        """Stop a process group for HANG_S: connections are accepted without a response."""
        process_group = self.processes[name].pid
        os.killpg(process_group, signal.SIGSTOP)
        threading.Timer(HANG_S, os.killpg, (process_group, signal.SIGCONT)).start()

    def cut_power(self) -> None:
        """Kill all processes of this machine, with agents and supervisors; then recover runs as `make up` does."""
        with self._lock:
            for process in self.processes.values():
                process.kill()
            kill_all(f"TORCHYARD_RUNS={self.runs_folders['worker']}", f"PREFECT_HOME={self.folder}/")
        threading.Thread(target=self._recover_runs, daemon=True).start()

    def _recover_runs(self) -> None:
        """Do what `make up` does once the server answers; `supervise` restarts server and worker."""
        wait_until("the server", self.is_healthy, 180, 0.5)
        environment = self.env | {"TORCHYARD_RUNS": str(self.runs_folders["worker"])}
        subprocess.run(
            [sys.executable, "-m", "torchyard.tasks.recovery", "back"], env=environment, check=False, cwd=ROOT
        )

    def lose_machine(self) -> None:
        """Kill all processes of the worker's machine; from now on another machine's worker takes the runs."""
        with self._lock:
            self.processes.pop("worker").kill()
            kill_all(f"TORCHYARD_RUNS={self.runs_folders['worker']}")
            self.start("other")

    def restore_machine(self) -> None:
        """Restore the worker's machine, and kill the other one, because a worker that stops slowly would take runs."""
        with self._lock:
            self.processes.pop("other").kill()
            kill_all(f"TORCHYARD_RUNS={self.runs_folders['other']}")
            self.start("worker")

    # --- the API

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{self.api}{path}", json=body, timeout=30).raise_for_status().json()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.api}{path}", timeout=30).raise_for_status().json()

    def create_run(self, profile: Path, env: Mapping[str, str] | None = None) -> str:
        """Create a run of a profile, and return its id. `env`: variables that its flow processes get."""
        deployment = wait_until("the deployment", lambda: self.get("/deployments/name/train/digits-local"), 180, 0.5)
        # A server with a busy SQLite answers 503: retry, with an idempotency key so that only one run is created.
        body = {
            "parameters": {"profile": str(profile)},
            "idempotency_key": str(profile),
            "job_variables": {"env": dict(env or {})},
        }
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return str(wait_until("a run", lambda: self.post(path, body), 180, 0.5)["id"])

    def set_state(self, run_id: str, state_type: str, **fields: Any) -> None:
        body = {"state": {"type": state_type} | fields, "force": bool(fields)}
        wait_until(f"state {state_type}", lambda: self.post(f"/flow_runs/{run_id}/set_state", body), 180, 0.5)

    # --- access to the cluster

    def add_context(self, name: str, address: str) -> None:
        """Add a context to the kubeconfig of this world's flow processes."""
        with self._lock:
            self._contexts[name] = {"server": address}
            self._write_kubeconfig()

    def _write_kubeconfig(self) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster} for name, cluster in self._contexts.items()],
            "users": [{"name": "gate", "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "gate"}} for name in self._contexts],
        }
        temp_path = self.kubeconfig.with_suffix(".part")
        temp_path.write_text(yaml.safe_dump(config))
        temp_path.replace(self.kubeconfig)
