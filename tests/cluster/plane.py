"""The state of a test cluster, and what other modules may do with it: paths, certificates, processes, teardown.

Two marks find everything that belongs to a cluster, so that nothing depends on a file that a kill may have left half
written: its state folder, and the label TORCHYARD_CLUSTER=<state folder> in the environment of every process. A machine
can run one cluster (AppWrapper's webhook port is compiled in): all its processes hold one abstract Unix socket, which
is free again when the last of them has ended.
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
from tests.cluster.certificates import Pair, issue, kubeconfig

LABEL, COMPONENT = "TORCHYARD_CLUSTER", "TORCHYARD_COMPONENT"
LOCK = "\0torchyard-cluster"
GOGC = "50"  # for a mostly idle cluster: saves a third of the memory, costs a few percent of a core
PODS_GATEWAY = "10.30.0.1"  # the machine's address as real nodes in network namespaces see it
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"


class ClusterError(Exception):
    """Why there is no cluster, in a sentence; some lines of a log may follow."""


@dataclass(frozen=True)
class Process:
    """A labelled process: its component, and its resident memory in bytes."""

    pid: int
    component: str
    memory: int


def state_folder() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "torchyard" / "cluster"


class Plane:
    """A cluster's state folder and the operations on it, whether the cluster runs or not."""

    def __init__(self, state: Path | None = None) -> None:
        self.state = state or state_folder()
        self.lock: socket.socket | None = None
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def current(cls) -> Self:
        """The running cluster; raises ClusterError if none is running."""
        plane = cls()
        if not plane.running() or not plane.admin.exists():
            raise ClusterError("no test cluster runs: `make cluster-up` starts one")
        return plane

    # --- paths ---

    @property
    def admin(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "admin.kubeconfig"

    @property
    def user(self) -> Path:
        """The kubeconfig of user `torchyard`, who is in no group and has the rights of deploy/kubernetes/rbac.yaml."""
        return self.state / "user.kubeconfig"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def facts(self) -> dict[str, Any]:
        """What was recorded at the start: `began` (seconds since the epoch), `dispatcher`, `ports` by name."""
        found: dict[str, Any] = json.loads((self.state / "cluster.json").read_text())
        return found

    @property
    def dispatcher(self) -> str:
        """The cluster's controller of AppWrappers: one of build.DISPATCHERS."""
        found: str = self.facts["dispatcher"]
        return found

    @property
    def api_port(self) -> int:
        port: int = self.facts["ports"]["kube-apiserver"]
        return port

    def program(self, name: str) -> Path:
        """A built program, such as kubelet or coredns."""
        return build.programs()[name]

    # --- certificates ---

    def pair(self, name: str) -> Pair:
        """A certificate and key by name, from the cluster's pki folder."""
        return Pair.read(self.state / "pki" / name)

    @property
    def authority(self) -> Path:
        """The CA certificate that everything in the cluster trusts; `pair("ca")` has the key too."""
        return self.state / "pki" / "ca.crt"

    def mint(self, user: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> Pair:
        """A certificate for a user in groups, also valid for these host names and addresses."""
        return issue(self.pair("ca"), user, groups, hosts)

    def kubeconfig(self, path: Path, user: str, groups: Iterable[str] = (), host: str = "127.0.0.1") -> Path:
        """Write a kubeconfig for a user in groups; `host` is the API server's address as its user will see it."""
        server = f"https://{host}:{self.api_port}"
        path.touch(mode=0o600)
        path.write_text(kubeconfig(server, self.pair("ca"), self.mint(user, groups), user))
        return path

    def api(self) -> Api:
        """The API server, as administrator."""
        return Api(self.api_port, self.authority, self.state / "pki" / "admin")

    # --- processes ---

    def start(self, component: str, command: Iterable[str | Path], environment: Mapping[str, str] | None = None) -> int:
        """Start a process that outlives this one and that `down` finds; its output goes to logs/<component>.log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        scratch = self.state / "tmp" / component
        scratch.mkdir(parents=True, exist_ok=True)
        labels = {LABEL: str(self.state), COMPONENT: component, "TMPDIR": str(scratch), "GOGC": GOGC}
        with (self.logs / f"{component}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.state,
                env={**os.environ, **labels, **(environment or {})},
                pass_fds=[self.lock.fileno()] if self.lock else [],
            )
        self.started[component] = process
        return process.pid

    @contextmanager
    def labelling(self, component: str) -> Iterator[None]:
        """Label processes that this block starts by other means, so that `down` finds them too."""
        labels = {LABEL: str(self.state), COMPONENT: component}
        os.environ.update(labels)
        try:
            yield
        finally:
            for name in labels:
                del os.environ[name]

    def processes(self) -> list[Process]:
        """Every living process with this cluster's label, found only by /proc."""
        mark = f"{LABEL}={self.state}".encode()
        return [process for words, process in environments() if mark in words]

    def running(self) -> bool:
        return bool(self.processes())

    def ended(self) -> list[str]:
        """The components that this process started and that have ended."""
        return [component for component, process in self.started.items() if process.poll() is not None]

    def last_words(self, component: str, lines: int = 12) -> str:
        log = self.logs / f"{component}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    # --- one cluster at a time ---

    def claim(self) -> None:
        """Take the machine's lock, which every process started from now on holds as well."""
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(LOCK)
        except OSError as error:
            lock.close()
            raise ClusterError("another test cluster runs on this machine, and there is room for one") from error
        self.lock = lock

    # --- teardown ---

    def on_down(self, command: Iterable[str | Path], first: bool = False) -> None:
        """Have `down` run this command after (with `first`: before) ending the processes; the last added runs first."""
        line = json.dumps({"command": [str(word) for word in command], "first": first})
        with (self.state / "teardown.jsonl").open("a") as hooks:
            hooks.write(line + "\n")

    def down(self) -> list[str]:
        """Stop and remove everything, whatever state the cluster is in; returns what was stopped or removed."""
        hooks = self.hooks()
        done = [run_hook(hook["command"]) for hook in reversed(hooks) if hook["first"]]
        done += self.kill()
        done += [run_hook(hook["command"]) for hook in reversed(hooks) if not hook["first"]]
        while self.state.exists():
            shutil.rmtree(self.state, ignore_errors=True)  # a starting process may write, another `down` may remove
            done.append(f"removed {self.state}")
        if self.lock:
            self.lock.close()
            self.lock = None
        return done

    def hooks(self) -> list[dict[str, Any]]:
        path = self.state / "teardown.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kill(self) -> list[str]:
        """Kill every labelled process until none is left; no graceful stop, because their data is deleted anyway."""
        killed: dict[int, str] = {}
        deadline = time.monotonic() + 10
        while (found := self.processes()) or not all(map(gone, killed)):
            if time.monotonic() > deadline:
                raise ClusterError("could not be killed: " + ", ".join(f"{one.component} {one.pid}" for one in found))
            for one in found:
                killed[one.pid] = one.component
                signal_process(one.pid)
            time.sleep(0.02)
        return [f"stopped {component} (process {pid})" for pid, component in killed.items()]


def run_hook(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = f", which ended with {done.returncode}: {done.stderr.strip()}" if done.returncode else ""
    return f"ran {' '.join(command)}{failed}"


def signal_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)  # reaps the zombie if it is this process's child
    except (ProcessLookupError, ChildProcessError):
        pass


def gone(pid: int) -> bool:
    """Whether a process has released everything; its environment disappears a moment before its ports are free."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def environments() -> Iterator[tuple[list[bytes], Process]]:
    """Every process whose environment can be read: that environment, and the process."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            continue
        name = next((word.partition(b"=")[2] for word in words if word.startswith(COMPONENT.encode() + b"=")), b"")
        yield words, Process(int(folder.name), name.decode(), resident)
