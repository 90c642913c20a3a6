"""The list of launchers. A new one is one module in this folder."""

import importlib
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel

from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile, resolve
from torchyard.model.run import Observation, Run, Status

# Read once, with this module: a run that has no free file descriptor must still find its launcher.
_MODULES = frozenset(path.stem for path in Path(__file__).parent.glob("*.py"))
_LAUNCHERS = sorted(_MODULES - {"__init__", Path(__file__).stem})


class Launcher(Protocol):
    """A launcher: pure functions and the model of its options."""

    @property
    def PROGRAM_IS_A_FILE(self) -> bool:  # noqa: N802 - a constant of the module
        """Whether `program` is a path on this machine; otherwise it is one in the image."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 - a class in the module
        """The model of `options`; its unknown keys are errors.

        With an option `avoid`, `avoid_failed` puts the failed machines there; else it sets `pod.avoid`.
        """

    def plan(self, profile: ResolvedProfile, run: Run) -> Plan:
        """Everything that the job will run. ProfileError if the profile requires what this launcher cannot do."""

    def read_status(self, observed: Observation) -> Status:
        """The job's status. It never raises, and an unknown state is never a success."""


class UnknownLauncherError(Exception):
    """No launcher has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"launcher: {self.name} does not exist; use one of {', '.join(_LAUNCHERS)}"


def list_launchers() -> list[str]:
    """The names of all launchers, which are those of their modules, in alphabetical order."""
    return list(_LAUNCHERS)


def load_launcher(name: str) -> Launcher:
    """The launcher of this name, imported only now, so that a profile pays only for its own."""
    if name not in _LAUNCHERS:
        raise UnknownLauncherError(name)
    return cast(Launcher, importlib.import_module(f"torchyard.launchers.{name}"))


def make_plan(profile: Profile, run: Run) -> Plan:
    """Everything that an attempt of this profile will run. ProfileError if its launcher cannot plan it."""
    return load_launcher(profile.launcher).plan(resolve(profile), run)
