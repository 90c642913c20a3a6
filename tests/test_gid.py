"""The sh text that finds NCCL_IB_GID_INDEX, run by real shells over made-up trees of sysfs."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from torchyard.agents.process_env import escape_dollars
from torchyard.agents.roce_gid import gid_script

ADDRESSES = {
    "zero": "0000:0000:0000:0000:0000:0000:0000:0000",
    "local": "fe80:0000:0000:0000:a288:c2ff:fe12:3456",
    "v4": "0000:0000:0000:0000:0000:ffff:0a00:0007",
    "other-v4": "0000:0000:0000:0000:0000:ffff:c0a8:0507",
    "v6": "fd02:0000:0000:0000:0000:0000:0000:0009",
    "other-v6": "fd99:0000:0000:0000:0000:0000:0000:0009",
    "group": "ff0e:0000:0000:0000:0000:ffff:e000:0001",
}
TYPES = {"1": "IB/RoCE v1", "2": "RoCE v2"}
HIDDEN = "- " * 8  # what a container sees of its node's own addresses
HOST = "local:1 local:2 v4:1 v4:2 - - - -"
INET6 = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}


class Ran(NamedTuple):
    """The index that the command sees, None where it has none, and what was said on stderr."""

    gid: str | None
    said: str


class Pod(NamedTuple):
    """A made-up sysfs, and the shell that looks at it."""

    root: Path
    shell: list[str]

    def port(self, place: str, table: str, state: str = "4: ACTIVE") -> None:
        """Add `DEVICE/PORT`: `v4:2@net1` is an IPv4 address, RoCE v2, of the interface net1; `-` is an empty slot."""
        device, number = place.split("/")
        link = self.root / "class/infiniband" / device
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            (self.root / "devices/pci" / device).mkdir(parents=True)
            link.symlink_to(f"../../devices/pci/{device}")
        for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (link / "ports" / number / folder).mkdir(parents=True)
        (link / "ports" / number / "state").write_text(f"{state}\n")
        for index, slot in enumerate(table.split()):
            make_slot(link / "ports" / number, str(index), slot)

    def find(self, hca: str = "mlx5", begin: str = "set -e\n", **env: str) -> Ran:
        """Run the text, and then a command, where no other program can be found."""
        text = f'{begin}{gid_script(hca, str(self.root))}exec "$@"\n'
        argv = [*self.shell, "-c", text, "torchyard", "/usr/bin/env"]
        made = subprocess.run(argv, env={"PATH": "/nowhere", **env}, capture_output=True, text=True, check=True)
        seen = dict(line.split("=", 1) for line in made.stdout.splitlines())
        return Ran(seen.get("NCCL_IB_GID_INDEX"), made.stderr)


def make_slot(port: Path, index: str, slot: str) -> None:
    """A slot; where it is empty, a folder stands for what is opened but cannot be read."""
    if slot == "-":
        (port / "gids" / index).write_text(ADDRESSES["zero"] + "\n")
        (port / "gid_attrs/types" / index).mkdir()
        (port / "gid_attrs/ndevs" / index).mkdir()
        return
    address, rest = slot.split(":")
    version, _, interface = rest.partition("@")
    (port / "gids" / index).write_text(ADDRESSES[address] + "\n")
    (port / "gid_attrs/types" / index).write_text(TYPES[version] + "\n" if version in TYPES else "")
    (port / "gid_attrs/ndevs" / index).write_text((interface or "eth0") + "\n")


@pytest.fixture(params=["dash", "bash", "busybox"])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Pod:
    """A pod with two interfaces, and without RDMA so far; the path of its sysfs has what shells trip over."""
    shell = shutil.which(request.param) or pytest.skip(f"there is no {request.param}")
    root = tmp_path / "it's a $root"
    for interface in ("eth0", "net1"):
        (root / "class/net" / interface).mkdir(parents=True)
    return Pod(root, [shell, "sh"] if request.param == "busybox" else [shell])


@pytest.mark.parametrize(
    ("table", "env", "index"),
    [
        pytest.param(HOST, {}, "3", id="a node's own table"),
        pytest.param(HIDDEN + "v4:1 v4:2 - - - -", {}, "9", id="a pod that sees its own two slots"),
        pytest.param("- - - - - - v6:1 v6:2 v4:1 v4:2 - -", {}, "9", id="a pod with both families"),
        pytest.param("local:2 local:1 v4:2 v4:1", {}, "2", id="v2 before v1"),
        pytest.param("local:2 v4:2", {}, "1", id="one IPv4 entry in all"),
        pytest.param("local:1 local:2 zero:1 zero:2 v4:1 v4:2", {}, "5", id="zero entries with a type"),
        pytest.param("local:1 local:2 v4:? other-v4:? v4:1 v4:2", {}, "5", id="types that say nothing"),
        pytest.param("local:1 group:2 v4:1 v4:2", {}, "3", id="a multicast address"),
        pytest.param("local:1 local:2 v6:1 v6:2 - -", INET6, "3", id="IPv6 alone"),
        pytest.param(HIDDEN + "v6:1 v6:2", INET6, "9", id="a pod with IPv6 alone"),
        pytest.param("group:2 zero:2 v4:2 v6:2", INET6, "3", id="nothing but IPv6 where it is wanted"),
        pytest.param("v4:2@bond0 v4:2@net1", {}, "1", id="the node's address beside the pod's"),
    ],
)
def test_index_is_found(pod: Pod, table: str, env: dict[str, str], index: str) -> None:
    """The one slot that holds RoCE v2, an address of the family and an interface of the pod is exported, silently."""
    pod.port("mlx5_bond_0/1", table)
    assert pod.find(**env) == (index, "")


@pytest.mark.parametrize(
    ("table", "env", "has"),
    [
        pytest.param("local:1 local:2 v4:1 v4:2 other-v4:1 other-v4:2", {}, "3 5", id="two IPv4 addresses"),
        pytest.param("local:1 v6:2 other-v6:2", INET6, "1 2", id="two IPv6 addresses"),
        pytest.param("local:1 local:2 v6:1 v6:2", {}, "none", id="IPv6 where IPv4 is wanted"),
        pytest.param("local:1 local:2 - -", {}, "none", id="link-local addresses"),
        pytest.param("local:1 local:2 - -", INET6, "none", id="link-local addresses where IPv6 is wanted"),
        pytest.param("local:1 v4:1", {}, "none", id="RoCE v1 alone"),
        pytest.param("local:1", {}, "none", id="InfiniBand"),
        pytest.param("v4:2@bond0", {}, "none", id="the node's address alone"),
        pytest.param("v4:2", {"NCCL_IB_ADDR_FAMILY": "inet"}, "none", id="no such family"),
    ],
)
def test_nothing_is_exported_where_no_index_is_sure(pod: Pod, table: str, env: dict[str, str], has: str) -> None:
    """Without one slot that fits, the command has no index at all, and one line tells what the port has."""
    pod.port("mlx5_bond_0/1", table)
    index, said = pod.find(**env)
    assert (index, said.count("\n")) == (None, 1)
    assert f"(mlx5_bond_0/ports/1 has {has})" in said


@pytest.mark.parametrize(
    ("tables", "index"),
    [
        ((HOST, HOST), "3"),
        (("v4:2 other-v4:2", "- v4:2"), "1"),
        (("v4:2 other-v4:2 - -", "v4:2 - - other-v4:2"), "0"),
        (("- v4:2", "v4:2 -"), None),
        (("v4:2 other-v4:2", "v4:2 other-v4:2"), None),
        (("- v4:2", "local:1"), None),
        (("local:1", "- v4:2"), None),
        (("- " * 10 + "v4:2", "- v4:2"), None),
    ],
)
@pytest.mark.parametrize("second", ["mlx5_1/1", "mlx5_0/2"])
def test_index_is_right_for_every_port(pod: Pod, tables: tuple[str, str], index: str | None, second: str) -> None:
    """Of all devices and all their ports: what fits only some of them is not exported."""
    for place, table in zip(("mlx5_0/1", second), tables, strict=True):
        pod.port(place, table)
    assert pod.find().gid == index


def test_every_port_is_told_where_they_differ(pod: Pod) -> None:
    """The line has what each port has, not only what was left of the others."""
    pod.port("mlx5_0/1", "- v4:2")
    pod.port("mlx5_1/1", "v4:2 - other-v4:2")
    assert "(mlx5_0/ports/1 has 1, mlx5_1/ports/1 has 0 2)" in pod.find().said


@pytest.mark.parametrize(
    ("hca", "index"),
    [
        ("mlx5", None),
        ("mlx5_0", "1"),
        ("mlx5_1", None),
        ("=mlx5_1", "2"),
        ("mlx5_1:2", "3"),
        ("=mlx5_1:1", "2"),
        ("mlx5_0,ionic", "1"),
        ("=ionic_0,mlx5_0", "1"),
        ("", None),
    ],
)
def test_only_chosen_devices_count(pod: Pod, hca: str, index: str | None) -> None:
    """Devices are chosen as NCCL_IB_HCA does it: by prefix, by exact name, by port; all of them where it is empty."""
    pod.port("mlx5_0/1", "- v4:2")
    pod.port("mlx5_1/1", "- - v4:2")
    pod.port("mlx5_10/2", "- - - v4:2")
    pod.port("ionic_0/1", "- v4:2")
    assert pod.find(hca).gid == index


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "5: ACTIVE_DEFER"])
def test_ports_that_are_not_active_do_not_count(pod: Pod, state: str) -> None:
    """NCCL does not use them, so their tables say nothing."""
    pod.port("mlx5_0/1", "- v4:2", state)
    pod.port("mlx5_1/1", "- - v4:2")
    assert pod.find() == ("2", "")


@pytest.mark.parametrize("place", [None, "ionic_0/1"])
def test_node_without_the_device_is_told(pod: Pod, place: str | None) -> None:
    """Without sysfs' InfiniBand class, or without a device of the name, the command starts all the same."""
    if place:
        pod.port(place, HOST)
    index, said = pod.find()
    assert (index, said.count("\n"), "(there is none)" in said) == (None, 1, True)


def test_missing_interfaces_are_no_reason(pod: Pod) -> None:
    """A kernel that does not tell a slot's interface leaves it the pod's own."""
    pod.port("mlx5_0/1", "- v4:2")
    (pod.root / "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1").unlink()
    assert pod.find() == ("1", "")


@pytest.mark.parametrize("given", ["5", "-1", ""])
def test_index_that_is_set_stays(pod: Pod, given: str) -> None:
    """Whoever has set it, and to whatever, knows better; nothing is looked up, nothing is said."""
    pod.port("mlx5_0/1", HOST)
    assert pod.find(NCCL_IB_GID_INDEX=given) == (given, "")


@pytest.mark.parametrize("begin", ["", "set -e\n", "set -u\n", "set -eu\n"])
@pytest.mark.parametrize("table", [HOST, "local:1 - -"])
def test_strict_shells_are_fine(pod: Pod, begin: str, table: str) -> None:
    """`set -e` and `set -u` change nothing."""
    pod.port("mlx5_0/1", table)
    assert pod.find(begin=begin).gid == ("3" if table == HOST else None)


def test_text_means_the_same_to_the_kubelet() -> None:
    """It holds nothing that the kubelet would take for a variable."""
    assert escape_dollars(gid_script("mlx5")) == gid_script("mlx5")
