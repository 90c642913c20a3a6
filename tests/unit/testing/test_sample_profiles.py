"""The profiles of the contract."""

import pytest

from torchyard.model import rules
from torchyard.testing.sample_profiles import MINIMAL, build_sample_profiles


@pytest.mark.parametrize("program_is_a_file", [True, False])
def test_sample_profiles_are_valid(*, program_is_a_file: bool) -> None:
    """Every profile of the contract keeps the rules between the keys of a profile, which loading checks."""
    profiles = build_sample_profiles("x", {"options": {"a": 1}}, program_is_a_file=program_is_a_file)
    assert [(case, *rules.list_findings(profile)) for case, profile in profiles.items()] == [
        (case,) for case in profiles
    ]
    assert profiles[MINIMAL].options == {"a": 1}


def test_longest_name_is_as_long_as_a_profile_may_have() -> None:
    """The name of a profile has at most 40 characters, and one has that many."""
    profiles = build_sample_profiles("x", {}, program_is_a_file=True)
    assert max(len(profile.name) for profile in profiles.values()) == 40
