"""The sh text that finds NCCL_IB_GID_INDEX, on recorded GID tables, and with ranges of addresses."""

import ipaddress
import subprocess

import pytest
import yaml

from tests.inputs.gid_ports import HOST_SLOTS, GidPod
from torchyard.agents.roce_gid import gid_script
from torchyard.common.project_root import ROOT

CASES = {case["case"]: case for case in yaml.safe_load((ROOT / "tests" / "inputs" / "gid_cases.yaml").read_text())}

# --- the recorded cases

NOT_EXPORTED = {"K": "3", "J2": None}  # an index is set there already


@pytest.mark.parametrize("name", CASES)
def test_index_of_a_recorded_table_is_right(pod: GidPod, name: str) -> None:
    """The index is the lowest right one, which NCCL 2.30 takes too; a line reports none or several."""
    case = CASES[name]
    pod.add_case(case)
    right_indices = [str(index) for index in case["reference"]]
    index, stderr = pod.find_gid(**case["env"])
    assert index == NOT_EXPORTED.get(name, next(iter(right_indices), None))
    assert index in (None, case["nccl"])
    assert stderr.count("\n") == (len(right_indices) != 1 or name in ("K", "N"))


WARNINGS = {
    "D": "NCCL_IB_GID_INDEX=3 is the lowest index that is RoCE v2 with an AF_INET address on every active port "
    "(mlx5_bond_0/ports/1 has 3 5)",
    "F2": "no one index is RoCE v2 with an AF_INET6 address on every active port (mlx5_bond_0/ports/1 has none)",
    "J": "(mlx5_bond_0/ports/1 has none, as InfiniBand)",
    "J2": "NCCL_IB_GID_INDEX=3 is removed: all active ports are InfiniBand",
    "K": "NCCL_IB_GID_INDEX=3 stays as it was set, but is not RoCE v2 with an AF_INET address on every active port "
    "(mlx5_bond_0/ports/1 has 9)",
    "N": "NCCL_IB_ADDR_RANGE=10.0.0.0 is removed: it is not ADDRESS/BITS",
}


@pytest.mark.parametrize("name", WARNINGS)
def test_oddity_is_reported(pod: GidPod, name: str) -> None:
    """The line names the variable, what is odd about it, and what the ports have."""
    pod.add_case(CASES[name])
    assert WARNINGS[name] in pod.find_gid(**CASES[name]["env"]).stderr


def test_infiniband_beside_ethernet_gets_no_index(pod: GidPod) -> None:
    """One index is for all ports, and NCCL before 2.22 would use it on InfiniBand too."""
    pod.add_case(CASES["J"])
    pod.add_port("mlx5_0/1", HOST_SLOTS)
    assert pod.find_gid()[0] is None


# --- NCCL_IB_ADDR_RANGE

RANGES = [
    ("AF_INET", "10.0.0.0/8", True),
    ("AF_INET", "10.0.0.7/32", True),
    ("AF_INET", "10.0.0.6/31", True),
    ("AF_INET", "10.0.0.4/31", False),
    ("AF_INET", "10.0.0.0/29", True),
    ("AF_INET", "10.0.0.8/29", False),
    ("AF_INET", "10.64.0.0/9", True),
    ("AF_INET", "10.128.0.0/9", False),
    ("AF_INET", "0.0.0.0/0", True),
    ("AF_INET", "128.0.0.0/1", False),
    ("AF_INET", "10.0.255.0/16", True),
    ("AF_INET6", "fd02::/16", True),
    ("AF_INET6", "fd02::9/128", True),
    ("AF_INET6", "fd02::8/127", True),
    ("AF_INET6", "fd02::a/127", False),
    ("AF_INET6", "FD02:0:0:0::/64", True),
    ("AF_INET6", "fd02:0:0:8000::/49", False),
    ("AF_INET6", "fd02:0:0:4000::/49", True),
    ("AF_INET6", "fc00::/7", True),
    ("AF_INET6", "fe00::/7", False),
    ("AF_INET6", "::/0", True),
    ("AF_INET6", "::fd02/16", False),
    ("AF_INET6", "fd02:0:0:0:0:0:0:9/128", True),
]


@pytest.mark.parametrize(("family", "address_range", "fits"), RANGES)
def test_range_is_compared_bit_by_bit(pod: GidPod, family: str, address_range: str, fits: bool) -> None:
    """An address fits a range if the range's first bits, any number of them, are its own: ipaddress agrees."""
    address = "10.0.0.7" if family == "AF_INET" else "fd02::9"
    assert (ipaddress.ip_address(address) in ipaddress.ip_network(address_range, strict=False)) == fits
    pod.add_port("mlx5_0/1", "local:2 v4:2" if family == "AF_INET" else "local:2 v6:2")
    index, stderr = pod.find_gid(NCCL_IB_ADDR_FAMILY=family, NCCL_IB_ADDR_RANGE=address_range)
    assert (index, f"address in {address_range} on" in stderr) == (("1", False) if fits else (None, True))


INVALID_IPV4_RANGES = [
    "10.0.0.0",
    "10.0.0.0/33",
    "10.0.0/8",
    "10.0.0.0.0/8",
    "10.0.0.256/8",
    "010.0.0.0/8",
    "10.0.0.0/08",
    "a/8",
]
INVALID_IPV4_RANGES += ["/8", "10.0.0.0/", "fd02::/16", "10.0.0.0/8/8", "10.0.0.$(exit)/8", "x[$(exit 3)]/8"]
INVALID_IPV6_RANGES = [
    "fd02::",
    "fd02::/129",
    "fd02:::/16",
    "fd02::1::/16",
    "fd02:/16",
    ":fd02/16",
    "fd020::/16",
    "10.0.0.0/8",
]
INVALID_IPV6_RANGES += ["1:2:3:4:5:6:7/16", "1:2:3:4:5:6:7:8:9/16", "g::/16", "::$(exit)/16"]


@pytest.mark.parametrize(
    ("family", "address_range"),
    [
        *(("AF_INET", address_range) for address_range in INVALID_IPV4_RANGES),
        *(("AF_INET6", address_range) for address_range in INVALID_IPV6_RANGES),
    ],
)
def test_invalid_range_is_removed(pod: GidPod, family: str, address_range: str) -> None:
    """An invalid range is reported and removed, and the index is still found."""
    pod.add_port("mlx5_0/1", "local:2 v4:2" if family == "AF_INET" else "local:2 v6:2")
    with_env = f'{gid_script("mlx5", str(pod.root))}echo "${{NCCL_IB_ADDR_RANGE-gone}} $NCCL_IB_GID_INDEX"\n'
    env = {"PATH": "/nowhere", "NCCL_IB_ADDR_FAMILY": family, "NCCL_IB_ADDR_RANGE": address_range}
    completed = subprocess.run([*pod.shell, "-euc", with_env], env=env, capture_output=True, text=True, check=True)
    assert (completed.stdout, completed.stderr.count("\n")) == ("gone 1\n", 1)
    assert f"NCCL_IB_ADDR_RANGE={address_range} is removed" in completed.stderr
