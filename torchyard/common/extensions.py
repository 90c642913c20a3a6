"""What other installed packages add to torchyard: launchers, readers of metrics, trackers, and hardware files.

A package names each one by an entry point in its pyproject.toml (docs/extend.md):

    [project.entry-points."torchyard.launchers"]
    slurm = "torchyard_slurm.launcher"

torchyard's own ones are not entry points: they are looked up first and cannot be replaced. Entry points are read only
for a name that torchyard itself does not have, because that means to open a file of every installed package. A package
is imported only for a profile that uses it, so one that is broken affects no other profile.
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchyard.common.log import get_log
from torchyard.model.errors import ExtensionError

Kind = Literal["launcher", "metrics", "tracker", "hardware"]
_GROUPS: dict[Kind, str] = {
    "launcher": "torchyard.launchers",
    "metrics": "torchyard.metrics",
    "tracker": "torchyard.trackers",
    "hardware": "torchyard.hardware",
}


class Extension(NamedTuple):
    """One entry point of an installed package.

    value: the module or object that it names, `torchyard_slurm.launcher` or `torchyard_aim:create_tracker`.
    package, version: those of the installed package.
    """

    kind: Kind
    name: str
    value: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        """`torchyard-slurm 1.0`."""
        return f"{self.package} {self.version}"

    def refuse(self, reason: str, remedy: str) -> ExtensionError:
        """The error that states why the extension cannot be used, and what to do."""
        entry_point = f"entry point {self.name} = {self.value} in {_GROUPS[self.kind]}"
        return ExtensionError(f"{self.kind} {self.name} of {self.origin} ({entry_point}) {reason}", remedy)


def list_extensions(kind: Kind) -> tuple[Extension, ...]:
    """Every extension of a kind by name, without importing one. The same name may be there more than once."""
    from importlib.metadata import distributions  # a tenth of the time of `torchyard plan`; few profiles need it

    extensions: list[Extension] = []
    packages: set[str] = set()
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if _GROUPS[kind] not in text:
                continue
            package = distribution.metadata["Name"]
            if package in packages:  # the first one on sys.path is the one that is imported
                continue
            packages.add(package)
            for entry_point in distribution.entry_points:
                if entry_point.group == _GROUPS[kind]:
                    version = distribution.version
                    extensions.append(Extension(kind, entry_point.name, entry_point.value, package, version))
        except Exception as error:  # metadata that is malformed must not affect other packages
            get_log().warning("the entry points of an installed package cannot be read: %s: %s", distribution, error)
    return tuple(sorted(extensions))


def find_extension(kind: Kind, name: str) -> Extension | None:
    """The extension of this name; None if there is none. ExtensionError if several have the name."""
    extensions = [extension for extension in list_extensions(kind) if extension.name == name]
    if len(extensions) > 1:
        origins = " and ".join(f"{extension.origin} ({extension.value})" for extension in extensions[1:])
        raise extensions[0].refuse(f"has the same name as one of {origins}", "uninstall all but one of the packages")
    return extensions[0] if extensions else None


@cache  # a run that has no free file descriptor must still find what it has loaded before
def load_extension(extension: Extension) -> Any:
    """The module or object that an extension names. ExtensionError if it cannot be imported."""
    from importlib.metadata import EntryPoint

    entry_point = EntryPoint(extension.name, extension.value, _GROUPS[extension.kind])
    try:
        return entry_point.load()
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        reason = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = f"repair or uninstall {extension.package}, or remove the {extension.kind} from the profile"
        raise extension.refuse(reason, remedy) from error


def load_function(extension: Extension, purpose: str) -> Any:
    """The function that an extension names. ExtensionError if it cannot be imported or called.

    `purpose`: what it does, such as `reads a line`, for the error.
    """
    function = load_extension(extension)
    if not callable(function):
        remedy = f"name a function that {purpose}: MODULE:FUNCTION"
        raise extension.refuse(f"is not a function, but {type(function).__name__}", remedy)
    return function


def get_folder(extension: Extension) -> Path:
    """The folder of the package that an extension names. ExtensionError if it cannot be imported, or has no folder."""
    package = load_extension(extension)
    folders = [Path(folder) for folder in getattr(package, "__path__", ())]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise extension.refuse("does not name a package with a folder on disk", "name the package that contains the files")
