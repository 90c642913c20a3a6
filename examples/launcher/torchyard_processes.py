"""Processes on this machine: every node is the program itself, with RANK and WORLD_SIZE, and without torchrun."""

import sys

from torchyard.diagnosis.process_status import read_status
from torchyard.launchers.baremetal import SUPERVISOR_PATH
from torchyard.model.base import FrozenModel
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.plan import CommandPlan, HostScript, Process
from torchyard.model.requirements import ProgramFile, WritableFolder
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run

__all__ = ["PROGRAM_IS_A_FILE", "Options", "plan", "read_status"]
PROGRAM_IS_A_FILE = True  # a path on this machine, not in an image


class Options(FrozenModel):
    """The keys of `options`; unknown ones are errors."""

    python: str = sys.executable


def plan(profile: ResolvedProfile, run: Run) -> CommandPlan:
    if profile.nodes.min != profile.nodes.max or profile.processes != 1:
        raise ProfileError(profile.name, (Finding("nodes", "must be one number, with one process per node"),))
    label = f"{run.name(profile)}/{run.attempt}/"  # what finds the job's processes on a host
    processes = tuple(_build_process(profile, run, f"{label}node-{rank}", rank) for rank in range(profile.nodes.max))
    return CommandPlan(
        launcher="processes",
        job=run.name(profile),
        label=label,
        processes=processes,
        ranks="placed",  # rank 0 is the first node
        on_hang="off",
        requires=(
            WritableFolder(host="localhost", path=run.folder),
            ProgramFile(host="localhost", path=str(profile.program)),
        ),
    )


def _build_process(profile: ResolvedProfile, run: Run, label: str, rank: int) -> Process:
    env = {"RANK": str(rank), "WORLD_SIZE": str(profile.nodes.max), "PYTHONUNBUFFERED": "1"}
    env |= {name: value for name, value in profile.env.items() if isinstance(value, str)}
    python = Options.model_validate(profile.options).python
    spec = {"name": f"node-{rank}", "label": label, "lease": profile.deadlines.lease, "grace": profile.deadlines.grace}
    spec |= {"argv": [python, profile.program, *profile.args], "env": env, "cwd": "/", "ports": []}
    return Process(
        name=f"node-{rank}",
        script=HostScript(host="localhost", argv=(sys.executable, "-I", "-S", SUPERVISOR_PATH)),
        folder=f"{run.folder}/attempt-{run.attempt}/node-{rank}",
        log=run.log(f"node-{rank}"),
        copies_log=False,
        spec=spec,
        grace=profile.deadlines.grace,
    )
