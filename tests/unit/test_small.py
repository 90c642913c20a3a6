"""Small versions of the profiles, which run on a cluster without the guides' own objects."""

from pathlib import Path

import pytest

from tests.cluster.small import NEEDS_MCAD, build_small_overrides, list_pod_profiles
from tests.conftest import manifest_plan_of
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.requirements import ReferencedObject

NAMES = tuple(list_pod_profiles())
MACHINE_PROFILES = {name for name in list_profiles() if load_profile(name).launcher == "baremetal"}
for_each_profile = pytest.mark.parametrize("name", NAMES)


def test_every_profile_is_covered() -> None:
    """A profile is for machines, has a small version in pods, or needs MCAD, which the test cluster lacks."""
    assert {*NAMES, *NEEDS_MCAD, *MACHINE_PROFILES} == set(list_profiles())


@for_each_profile
def test_small_version_needs_no_object_of_a_guide(name: str, tmp_path: Path) -> None:
    """A small profile needs no claim, network, queue or secret, and no device except for fake GPUs."""
    plan = manifest_plan_of(load_profile(name, build_small_overrides(name)), tmp_path)
    assert not [requirement for requirement in plan.requires if isinstance(requirement, ReferencedObject)]
    requests = plan.pod["spec"]["containers"][0]["resources"]["requests"]
    assert requests.keys() - {"nvidia.com/gpu"} == {"cpu", "memory", "ephemeral-storage"}


@for_each_profile
def test_small_version_runs_a_program_of_the_image(name: str) -> None:
    """A small profile runs a program in the test cluster's image; one without a Python file keeps its own."""
    program = Path(str(load_profile(name, build_small_overrides(name)).program))
    assert (ROOT / "programs" / program.name).exists() or load_profile(name).program == str(program)


@for_each_profile
def test_small_version_keeps_the_launch(name: str) -> None:
    """A small profile keeps launcher, rendezvous and agent, and has several nodes if the profile has several."""
    full_profile = load_profile(name)
    small_profile = load_profile(name, build_small_overrides(name))
    assert (small_profile.launcher, small_profile.rendezvous, small_profile.resolved_agent) == (
        full_profile.launcher,
        full_profile.rendezvous,
        full_profile.resolved_agent,
    )
    assert (small_profile.nodes.max > 1) == (full_profile.nodes.max > 1)


def test_small_version_uses_the_given_nodes() -> None:
    """On fake nodes a small profile keeps no label of the real ones."""
    assert load_profile("mnist-2x4", build_small_overrides("mnist-2x4", {"type": "kwok"})).pod.node_selector == {
        "type": "kwok"
    }
