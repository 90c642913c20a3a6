"""Jobs of Run:ai through a fake CLI (tests/programs/runai.py), whose pods are real processes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.common.project_root import ROOT
from torchyard.machines.job import MachinesJob
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle

FAKE = ROOT / "tests" / "programs" / "runai.py"
Cli = Callable[..., Path]
Planned = Callable[..., CommandPlan]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return a function that creates a fake `runai`.

    `generation`: of the CLI; `args`: how it passes on a command; `world`: what its WORLD_SIZE counts.
    """

    def make(generation: str = "v2", args: str = "exec", world: str = "processes") -> Path:
        path = tmp_path / "runai"
        variables = {"STATE": tmp_path / "cloud", "GENERATION": generation, "ARGS": args, "WORLD": world}
        exports = "\n".join(f"export RUNAI_{name}={value}" for name, value in variables.items())
        path.write_text(f'#!/bin/sh\n{exports}\nexec {sys.executable} -I -S {FAKE} "$@"\n')
        path.chmod(0o755)
        (tmp_path / "cloud").mkdir(exist_ok=True)
        return path

    return make


@pytest.fixture
def runai_planned(cli: Cli, write: Write, tmp_path: Path) -> Planned:
    """Return a function that plans a job of two pods, each of which runs a line of shell."""

    def plan(line: str, generation: str = "v2") -> CommandPlan:
        keys = {"agent": "none", "rendezvous": "env", "program": "/bin/sh", "args": ["-c", line]}
        return command_plan_of(load(write(**build_profile_keys(cli(generation), **keys))), tmp_path / "run")

    return plan


def build_profile_keys(cli: Path, **keys: Any) -> dict[str, Any]:
    generation = "cli-v2" if "GENERATION=v2" in cli.read_text() else "cli-v1"
    options = {"project": "mlo", "through": generation, "cli": str(cli)}
    return {"launcher": "runai", "image": "pi:v1", "nodes": 2, "options": options} | keys


def start_agents(plan: CommandPlan) -> Handle:
    return MachinesJob(plan).submit(Deadlines(), submitted_at=None)
