"""Profiles, small: what a cluster without any of the guides' own things can run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.server import _find_free_port
from tests.cluster.small import ELSEWHERE, in_pods, small
from tests.conftest import manifest_plan_of
from torchyard.loading.profile import ROOT, list_profiles, load_profile
from torchyard.model.requirements import Object

NAMES = tuple(in_pods())
OF_MACHINES = {name for name in list_profiles() if load_profile(name).launcher == "baremetal"}
over_all = pytest.mark.parametrize("name", NAMES)


def test_every_profile_has_its_place() -> None:
    """A profile is of machines, runs small in pods, or says why the test cluster cannot have it."""
    assert {*NAMES, *ELSEWHERE, *OF_MACHINES} == set(list_profiles())


@over_all
def test_small_needs_nothing_of_the_guides_cluster(name: str, tmp_path: Path) -> None:
    """No claim, network, queue or secret, and no resource but the GPUs, which are a number there."""
    plan = manifest_plan_of(load_profile(name, small(name)), tmp_path)
    assert not [need for need in plan.requires if isinstance(need, Object)]
    asked = plan.pod["spec"]["containers"][0]["resources"]["requests"]
    assert asked.keys() - {"nvidia.com/gpu"} == {"cpu", "memory", "ephemeral-storage"}


@over_all
def test_small_runs_a_program_of_ours(name: str) -> None:
    """The program is one that the image of the test cluster has; a profile of no Python file keeps its own."""
    program = Path(str(load_profile(name, small(name)).program))
    assert (ROOT / "programs" / program.name).exists() or load_profile(name).program == str(program)


@over_all
def test_small_keeps_what_a_profile_is_about(name: str) -> None:
    """Launcher, rendezvous and agent are those of the profile, and many nodes stay more than one."""
    whole, less = load_profile(name), load_profile(name, small(name))
    assert (less.launcher, less.rendezvous, less.starter) == (whole.launcher, whole.rendezvous, whole.starter)
    assert (less.nodes.max > 1) == (whole.nodes.max > 1)


def test_small_goes_where_it_is_told() -> None:
    """Fake nodes in place of real ones: no label of the real ones is left."""
    assert load_profile("mnist-2x4", small("mnist-2x4", {"type": "kwok"})).pod.node_selector == {"type": "kwok"}


def digits(*words: str, **env: str) -> subprocess.Popen[str]:
    settings = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"} | env
    command = [sys.executable, *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_digits_stands_in_under_torch_distributed_launch() -> None:
    """The program takes the --local-rank that this agent gives it."""
    agent = ("-m", "torch.distributed.launch", "--nproc-per-node=2", f"--master-port={_find_free_port()}")
    process = digits(*agent, "programs/digits.py", "--epochs=1")
    said = process.communicate(timeout=60)[0]
    assert (process.returncode, '"world_size": 2' in said) == (0, True), said


@pytest.mark.slow
def test_digits_stands_in_for_a_program_that_meets_in_a_file(tmp_path: Path) -> None:
    """Two processes without an agent find each other in a file."""
    words = ("programs/digits.py", "--epochs=1", f"--init-method=file://{tmp_path}/meeting")
    both = [digits(*words, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert '"world_size": 2' in said[0]
