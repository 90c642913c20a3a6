"""`torchyard shell`, `exec` and `forward` in the pods of a job on real nodes, with the rights of rbac.yaml."""

import contextlib
import hashlib
import json
import os
import pty
import select
import socket
import subprocess
import sys
import termios
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.jobs import require_real_nodes, until
from tests.cluster.objects import delete_by_name
from torchyard.cluster import create
from torchyard.cluster.access import access_pods_of
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.run import Run
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder

CODE = "import sys; from torchyard.cli.main import main; sys.exit(main())"
SMALL: dict[str, Any] = json.loads((ROOT / "docs" / "small.json").read_text())
SLEEPING = {"agent": "none", "rendezvous": "env", "program": "/bin/sleep", "args": ["600"], "metrics": "none"}


@pytest.fixture(scope="module")
def plan(admin_client: Client, user_overrides: dict[str, Any], namespace: str, tmp_path_factory: Any) -> Iterator[Any]:
    """The plan of a job of two real pods that sleep."""
    require_real_nodes(admin_client)
    overrides = SMALL | user_overrides | {"cluster.namespace": namespace} | SLEEPING
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(tmp_path_factory.mktemp("run")))
    plan = registry.make_plan(load_profile("yolov5-job", overrides), run)
    assert isinstance(plan, ManifestPlan)
    create.create_job(plan)
    until(lambda: is_running(plan))
    yield plan
    get_renewer().drop(plan)
    delete_by_name(Client(Cluster(namespace=namespace)), "batch/v1", "Job", plan.job)


def is_running(plan: ManifestPlan) -> bool:
    results = access_pods_of(plan).run_on_nodes(tuple(plan.nodes), ["true"], lambda *_: None)
    return set(results.values()) == {0}


@pytest.fixture
def name(plan: ManifestPlan) -> str:
    """The name of the job's run, which has a folder here."""
    folder = RunFolder(runs_folder() / plan.run)
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    folder.record_event("start", run="an-id")
    return plan.run


def call(*args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", CODE, *args], input=data, capture_output=True, check=False, cwd=ROOT)


def test_commands_have_our_input_and_their_exit_code(name: str) -> None:
    """A command reads our stdin to its end, however large, and its output, its errors and its exit code are ours."""
    data = os.urandom(2_000_000)
    completed = call("exec", name, "--node", "1", "--", "sh", "-c", "sha256sum; echo bad >&2; exit 3", data=data)
    assert completed.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert (completed.stderr, completed.returncode) == (b"bad\n", 3)
    assert call("exec", name, "--", "cat", data=data).stdout == data
    assert b"nosuch" in call("exec", name, "--", "nosuch").stderr
    completed = call("exec", name, "--all", "--", "sh", "-c", "echo $RANK; exit $RANK")
    assert sorted(line.split()[-1] for line in completed.stdout.splitlines()) == [b"0", b"1"]
    assert completed.returncode == 1


def test_shell_has_our_terminal(name: str) -> None:
    """A shell in a terminal has one of its size, and the terminal's mode is restored at its end."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 99))
    mode = termios.tcgetattr(slave)
    command = [sys.executable, "-c", CODE, "shell", name]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT) as process:
        until(lambda: termios.tcgetattr(slave) != mode)
        # A kubelet starts the shell and sets its size at the same time.
        os.write(master, b"until stty size | grep -q ^33; do sleep 0.1; done; stty size; exit 6\r")
        shown = b""
        while b"33 99" not in shown:
            assert select.select([master], [], [], 120)[0], shown
            shown += os.read(master, 65536)
        assert process.wait(30) == 6
    assert termios.tcgetattr(slave) == mode
    os.close(master)
    os.close(slave)


def test_port_leads_to_the_pod(name: str) -> None:
    """A forwarded port reaches a server in the pod, again and again; without one the reason is printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = ["exec", name, "--", "python3", "-m", "http.server", "--directory", "/etc", "8000"]
    with start("forward", name, f"{port}:8000") as forwarding:
        assert forwarding.stderr
        assert b"until Ctrl-C" in forwarding.stderr.readline()
        with pytest.raises(OSError, match=r"closed|reset"):
            read_url(port)
        assert b"refused" in forwarding.stderr.readline()
        with start(*serve):
            until(lambda: can_read(port))
            assert [b"root:" in read_url(port) for _ in range(3)] == [True] * 3


@contextlib.contextmanager
def start(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Call the command without input; it is killed at the end."""
    command = [sys.executable, "-c", CODE, *args]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def read_url(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/passwd", timeout=10) as response:
        return bytes(response.read())


def can_read(port: int) -> bool:
    try:
        return bool(read_url(port))
    except OSError:
        time.sleep(0.2)
        return False
