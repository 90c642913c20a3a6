"""The sh text that finds NCCL_IB_GID_INDEX, run by real shells over made-up trees of sysfs."""

import pytest

from tests.inputs.gid_ports import HIDDEN_SLOTS, HOST_SLOTS, INET6, GidPod
from torchyard.agents.process_env import escape_dollars
from torchyard.agents.roce_gid import gid_script


@pytest.mark.parametrize(
    ("table", "env", "index"),
    [
        pytest.param(HOST_SLOTS, {}, "3", id="a node's own table"),
        pytest.param(HIDDEN_SLOTS + "v4:1 v4:2 - - - -", {}, "9", id="a pod that sees its own two slots"),
        pytest.param("- - - - - - v6:1 v6:2 v4:1 v4:2 - -", {}, "9", id="a pod with both families"),
        pytest.param("local:2 local:1 v4:2 v4:1", {}, "2", id="v2 before v1"),
        pytest.param("local:2 v4:2", {}, "1", id="one IPv4 entry in all"),
        pytest.param("local:1 local:2 zero:1 zero:2 v4:1 v4:2", {}, "5", id="zero entries with a type"),
        pytest.param("local:1 local:2 v4:? other-v4:? v4:1 v4:2", {}, "5", id="unknown types"),
        pytest.param("local:1 group:2 v4:1 v4:2", {}, "3", id="a multicast address"),
        pytest.param("local:1 local:2 v6:1 v6:2 - -", INET6, "3", id="IPv6 alone"),
        pytest.param(HIDDEN_SLOTS + "v6:1 v6:2", INET6, "9", id="a pod with IPv6 alone"),
        pytest.param("group:2 zero:2 v4:2 v6:2", INET6, "3", id="nothing but IPv6 where it is wanted"),
        pytest.param("v4:2@bond0 v4:2@net1", {}, "1", id="the node's address beside the pod's"),
    ],
)
def test_index_is_found(pod: GidPod, table: str, env: dict[str, str], index: str) -> None:
    """The one slot with RoCE v2, an address of the family and an interface of the pod is exported silently."""
    pod.add_port("mlx5_bond_0/1", table)
    assert pod.find_gid(**env) == (index, "")


@pytest.mark.parametrize(
    ("table", "env", "slots"),
    [
        pytest.param("local:1 local:2 v6:1 v6:2", {}, "none", id="IPv6 where IPv4 is wanted"),
        pytest.param("local:1 local:2 - -", {}, "none", id="link-local addresses"),
        pytest.param("local:1 local:2 - -", INET6, "none", id="link-local addresses where IPv6 is wanted"),
        pytest.param("local:1 v4:1", {}, "none", id="RoCE v1 alone"),
        pytest.param("local:1", {}, "none", id="InfiniBand"),
        pytest.param("v4:2@bond0", {}, "none", id="the node's address alone"),
        pytest.param("v4:2", {"NCCL_IB_ADDR_FAMILY": "inet"}, "none", id="no such family"),
    ],
)
def test_nothing_is_exported_where_no_index_is_sure(pod: GidPod, table: str, env: dict[str, str], slots: str) -> None:
    """If no slot fits, the command gets no index, and one line reports what the port has."""
    pod.add_port("mlx5_bond_0/1", table)
    index, stderr = pod.find_gid(**env)
    assert (index, stderr.count("\n")) == (None, 1)
    assert f"(mlx5_bond_0/ports/1 has {slots})" in stderr


@pytest.mark.parametrize(
    ("tables", "index"),
    [
        ((HOST_SLOTS, HOST_SLOTS), "3"),
        (("v4:2 other-v4:2", "- v4:2"), "1"),
        (("v4:2 other-v4:2 - -", "v4:2 - - other-v4:2"), "0"),
        (("- v4:2", "v4:2 -"), None),
        (("v4:2 other-v4:2", "v4:2 other-v4:2"), "0"),
        (("- " * 9 + "v4:2 other-v4:2", "- " * 9 + "v4:2 other-v4:2"), "9"),
        (("- v4:2", "local:1"), None),
        (("local:1", "- v4:2"), None),
        (("- " * 10 + "v4:2", "- v4:2"), None),
    ],
)
@pytest.mark.parametrize("second", ["mlx5_1/1", "mlx5_0/2"])
def test_index_is_right_for_every_port(pod: GidPod, tables: tuple[str, str], index: str | None, second: str) -> None:
    """An index is exported only if it fits every port of every device."""
    for location, table in zip(("mlx5_0/1", second), tables, strict=True):
        pod.add_port(location, table)
    assert pod.find_gid().gid == index


def test_every_port_is_reported_where_they_differ(pod: GidPod) -> None:
    """If the ports differ, the line lists the slots that fit on each of them."""
    pod.add_port("mlx5_0/1", "- v4:2")
    pod.add_port("mlx5_1/1", "v4:2 - other-v4:2")
    assert "(mlx5_0/ports/1 has 1, mlx5_1/ports/1 has 0 2)" in pod.find_gid().stderr


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
def test_only_chosen_devices_count(pod: GidPod, hca: str, index: str | None) -> None:
    """Devices are chosen as by NCCL_IB_HCA: by prefix, by exact name, by port; all of them if it is empty."""
    pod.add_port("mlx5_0/1", "- v4:2")
    pod.add_port("mlx5_1/1", "- - v4:2")
    pod.add_port("mlx5_10/2", "- - - v4:2")
    pod.add_port("ionic_0/1", "- v4:2")
    assert pod.find_gid(hca).gid == index


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "5: ACTIVE_DEFER"])
def test_ports_that_are_not_active_do_not_count(pod: GidPod, state: str) -> None:
    """Ports that are not active do not count: NCCL does not use them."""
    pod.add_port("mlx5_0/1", "- v4:2", state)
    pod.add_port("mlx5_1/1", "- - v4:2")
    assert pod.find_gid() == ("2", "")


@pytest.mark.parametrize("location", [None, "ionic_0/1"])
def test_node_without_the_device_is_reported(pod: GidPod, location: str | None) -> None:
    """Without sysfs' InfiniBand class, or without a device of that name, the command still starts."""
    if location:
        pod.add_port(location, HOST_SLOTS)
    index, stderr = pod.find_gid()
    assert (index, stderr.count("\n"), "(there is none)" in stderr) == (None, 1, True)


def test_missing_interfaces_do_not_matter(pod: GidPod) -> None:
    """If the kernel does not name a slot's interface, the slot counts as the pod's own."""
    pod.add_port("mlx5_0/1", "- v4:2")
    (pod.root / "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1").unlink()
    assert pod.find_gid() == ("1", "")


@pytest.mark.parametrize("index", ["3", "-1", ""])
def test_index_that_is_set_stays(pod: GidPod, index: str) -> None:
    """An index that is right, or that leaves the choice to NCCL, is kept without a warning."""
    pod.add_port("mlx5_0/1", HOST_SLOTS)
    assert pod.find_gid(NCCL_IB_GID_INDEX=index) == (index, "")


@pytest.mark.parametrize("preamble", ["", "set -e\n", "set -u\n", "set -eu\n"])
@pytest.mark.parametrize("table", [HOST_SLOTS, "local:1 - -"])
def test_strict_shells_are_fine(pod: GidPod, preamble: str, table: str) -> None:
    """The script works under `set -e` and `set -u`."""
    pod.add_port("mlx5_0/1", table)
    assert pod.find_gid(preamble=preamble).gid == ("3" if table == HOST_SLOTS else None)


def test_text_means_the_same_to_the_kubelet() -> None:
    """The script contains nothing that the kubelet would take for a variable."""
    assert escape_dollars(gid_script("mlx5")) == gid_script("mlx5")
