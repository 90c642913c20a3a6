"""Tests which etcd versions serve torchrun's etcd-v2 rendezvous: each is built and started as in the guides.

    .venv/bin/python tests/cluster/etcd_matrix.py [VERSION ...]

Prints the table of docs/etcd.md. Building needs Go; an existing binary at ~/.cache/torchyard/etcd/VERSION/etcd is used
as it is. If the v2 API is not served, two agents try anyway, and the note contains their error.
"""

import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "etcd"
VERSIONS = ("3.4.13", "3.5.1", "3.5.9", "3.5.15", "3.5.21", "3.5.23", "3.5.33", "3.5.35", "3.6.0", "3.6.16", "3.7.3")
# Up to 3.4 the module's path lacks the /v3 that its tags need: Go can fetch only a commit, and this is v3.4.13's.
COMMITS = {"3.4.13": "go.etcd.io/etcd@v0.5.0-alpha.5.0.20200910180754-dd1b699fc489"}
START_TIMEOUT_S = 15.0  # seconds that an etcd may take to answer
RENDEZVOUS_TIMEOUT_S = 120.0  # seconds that a pair of agents may take
TABLE_HEADER = "| etcd | starts with `--enable-v2` | `GET /v2/keys` | two agents | note |\n|---|---|---|---|---|"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StartedEtcd(NamedTuple):
    """A started etcd: its address, its exit code if it has ended, and its log so far."""

    endpoint: str
    code: int | None
    log: str


class RendezvousResult(NamedTuple):
    """The result of two agents: whether they completed the rendezvous, the seconds it took, and their errors."""

    ok: bool
    seconds: float
    errors: tuple[str, ...]

    def __str__(self) -> str:
        if self.ok:
            result = "ok"
        elif self.errors:
            result = self.errors[-1].partition(":")[0]
        else:
            result = "no error line"
        return f"{result} in {self.seconds:.1f} s"


class Row(NamedTuple):
    """A line of the table."""

    version: str
    starts: str
    keys: str
    agents: str
    note: str

    def __str__(self) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in self)} |"


def build(version: str) -> Path:
    """Build etcd from its Go module, in a module created for it, and return the binary; raises CalledProcessError."""
    home = CACHE / version
    if (home / "etcd").exists():
        return home / "etcd"
    home.mkdir(parents=True, exist_ok=True)
    (home / "go.mod").write_text("module matrix\n\ngo 1.21\n")
    module = COMMITS.get(version, f"go.etcd.io/etcd/server/v3@v{version}")
    package = module.partition("@")[0]
    for command in (["get", module], ["build", "-trimpath", "-ldflags", "-s -w", "-o", "etcd", package]):
        env = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
        subprocess.run(["go", *command], cwd=home, env=env, check=True, capture_output=True, text=True)
    return home / "etcd"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def run_etcd(binary: Path, folder: Path, *flags: str) -> Iterator[StartedEtcd]:
    """An etcd with the guides' flags on loopback; it is killed when the block ends."""
    client_address = f"127.0.0.1:{free_port()}"
    peer_address = f"127.0.0.1:{free_port()}"
    folder.mkdir()
    flag_values = {
        "--name": "etcd-server",
        "--data-dir": str(folder / "data"),
        "--initial-advertise-peer-urls": f"http://{peer_address}",
        "--listen-peer-urls": f"http://{peer_address}",
        "--listen-client-urls": f"http://{client_address}",
        "--advertise-client-urls": f"http://{client_address}",
        "--initial-cluster": f"etcd-server=http://{peer_address}",
        "--initial-cluster-state": "new",
    }
    argv = [str(binary), *flags]
    for flag, value in flag_values.items():
        argv += [flag, value]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        exit_code = wait_for_answer(process, client_address)
        yield StartedEtcd(client_address, exit_code, (folder / "log").read_text())
    finally:
        process.kill()
        process.wait()


def wait_for_answer(process: subprocess.Popen[bytes], address: str) -> int | None:
    """Wait until etcd answers on /health (returns None) or exits (returns its exit code).

    None after START_TIMEOUT_S too.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None and get(address, "/health")[0] is None:
        time.sleep(0.1)
    return process.poll()


def get(endpoint: str, path: str) -> tuple[int | None, str]:
    """The status and body of a response; the status is None if etcd does not respond."""
    try:
        with OPENER.open(f"http://{endpoint}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def run_agents(endpoint: str, rdzv_id: str, folder: Path) -> RendezvousResult:
    """Run two torchrun agents on this machine, with one rank each, through an all-reduce to their end."""
    logs = [Path(tempfile.mkdtemp(dir=folder), "log") for _ in range(2)]
    start = time.perf_counter()
    agents = [start_agent(endpoint, rdzv_id, log) for log in logs]
    deadline = start + RENDEZVOUS_TIMEOUT_S
    codes = [wait_for_exit(process, timeout_s=deadline - time.perf_counter()) for process in agents]
    return RendezvousResult(
        codes == [0, 0], time.perf_counter() - start, find_errors("".join(log.read_text() for log in logs))
    )


def start_agent(endpoint: str, rdzv_id: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one agent of the rendezvous; it writes its output to `log`."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    argv += ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={rdzv_id}"]
    argv += ["--local-addr=127.0.0.1", str(ROOT / "programs" / "pi.py"), "--trials=1", "--intervals=1000"]
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("w") as file:
        return subprocess.Popen(argv, env=env, stdout=file, stderr=subprocess.STDOUT)


def wait_for_exit(process: subprocess.Popen[bytes], *, timeout_s: float) -> int:
    """The agent's exit code; an agent that takes too long gets SIGTERM, to end its workers, and then SIGKILL."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(timeout_s, 0))
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(15)
    process.kill()
    return process.wait()


def find_errors(log: str) -> tuple[str, ...]:
    """The last lines of the agents' tracebacks, causes first, without module names."""
    return tuple(re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|Failed)\b.*)", log, re.MULTILINE))


def describe_rendezvous(version: str, store: StartedEtcd, folder: Path) -> tuple[str, str, str]:
    """How an etcd answers GET /v2/keys, how two agents end with it, and a note."""
    status, _ = get(store.endpoint, "/v2/keys")
    health = get(store.endpoint, "/health")[1].strip()
    version_text = get(store.endpoint, "/version")[1].strip()
    result = run_agents(store.endpoint, "one", folder)
    if status == 200:
        same_id = run_agents(store.endpoint, "one", folder)
        new_id = run_agents(store.endpoint, "two", folder)
        note = f"same id again: {same_id}; new id: {new_id}"
    else:
        agent_error = result.errors[0] if result.errors else "nothing"
        note = f"`/health` says `{health}`, the agents say `{agent_error}`"
    if f'"etcdserver":"{version}"' not in version_text:
        note += f"; /version says `{version_text}`"
    return str(status), str(result), note


def measure(version: str, binary: Path, folder: Path) -> Row:
    """Test an etcd with --enable-v2, and without the flag if etcd refuses it."""
    with run_etcd(binary, folder / "with-flag", "--enable-v2") as store:
        if store.code is None:
            has_warning = "`enable-v2` is deprecated" in store.log.replace("\\", "")
            starts = "yes, with a warning" if has_warning else "yes"
            return Row(version, starts, *describe_rendezvous(version, store, folder))
    refusal = find_refusal(store.log) or "nothing about it"
    with run_etcd(binary, folder / "without-flag") as plain_store:
        rendezvous = describe_rendezvous(version, plain_store, folder)
        return Row(version, f"no: exit {store.code}, `{refusal}`", *rendezvous)


def find_refusal(log: str) -> str | None:
    """The line in which etcd refuses --enable-v2; None if there is none."""
    for line in log.splitlines():
        if "enable-v2" in line:
            return line
    return None


def build_row(version: str) -> Row:
    """The table's line of a version."""
    try:
        binary = build(version)
    except subprocess.CalledProcessError as error:
        return Row(version, "not built", "", "", " ".join(str(error.stderr).split()[-20:]))
    with tempfile.TemporaryDirectory() as folder:
        return measure(version, binary, Path(folder))


if __name__ == "__main__":
    if not importlib.util.find_spec("etcd"):
        sys.exit(f"{sys.executable} lacks python-etcd, which torchrun's etcd-v2 rendezvous imports")
    print(TABLE_HEADER, flush=True)
    for version in sys.argv[1:] or VERSIONS:
        print(build_row(version), flush=True)
