"""Jobs on hosts with a real OpenSSH server, also over a network that breaks."""

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes import sshd
from tests.processes.ssh_jobs import Planned, read_fetched_files, read_log_texts, run_steps
from tests.processes.sshd import Hosts
from tests.support.waiting import wait_until
from torchyard.backends import job_of
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

SKIP_REASON = sshd.find_obstacle()
pytestmark = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
# Adds up the ranks of two processes.
SUM_RANKS = """
import os, sys, torch
from torch import distributed, multiprocessing
def add(local, method, rank):
    distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
    total = torch.tensor([rank + 1.0])
    distributed.all_reduce(total)
    print("the sum is", total.item(), flush=True)
    distributed.destroy_process_group()
if __name__ == "__main__":
    rank, method = int(os.environ["RANK"]), sys.argv[2] if "spawn" in sys.argv else "env://"
    multiprocessing.spawn(add, (method, rank)) if "spawn" in sys.argv else add(0, method, rank)
"""


def test_job_runs_on_hosts_and_its_output_is_fetched(plan_job: Planned, hosts: Hosts) -> None:
    """Both hosts run the program in their homes; its lines and files are fetched, and nothing remains on them."""
    plan = plan_job()
    outcome, collected = run_steps(plan)
    assert (outcome.status.state, [log.lost for log in collected.logs]) == ("succeeded", ["", ""])
    assert read_log_texts(plan, 1) == ["found", *(f"line {number}" for number in range(10))]
    assert teardown(plan) == ()
    home = hosts.folder / "host-b" / ".torchyard" / "behind-ssh-a1b2c3d4-1"
    assert read_fetched_files(plan, 1) == {"checkpoints/rank-1": f"{home}/work"}
    assert hosts.list_leftovers() == []


def test_next_attempt_finds_every_checkpoint(plan_job: Planned) -> None:
    """The next attempt gets every host's checkpoints on each host, because rank 0 may then run on another one."""
    first = plan_job()
    second = plan_job(attempt=2)
    run_steps(first)
    teardown(first)
    run_steps(second)
    assert [read_log_texts(second, node)[0] for node in (0, 1)] == ["found rank-0 rank-1"] * 2


def test_folder_of_the_program_is_copied(plan_job: Planned, tmp_path: Path) -> None:
    """With options.source the program's folder is copied without .git, and the files it writes are fetched."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("")
    (tmp_path / "words.py").write_text("WORD = 'here'")
    code = "import os, words; print(words.WORD, os.path.exists('.git')); open('out.txt', 'w').write('new')"
    plan = plan_job(code=code, options={"source": "."})
    run_steps(plan)
    assert read_log_texts(plan, 0) == ["here False"]
    teardown(plan)
    assert read_fetched_files(plan, 0) == {"work/out.txt": "new"}


def test_code_starts_here_and_on_a_host_that_gets_it_once(plan_job: Planned, hosts: Hosts, tmp_path: Path) -> None:
    """A folder with a package runs as it was when it was loaded; a host gets it again only after an edit."""
    package = tmp_path / "mine" / "words"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WORD = 'before'")
    (tmp_path / "mine" / "train.py").write_text("import os, words; print(words.WORD, os.listdir())")
    local_host = {"host": "localhost", "address": f"{hosts.network}.254"}
    keys = {"code_folder": "mine", "program": "train.py", "args": [], "options": {"hosts": [local_host, "host-b"]}}
    plans = [plan_job(attempt=attempt, **keys) for attempt in (1, 2)]
    (package / "__init__.py").write_text("WORD = 'after'")
    plans.append(plan_job(attempt=3, **keys))
    archives: list[dict[str, int]] = []
    for plan in plans:
        job_of(plan).prepare()
        run_steps(plan)
        assert teardown(plan) == ()
        stored = list((hosts.folder / "host-b" / ".torchyard" / "code").iterdir())
        archives.append({path.name: path.stat().st_ino for path in stored})
    shutil.rmtree(hosts.folder / "host-b" / ".torchyard")
    words = [[read_log_texts(plan, node)[0].split()[0] for node in (0, 1)] for plan in plans]
    assert words == [["before"] * 2, ["before"] * 2, ["after"] * 2]
    assert [len(inodes) for inodes in archives] == [1, 1, 2]
    assert archives[0] == archives[1]  # a second archive would be another file


def test_broken_connections_lose_no_line(plan_job: Planned, hosts: Hosts) -> None:
    """Connections that are killed, or hang because the network is down, are reopened, and no line is lost."""
    os.environ["TORCHYARD_SSH"] = f"{hosts.ssh} -oServerAliveInterval=1 -oServerAliveCountMax=1"
    plan = plan_job(args=["5"])
    with ThreadPoolExecutor(1) as pool:
        disturbance = pool.submit(disturb, hosts, plan)
        outcome, collected = run_steps(plan)
        disturbance.result()
    assert (outcome.status.state, [log.lost for log in collected.logs]) == ("succeeded", ["", ""])
    assert [read_log_texts(plan, node)[1:] for node in (0, 1)] == [[f"line {number}" for number in range(500)]] * 2


def disturb(hosts: Hosts, plan: CommandPlan) -> None:
    """Once logs are copied, each host through one connection, kill that of one host and unplug the other."""
    wait_until(
        lambda: all(Path(log).exists() and "line 1" in Path(log).read_text() for log in plan.nodes.values()), 60.0
    )
    assert [len(hosts.list_sessions(name)) for name in ("host-a", "host-b")] == [1, 1]
    time.sleep(1)
    hosts.kill_connections("host-a")
    hosts.unplug("host-b", 4)


def test_unreachable_server_does_not_end_the_job(plan_job: Planned, hosts: Hosts) -> None:
    """A host that is unreachable for seconds while its job ends is polled until it responds."""
    plan = plan_job(args=["2"])
    handle = submit(plan, Deadlines())
    hosts.stop_server("host-b")
    restart_timer = threading.Timer(3.0, lambda: hosts.start_server("host-b"))
    restart_timer.start()
    assert wait(handle).status.state == "succeeded"
    restart_timer.join()
    assert read_log_texts(plan, 1)[-1] == "line 199"


def test_failure_on_a_host_is_diagnosed(plan_job: Planned) -> None:
    """The first host that fails ends the other one, and its last lines give the cause."""
    code = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('no such planet')\ntime.sleep(60)"
    outcome, collected = run_steps(plan_job(code=code))
    assert outcome.exit_codes["node-1"] == 1
    assert collected.failure
    assert (collected.failure.node, "no such planet" in collected.failure.sentence) == ("node-1", True)


def test_logs_and_files_of_a_stopped_job_are_fetched(plan_job: Planned, hosts: Hosts) -> None:
    """Teardown of a running job that no process watches fetches its logs and files first."""
    plan = plan_job(args=["60"])
    submit(plan, Deadlines())
    remote_folder = hosts.folder / "host-a" / ".torchyard"
    wait_until(lambda: any("line 5" in log.read_text() for log in remote_folder.rglob("log")))
    assert teardown(plan) == ()
    assert "line 5" in read_log_texts(plan, 0)
    assert "checkpoints/rank-0" in read_fetched_files(plan, 0)


def test_this_machine_can_be_one_of_the_hosts(plan_job: Planned, hosts: Hosts) -> None:
    """localhost can be one of the hosts, at the given address; nothing is copied to it."""
    local_host = {"host": "localhost", "address": f"{hosts.network}.254"}
    plan = plan_job(code=SUM_RANKS, args=["spawn", "env://"], options={"hosts": [local_host, "host-b"]})
    outcome, _ = run_steps(plan)
    assert [outcome.status.state, read_log_texts(plan, 0)[-1], read_log_texts(plan, 1)[-1]] == [
        "succeeded",
        *["the sum is 3.0"] * 2,
    ]


def test_second_submit_attaches_to_the_job(plan_job: Planned) -> None:
    """A second submit starts no process, and does not need the program on this machine any more."""
    plan = plan_job(args=["60"])
    first = submit(plan, Deadlines())
    assert plan.sites[0].work
    Path(plan.sites[0].work).unlink()
    second = submit(plan, Deadlines())
    assert (first.created, second.created) == (True, False)
    assert first.submitted_at == second.submitted_at


def test_interface_between_the_hosts_is_found(plan_job: Planned) -> None:
    """gloo and NCCL get the interface with the route to the other hosts, unless the user has set one."""
    code = "import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.environ['NCCL_SOCKET_IFNAME'])"
    plan = plan_job(code=code, env={"NCCL_SOCKET_IFNAME": "ib0"})
    run_steps(plan)
    assert [read_log_texts(plan, node) for node in (0, 1)] == [["eth7 ib0"]] * 2


def test_several_agents_share_a_host(plan_job: Planned) -> None:
    """A host that is named twice runs two agents in one folder, with its GPUs split between them."""
    code = "import os; print(os.environ['RANK'], os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd())"
    plan = plan_job(code=code, options={"hosts": ["host-a", "host-a"]}, resources={"gpus": 2})
    run_steps(plan)
    (first, second) = (read_log_texts(plan, node)[0].split() for node in (0, 1))
    assert (first[:2], second[:2], first[2] == second[2]) == (["0", "0,1"], ["1", "2,3"], True)


@pytest.mark.parametrize("keys", [
    {"agent": "launch", "rendezvous": "static"},
    {"agent": "torchrun", "rendezvous": "etcd-v2"},
    {"rendezvous": "file", "args": ["spawn", "{rendezvous}"]},
], ids=lambda keys: f"{keys.get('agent', 'spawn')}-{keys['rendezvous']}")  # fmt: skip
def test_every_rendezvous_works_between_hosts(plan_job: Planned, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Processes of two hosts add up their ranks with every agent and rendezvous."""
    (tmp_path / "disk").mkdir()
    shared_file = {"shared_file": str(tmp_path / "disk" / "meet")} if keys["rendezvous"] == "file" else {}
    plan = plan_job(code=SUM_RANKS, **({"args": []} | keys), **shared_file)
    outcome, _ = run_steps(plan)
    texts = read_log_texts(plan, 0) + read_log_texts(plan, 1)
    sums = [text for text in texts if "the sum is" in text]
    assert (outcome.status.state, len(sums), teardown(plan)) == ("succeeded", 2, ())
    assert all(text.endswith("the sum is 3.0") for text in sums)
    assert list((tmp_path / "disk").iterdir()) == []
