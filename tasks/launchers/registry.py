"""Which launchers there are: every module of this folder without a leading underscore. A new one is a new file."""

import importlib
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel

from tasks.model import Observation, Run, Status
from tasks.plan import Plan
from tasks.spec import Profile

HERE = Path(__file__).parent


class Launcher(Protocol):
    """What a launcher is: pure functions and the model of its own options."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - a class in the module
        """The model of `options`; its unknown keys are errors."""

    def plan(self, profile: Profile, run: Run) -> Plan:
        """What would run. ProfileError where the profile asks for what this launcher cannot do."""

    def read_status(self, observed: Observation) -> Status:
        """How the job is. Never raises; what it does not know is never a success."""


class UnknownLauncherError(Exception):
    """A name that no file of this folder has."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"launcher: there is no {self.name}; there are: {', '.join(launchers())}"


def launchers() -> list[str]:
    """The names of all launchers."""
    files = HERE.glob("[a-z]*.py")
    return sorted(file.stem for file in files if file.stem != "registry")


def launcher(name: str) -> Launcher:
    """The launcher of a name, imported now: a profile pays only for its own."""
    if not (name.isidentifier() and name[0].isalpha() and (HERE / f"{name}.py").is_file()) or name == "registry":
        raise UnknownLauncherError(name)
    return cast(Launcher, importlib.import_module(f"tasks.launchers.{name}"))
