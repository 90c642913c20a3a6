"""Which launchers there are. A new one is one module of this folder and its name in LAUNCHERS."""

import importlib
from typing import Protocol, cast

from pydantic import BaseModel

from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Observation, Run, Status

_LAUNCHERS = ("appwrapper", "baremetal", "jobset", "pytorchjob", "runai", "volcano")  # one module of this folder each


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
        return f"launcher: there is no {self.name}; there are: {', '.join(list_launchers())}"


def list_launchers() -> list[str]:
    """The names of all launchers."""
    return list(_LAUNCHERS)


def load_launcher(name: str) -> Launcher:
    """The launcher of a name, imported now: a profile pays only for its own."""
    if name not in _LAUNCHERS:
        raise UnknownLauncherError(name)
    return cast(Launcher, importlib.import_module(f"torchyard.launchers.{name}"))
