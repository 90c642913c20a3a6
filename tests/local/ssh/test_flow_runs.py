"""Whole runs on hosts that ssh reaches: the flow, its metrics, and lost launchers."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.sweep import sweep
from flows.train import train
from tests.conftest import Write
from tests.processes import sshd
from tests.processes.flow_processes import TICK_PROGRAM, FlowRunProcesses, have_ranks_ticked
from tests.processes.local_runs import WITHOUT_AGENT
from tests.processes.sshd import Hosts
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_run_folders

SKIP_REASON = sshd.find_obstacle()
pytestmark = [pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON), pytest.mark.usefixtures("api")]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts that the user's ssh can reach; their runs are swept before they stop."""
    ssh_hosts = Hosts(tmp_path / "ssh")
    try:
        ssh_hosts.start()
        os.environ["TORCHYARD_SSH"] = ssh_hosts.ssh
        yield ssh_hosts
        sweep(runs=[folder.name for folder in list_run_folders()], return_state=True)
    finally:
        ssh_hosts.stop()


def build_host_options(hosts: Hosts) -> dict[str, object]:
    host_settings = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
    return {"hosts": host_settings, "python": sys.executable}


def test_digits_are_learned_over_two_hosts(hosts: Hosts, write: Write) -> None:
    """Two hosts train one network; its accuracy and checkpoint are fetched, and nothing remains on either host."""
    program = str(ROOT / "programs" / "digits.py")
    keys = {"nodes": 2, "metrics": "json-lines", "options": build_host_options(hosts)}
    state = train(str(write(program=program, args=["--epochs=2"], **keys)), return_state=True)
    assert state.is_completed(), state.message
    report = list_run_folders()[-1].report()
    assert report
    assert report.collected
    assert float(str(report.collected.metrics.rows[-1]["accuracy"])) > 0.8
    assert len(list(Path(report.folder).glob("attempt-1/node-*/files/checkpoints/step-*"))) == 2
    assert (report.leftovers, hosts.list_leftovers()) == ((), [])


# --- lost launchers


@pytest.fixture
def lose_run(hosts: Hosts, write: Write, tmp_path: Path) -> Callable[..., FlowRunProcesses]:
    """Start a run on both hosts, and kill its launcher once both ranks print lines."""

    def create_lost_run(ticks: int, **keys: object) -> FlowRunProcesses:
        (tmp_path / "truth").mkdir()
        args = [f"--truth={tmp_path}/truth", f"--ticks={ticks}"]
        options = build_host_options(hosts)
        path = write(program=TICK_PROGRAM, args=args, nodes=2, options=options, **WITHOUT_AGENT, **keys)
        run = FlowRunProcesses(path)
        run.kill_when(lambda: have_ranks_ticked(tmp_path))
        return run

    return create_lost_run


def has_every_line_once(run: FlowRunProcesses, truth: Path) -> bool:
    """Whether every line of both hosts is in the local logs exactly once."""
    logs = "".join(path.read_text() for path in run.folder.path.glob("attempt-1/node-*/log"))
    printed_lines = [path.read_text().splitlines() for path in truth.glob("*")]
    return len(printed_lines) == 2 and all(logs.count(line) == 1 for line in itertools.chain(*printed_lines))


def test_restarted_launcher_attaches_to_its_hosts(
    lose_run: Callable[..., FlowRunProcesses], hosts: Hosts, tmp_path: Path
) -> None:
    """After a SIGKILL the restarted run attaches to its hosts and gets every line exactly once."""
    run = lose_run(ticks=60)
    assert run.start_process().wait() == 0
    assert run.read_state().is_completed()
    assert has_every_line_once(run, tmp_path / "truth")
    assert hosts.list_leftovers() == []


def test_hosts_end_a_job_whose_lease_expires(
    lose_run: Callable[..., FlowRunProcesses], hosts: Hosts, tmp_path: Path
) -> None:
    """Every host ends the job when its lease expires; a later launch reports that cause and fetches the logs."""
    run = lose_run(ticks=6000, deadlines={"lease": "6s"})
    wait_until(lambda: not any(hosts.list_processes(name) for name in hosts.addresses))
    assert len([path for path in hosts.list_leftovers() if path.endswith(".torchyard")]) == 2
    assert run.start_process().wait() == 0
    assert "its lease was not renewed for 6 s (deadlines.lease)" in str(run.read_state().message)
    assert (has_every_line_once(run, tmp_path / "truth"), hosts.list_leftovers()) == (True, [])


def test_sweep_clears_the_hosts_and_fetches_the_logs(
    lose_run: Callable[..., FlowRunProcesses], hosts: Hosts, tmp_path: Path
) -> None:
    """A sweep on this machine ends a run whose launcher was killed, after fetching its logs from the hosts."""
    run = lose_run(ticks=6000)
    sweep(runs=[folder.name for folder in list_run_folders()], return_state=True)
    assert (run.read_state().name, hosts.list_leftovers()) == ("Swept", [])
    assert has_every_line_once(run, tmp_path / "truth")


def test_run_continues_from_another_machine(
    lose_run: Callable[..., FlowRunProcesses], hosts: Hosts, tmp_path: Path
) -> None:
    """A machine without any files of the run finds its job on the hosts and completes it with every line."""
    run = lose_run(ticks=300)
    hosts.age_renewals()
    os.environ["TORCHYARD_RUNS"] = str(tmp_path / "elsewhere")
    assert run.start_process().wait() == 0
    assert run.read_state().is_completed(), run.read_state().message
    assert (has_every_line_once(run, tmp_path / "truth"), hosts.list_leftovers()) == (True, [])
    assert run.folder.path.parent.name == "elsewhere"
