"""Tests which etcd versions serve torchrun's etcd-v2 rendezvous: each is built and started as in the guides.

    .venv/bin/python tests/cluster/etcd_matrix.py [VERSION ...]

Prints the table of docs/etcd.md. Building needs Go; an existing binary at ~/.cache/torchyard/etcd/VERSION/etcd is used
as it is. If the v2 API is not served, two agents try anyway, and the note says how they fail.
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
START = 15.0  # seconds that an etcd may take to answer
MEET = 120.0  # seconds that a pair of agents may take
HEAD = "| etcd | starts with `--enable-v2` | `GET /v2/keys` | two agents | note |\n|---|---|---|---|---|"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Store(NamedTuple):
    """A started etcd: its address, its exit code if it has ended, and its log so far."""

    endpoint: str
    code: int | None
    log: str


class Pair(NamedTuple):
    """The result of two agents: whether they completed the rendezvous, in what time, with which errors."""

    ok: bool
    seconds: float
    errors: tuple[str, ...]

    def __str__(self) -> str:
        end = "ok" if self.ok else self.errors[-1].partition(":")[0] if self.errors else "no error line"
        return f"{end} in {self.seconds:.1f} s"


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
    """Build etcd from its Go module, within a module created for it; raises CalledProcessError."""
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
def etcd(binary: Path, folder: Path, *flags: str) -> Iterator[Store]:
    """An etcd with the guides' flags on loopback; it is killed when the block ends."""
    client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    folder.mkdir()
    words = {
        "--name": "etcd-server",
        "--data-dir": str(folder / "data"),
        "--initial-advertise-peer-urls": f"http://{peer}",
        "--listen-peer-urls": f"http://{peer}",
        "--listen-client-urls": f"http://{client}",
        "--advertise-client-urls": f"http://{client}",
        "--initial-cluster": f"etcd-server=http://{peer}",
        "--initial-cluster-state": "new",
    }
    with (folder / "log").open("w") as log:
        argv = [str(binary), *flags, *(word for pair in words.items() for word in pair)]
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Store(client, first_answer(process, client), (folder / "log").read_text())
    finally:
        process.kill()
        process.wait()


def first_answer(process: subprocess.Popen[bytes], client: str) -> int | None:
    """Wait until etcd answers on /health (returns None) or ends (returns its exit code)."""
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None and get(client, "/health")[0] is None:
        time.sleep(0.1)
    return process.poll()


def get(endpoint: str, path: str) -> tuple[int | None, str]:
    """The status and body of an answer; the status is None if nothing answers."""
    try:
        with DIRECT.open(f"http://{endpoint}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def meet(endpoint: str, rdzv_id: str, folder: Path) -> Pair:
    """Run two torchrun agents on this machine, with one rank each, through an all-reduce to their end."""
    logs = [Path(tempfile.mkdtemp(dir=folder), "log") for _ in range(2)]
    start = time.perf_counter()
    agents = [agent(endpoint, rdzv_id, log) for log in logs]
    codes = [ended(each, start + MEET - time.perf_counter()) for each in agents]
    return Pair(codes == [0, 0], time.perf_counter() - start, complaints("".join(log.read_text() for log in logs)))


def agent(endpoint: str, rdzv_id: str, log: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    words += ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={rdzv_id}"]
    words += ["--local-addr=127.0.0.1", str(ROOT / "programs" / "pi.py"), "--trials=1", "--intervals=1000"]
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("w") as out:
        return subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The agent's exit code; an agent that takes too long gets SIGTERM, to end its workers, and then SIGKILL."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(seconds, 0))
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(15)
    process.kill()
    return process.wait()


def complaints(log: str) -> tuple[str, ...]:
    """The last lines of the agents' tracebacks, causes first, without module names."""
    return tuple(re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|Failed)\b.*)", log, re.MULTILINE))


def met(version: str, store: Store, folder: Path) -> tuple[str, str, str]:
    """How an etcd answers GET /v2/keys, how two agents end with it, and a note."""
    status, _ = get(store.endpoint, "/v2/keys")
    health, told = (get(store.endpoint, path)[1].strip() for path in ("/health", "/version"))
    first = meet(store.endpoint, "one", folder)
    if status == 200:
        again, other = meet(store.endpoint, "one", folder), meet(store.endpoint, "two", folder)
        note = f"same id again: {again}; new id: {other}"
    else:
        note = f"`/health` says `{health}`, the agents say `{first.errors[0] if first.errors else 'nothing'}`"
    return str(status), str(first), note if f'"etcdserver":"{version}"' in told else f"{note}; /version says `{told}`"


def measure(version: str, binary: Path, folder: Path) -> Row:
    """Test an etcd with --enable-v2, and without the flag if etcd refuses it."""
    with etcd(binary, folder / "asked", "--enable-v2") as store:
        if store.code is None:
            warns = "`enable-v2` is deprecated" in store.log.replace("\\", "")
            return Row(version, "yes, with a warning" if warns else "yes", *met(version, store, folder))
    said = next((line for line in store.log.splitlines() if "enable-v2" in line), "nothing about it")
    with etcd(binary, folder / "plain") as plain:
        return Row(version, f"no: exit {store.code}, `{said}`", *met(version, plain, folder))


def row(version: str) -> Row:
    try:
        binary = build(version)
    except subprocess.CalledProcessError as error:
        return Row(version, "not built", "", "", " ".join(str(error.stderr).split()[-20:]))
    with tempfile.TemporaryDirectory() as folder:
        return measure(version, binary, Path(folder))


if __name__ == "__main__":
    if not importlib.util.find_spec("etcd"):
        sys.exit(f"{sys.executable} lacks python-etcd, which torchrun's etcd-v2 rendezvous imports")
    print(HEAD, flush=True)
    for each in sys.argv[1:] or VERSIONS:
        print(row(each), flush=True)
