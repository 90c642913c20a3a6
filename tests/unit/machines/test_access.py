"""Commands beside the processes of a job on this machine, and the command lines for hosts behind ssh."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load
from tests.doubles.runai_jobs import Planned, cli, runai_planned, start_agents
from tests.processes.lone_processes import build_lone_plan
from torchyard.common.project_root import ROOT
from torchyard.machines.access import MachinesAccess, build_forward_argv
from torchyard.machines.host_script import build_enter_command
from torchyard.machines.job import MachinesJob
from torchyard.machines.processes import build_argv
from torchyard.model.errors import HostError
from torchyard.model.plan import CommandPlan, HostScript, Site
from torchyard.model.profile import Deadlines

__all__ = ["cli", "runai_planned"]
CODE = """
import sys
from torchyard.machines.access import MachinesAccess
from torchyard.model.plan import CommandPlan
access = MachinesAccess(CommandPlan.model_validate_json(sys.argv[1]))
"""


@pytest.fixture
def plan(write: Write, tmp_path: Path) -> Iterator[CommandPlan]:
    """The plan of a job of two processes that runs here."""
    keys = {"agent": "none", "rendezvous": "env", "nodes": 2, "env": {"FOO": "bar"}}
    job_plan = build_lone_plan(load(write(code="import time; time.sleep(600)", **keys)), tmp_path / "run")
    MachinesJob(job_plan).submit(Deadlines(), None)
    yield job_plan
    assert MachinesJob(job_plan).remove() == []


def run_on_nodes(plan: CommandPlan, *argv: str) -> tuple[dict[str, Any], dict[tuple[str, int], bytes]]:
    """The results of a command by node, and its output by node and descriptor."""
    output: dict[tuple[str, int], bytes] = {}

    def take(node: str, descriptor: int, data: bytes) -> None:
        output[node, descriptor] = output.get((node, descriptor), b"") + data

    return MachinesAccess(plan).run_on_nodes(tuple(plan.nodes), argv, take), output


def become(plan: CommandPlan, call: str) -> subprocess.CompletedProcess[str]:
    """Call a method that replaces its process, in a process of its own with a line of input."""
    command = [sys.executable, "-c", f"{CODE}access.{call}", plan.model_dump_json()]
    return subprocess.run(command, input="a line\n", capture_output=True, text=True, check=False, cwd=ROOT)


def test_command_runs_beside_every_process(plan: CommandPlan) -> None:
    """A command has each process's own environment, no input, and its own exit code."""
    results, output = run_on_nodes(plan, "sh", "-c", "cat; echo $FOO $RANK; echo bad >&2; exit $RANK")
    assert results == {"node-0": 0, "node-1": 1}
    assert output == {
        ("node-0", 1): b"bar 0\n",
        ("node-1", 1): b"bar 1\n",
        ("node-0", 2): b"bad\n",
        ("node-1", 2): b"bad\n",
    }


def test_command_in_one_node_replaces_this_process(plan: CommandPlan) -> None:
    """A command in one node has our input and output, and its exit code is ours."""
    completed = become(plan, "run_command('node-1', ['sh', '-c', 'cat; echo $RANK; exit 5'], has_terminal=False)")
    assert (completed.stdout, completed.returncode) == ("a line\n1\n", 5), completed.stderr


def test_pipe_that_closes_ends_a_command(plan: CommandPlan) -> None:
    """A command whose reader is gone ends by SIGPIPE, as in a shell."""
    call = "run_command('node-0', ['sh', '-c', 'trap > /dev/null; kill -PIPE $$; echo alive'], has_terminal=False)"
    assert become(plan, call).stdout == ""


def test_killed_command_has_the_exit_code_of_a_shell(plan: CommandPlan) -> None:
    """A command that a signal ends has the exit code 128 and the signal's number."""
    results, _ = run_on_nodes(plan, "sh", "-c", "kill -9 $$")
    assert set(results.values()) == {137}


def test_host_that_cannot_be_called_costs_its_own_result(plan: CommandPlan) -> None:
    """A host whose script cannot be started is an error of its node; the other node has its result."""
    first, second = plan.processes
    broken = second.model_copy(update={"script": HostScript(host="localhost", argv=("/nosuch/python",))})
    results, _ = run_on_nodes(plan.model_copy(update={"processes": (first, broken)}), "true")
    assert results["node-0"] == 0
    assert isinstance(results["node-1"], HostError)


def test_terminal_and_port_are_ssh_options(plan: CommandPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind ssh a command gets a terminal if we have one, and a port is forwarded by ssh itself, with our options."""
    monkeypatch.setenv("TORCHYARD_SSH", "ssh -F own")
    site = Site(host="gpu1", folder="site", python="python3", work=None, files="/files")
    script = HostScript(host="gpu1", argv=("python3", "supervisor.py"), site=site)
    process = plan.processes[0].model_copy(update={"script": script})
    command = build_enter_command(process, ["nvidia-smi", "a b"])
    argv = build_argv("gpu1", command, has_terminal=True)
    assert argv[:3] == ("ssh", "-F", "own")
    assert ("-t" in argv, "-T" in argv, "-oBatchMode=yes" in argv) == (True, False, True)
    assert argv[-1].endswith(f"supervisor.py enter {process.folder} nvidia-smi 'a b'")
    assert "-T" in build_argv("gpu1", command)
    argv = build_forward_argv(process, 16006, 6006)
    assert argv[-2:] == ("127.0.0.1:16006:localhost:6006", "gpu1")
    assert "-oClearAllForwardings=yes" not in argv  # it would clear this one too


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_pod_of_runai_is_entered_by_its_cli(runai_planned: Planned, generation: str) -> None:
    """A command in a pod of Run:ai is the CLI's exec, and a port its port-forward."""
    plan = runai_planned("sleep 600", generation)
    start_agents(plan)
    pod = f"{plan.job}-worker-0"
    try:
        completed = become(plan, "run_command('node-1', ['sh', '-c', 'cat; echo $POD $MODES'], has_terminal=False)")
        assert completed.stdout == f"a line\n{pod} stdin\n", completed.stderr
        assert become(plan, "forward_port('node-1', 1, 2)").stdout == f"localhost 1:2 {pod}\n"
    finally:
        MachinesJob(plan).remove()
