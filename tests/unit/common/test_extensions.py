"""What other installed packages add, and the errors if it cannot be used."""

import sys

import pytest

from tests.doubles.installed_packages import InstalledPackages
from torchyard.common.extensions import (
    Extension,
    find_extension,
    get_folder,
    list_extensions,
    load_extension,
    load_function,
)
from torchyard.model.errors import ExtensionError

SLURM = "[torchyard.launchers]\nslurm = ty_slurm\n"


def test_extension_is_found_by_its_name(packages: InstalledPackages) -> None:
    """An entry point of an installed package is found by its name, with its package and version."""
    packages.install("ty-slurm", SLURM, version="1.2", ty_slurm="ANSWER = 42")
    extension = find_extension("launcher", "slurm")
    assert extension == Extension("launcher", "slurm", "ty_slurm", "ty-slurm", "1.2")
    assert load_extension(extension).ANSWER == 42
    assert find_extension("metrics", "slurm") is None


def test_listing_imports_nothing(packages: InstalledPackages) -> None:
    """The list of extensions does not import a package."""
    packages.install("ty-slurm", SLURM, ty_slurm="raise RuntimeError")
    assert [extension.name for extension in list_extensions("launcher")] == ["slurm"]
    assert "ty_slurm" not in sys.modules


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import ty_missing", "ModuleNotFoundError: No module named 'ty_missing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def", "SyntaxError: invalid syntax"),
    ],
)
def test_package_that_cannot_be_imported_is_one_error(packages: InstalledPackages, code: str, reason: str) -> None:
    """The error names the extension, its package, its entry point, the reason, and what to do."""
    packages.install("ty-slurm", SLURM, ty_slurm=code)
    extension = find_extension("launcher", "slurm")
    assert extension is not None
    with pytest.raises(ExtensionError) as raised:
        load_extension(extension)
    where = "launcher slurm of ty-slurm 1.0 (entry point slurm = ty_slurm in torchyard.launchers)"
    assert str(raised.value).startswith(f"{where} cannot be imported: {reason}")
    assert str(raised.value).endswith("; repair or uninstall ty-slurm, or remove the launcher from the profile")


def test_name_in_two_packages_is_an_error(packages: InstalledPackages) -> None:
    """A name that two packages have is an error that names both, and does not affect other names."""
    packages.install("ty-slurm", SLURM)
    packages.install("ty-other", "[torchyard.launchers]\nslurm = ty_other\nlsf = ty_lsf\n", version="2.0")
    with pytest.raises(ExtensionError, match=r"of ty-other 2.0 .* has the same name as one of ty-slurm 1.0"):
        find_extension("launcher", "slurm")
    assert find_extension("launcher", "lsf") is not None


def test_malformed_entry_points_affect_no_other_package(
    packages: InstalledPackages, caplog: pytest.LogCaptureFixture
) -> None:
    """A package whose list of entry points is malformed is skipped with a warning."""
    packages.install("ty-broken", "[torchyard.launchers]\nthis is not an entry\n")
    packages.install("ty-slurm", SLURM)
    assert find_extension("launcher", "slurm") is not None
    assert "the entry points of an installed package cannot be read" in caplog.text


def test_earlier_copy_of_a_package_is_the_one(packages: InstalledPackages, tmp_path: object) -> None:
    """Two versions of one package on sys.path are not two packages: the first one is imported."""
    packages.install("ty-slurm", SLURM, version="1.0")
    packages.install("ty-slurm", SLURM, version="2.0")
    assert len([extension for extension in list_extensions("launcher") if extension.name == "slurm"]) == 1


def test_function_must_be_callable(packages: InstalledPackages) -> None:
    """An entry point that must name a function, and names something else, is refused."""
    packages.install("ty-read", "[torchyard.metrics]\nloss = ty_read\n", ty_read="")
    extension = find_extension("metrics", "loss")
    assert extension is not None
    with pytest.raises(ExtensionError, match="is not a function, but module; name a function that reads: MODULE:FUN"):
        load_function(extension, "reads")


def test_folder_is_that_of_the_package(packages: InstalledPackages) -> None:
    """The folder of an extension is the package's, with or without an __init__.py; a module has none."""
    packages.install("ty-cloud", "[torchyard.hardware]\nnimbus = ty_nimbus\nflat = ty_flat\n", ty_flat="")
    (packages.folder / "ty_nimbus").mkdir()
    folder_extension = find_extension("hardware", "nimbus")
    module_extension = find_extension("hardware", "flat")
    assert folder_extension is not None
    assert module_extension is not None
    assert get_folder(folder_extension) == packages.folder / "ty_nimbus"
    with pytest.raises(ExtensionError, match="does not name a package with a folder on disk"):
        get_folder(module_extension)
