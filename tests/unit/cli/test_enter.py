"""`torchyard shell`, `exec` and `forward`."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.conftest import Write, load
from tests.doubles.leases import RUN, build_lease, build_object
from tests.doubles.pod_sessions import PodSessions
from tests.processes.lone_processes import build_lone_plan
from torchyard.cli.enter import PortPair, choose_node, find_live_plan, parse_ports
from torchyard.cli.main import build_parser, main
from torchyard.common.project_root import ROOT
from torchyard.machines.job import MachinesJob
from torchyard.model.errors import SelectionError, TorchyardError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder

NAME = f"sample-{uuid4().hex[:8]}"  # supervisors are found by the name of their run's folder, on the whole machine


@pytest.fixture
def run(write: Write) -> RunFolder:
    """A run of two nodes whose first attempt has a plan."""
    folder = RunFolder(runs_folder() / NAME)
    keys = {"agent": "none", "rendezvous": "env", "nodes": 2, "env": {"FOO": "bar"}}
    plan = build_lone_plan(load(write(code="import time; time.sleep(600)", **keys)), folder.path)
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    folder.record_event("start", run="an-id", folder=str(folder.path))
    return folder


@pytest.fixture
def plan(run: RunFolder) -> Iterator[CommandPlan]:
    """The plan of the run, whose processes run."""
    (plan,) = run.plans()
    assert isinstance(plan, CommandPlan)
    MachinesJob(plan).submit(Deadlines(), None)
    yield plan
    MachinesJob(plan).remove()


def call(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Call the command in a process of its own, which it may replace."""
    code = "import sys; from torchyard.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)


def test_shell_in_a_pipe_runs_the_lines_of_stdin(plan: CommandPlan) -> None:
    """Without a terminal the shell is a command: it reads stdin, and its exit code is that of the verb."""
    completed = call("shell", NAME, text="echo $FOO $RANK\nexit 5\n")
    assert (completed.stdout, completed.returncode) == ("bar 0\n", 5), completed.stderr
    assert call("shell", NAME, "--node", "1", text="echo $RANK").stdout == "1\n"


def test_shell_in_a_terminal_has_one(plan: CommandPlan) -> None:
    """With a terminal the shell is interactive, and leaves it when it exits."""
    master, slave = pty.openpty()
    code = "import sys; from torchyard.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "shell", NAME], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT
    ) as process:
        os.write(master, b"tty && echo $FOO-$RANK; exit 6\r")
        exit_code = process.wait(60)
    shown = os.read(master, 65536)
    assert exit_code == 6, shown
    assert b"/dev/pts/" in shown
    assert b"bar-0" in shown
    os.close(master)
    os.close(slave)


def test_exec_in_all_nodes_prints_whole_lines(plan: CommandPlan) -> None:
    """Each line has its node, also one without a line end; the exit code is that of the first node that failed."""
    completed = call("exec", NAME, "--all", "--", "sh", "-c", 'echo one; printf "rank $RANK"; exit $((RANK * 3))')
    assert sorted(completed.stdout.splitlines()) == [
        "node-0 | one",
        "node-0 | rank 0",
        "node-1 | one",
        "node-1 | rank 1",
    ], completed.stderr
    assert (completed.stderr, completed.returncode) == ("node-1: exit code 3\n", 3)


def test_ended_run_is_a_sentence_with_its_logs(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, or an attempt, that has ended is not entered: the sentence has the folder of its logs."""
    run.save_outcome(1, Outcome(status=Status(state="failed", reason="it ended"), exit_codes={}))
    assert main(["shell", NAME]) == 1
    assert "the job of attempt 1 has ended" in capsys.readouterr().err
    run.record_event("end", end="succeeded")
    for verb in (["shell", NAME], ["exec", NAME, "ls"], ["forward", NAME, "6006"]):
        assert main(verb) == 1
        message = "the run has ended (succeeded), and has no nodes any more; its logs are in"
        assert capsys.readouterr().err == f"{NAME}: {message} {run.attempt(1)}\n"


def test_run_that_was_given_up_can_be_entered(run: RunFolder) -> None:
    """A run whose launcher gave up may still have its job: its host decides."""
    run.record_event("step", name="submit")
    run.record_event("end", end="gave-up")
    assert find_live_plan(NAME) == run.plans()[-1]


def test_node_is_chosen_by_name_or_number(run: RunFolder) -> None:
    """A node is named, or counted; a wrong name lists the nodes."""
    (plan,) = run.plans()
    nodes = tuple(plan.nodes)
    assert [choose_node(nodes, name) for name in (None, "node-1", "1")] == ["node-0", "node-1", "node-1"]
    for name in ("2", "-1", "worker-0"):
        with pytest.raises(SelectionError, match="there are 2: node-0, node-1"):
            choose_node(nodes, name)


def test_ports_are_one_or_two() -> None:
    """A port stands for both ends; a text that is not a port, or is out of range, is one error."""
    assert (parse_ports("6006"), parse_ports("16006:6006")) == (PortPair(6006, 6006), PortPair(16006, 6006))
    for text in ("", "a", "0", "65536", "1:2:3", "1:-2"):
        with pytest.raises(TorchyardError, match="is not a port: use PORT"):
            parse_ports(text)


def test_options_of_a_command_are_its_own() -> None:
    """What follows `--` belongs to the command, options and another `--` included."""
    args = build_parser().parse_args(["exec", NAME, "--node", "1", "--", "ls", "--all", "--", "-l"])
    assert (args.node, args.all, args.command) == ("1", False, ["ls", "--all", "--", "-l"])


# --- a run that another machine started


@pytest.fixture
def leased_run(pod_sessions: PodSessions) -> PodSessions:
    """A run in the cluster that this machine does not know, with two pods that run."""
    pod_sessions.put(build_lease(ago=10))
    for node in ("worker-1", "worker-0"):
        pod = build_object("v1", "Pod", f"{RUN}-1-{node}")
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
        pod_sessions.put(pod | {"spec": {"containers": [{"name": "main"}]}, "status": status})
    return pod_sessions


def test_pod_of_another_machines_run_is_entered(leased_run: PodSessions) -> None:
    """With `--cluster` a command or a shell runs in the pod of the chosen node, with the input of the verb."""
    completed = call("exec", RUN, "--cluster", "--node", "1", "--", "sh", "-c", "cat; exit 4", text="one\n")
    assert (completed.stdout, completed.returncode) == ("one\n", 4), completed.stderr
    completed = call("shell", RUN, "--cluster", text="echo two; exit 5\n")
    assert (completed.stdout, completed.returncode) == ("two\n", 5), completed.stderr
    paths = [request.path for request in leased_run.find_requests("GET", "/exec")]
    assert [path.split("/")[-2] for path in paths] == [f"{RUN}-1-worker-1", f"{RUN}-1-worker-0"]


def test_all_pods_of_another_machines_run_are_entered(
    leased_run: PodSessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """`exec --all --cluster` runs a command in each pod of the run."""
    assert main(["exec", RUN, "--all", "--cluster", "--", "echo", "one"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["worker-0 | one", "worker-1 | one"]


def test_port_after_cluster_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`--cluster 6006` takes the port as its context, which the error about the missing port states."""
    assert main(["forward", RUN, "--cluster", "6006"]) == 2
    assert "write --cluster last" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["shell", RUN], ["exec", RUN, "ls"], ["forward", RUN, "6006"]])
def test_nodes_of_another_machines_run_are_those_with_pods(
    leased_run: PodSessions, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    """A wrong node lists the nodes by their pods."""
    assert main([*verb, "--node", "7", "--cluster"]) == 3
    assert capsys.readouterr().err == "7: the job has no such node; there are 2: worker-0, worker-1\n"
