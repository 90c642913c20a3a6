"""The state of a test cluster, and the operations of other modules on it: paths, certificates, processes, teardown.

Two marks identify everything that belongs to a cluster: its state folder, and the variable
TORCHYARD_CLUSTER=<state folder> in the environment of every process. No file lists the processes, because a kill could
leave such a file incomplete. A machine can run one cluster (AppWrapper's webhook port is compiled in): all processes of
the cluster hold one abstract Unix socket, which is free again when the last of them has exited.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster import build
from tests.cluster.api import Api
from tests.cluster.certificates import CertificatePair, issue_certificate, render_kubeconfig

CLUSTER_VARIABLE = "TORCHYARD_CLUSTER"
COMPONENT_VARIABLE = "TORCHYARD_COMPONENT"
LOCK_ADDRESS = "\0torchyard-cluster"
GOGC = "50"  # for a mostly idle cluster: saves a third of the memory, costs a few percent of a core
PODS_GATEWAY = "10.30.0.1"  # the machine's address in the network of the real nodes
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"


class ClusterError(Exception):
    """The cluster does not exist or cannot be changed: the reason in a sentence, and possibly lines of a log."""


@dataclass(frozen=True)
class Process:
    """A process of the cluster: its component, and its resident memory in bytes."""

    pid: int
    component: str
    memory_bytes: int


def get_state_folder() -> Path:
    """The folder of this user's cluster; it exists only while the cluster does."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "torchyard" / "cluster"


class Plane:
    """A cluster's state folder and the operations on it, whether the cluster runs or not.

    `up` calls `acquire_lock`, then `start` for each component. Processes outlive the Plane that started them: another
    process finds them by `current` and `list_processes`. `down` can be called at any time, also twice or at once with
    another `down`. What no process holds (mounts, files outside the state folder) is registered by
    `add_teardown_command` before it is created, so that `down` removes it after a kill as well.

    ClusterError if the lock is taken, if there is no cluster, or if a process cannot be killed.
    """

    def __init__(self, state: Path | None = None) -> None:
        self.state_folder = state or get_state_folder()
        self.lock: socket.socket | None = None
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def current(cls) -> Self:
        """The running cluster; raises ClusterError if none is running."""
        plane = cls()
        if not plane.is_running() or not plane.admin_kubeconfig.exists():
            raise ClusterError("no test cluster is running: `make cluster-up` starts one")
        return plane

    # --- paths ---

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state_folder / "admin.kubeconfig"

    @property
    def user_kubeconfig(self) -> Path:
        """The kubeconfig of user `torchyard`, who is in no group and has the rights of deploy/kubernetes/rbac.yaml."""
        return self.state_folder / "user.kubeconfig"

    @property
    def log_folder(self) -> Path:
        return self.state_folder / "logs"

    @property
    def record(self) -> dict[str, Any]:
        """What was recorded at the start: `began` (seconds since the epoch), `dispatcher`, `ports` by name."""
        record: dict[str, Any] = json.loads((self.state_folder / "cluster.json").read_text())
        return record

    @property
    def dispatcher(self) -> str:
        """The cluster's controller of AppWrappers: one of build.DISPATCHERS."""
        dispatcher: str = self.record["dispatcher"]
        return dispatcher

    @property
    def api_port(self) -> int:
        port: int = self.record["ports"]["kube-apiserver"]
        return port

    def get_program_path(self, name: str) -> Path:
        """The path of a built program, such as kubelet or coredns."""
        return build.get_program_paths()[name]

    # --- certificates ---

    def read_certificate(self, name: str) -> CertificatePair:
        """A certificate and key by name, from the cluster's pki folder."""
        return CertificatePair.read(self.state_folder / "pki" / name)

    @property
    def ca_path(self) -> Path:
        """The CA certificate that everything in the cluster trusts.

        `read_certificate("ca")` returns its key as well.
        """
        return self.state_folder / "pki" / "ca.crt"

    def issue_certificate(self, name: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> CertificatePair:
        """A certificate for a user in groups, also valid for these host names and addresses."""
        return issue_certificate(self.read_certificate("ca"), name, groups, hosts)

    def write_kubeconfig(self, path: Path, user: str, groups: Iterable[str] = (), host: str = "127.0.0.1") -> Path:
        """Write a kubeconfig for a user in groups, and return its path.

        host: the API server's address for this user.
        """
        server = f"https://{host}:{self.api_port}"
        path.touch(mode=0o600)
        path.write_text(
            render_kubeconfig(server, self.read_certificate("ca"), self.issue_certificate(user, groups), user)
        )
        return path

    def api(self) -> Api:
        """The API server, as administrator."""
        return Api(self.api_port, self.ca_path, self.state_folder / "pki" / "admin")

    # --- processes ---

    def start(self, component: str, command: Iterable[str | Path], environment: Mapping[str, str] | None = None) -> int:
        """Start a process that outlives this one and that `down` finds; return its id.

        Its output is appended to logs/<component>.log.
        """
        self.log_folder.mkdir(parents=True, exist_ok=True)
        temp_folder = self.state_folder / "tmp" / component
        temp_folder.mkdir(parents=True, exist_ok=True)
        variables = {
            CLUSTER_VARIABLE: str(self.state_folder),
            COMPONENT_VARIABLE: component,
            "TMPDIR": str(temp_folder),
            "GOGC": GOGC,
        }
        variables.update(environment or {})
        with (self.log_folder / f"{component}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(argument) for argument in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.state_folder,
                env=os.environ | variables,
                pass_fds=[self.lock.fileno()] if self.lock else [],
            )
        self.children[component] = process
        return process.pid

    @contextmanager
    def label_children(self, component: str) -> Iterator[None]:
        """Label processes that this block starts by other means than `start`, so that `down` finds them too."""
        labels = {CLUSTER_VARIABLE: str(self.state_folder), COMPONENT_VARIABLE: component}
        os.environ.update(labels)
        try:
            yield
        finally:
            for name in labels:
                del os.environ[name]

    def list_processes(self) -> list[Process]:
        """Every running process with this cluster's variable, according to /proc."""
        variable = f"{CLUSTER_VARIABLE}={self.state_folder}".encode()
        return [process for environment, process in iter_process_environments() if variable in environment]

    def is_running(self) -> bool:
        return bool(self.list_processes())

    def list_ended_components(self) -> list[str]:
        """The components that this Plane has started and that have exited."""
        return [component for component, process in self.children.items() if process.poll() is not None]

    def read_last_log_lines(self, component: str, line_count: int = 12) -> str:
        """The last lines of a component's log; "" if it has none."""
        path = self.log_folder / f"{component}.log"
        if not path.exists():
            return ""
        return "\n".join(path.read_text(errors="replace").splitlines()[-line_count:])

    # --- one cluster at a time ---

    def acquire_lock(self) -> None:
        """Take the machine's lock, which every process started from now on holds as well.

        Raises ClusterError if another test cluster holds it.
        """
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(LOCK_ADDRESS)
        except OSError as error:
            lock.close()
            raise ClusterError("another test cluster is running on this machine, which can run only one") from error
        self.lock = lock

    # --- teardown ---

    def add_teardown_command(self, command: Iterable[str | Path], *, before_kill: bool = False) -> None:
        """Register a command for `down`, which runs it after the processes are killed, or before (`before_kill`).

        The command that was added last runs first.
        """
        line = json.dumps({"command": [str(argument) for argument in command], "first": before_kill})
        with (self.state_folder / "teardown.jsonl").open("a") as file:
            file.write(line + "\n")

    def down(self) -> list[str]:
        """Stop and remove everything, whatever state the cluster is in; return a line for each thing removed."""
        commands = list(reversed(self.read_teardown_commands()))
        messages = [run_teardown_command(entry["command"]) for entry in commands if entry["first"]]
        messages += self.kill_processes()
        messages += [run_teardown_command(entry["command"]) for entry in commands if not entry["first"]]
        while self.state_folder.exists():
            # A process that is starting may still write, and another `down` may remove at the same time.
            shutil.rmtree(self.state_folder, ignore_errors=True)
            messages.append(f"removed {self.state_folder}")
        if self.lock:
            self.lock.close()
            self.lock = None
        return messages

    def read_teardown_commands(self) -> list[dict[str, Any]]:
        """The registered commands, the oldest first, each with `command` (argv) and `first` (run before the kill)."""
        path = self.state_folder / "teardown.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kill_processes(self) -> list[str]:
        """Kill every process of the cluster with SIGKILL until none is left; return a line for each.

        There is no graceful stop, because their data is deleted anyway. Raises ClusterError after 10 s.
        """
        killed: dict[int, str] = {}
        deadline = time.monotonic() + 10
        while True:
            running = self.list_processes()
            if not running and all(has_exited(pid) for pid in killed):
                break
            if time.monotonic() > deadline:
                names = ", ".join(f"{process.component} {process.pid}" for process in running)
                raise ClusterError(f"could not be killed: {names}")
            for process in running:
                killed[process.pid] = process.component
                kill_process(process.pid)
            time.sleep(0.02)
        return [f"stopped {component} (process {pid})" for pid, component in killed.items()]


def run_teardown_command(command: list[str]) -> str:
    """Run a command; return a line that contains its error if it failed."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    failure = f", which exited with {result.returncode}: {result.stderr.strip()}" if result.returncode else ""
    return f"ran {' '.join(command)}{failure}"


def kill_process(pid: int) -> None:
    """Kill a process with SIGKILL; a process that has exited is ignored."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)  # reaps the zombie if it is this process's child
    except (ProcessLookupError, ChildProcessError):
        pass


def has_exited(pid: int) -> bool:
    """Whether a process has released everything; its environment disappears a moment before its ports are free."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def iter_process_environments() -> Iterator[tuple[list[bytes], Process]]:
    """Yield the environment of every process whose environment can be read, and the process."""
    prefix = COMPONENT_VARIABLE.encode() + b"="
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            memory_bytes = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
        component = b""
        for variable in environment:
            if variable.startswith(prefix):
                component = variable.removeprefix(prefix)
                break
        yield environment, Process(int(folder.name), component.decode(), memory_bytes)
