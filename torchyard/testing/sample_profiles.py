"""Profiles that every launcher must plan or refuse, and the runs that they are planned for."""

from collections.abc import Mapping
from typing import Any

from torchyard.model.profile import Profile
from torchyard.model.run import Run

MINIMAL = "minimal"  # the only profile that a launcher must not refuse
FIRST_RUN = Run(id="0190c7f0-0000-7000-8000-0000a1b2c3d4", attempt=1, folder="/runs/first")
SECOND_ATTEMPT = FIRST_RUN.model_copy(update={"attempt": 2})
OTHER_RUN = Run(id="0190c7f0-0000-7000-8000-0000d4c3b2a1", attempt=1, folder="/runs/other")
_LONGEST_NAME = "a" * 39 + "9"
# Added to the keys of the minimal profile.
_CASES: dict[str, dict[str, Any]] = {
    MINIMAL: {},
    "several nodes": {"nodes": 3, "processes": 2},
    "a range of nodes": {"nodes": {"min": 2, "max": 4}},
    "GPUs": {"resources": {"gpus": 2}},
    "variables": {"env": {"EMPTY": "", "WORDS": "it's $(A) $$ é\n"}},
    "a reference to a secret": {"env": {"TOKEN": {"secret": "hub", "key": "token"}}},
    "mounts": {"mounts": {"/data": {"claim": "data"}, "/scratch": {"ephemeral": "1Gi"}}},
    "arguments": {"args": ["--name=it's", "$(A)", "", "{world_size}"]},
    "the longest name": {"name": _LONGEST_NAME},
    "no agent": {"rendezvous": "env", "nodes": 2},
    "no recorder": {"on_hang": "off"},
}


def build_sample_profiles(launcher: str, keys: Mapping[str, Any], *, program_is_a_file: bool) -> dict[str, Profile]:
    """The profiles by what is special about them. `keys`: those that the launcher requires, such as its options."""
    minimal: dict[str, Any] = {"name": "sample", "about": "a profile of the contract", "launcher": launcher}
    if program_is_a_file:
        minimal["program"] = "/srv/train.py"
    else:
        minimal["program"] = "train.py"
        minimal["image"] = "registry.example/train:v1"
    minimal |= keys
    return {case: Profile.model_validate(minimal | case_keys) for case, case_keys in _CASES.items()}
