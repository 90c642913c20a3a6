"""`torchyard profiles`."""

import pytest

from tests.doubles.installed_packages import LAUNCHER, InstalledPackages
from torchyard.cli.main import main
from torchyard.loading.profile import list_profiles


def test_profiles_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Every profile is listed on a separate line."""
    assert main(["profiles"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(list_profiles())


@pytest.mark.parametrize(
    ("name", "begins"), [("pi-local", "about: Pi by"), ("hardware/oke/bm-gpu-h100-8", "about: OCI BM.GPU.H100.8")]
)
def test_profiles_prints_a_file(capsys: pytest.CaptureFixture[str], name: str, begins: str) -> None:
    """With a name, the file of a profile or of a shape is printed, with its comments."""
    assert main(["profiles", name]) == 0
    assert begins in capsys.readouterr().out


def test_unknown_shape_is_an_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped shape gets the nearest name on stderr, and exit code 3."""
    assert main(["profiles", "hardware/oke/bm-gpu-h100"]) == 3
    assert "did you mean oke/bm-gpu-h100-8?" in capsys.readouterr().err


def test_profiles_lists_launchers(packages: InstalledPackages, capsys: pytest.CaptureFixture[str]) -> None:
    """`--launchers` lists each launcher with its package and its description, or why it cannot be used."""
    entry_points = "[torchyard.launchers]\nnothing = ty_nothing\nbroken = ty_broken\n"
    packages.install("ty-nothing", entry_points, ty_nothing=LAUNCHER, ty_broken="1 / 0")
    assert main(["profiles", "--launchers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("baremetal   torchyard       Plain machines: ")
    assert lines[-2].startswith("broken      ty-nothing 1.0  (cannot be used: launcher broken of ty-nothing 1.0 ")
    assert lines[-1] == "nothing     ty-nothing 1.0  Runs nothing, anywhere."
