"""Hosts behind a real OpenSSH: what a run finds there, what it does to them, and what a network does to it."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import sshd
from tests.conftest import RUN_ID, Write, command_plan_of, load
from tests.sshd import Hosts, until
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.staging import find_last_attempt
from torchyard.model.errors import HostError, RunInUseError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Collected, Outcome
from torchyard.run.folder import RunFolder
from torchyard.run.takeover import adopt_run
from torchyard.steps.collect import collect
from torchyard.steps.preflight import run_checks
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

WHY = sshd.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=WHY)]
# A program without torch, which prints and saves; the agents are left out.
TALK = """
import os, sys, time
from pathlib import Path
rank, seconds = os.environ["RANK"], float(sys.argv[1])
saved = Path(os.environ["TORCHYARD_CHECKPOINTS"])
print("found", *sorted(path.name for path in saved.iterdir()))
(saved / f"rank-{rank}").write_text(os.getcwd())
for number in range(int(seconds * 100)):
    print("line", number)
    time.sleep(0.01)
"""
Planned = Callable[..., CommandPlan]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("ssh"))
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture
def hosts(both: Hosts) -> Hosts:
    """Two hosts, which the user's ssh knows."""
    os.environ["TORCHYARD_SSH"] = both.ssh
    return both


@pytest.fixture
def thought(hosts: Hosts, write: Write, tmp_path: Path) -> Planned:
    """A job of two talking nodes, with the given keys changed."""

    def plan(attempt: int = 1, options: dict[str, Any] | None = None, run: str = "run", **keys: Any) -> CommandPlan:
        named = [{"host": name, "address": address} for name, address in hosts.addresses.items()]
        chosen = {"hosts": named, "python": sys.executable, **(options or {})}
        document = {"code": TALK, "args": ["0.1"], "nodes": 2, "agent": "none", "rendezvous": "env", **keys}
        return command_plan_of(load(write(**document, options=chosen)), tmp_path / run, attempt)

    return plan


@pytest.fixture
def planned(thought: Planned, hosts: Hosts) -> Iterator[Planned]:
    """The same, gone after the test."""
    made: list[CommandPlan] = []

    def plan(**keys: Any) -> CommandPlan:
        made.append(thought(**keys))
        return made[-1]

    yield plan
    for each in made:
        assert teardown(each) == ()
    assert hosts.left() == []


def carry(plan: CommandPlan) -> tuple[Outcome, Collected]:
    """From submit to collect."""
    ensure_rendezvous(plan)
    outcome = wait(submit(plan, Deadlines()))
    return outcome, collect(plan, outcome, "none")


def texts(plan: CommandPlan, node: int) -> list[str]:
    return [line.partition(" | ")[2] for line in Path(plan.on[node].log).read_text().splitlines()]


def files(plan: CommandPlan, node: int) -> dict[str, str]:
    """What came home from a node."""
    folder = Path(plan.on[node].log).parent / "files"
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_job_runs_there_and_all_of_it_comes_home(planned: Planned, hosts: Hosts) -> None:
    """Both hosts run the program in their own homes; its lines and its files come back, and nothing is left there."""
    plan = planned()
    outcome, collected = carry(plan)
    assert (outcome.status.state, [each.lost for each in collected.logs]) == ("succeeded", ["", ""])
    assert texts(plan, 1) == ["found", *(f"line {number}" for number in range(10))]
    assert teardown(plan) == ()
    home = hosts.folder / "host-b" / ".torchyard" / "sample-a1b2c3d4-1"
    assert files(plan, 1) == {"checkpoints/rank-1": f"{home}/work"}
    assert hosts.left() == []


def test_next_attempt_finds_every_checkpoint(planned: Planned) -> None:
    """What any host saved is on each host when the next attempt begins: rank 0 may be elsewhere then."""
    first, second = planned(), planned(attempt=2)
    carry(first)
    teardown(first)
    carry(second)
    assert [texts(second, node)[0] for node in (0, 1)] == ["found rank-0 rank-1"] * 2


def test_folder_of_the_program_is_copied(planned: Planned, tmp_path: Path) -> None:
    """With options.source the program's neighbours go with it, .git stays here, and what it writes comes home."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("")
    (tmp_path / "words.py").write_text("WORD = 'here'")
    code = "import os, words; print(words.WORD, os.path.exists('.git')); open('out.txt', 'w').write('new')"
    plan = planned(code=code, options={"source": "."})
    carry(plan)
    assert texts(plan, 0) == ["here False"]
    teardown(plan)
    assert files(plan, 0) == {"work/out.txt": "new"}


def test_broken_connections_cost_nothing(planned: Planned, hosts: Hosts) -> None:
    """Connections that are killed, and those that hang on a network that is away, are opened again: no line is lost."""
    os.environ["TORCHYARD_SSH"] = f"{hosts.ssh} -oServerAliveInterval=1 -oServerAliveCountMax=1"
    plan = planned(args=["5"])
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(disturb, hosts)
        outcome, collected = carry(plan)
        broken.result()
    assert (outcome.status.state, [each.lost for each in collected.logs]) == ("succeeded", ["", ""])
    assert [texts(plan, node)[1:] for node in (0, 1)] == [[f"line {number}" for number in range(500)]] * 2


def disturb(hosts: Hosts) -> None:
    """As soon as the job has connections: kill those of one host, and unplug the other."""
    until(lambda: len(hosts.sessions("host-a")) >= 2 and len(hosts.sessions("host-b")) >= 2)
    time.sleep(1)
    hosts.cut("host-a")
    hosts.unplug("host-b", 4)


def test_server_that_is_away_for_a_while_ends_nothing(planned: Planned, hosts: Hosts) -> None:
    """A host that cannot be reached for seconds, its job at its end meanwhile, is asked until it answers."""
    plan = planned(args=["2"])
    handle = submit(plan, Deadlines())
    hosts.shut("host-b")
    back = threading.Timer(3.0, lambda: hosts.serve("host-b"))
    back.start()
    assert wait(handle).status.state == "succeeded"
    back.join()
    assert texts(plan, 1)[-1] == "line 199"


def test_failure_there_is_read_here(planned: Planned) -> None:
    """The first host that fails ends the other, and its last words are the cause."""
    code = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('no such planet')\ntime.sleep(60)"
    outcome, collected = carry(planned(code=code))
    assert outcome.exits["node-1"] == 1
    assert collected.failure
    assert (collected.failure.node, "no such planet" in collected.failure.sentence) == ("node-1", True)


def test_stopped_job_still_brings_its_log_and_files(planned: Planned) -> None:
    """A run that is torn down in the middle, with nobody watching, brings everything home first."""
    plan = planned(args=["60"])
    submit(plan, Deadlines())
    time.sleep(0.5)
    assert teardown(plan) == ()
    assert "line 5" in texts(plan, 0)
    assert "checkpoints/rank-0" in files(plan, 0)


def test_this_machine_can_be_one_of_the_hosts(planned: Planned, hosts: Hosts) -> None:
    """localhost is a host like others, at the address that it is given, and needs nothing copied."""
    here = {"host": "localhost", "address": f"{hosts.network}.254"}
    plan = planned(code=MEET, args=["spawn", "env://"], options={"hosts": [here, "host-b"]})
    outcome, _ = carry(plan)
    assert [outcome.status.state, texts(plan, 0)[-1], texts(plan, 1)[-1]] == ["succeeded", *["the sum is 3.0"] * 2]


def test_submit_again_adopts(planned: Planned) -> None:
    """Who comes back starts nothing twice, and needs no program here any more."""
    plan = planned(args=["60"])
    first = submit(plan, Deadlines())
    assert plan.sites[0].work
    Path(plan.sites[0].work).unlink()
    second = submit(plan, Deadlines())
    assert (first.created, second.created) == (True, False)
    assert first.submitted_at == second.submitted_at


def test_interface_between_the_hosts_is_found(planned: Planned) -> None:
    """gloo and NCCL are told the interface that leads to the others, where the user has not said one."""
    code = "import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.environ['NCCL_SOCKET_IFNAME'])"
    plan = planned(code=code, env={"NCCL_SOCKET_IFNAME": "ib0"})
    carry(plan)
    assert [texts(plan, node) for node in (0, 1)] == [["eth7 ib0"]] * 2


def test_several_agents_share_a_host(planned: Planned) -> None:
    """A host that is named twice has two agents, one folder, and its GPUs split between them."""
    code = "import os; print(os.environ['RANK'], os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd())"
    plan = planned(code=code, options={"hosts": ["host-a", "host-a"]}, resources={"gpus": 2})
    carry(plan)
    (first, second) = (texts(plan, node)[0].split() for node in (0, 1))
    assert (first[:2], second[:2], first[2] == second[2]) == (["0", "0,1"], ["1", "2,3"], True)


@pytest.mark.parametrize("keys", [
    {"agent": "launch", "rendezvous": "static"},
    {"agent": "torchrun", "rendezvous": "etcd-v2"},
    {"rendezvous": "file", "args": ["spawn", "{rendezvous}"]},
], ids=lambda keys: f"{keys.get('agent', 'spawn')}-{keys['rendezvous']}")  # fmt: skip
def test_every_way_to_meet_works_between_hosts(planned: Planned, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Processes of two hosts add up their ranks, however they are started and however they meet."""
    (tmp_path / "disk").mkdir()
    shared = {"shared_file": str(tmp_path / "disk" / "meet")} if keys["rendezvous"] == "file" else {}
    plan = planned(code=MEET, **{"args": [], **keys}, **shared)
    outcome, _ = carry(plan)
    said = [text for node in (0, 1) for text in texts(plan, node) if "the sum is" in text]
    assert (outcome.status.state, len(said), teardown(plan)) == ("succeeded", 2, ())
    assert all(text.endswith("the sum is 3.0") for text in said)
    assert list((tmp_path / "disk").iterdir()) == []


MEET = """
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


# --- another machine that carries the run: another folder, as its own disk would have it


SERVE = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    kept = socket.create_server(("", int(os.environ["MASTER_PORT"])))
print("serves")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def test_run_goes_on_from_another_machine(planned: Planned, thought: Planned, hosts: Hosts, tmp_path: Path) -> None:
    """Once nobody looks after a job any more, another machine finds it, its port no fault, and its whole log."""
    keys = {"code": SERVE, "args": [str(tmp_path / "enough")]}
    first, second = planned(**keys), thought(**keys, run="elsewhere")
    submit(first, Deadlines())
    until(lambda: "is held by this run" in told(second), 30)
    hosts.forget()
    assert (failures(second), find_last_attempt(second)) == ("", 1)
    handle = submit(second, Deadlines())
    (tmp_path / "enough").touch()
    assert (handle.created, wait(handle).status.state, texts(second, 0)) == (False, "succeeded", ["serves"])


def told(plan: CommandPlan) -> str:
    return "\n".join(each.detail for each in run_checks(plan))


def test_machine_that_knows_nothing_finds_the_attempt(planned: Planned, write: Write, tmp_path: Path) -> None:
    """A run whose second attempt is on its hosts goes on with that one, its budget of tries with it."""
    plan = planned(attempt=2, args=["60"])
    submit(plan, Deadlines())
    options = {"hosts": [block.host for block in plan.on]}
    folder = RunFolder(tmp_path / "elsewhere")
    folder.path.mkdir()
    adopt_run(folder, load(write(nodes=2, attempts=3, options=options)), RUN_ID)
    assert (folder.attempts(), folder.last("start")["first"]) == ([2], 1)


@pytest.mark.parametrize("attempt", [1, 2])
def test_job_that_is_looked_after_is_left_alone(planned: Planned, thought: Planned, attempt: int) -> None:
    """While one machine carries a run, another one is refused with its name, for this attempt and for the next."""
    plan = planned(args=["60"])
    submit(plan, Deadlines())
    with ProcessWatch(plan.on) as watch, ThreadPoolExecutor(1) as pool:
        second = pool.submit(submit, thought(attempt, run="elsewhere"), Deadlines())
        until(lambda: watch.changes(0.1) is None or second.done(), 30)
        with pytest.raises(RunInUseError, match=rf"is carried by {socket.gethostname()}:.*/run#\w+; this process ends"):
            second.result()


def test_carrier_that_was_away_too_long_leaves(planned: Planned, thought: Planned, hosts: Hosts) -> None:
    """A machine that comes back after another one has taken its run over is told so, and goes."""
    first = submit(planned(args=["60"]), Deadlines())
    hosts.forget()
    submit(thought(args=["60"], run="elsewhere"), Deadlines())
    with pytest.raises(RunInUseError, match=r"/elsewhere#\w+; this process ends"):
        wait(first)


# --- what can be wrong with a host


def failures(plan: CommandPlan) -> str:
    return "\n".join(
        f"{each.need}: {each.detail} {each.remedy}" for each in run_checks(plan) if each.verdict == "failed"
    )


@pytest.mark.parametrize(("name", "said"), [
    ("down", "port 22: No route to host; `ssh down true` must work without a question"),
    ("wrong-key", "Permission denied (publickey"),
    ("stranger", "Host key verification failed.; `ssh stranger true` must work without a question"),
    ("no.such.host", "Could not resolve hostname no.such.host"),
])  # fmt: skip
def test_host_that_cannot_be_reached_is_one_sentence(thought: Planned, name: str, said: str) -> None:
    """What ssh says of a host, and the command that must work, before anything is started."""
    (told,) = failures(thought(nodes=1, options={"hosts": [name]})).splitlines()
    assert told.startswith(f"{name}: reach it by ssh: ")
    assert said in told


@pytest.mark.parametrize(("options", "said"), [
    ({"keeper_python": "python9"}, "found choose another interpreter with options.python, or options.keeper_python"),
    ({"python": "/no/python"}, "/no/python: No such file or directory choose another"),
    ({"folder": "/proc/none"}, "run folder /proc/none/sample-a1b2c3d4-1 on host-a: No such file or directory"),
    ({"hosts": [{"host": "host-a", "address": "gpu-x"}, "host-b"]}, "way from host-b to gpu-x: "),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")  # fmt: skip
def test_host_that_lacks_something_is_told(thought: Planned, options: dict[str, Any], said: str) -> None:
    """What a host lacks is told before anything is started, with what to do."""
    plan = thought(options=options)
    assert said in failures(plan)


def test_full_disk_there_is_told(thought: Planned, hosts: Hosts) -> None:
    """Where there is no room for the program and its keeper, that is what is said, and nothing stays behind."""
    small = hosts.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", small], check=True)
    try:
        plan = thought(options={"folder": str(small)})
        with pytest.raises(HostError, match=r"host-[ab]: place sample-a1b2c3d4-1: No space left on device"):
            submit(plan, Deadlines())
        assert (teardown(plan), list(small.iterdir())) == ((), [])
    finally:
        subprocess.run(["umount", small], check=True)


def test_program_that_is_too_large_is_not_copied(thought: Planned, tmp_path: Path) -> None:
    """A folder with data in it is refused, with the ways out, before anything is sent."""
    (tmp_path / "data").touch()
    os.truncate(tmp_path / "data", 300 * 2**20)
    with pytest.raises(HostError, match="it holds 300 MiB, and 200 MiB can be copied: see options"):
        submit(thought(options={"source": "."}), Deadlines())


def test_removed_site_leaves_no_process(planned: Planned, hosts: Hosts) -> None:
    """Where somebody has removed all that a host had of the run, its processes are found by their label and ended."""
    plan = planned(args=["60"])
    submit(plan, Deadlines())
    shutil.rmtree(hosts.folder / "host-a" / ".torchyard")
    with ProcessWatch(plan.on) as watch:
        until(lambda: watch.changes(0.1) and all(watch.seen.values()))
        assert {seen["phase"] for seen in watch.seen.values()} <= {"running", "absent"}
    assert teardown(plan) == ()
    assert hosts.left() == []


def test_host_that_cannot_be_torn_down_is_told(thought: Planned, hosts: Hosts) -> None:
    """What runs on a host that cannot be reached any more counts as left behind."""
    (said,) = teardown(thought(options={"hosts": ["wrong-key", "host-b"]}))
    assert said.startswith("wrong-key: reach it by ssh: ")
