"""`torchyard demo`: the files that it copies, its text, and its errors."""

import sys
from pathlib import Path

import pytest

from torchyard.cli import demo
from torchyard.cli.main import main
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.profile import Profile

PROFILES = sorted((ROOT / "profiles" / "demo").glob("*.yaml"))


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Profile]:
    """The profiles that the demo would run; tests/local/test_wheel.py really runs them."""
    monkeypatch.chdir(tmp_path)
    profiles: list[Profile] = []

    def start(profile: Profile, *, as_json: bool) -> tuple[str, int]:
        profiles.append(profile)
        return f"{profile.name}-1", int(profile.name == "fails" and not Path("torchyard-demo/shard-1.bin").exists())

    monkeypatch.setattr(demo, "run_new", start)
    return profiles


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profile_of_the_demo_has_its_program_beside_it(path: Path) -> None:
    """Each of the demo's profiles is copied with its program, and loads without anything else of the project."""
    copied = demo.copy_files(path.stem)
    assert load_profile(str(copied)).program == str(Path.cwd() / copied.parent / demo.PROGRAMS[path.stem])


@pytest.mark.parametrize(
    ("argv", "name"), [([], "digits"), (["--without-torch"], "pi"), (["--fail"], "fails")], ids=["torch", "pi", "fail"]
)
def test_demo_that_ends_as_intended_exits_with_0(argv: list[str], name: str, started: list[Profile]) -> None:
    """A training that succeeds, and a failure that was requested, are both exit code 0."""
    assert main(["demo", *argv]) == 0
    assert [profile.name for profile in started] == [name]


def test_demo_prints_the_next_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """After the run the demo prints commands with the names of the run and of the profile."""
    assert main(["demo"]) == 0
    output = capsys.readouterr().out
    assert "torchyard logs digits-1 " in output
    assert "torchyard run torchyard-demo/digits.yaml " in output


def test_fixed_failure_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """If the missing file exists, `--fail` prints why nothing failed, and its exit code is 1."""
    main(["demo", "--fail"])
    Path("torchyard-demo/shard-1.bin").touch()
    assert main(["demo", "--fail"]) == 1
    assert "because torchyard-demo/shard-1.bin exists" in capsys.readouterr().out


def test_changed_files_are_not_replaced(started: list[Profile]) -> None:
    """A second demo runs the profile as the user has changed it."""
    main(["demo", "--without-torch"])
    path = Path("torchyard-demo/pi.yaml")
    path.write_text(path.read_text().replace("nodes: 2", "nodes: 3"))
    main(["demo", "--without-torch"])
    assert [profile.nodes.max for profile in started] == [2, 3]


def test_missing_torch_is_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[Profile]
) -> None:
    """Without torch nothing is started or written, and the error has the install commands and `--without-torch`."""
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert main(["demo"]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("the training of the demo needs torch, which is not installed in ")
    assert all(text in stderr for text in ("pip install torch", "/whl/cpu", "demo --without-torch"))
    assert (started, Path("torchyard-demo").exists()) == ([], False)


def test_folder_that_cannot_be_created_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A file in place of the demo's folder gives one sentence and exit code 1."""
    Path("torchyard-demo").touch()
    assert main(["demo", "--without-torch"]) == 1
    assert "torchyard-demo: File exists; call the demo in a folder that you can write" in capsys.readouterr().err
