"""YAML -> Profile."""

import os
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ProfileError
from tasks.profile import load_profile, profiles
from tests.conftest import Write, load

GOOD = "about: a test\nlauncher: baremetal\nprogram: x.py\n"


def refused(path: Path | str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ProfileError) as error:
        load_profile(str(path), overrides)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(profiles()))
def test_shipped_profiles_load(name: str) -> None:
    """Every profile of the project loads, and its program is there, or in its image."""
    profile = load_profile(name)
    assert profile.image or Path(str(profile.program)).is_file()


def test_durations_are_read_with_their_units(write: Write) -> None:
    """30m is 1800 seconds and 1.5h is 5400."""
    deadlines = load(write(deadlines={"start": "30m", "run": "1.5h"})).deadlines
    assert (deadlines.start, deadlines.run) == (1800.0, 5400.0)


def test_numbers_become_text_in_env_and_args(write: Write) -> None:
    """A number in env or args stands for its digits."""
    profile = load(write(env={"NCCL_IB_TC": 41}, args=["--lr", 0.1]))
    assert (profile.env, profile.args) == ({"NCCL_IB_TC": "41"}, ("--lr", "0.1"))


def test_overrides_reach_nested_keys(write: Write) -> None:
    """An override with dots changes one key and leaves its neighbours."""
    deadlines = load(write(deadlines={"start": "1m", "run": "2m"}), **{"deadlines.run": "5m"}).deadlines
    assert (deadlines.start, deadlines.run) == (60.0, 300.0)


def test_own_folder_comes_first(write: Write) -> None:
    """A profile in TORCHYARD_PROFILES is found by its name."""
    path = write("mine")
    os.environ["TORCHYARD_PROFILES"] = str(path.parent)
    assert load_profile("mine").name == "mine"


def test_program_is_looked_for_beside_the_profile(write: Write) -> None:
    """A relative program is the one beside the profile."""
    path = write("mine")
    assert load(path).program == str(path.parent / "mine.py")


def test_unknown_profile_names_the_nearest() -> None:
    """A name that is not there is told with the nearest one and all others."""
    said = refused("digit-local")
    assert "did you mean digits-local?" in said
    assert "pi-local" in said


def test_missing_file_is_told(tmp_path: Path) -> None:
    """A path that is not there is told as a path."""
    assert f"there is no file {tmp_path}/none.yaml" in refused(tmp_path / "none.yaml")


MISTAKES = {
    "about: [x\n": ":2: did not find expected ',' or ']'",
    "- a\n": ":1: a profile is a mapping",
    "\tabout: x\n": ":1: found character",
    "": ":1: a profile is a mapping",
    GOOD + "about: again\n": ":4: the key about stands here a second time",
    GOOD + "ndoes: 2\n": ":4: unknown key ndoes: did you mean nodes?",
    GOOD + "deadlines:\n  start: 1m\n  rnu: 2m\n": ":6: unknown key deadlines.rnu: did you mean run? there are: grace",
    GOOD + "options: {hots: []}\n": ":4: unknown key options.hots: did you mean hosts?",
    GOOD + "options: {hosts: [gpu-7]}\n": ":4: options: only this machine (localhost) can be a host so far, gpu-7",
    GOOD + "nodes: 0\n": ":4: nodes: a number of nodes is at least 1, not 0",
    GOOD + "nodes: {min: 3, max: 2}\n": ":4: nodes: min is 3, max is 2",
    GOOD + "deadlines: {run: 5 parsecs}\n": ":4: deadlines.run: a duration is a number with a unit",
    GOOD + "deadlines: {run: 1.1.1h}\n": ":4: deadlines.run: a duration is a number with a unit",
    GOOD + "env: {A: yes}\n": ":4: env.A: true is a boolean in YAML",
    GOOD + "args: [a, [b]]\n": ":4: args.1: input should be a valid string",
    GOOD + "rendezvous: zookeeper\n": ":4: rendezvous: input should be 'c10d', 'etcd-v2' or 'static'",
    GOOD.replace("baremetal", "slurm"): ":2: launcher: there is no slurm; there are: baremetal",
    GOOD.replace("program: x.py\n", ""): ":1: a profile names a program (with an image, in pods) or a manifest: one of them",
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.items())
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    """Each mistake gets one message with file, line, key and what is allowed."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert f"{path}{said}" in refused(path)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """Two mistakes make one error with two findings."""
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD + "nodez: 2\nprocesses: 0\n")
    assert refused(path).count(str(path)) == 2


def test_mistake_in_an_override_is_not_blamed_on_the_file(write: Write) -> None:
    """A wrong override is told as an override."""
    assert "override: processes: input should be greater" in refused(write(), {"processes": 0})


def test_bad_name_is_told(write: Write) -> None:
    """A file name that cannot become a job's name is refused, with the rule."""
    assert "name: string should match pattern" in refused(write("My_Profile"))
