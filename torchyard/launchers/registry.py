"""The list of launchers. A new one is one module in this folder, or an entry point of another package."""

import importlib
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from pydantic import BaseModel

from torchyard.common.extensions import Extension, find_extension, list_extensions, load_extension
from torchyard.model.errors import ExtensionError
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


class ListedLauncher(NamedTuple):
    """A launcher as `torchyard profiles --launchers` lists it.

    origin: `torchyard`, or the name and the version of the package that has it.
    description: the first line of its docstring; empty if it has none, or cannot be loaded.
    problem: why it cannot be used, and what to do; None if it can.
    """

    name: str
    origin: str
    description: str
    problem: str | None


def list_launchers() -> list[str]:
    """The names of torchyard's own launchers, which are those of their modules, in alphabetical order."""
    return list(_LAUNCHERS)


def load_launcher(name: str) -> Launcher:
    """The launcher of this name, imported only now, so that a profile pays only for its own.

    ExtensionError if there is none, or if that of another package cannot be used.
    """
    if name in _LAUNCHERS:
        return cast(Launcher, importlib.import_module(f"torchyard.launchers.{name}"))
    extension = find_extension("launcher", name)
    if extension is None:
        names = [extension.name for extension in list_extensions("launcher")]
        choices = ", ".join(dict.fromkeys([*_LAUNCHERS, *names]))
        raise ExtensionError(
            f"launcher: {name} does not exist", f"use one of {choices}, or install the package that has it"
        )
    return _load_extension(extension)


def describe_launchers() -> list[ListedLauncher]:
    """Every launcher, torchyard's own ones first. Each one is imported."""
    launchers = [ListedLauncher(name, "torchyard", _describe(load_launcher(name)), None) for name in _LAUNCHERS]
    for extension in list_extensions("launcher"):
        description = ""
        problem = None
        try:
            if extension.name in _LAUNCHERS:
                raise extension.refuse("has the name of one of torchyard's own launchers", "rename the entry point")
            find_extension("launcher", extension.name)  # raises if the name is there twice
            description = _describe(_load_extension(extension))
        except ExtensionError as error:
            problem = str(error)
        launchers.append(ListedLauncher(extension.name, extension.origin, description, problem))
    return launchers


def make_plan(profile: Profile, run: Run) -> Plan:
    """Everything that an attempt of this profile will run. ProfileError if its launcher cannot plan it."""
    plan = load_launcher(profile.launcher).plan(resolve(profile), run)
    # What is read from the job's output does not depend on the launcher.
    return plan.model_copy(update={"metrics": profile.metrics, "on_nan": profile.on_nan})


def _load_extension(extension: Extension) -> Launcher:
    """The launcher of another package. ExtensionError if it cannot be imported, or is not a launcher."""
    launcher = load_extension(extension)
    missing = list_missing_parts(launcher)
    if missing:
        remedy = "add it as torchyard/launchers/registry.py describes"
        raise extension.refuse(f"is not a launcher: it lacks {', '.join(missing)}", remedy)
    return cast(Launcher, launcher)


def list_missing_parts(launcher: object) -> list[str]:
    """The parts of the protocol that a launcher lacks, with the kind of each; empty if it has all."""
    missing: list[str] = []
    if not isinstance(getattr(launcher, "PROGRAM_IS_A_FILE", None), bool):
        missing.append("PROGRAM_IS_A_FILE (True or False)")
    options = getattr(launcher, "Options", None)
    if not isinstance(options, type) or not issubclass(options, BaseModel):
        missing.append("Options (a model of pydantic)")
    for name in ("plan", "read_status"):
        if not callable(getattr(launcher, name, None)):
            missing.append(f"{name} (a function)")
    return missing


def _describe(launcher: Launcher) -> str:
    """The first line of a launcher's docstring; empty if it has none."""
    lines = (launcher.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""
