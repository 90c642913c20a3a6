"""Real supervised processes whose run folder is removed while they run."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes.supervised import call_supervisor
from torchyard.host import processes

RUN = f"removed-{os.getpid():08x}"  # labels count on the whole machine: tests run side by side
LABEL = f"{RUN}/1/node-0"
SCRIPT = "trap 'exit 5' TERM; while [ ! -e go ]; do sleep 0.05; done; echo last; exit 3"
Start = Callable[..., Any]


def node_folder(tmp_path: Path) -> Path:
    """The folder of a process, inside the runs folder."""
    return tmp_path / "runs" / RUN / "attempt-1" / "node-0"


@contextmanager
def starter(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a process and removes its run's folder; all processes are ended with the block."""
    node = node_folder(tmp_path)

    def start(remove: bool = True, **spec_changes: Any) -> Any:
        argv = spec_changes.pop("argv", ["bash", "-c", SCRIPT])
        spec = {"name": "node-0", "argv": argv, "env": {}, "cwd": str(tmp_path), "label": LABEL, "ports": []}
        state = call_supervisor("submit", node, spec=spec | spec_changes)
        if remove:
            shutil.rmtree(node.parents[1])
        return state

    yield start
    assert processes.end_processes(LABEL, grace_s=0) == []


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return bool(Path("/proc", str(pid), "cmdline").read_bytes())
    except OSError:
        return False
