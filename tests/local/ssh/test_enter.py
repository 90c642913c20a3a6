"""`torchyard shell`, `exec` and `forward` on hosts with a real OpenSSH server."""

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.processes import sshd
from tests.processes.ssh_jobs import Planned
from tests.processes.sshd import Hosts
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

SKIP_REASON = sshd.find_obstacle()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
CODE = "import sys; from torchyard.cli.main import main; sys.exit(main())"
NAME = "behind-ssh-a1b2c3d4"


@pytest.fixture
def plan(plan_job: Planned) -> Iterator[CommandPlan]:
    """The plan of a job that runs on both hosts, whose run has a folder here."""
    job_plan = plan_job(args=["600"], env={"FOO": "bar"})
    folder = RunFolder(runs_folder() / NAME)
    folder.save_attempt_plan(1, AttemptPlan(plan=job_plan, deadlines=Deadlines()))
    folder.record_event("start", run="an-id")
    submit(job_plan, Deadlines())
    yield job_plan
    teardown(job_plan)


def call(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *args]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)


def test_command_runs_beside_the_process_of_a_host(plan: CommandPlan, hosts: Hosts) -> None:
    """A command on a host has the process's environment and work folder, our input and its own exit code."""
    script = 'cat; echo "$FOO $RANK $PWD"; env | grep -c TORCHYARD_JOB; exit 3'
    completed = call("exec", NAME, "--node", "1", "--", "sh", "-c", script, text="a line\n")
    work = hosts.folder / "host-b" / ".torchyard" / f"{NAME}-1" / "work"
    assert (completed.stdout, completed.returncode) == (f"a line\nbar 1 {work}\n0\n", 3), completed.stderr
    completed = call("exec", NAME, "--all", "--", "sh", "-c", "exit $((RANK * 4))")
    assert (completed.stderr, completed.returncode) == ("node-1: exit code 4\n", 4)
    assert teardown(plan) == ()
    assert "this host has no folder of the job" in call("exec", NAME, "true").stderr


def test_shell_on_a_host_has_a_terminal(plan: CommandPlan) -> None:
    """A shell in a terminal gets one on its host, through ssh."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", CODE, "shell", NAME]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True) as shell:
        os.write(master, b'unset HISTFILE; tty; echo "$FOO-$RANK"; exit 6\r')
        assert shell.wait(60) == 6
    shown = os.read(master, 65536)
    assert b"/dev/pts/" in shown
    assert b"bar-0" in shown
    assert b"Connection to" not in shown
    os.close(master)
    os.close(slave)


def test_port_leads_to_the_host(plan: CommandPlan, hosts: Hosts) -> None:
    """A forwarded port of this machine reaches a server on the host's own loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "import socket; s = socket.create_server(('127.0.0.1', 8000)); c, _ = s.accept(); c.sendall(b'here')"
    with (
        subprocess.Popen([*hosts.get_prefix("host-b"), sys.executable, "-c", code]) as server,
        subprocess.Popen(
            [sys.executable, "-c", CODE, "forward", NAME, f"{port}:8000", "--node", "1"], cwd=ROOT
        ) as forwarding,
    ):
        received: list[bytes] = []

        def read() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                    received.append(client.recv(10))
            except OSError:
                return False
            return b"here" in received

        wait_until(read, timeout_s=60)
        forwarding.kill()
        server.kill()
