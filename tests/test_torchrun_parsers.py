"""What pods say to torchrun is understood by the torchrun of any image: old ones end at an option that they lack."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.images import old_torchrun
from tests.conftest import plan_of
from tests.record_torchrun import FOLDER, UnknownWordsError, parser
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.plan import CommandPlan, ManifestPlan

VERSIONS = sorted(path.stem for path in FOLDER.glob("*.json"))
STARTS = ("torchrun", "torch.distributed.launch")


def spoken(name: str, folder: Path) -> list[str]:
    """The words after torchrun, or torch.distributed.launch, in a profile's pods; none where neither is started."""
    plan = plan_of(load_profile(name), folder)
    if isinstance(plan, ManifestPlan):
        words = [str(word) for word in plan.pod["spec"]["containers"][0]["command"]]
    else:
        command = plan.on[0].submit or plan.on[0].status
        script = next((word for word in (command.input or {})["argv"] if word.startswith("TORCHYARD_COMMAND=")), "")
        words = shlex.split(script)
    begin = next((place for place, word in enumerate(words) if word in STARTS), len(words))
    return [word.replace("$(RANK)", "1").replace("$TORCHYARD_NODE", "1") for word in words[begin + 1 :]]


def in_pods() -> Iterator[str]:
    """Every shipped profile whose pods start torchrun, or the older launch, which has torchrun's parser."""
    for name in list_profiles():
        plan = plan_of(load_profile(name), Path("/runs"))
        if not (isinstance(plan, CommandPlan) and plan.launcher == "baremetal") and spoken(name, Path("/runs")):
            yield name


def test_versions_are_recorded() -> None:
    """The oldest that has this parser, guide 000's own, the first of the new spelling and the newest are recorded."""
    assert {"1.9.0", "1.13.1", "2.0.0"} < set(VERSIONS)
    assert max(tuple(map(int, version.split("."))) for version in VERSIONS) >= (2, 15)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(in_pods()))
def test_pods_say_what_any_torchrun_knows(name: str, version: str, tmp_path: Path) -> None:
    """A pod's words are options of this torchrun, and the program and its arguments come out as the profile says."""
    read = parser(version).parse_args(spoken(name, tmp_path))
    profile = load_profile(name)
    assert read.training_script == str(profile.program)
    assert len(read.training_script_args) == len(profile.args)


def test_old_parser_refuses_what_is_newer() -> None:
    """The recorded parser of 1.13 ends at --local_addr, as the real one does; that of 2.0 takes it."""
    words = ["--nnodes=2", "--local_addr=here", "--", "train.py"]
    with pytest.raises(UnknownWordsError, match="unrecognized arguments: --local_addr=here"):
        parser("1.13.1").parse_args(words)
    assert parser("2.0.0").parse_args(words).local_addr == "here"


def test_installed_torchrun_is_told_its_address_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun that knows --local_addr takes it from the variable that pods have."""
    from torch.distributed.run import get_args_parser

    monkeypatch.setenv("PET_LOCAL_ADDR", "here")
    assert get_args_parser().parse_args(["train.py"]).local_addr == "here"


def test_real_pods_have_an_old_torchrun_in_front() -> None:
    """The stub on the real nodes is a program, and refuses what 1.13 refuses before any torch starts."""
    code = compile(old_torchrun(), "torchrun", "exec")
    before, sys.argv = sys.argv, ["torchrun", "--local_addr=here", "train.py"]
    try:
        with pytest.raises(SystemExit) as ended:
            exec(code, {})
    finally:
        sys.argv = before
    assert ended.value.code == 2
