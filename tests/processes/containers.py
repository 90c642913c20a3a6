"""Containers as far as torchyard can tell: PID and UTS namespaces that share this machine's disk and kernel."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def find_obstacle() -> str:
    """The reason why containers cannot be created here; empty if they can."""
    if os.getuid():
        return "containers are PID namespaces, which only root can make"
    if not all(map(shutil.which, ("unshare", "nsenter"))):
        return "no unshare or nsenter: apt-get install -y util-linux"
    completed = subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True)
    return "PID namespaces are not allowed here" if completed.returncode else ""


class Container:
    """A PID and UTS namespace with its own /proc and host name.

    prefix: the words before a command that runs in it.
    """

    def __init__(self, init_pid: int) -> None:
        """`init_pid`: of its first process, as this machine numbers it."""
        self.prefix = ["nsenter", "--target", str(init_pid), "--pid", "--uts", "--mount"]

    def run(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in it to its end."""
        return subprocess.run([*self.prefix, *argv], text=True, capture_output=True, check=False)

    def start(self, *argv: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command in it, which ends with the container at the latest."""
        return subprocess.Popen([*self.prefix, *argv], **options)

    def is_running(self, *pids: str) -> bool:
        """Whether all of these processes of the container exist."""
        return self.run("kill", "-0", *pids).returncode == 0


@contextmanager
def run_container(hostname: str) -> Iterator[Container]:
    """A container that ends, with all of its processes, after the block."""
    script = f"hostname {hostname} && exec sleep infinity"
    namespaces = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child"]
    holder = subprocess.Popen([*namespaces, "sh", "-c", script])
    try:
        yield Container(_await_init(holder.pid))
    finally:
        holder.kill()
        holder.wait()


def _await_init(holder_pid: int) -> int:
    """The container's first process, once it has replaced its shell."""
    children = Path(f"/proc/{holder_pid}/task/{holder_pid}/children")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
                return int(pid)
        time.sleep(0.02)
    raise TimeoutError("the container did not start within 30 s")
