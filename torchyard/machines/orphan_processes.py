"""Processes on this machine whose run folder was removed while they ran."""

from pathlib import Path
from typing import NamedTuple

from torchyard.host import processes

_ORPHAN_GRACE_S = 10.0


class OrphanProcess(NamedTuple):
    """A process of a run without a folder. With a supervisor it ends with its lease; without one nothing ends it."""

    run: str
    label: str
    pids: tuple[int, ...]
    is_supervised: bool

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids))
        return f"{self.label}: processes {pids}: the folder of the run was removed"


def find_orphan_processes(runs: Path) -> list[OrphanProcess]:
    """The processes that were started from a folder of runs, and whose plan is no longer in it."""
    orphans = []
    for label, job in sorted(processes.list_local_jobs().items()):
        folder = Path(job["folder"] or "/")
        attempt = folder.parent
        is_run_process = (
            processes.parse_label(str(folder)) == label and attempt.parent.parent.resolve() == runs.resolve()
        )
        if is_run_process and attempt.name.startswith("attempt-") and not (attempt / "plan.json").exists():
            orphans.append(OrphanProcess(attempt.parent.name, label, tuple(job["pids"]), bool(job["keepers"])))
    return orphans


def end_orphan_process(orphan: OrphanProcess, grace_s: float = _ORPHAN_GRACE_S) -> tuple[str, ...]:
    """End its processes; returns what is left."""
    return tuple(f"localhost: {leftover}" for leftover in processes.end_processes(orphan.label, grace_s=grace_s))
