"""Processes on this machine whose run folder was removed while they ran."""

from pathlib import Path
from typing import NamedTuple

from torchyard.host import processes

_ORPHAN_GRACE_S = 10.0


class OrphanProcess(NamedTuple):
    """The processes of one label whose run has no folder.

    pids: as they were found; they may have ended since.
    is_supervised: they end with their lease. Without a supervisor nothing ends them.
    flow_run: the id of the flow run that started them; empty without an orchestrator.
    """

    run: str
    label: str
    pids: tuple[int, ...]
    is_supervised: bool
    flow_run: str

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids))
        return f"{self.label}: processes {pids}: the folder of the run was removed"


def find_orphan_processes(runs: Path) -> list[OrphanProcess]:
    """The processes that were started from a folder of runs, and whose plan is no longer in it."""
    orphans: list[OrphanProcess] = []
    for label, job in sorted(processes.list_local_jobs().items()):
        folder = Path(job["folder"] or "/")
        attempt_folder = folder.parent
        run_folder = attempt_folder.parent
        if processes.parse_label(str(folder)) != label or run_folder.parent.resolve() != runs.resolve():
            continue
        if attempt_folder.name.startswith("attempt-") and not (attempt_folder / "plan.json").exists():
            pids = tuple(job["pids"])
            orphans.append(OrphanProcess(run_folder.name, label, pids, bool(job["supervisors"]), job["flow_run"]))
    return orphans


def end_orphan_process(orphan: OrphanProcess, *, grace_s: float = _ORPHAN_GRACE_S) -> tuple[str, ...]:
    """End its processes, by SIGKILL after `grace_s` seconds; returns what is left, as `localhost: process 123`."""
    return tuple(f"localhost: {leftover}" for leftover in processes.end_processes(orphan.label, grace_s=grace_s))
