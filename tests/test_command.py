"""What a node runs, by rendezvous and by what starts its processes."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned, Write, command_plan_of, load
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity

ASKED = ["--nodes={nodes}", "--each={processes}", "--of={world_size}", "--rank={node_rank}", "--at={rendezvous}"]
KUBERNETES = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])


def command(plan: ManifestPlan) -> list[str]:
    found: list[str] = plan.pod["spec"]["containers"][0]["command"]
    return found


def env(plan: ManifestPlan) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in plan.pod["spec"]["containers"][0]["env"]}


def test_program_alone_is_told_its_place(planned: Planned) -> None:
    """A program without an agent finds its master, its world and its node's rank in the environment."""
    told = env(planned(nodes=2, processes=4, rendezvous="env"))
    assert told["MASTER_ADDR"] == "sample-a1b2c3d4-1-worker-0.sample-a1b2c3d4-1"
    assert (told["WORLD_SIZE"], told["RANK"]) == ("8", "$(TORCHYARD_NODE)")


def test_operator_tells_the_place_itself(planned: Planned) -> None:
    """A PyTorchJob with a master gets ranks and addresses from the operator, whose values would hide ours."""
    plan = planned(launcher="pytorchjob", nodes=3, rendezvous="env")
    assert plan.nodes.keys() == {"master-0", "worker-0", "worker-1"}
    assert not env(plan).keys() & {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "TORCHYARD_NODE"}


@KUBERNETES
@pytest.mark.parametrize(("rendezvous", "first"), [("static", "tcp://"), ("env", "env://")])
def test_arguments_are_filled_in(planned: Planned, launcher: str, rendezvous: str, first: str) -> None:
    """What stands in braces in the arguments is what the job is, and the rank is the pod's own."""
    plan = planned(launcher=launcher, nodes=2, processes=4, rendezvous=rendezvous, agent="none", args=ASKED)
    *told, rank, url = command(plan)[-5:]
    assert told == ["--nodes=2", "--each=4", "--of=8"]
    assert rank in ("--rank=$(TORCHYARD_NODE)", "--rank=$(RANK)")
    assert url.startswith(f"--at={first}")


@KUBERNETES
def test_other_braces_are_the_programs(planned: Planned, launcher: str) -> None:
    """Braces that mean nothing here are handed on."""
    odd = ['{"lr": 0.1}', "{epoch}", "{}", "{nodes"]
    assert command(planned(launcher=launcher, args=odd))[-4:] == odd


@KUBERNETES
def test_launch_gives_the_local_rank(planned: Planned, launcher: str) -> None:
    """`agent: launch` is torchrun's elder sister, with the same options."""
    words = command(planned(launcher=launcher, agent="launch", rendezvous="etcd-v2"))
    assert words[:3] == ["python3", "-m", "torch.distributed.launch"]
    assert words[3:8] == command(planned(launcher=launcher, rendezvous="etcd-v2"))[1:6]


def test_each_attempt_has_a_file_of_its_own(planned: Planned) -> None:
    """A file that an attempt has used would hold up the next one for ever."""
    keys = {"rendezvous": "file", "shared_file": "/pvc/meet", "nodes": 2, "args": ["{rendezvous}"]}
    files = [command(planned(attempt=attempt, **keys))[-1] for attempt in (1, 2)]
    assert files == [f"file:///pvc/meet.sample-a1b2c3d4-{attempt}" for attempt in (1, 2)]


@pytest.mark.parametrize(("node", "left"), [("0", ["meet.sample-a1b2c3d4-3"]), ("1", None)])
def test_first_node_removes_the_files_before(planned: Planned, tmp_path: Path, node: str, left: list[str]) -> None:
    """The files of earlier attempts go, by the first node alone, and that of this one is not touched."""
    for attempt in (1, 2, 3):
        (tmp_path / f"meet.sample-a1b2c3d4-{attempt}").touch()
    plan = planned(attempt=3, rendezvous="file", shared_file=str(tmp_path / "meet"), nodes=2)
    told = {"PATH": "/usr/bin:/bin", "TORCHYARD_NODE": node}
    subprocess.run([*command(plan)[:3], "sh", "true"], env=told, check=True)
    there = sorted(path.name for path in tmp_path.glob("meet.*"))
    assert there == (left or [f"meet.sample-a1b2c3d4-{attempt}" for attempt in (1, 2, 3)])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"agent": "none"}, "agent: none cannot meet by c10d"),
        ({"agent": "launch", "rendezvous": "env"}, "agent: launch cannot meet by env"),
        ({"rendezvous": "file"}, "shared_file: is where the nodes of rendezvous file meet"),
        ({"shared_file": "/pvc/meet"}, "shared_file: is where the nodes of rendezvous file meet"),
        ({"rendezvous": "env", "nodes": {"min": 1, "max": 2}}, "nodes: env has a place for each node: one number"),
    ],
)
def test_what_does_not_go_together_is_refused(write: Write, keys: dict[str, Any], said: str) -> None:
    """Who starts the processes and where they meet must fit, whatever the launcher."""
    with pytest.raises(ProfileError, match=said):
        load(write(**keys))


def test_hosts_run_the_program_alone(write: Write, tmp_path: Path) -> None:
    """On a machine, too, a program without an agent is told where it meets, and its rank."""
    plan = command_plan_of(load(write(nodes=2, rendezvous="env", args=["{node_rank}"])), tmp_path)
    submit = plan.on[1].submit
    assert submit
    assert submit.input
    argv, env = submit.input["argv"], submit.input["env"]
    assert (argv[-1], env["RANK"], env["WORLD_SIZE"]) == ("1", "1", "2")


def test_pods_may_share_nodes(planned: Planned) -> None:
    """Pods that may share nodes keep apart from nobody, and preflight counts them so."""
    keys = {"launcher": "pytorchjob", "nodes": 4, "rendezvous": "env", "pod": {"spread": False}}
    plan = planned(**keys)
    assert "affinity" not in plan.pod["spec"]
    assert [need.alone for need in plan.requires if isinstance(need, Capacity)] == [False]


def test_port_of_the_host_keeps_pods_apart(planned: Planned) -> None:
    """Under the host's network the operator's port is the node's, so that its pods cannot share one."""
    pod = {"spread": False, "host_network": True}
    plan = planned(launcher="pytorchjob", nodes=4, rendezvous="env", pod=pod)
    (room,) = [need for need in plan.requires if isinstance(need, Capacity)]
    assert (room.alone, room.port) == (True, True)


def test_index_of_the_address_is_found_before_the_program(planned: Planned) -> None:
    """Where a fabric says so, the pod looks for its GID index on the HCAs that NCCL is told."""
    keys = {"hardware": "epfl/rcp", "fabric": "roce", "rendezvous": "static"}
    script = command(planned(**keys))[2]
    assert script.index("gid_find /sys/class/infiniband/mlx5*/ports/*") < script.index('exec "$@"')
