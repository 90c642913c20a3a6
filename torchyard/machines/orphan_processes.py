"""Processes on this machine whose run folder was removed while they ran."""

from pathlib import Path
from typing import NamedTuple

from torchyard.common.log import get_log
from torchyard.host import processes
from torchyard.host.staging import is_missing
from torchyard.model.errors import FolderError

_ORPHAN_GRACE_S = 10.0


class OrphanProcess(NamedTuple):
    """The processes of one label whose run has no folder.

    pids: as they were found; they may have ended since.
    is_supervised: they end with their lease. Without a supervisor nothing ends them.
    flow_run: the id of the flow run that started them; empty without an orchestrator.
    plan_path: the file of the attempt that does not exist any more.
    """

    run: str
    label: str
    pids: tuple[int, ...]
    is_supervised: bool
    flow_run: str
    plan_path: str

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids))
        return f"{self.label}: processes {pids}: the folder of the run was removed"


def find_orphan_processes(runs: Path) -> list[OrphanProcess]:
    """The processes that were started from a folder of runs, and whose plan is no longer in it.

    Those of a folder that cannot be read now are not among them.
    """
    orphans: list[OrphanProcess] = []
    for label, job in sorted(processes.list_local_jobs().items()):
        folder = Path(job["folder"] or "/")
        attempt_folder = folder.parent
        run_folder = attempt_folder.parent
        if processes.parse_label(str(folder)) != label or run_folder.parent.resolve() != runs.resolve():
            continue
        plan_path = str(attempt_folder / "plan.json")
        if attempt_folder.name.startswith("attempt-") and _is_removed(plan_path):
            pids = tuple(job["pids"])
            is_supervised = bool(job["supervisors"])
            orphans.append(OrphanProcess(run_folder.name, label, pids, is_supervised, job["flow_run"], plan_path))
    return orphans


def _is_removed(plan_path: str) -> bool:
    """Whether it is proven that a plan does not exist."""
    try:
        return is_missing(plan_path)
    except OSError as error:
        get_log().debug("cannot find out whether %s was removed: %s", plan_path, error)
        return False


def end_orphan_process(orphan: OrphanProcess, *, grace_s: float = _ORPHAN_GRACE_S) -> tuple[str, ...]:
    """End its processes, by SIGKILL after `grace_s` seconds; returns what is left, as `localhost: process 123`.

    FolderError, before each signal, if it is not proven that its run still has no folder.
    """

    def check() -> None:
        if not _is_removed(orphan.plan_path):
            reason = "its processes were not ended: it exists again, or cannot be read"
            raise FolderError(str(Path(orphan.plan_path).parents[1]), reason, "check the filesystem of the runs")

    leftovers = processes.end_processes(orphan.label, grace_s=grace_s, check=check)
    return tuple(f"localhost: {leftover}" for leftover in leftovers)
