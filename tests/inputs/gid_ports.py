"""Generated trees of sysfs with RoCE ports, and real shells that search them for an index."""

import ipaddress
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

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
HIDDEN_SLOTS = "- " * 8  # a container sees its node's own addresses as empty
HOST_SLOTS = "local:1 local:2 v4:1 v4:2 - - - -"
INET6 = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}


class GidResult(NamedTuple):
    """The index in the command's environment (None if it has none), and the output on stderr."""

    gid: str | None
    stderr: str


class GidPod(NamedTuple):
    """A generated sysfs, and the shell that reads it."""

    root: Path
    shell: list[str]

    def add_port(self, location: str, table: str, state: str = "4: ACTIVE") -> None:
        """Add `DEVICE/PORT`: `v4:2@net1` is an IPv4 address, RoCE v2, of the interface net1; `-` is an empty slot."""
        device, number = location.split("/")
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

    def add_case(self, case: dict[str, Any]) -> None:
        """Add the port of a case in tests/inputs/gid_cases.yaml."""
        self.add_port("mlx5_bond_0/1", "- " * len(case["table"]))
        port = self.root / "class/infiniband/mlx5_bond_0/ports/1"
        (port / "link_layer").write_text({"eth": "Ethernet\n", "ib": "InfiniBand\n"}[case["link"]])
        for index, (address, gid_type) in enumerate(entry.split("|") for entry in case["table"]):
            (port / "gids" / str(index)).write_text(ipaddress.IPv6Address(address).exploded + "\n")
            if gid_type != "EINVAL":
                (port / "gid_attrs/types" / str(index)).rmdir()
                (port / "gid_attrs/types" / str(index)).write_text(f"{gid_type}\n")

    def find_gid(self, hca: str = "mlx5", preamble: str = "set -e\n", **env: str) -> GidResult:
        """Run the text and then a command, with a PATH that has no programs."""
        text = f'{preamble}{gid_script(hca, str(self.root))}exec "$@"\n'
        argv = [*self.shell, "-c", text, "torchyard", "/usr/bin/env"]
        completed = subprocess.run(argv, env={"PATH": "/nowhere"} | env, capture_output=True, text=True, check=True)
        output_env = dict(line.split("=", 1) for line in completed.stdout.splitlines())
        return GidResult(output_env.get("NCCL_IB_GID_INDEX"), completed.stderr)


def make_slot(port: Path, index: str, slot: str) -> None:
    """Create a slot; in an empty one, a folder stands for a file that can be opened but not read."""
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
