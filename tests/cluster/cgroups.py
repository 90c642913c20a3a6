"""The parent control groups of the pods on real nodes."""

import sys
import time
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
TREE = "torchyard-nodes"
CONTROLLERS = ("cpu", "cpuset", "hugetlb", "memory", "pids")  # version 2 passes controllers down only on request


def list_hierarchies() -> list[Path]:
    """The single root of version 2, or the roots of all controllers of version 1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    return sorted({path.resolve() for path in MOUNT.iterdir() if (path / "tasks").exists()})


def create_groups(node_names: list[str]) -> None:
    """Create a group for each node in every hierarchy, ready to hold processes."""
    for root in list_hierarchies():
        enable_controllers(root)
        tree = root / TREE
        groups = [tree] + [tree / name for name in node_names]
        for group in groups:
            group.mkdir(exist_ok=True)
            inherit_cpus(group)
            enable_controllers(group)


def inherit_cpus(group: Path) -> None:
    """Copy the parent's CPUs and memory nodes: version 1 accepts no process into a group without them."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists() and (group / "tasks").exists():
            (group / name).write_text((group.parent / name).read_text())


def enable_controllers(group: Path) -> None:
    """Let a group's children use the controllers of CONTROLLERS that it has; version 1 needs no such step."""
    if not (group / "cgroup.subtree_control").exists():
        return
    available = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS if name in available))


def remove_groups(*, timeout_s: float = 10) -> None:
    """Remove every group of the tree; the kernel may hold one for a moment after its last process.

    Raises OSError if some are left after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    leftovers = find_trees()
    while leftovers and time.monotonic() < deadline:
        for tree in leftovers:
            remove_tree(tree)
        time.sleep(0.02)
        leftovers = find_trees()
    if leftovers:
        raise OSError(f"control groups are still in use: {', '.join(map(str, leftovers))}")


def find_trees() -> list[Path]:
    """The tree in every hierarchy, also in those that only runc uses: next to version 1 it uses version 2."""
    folders = [MOUNT / TREE, *MOUNT.glob(f"*/{TREE}")]
    return [tree for tree in folders if tree.is_dir()]


def remove_tree(tree: Path) -> None:
    """Remove the groups of a tree, children first; a group that is in use stays."""
    folders = sorted((path for path in tree.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for folder in [*folders, tree]:
        with suppress(OSError):
            folder.rmdir()


if __name__ == "__main__":
    try:
        remove_groups()
    except OSError as error:
        sys.exit(str(error))
