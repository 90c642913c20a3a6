"""Plain machines: the processes of a job, and its status."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of, load, plan_of
from torchyard.host.network import LISTEN_URLS_PLACEHOLDER
from torchyard.model.errors import ProfileError
from torchyard.model.requirements import Gpus, Package, ProgramFile, ScriptCheck

SHAPE = """\
about: two machines with two networks
source: their owner
match: {}
gpus: {resource: nvidia.com/gpu, per_node: 1}
line_rate: 12.5
fabrics:
  fast:
    about: the second network
    env: {GLOO_SOCKET_IFNAME: eth1, NCCL_DEBUG: INFO}
    expect: {transport: socket}
"""


def test_attempts_share_no_names(write: Write, tmp_path: Path) -> None:
    """A second attempt shares no rendezvous id, port or folder with the first."""
    first, second = (command_plan_of(load(write()), tmp_path, attempt) for attempt in (1, 2))
    for pattern in (r"--rdzv_id=\S+", r"endpoint=\S+", r"/attempt-\d/"):
        matches = [re.findall(pattern, str(plan.processes[0].spec)) for plan in (first, second)]
        assert matches[0] != matches[1]


def test_etcd_of_the_profile_is_used(write: Write, tmp_path: Path) -> None:
    """If a profile names an etcd, no other one is started, and the named one is probed."""
    plan = plan_of(load(write(rendezvous="etcd-v2", options={"etcd": "127.0.0.1:2379"})), tmp_path)
    assert (plan.store, plan.probe) == (None, "http://127.0.0.1:2379/v2/keys")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"nodes": {"min": 1, "max": 2}}, "nodes: must be one number, not 1:2"),
        ({"nodes": 3, "options": {"hosts": ["localhost"]}}, "1 hosts for 3 nodes"),
        ({"options": {"etcd": "h:1"}}, "requires rendezvous: etcd-v2, and this is c10d"),
        ({"image": "train:v1"}, "image: is for launchers on Kubernetes, and this one is baremetal"),
        ({"cluster": {"namespace": "ml"}}, "cluster: is for launchers on Kubernetes"),
        ({"pod": {"privileged": True}}, "pod: is for launchers on Kubernetes"),
        ({"job": {"labels": {"team": "a"}}}, "job: is for launchers on Kubernetes"),
        ({"resources": {"cpu": 1}}, "resources.cpu: is for launchers on Kubernetes; baremetal takes gpus"),
        ({"setup": ["true"]}, "setup: is for launchers on Kubernetes"),
        ({"mounts": {"/data": {"claim": "data"}}}, "mounts: is for launchers on Kubernetes"),
        ({"hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}, r"fabric: vf requires pods \(device_plugin, pod\)"),
        ({"env": {"TOKEN": {"secret": "hub", "key": "token"}}}, "env.TOKEN: a reference requires pods"),
    ],
)
def test_conflicting_keys_are_refused(write: Write, tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    """The launcher refuses keys of a profile that cannot be combined."""
    with pytest.raises(ProfileError, match=message):
        plan_of(load(write(**keys)), tmp_path)


def test_fabric_of_machines_is_its_environment(write: Write, tmp_path: Path) -> None:
    """On machines a fabric sets its variables, which the profile's own override, and what it expects is in the plan."""
    shape = tmp_path / "hardware" / "lab" / "pair.yaml"
    shape.parent.mkdir(parents=True)
    shape.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    profile = load(write(hardware="lab/pair", fabric="fast", env={"NCCL_DEBUG": "WARN"}))
    plan = command_plan_of(profile, tmp_path)
    spec = plan.processes[0].spec
    assert spec
    env = spec["env"]
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_DEBUG"]) == ("eth1", "WARN")
    assert "NET" in env["NCCL_DEBUG_SUBSYS"]
    assert plan.expect
    assert plan.expect.transport == "socket"


def test_gpus_of_each_host_are_counted(write: Write, tmp_path: Path) -> None:
    """Preflight counts the GPUs of a host for all agents there, and none if the job uses none."""
    hosts = {"hosts": ["gpu1", "gpu1", "gpu2"]}
    plan = command_plan_of(load(write(nodes=3, resources={"gpus": 4}, options=hosts)), tmp_path)
    needed = [requirement for requirement in plan.requires if isinstance(requirement, Gpus)]
    assert needed == [Gpus(host="gpu1", count=8), Gpus(host="gpu2", count=4)]
    assert not any(isinstance(requirement, Gpus) for requirement in command_plan_of(load(write()), tmp_path).requires)


def test_program_without_an_agent_gets_its_environment(write: Write, tmp_path: Path) -> None:
    """On machines, a program without an agent gets its rendezvous and its rank in the environment."""
    plan = command_plan_of(load(write(nodes=2, rendezvous="env", args=["{node_rank}"])), tmp_path)
    spec = plan.processes[1].spec
    assert spec
    env = spec["env"]
    assert (spec["argv"][-1], env["RANK"], env["WORLD_SIZE"]) == ("1", "1", "2")


def test_plan_of_many_hosts_grows_with_them(write: Write, tmp_path: Path) -> None:
    """The plan of a second attempt grows only linearly with the number of hosts."""

    def size(count: int) -> int:
        profile = load(write(nodes=count, options={"hosts": [f"h{number:03}" for number in range(count)]}))
        return len(command_plan_of(profile, tmp_path, attempt=2).model_dump_json())

    assert size(80) < 2.2 * size(40)


# --- where a run's own etcd listens


def get_store_spec(write: Write, tmp_path: Path, hosts: list[Any]) -> dict[str, Any]:
    """The spec that the supervisor of a plan's etcd gets."""
    keys = {"nodes": len(hosts), "rendezvous": "etcd-v2", "options": {"hosts": hosts, "port": 23456}}
    plan = command_plan_of(load(write(**keys)), tmp_path)
    assert plan.store
    assert plan.store.spec
    return plan.store.spec


def listens(spec: dict[str, Any]) -> list[str]:
    return [arg.partition("=")[2] for arg in spec["argv"] if arg.startswith("--listen-")]


@pytest.mark.parametrize("hosts", [["localhost"] * 2, ["gpu1", "gpu1"], [{"host": "localhost", "address": "10.0.0.9"}]])
def test_store_of_one_host_listens_on_loopback(write: Write, tmp_path: Path, hosts: list[Any]) -> None:
    """With all agents on one host the store listens on loopback, as its peer port always does."""
    spec = get_store_spec(write, tmp_path, hosts)
    assert listens(spec) == ["http://127.0.0.1:23456", "http://127.0.0.1:23457"]


def test_store_of_several_hosts_gets_its_addresses_on_the_host(write: Write, tmp_path: Path) -> None:
    """With several hosts the first one fills in the addresses of the store, which the launcher cannot know."""
    spec = get_store_spec(write, tmp_path, ["me@gpu1", {"host": "gpu2", "address": "10.0.0.2"}, "gpu1", "gpu3"][:2])
    assert listens(spec) == [LISTEN_URLS_PLACEHOLDER, "http://127.0.0.1:23457"]
    assert spec["serves"] == {"name": "gpu1", "port": 23456, "toward": ["10.0.0.2"]}


@pytest.mark.parametrize(
    ("hosts", "folder"), [(["localhost"], "/torchyard/host"), (["gpu1"], "/supervisor/torchyard/host")]
)
def test_host_chooses_the_program_of_the_store(write: Write, tmp_path: Path, hosts: list[str], folder: str) -> None:
    """The script that chooses the etcd is the one of the host, and preflight checks its choice there."""
    keys = {"nodes": 1, "rendezvous": "etcd-v2", "options": {"hosts": hosts, "python": "/opt/python"}}
    plan = command_plan_of(load(write(**keys)), tmp_path)
    assert plan.store
    assert plan.store.spec
    python, flag, script = plan.store.spec["argv"][:3]
    assert (python, flag) == ("/opt/python", "-I")
    assert script.endswith(f"{folder}/etcd_program.py")
    settings = {"python": "/opt/python"}
    assert ScriptCheck(host=hosts[0], script="etcd_program.py", settings=settings) in plan.requires


@pytest.mark.parametrize(("keys", "needed"), [({"agent": "none", "rendezvous": "env"}, False), ({}, True)])
def test_torch_is_required_only_with_torchrun(write: Write, tmp_path: Path, keys: dict[str, str], needed: bool) -> None:
    """Preflight does not require torch for a program that starts without an agent."""
    plan = plan_of(load(write(**keys)), tmp_path)
    assert (
        any(isinstance(requirement, Package) and requirement.name == "torch" for requirement in plan.requires) == needed
    )


@pytest.mark.parametrize("hosts", [["localhost"], ["gpu1"]])
def test_module_is_not_copied(write: Write, tmp_path: Path, hosts: list[str]) -> None:
    """A module is installed on the machines: no file is copied or required, and it starts in the attempt's folder."""
    profile = load(write(program=None, module="my.train", options={"hosts": hosts}))
    plan = command_plan_of(profile, tmp_path)
    (process,) = plan.processes
    assert process.spec
    assert process.spec["argv"][-3:] == ["-m", "--", "my.train"]
    site = process.site
    assert process.spec["cwd"] == (site.folder if site else str(Path(process.folder).parent))
    assert site is None or site.work is None
    assert not [requirement for requirement in plan.requires if requirement.kind == "file"]


@pytest.mark.parametrize("there", [False, True], ids=["copied", "there"])
@pytest.mark.parametrize("host", ["localhost", "gpu1"])
def test_module_starts_in_its_source(write: Write, tmp_path: Path, host: str, there: bool) -> None:
    """A module of a repository starts in the repository, on this machine, in a copy of it, or where it already is."""
    options = {"hosts": [host], "source": "repository", "program_there": there}
    path = write(program=None, module="my.train", options=options)
    repository = str(path.parent / "repository")
    Path(repository, "my").mkdir(parents=True)
    plan = command_plan_of(load(path), tmp_path)
    (process,) = plan.processes
    assert process.spec
    site = process.site
    is_copied = site is not None and not there
    assert process.spec["argv"][-3:] == ["-m", "--", "my.train"]
    assert process.spec["cwd"] == (f"{site.folder}/work" if site and is_copied else repository)
    assert (site.work if site else None) == (repository if is_copied else None)
    (file,) = [requirement for requirement in plan.requires if isinstance(requirement, ProgramFile)]
    assert (file.host, file.path) == ("localhost" if is_copied else host, f"{repository}/my")
