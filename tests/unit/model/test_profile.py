"""What a profile as a whole must hold."""

from typing import Any

import pytest

from tests.conftest import Write, load
from tests.user_files import refused
from torchyard.model.errors import ProfileError


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"agent": "none"}, "agent: none does not fit c10d"),
        ({"agent": "launch", "rendezvous": "env"}, "agent: launch does not fit env"),
        ({"rendezvous": "file"}, "shared_file: is where nodes meet with rendezvous file"),
        ({"shared_file": "/pvc/meet"}, "shared_file: is where nodes meet with rendezvous file"),
        (
            {"rendezvous": "env", "restarts": 2},
            "restarts: torchrun starts processes again, and this job has no torchrun",
        ),
        ({"rendezvous": "env", "nodes": {"min": 1, "max": 2}}, "nodes: env needs a fixed number of nodes: one number"),
    ],
)
def test_what_does_not_go_together_is_refused(write: Write, keys: dict[str, Any], said: str) -> None:
    """The agent and the rendezvous must fit together, with any launcher."""
    with pytest.raises(ProfileError, match=said):
        load(write(**keys))


PODS: dict[str, Any] = {"launcher": "volcano", "image": "pi:v1", "nodes": 2}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"image": "not an image!"}, "image: 'not an image!' names no image"),
        ({"image": "Train:v1"}, "image: 'Train:v1' names no image"),
        ({"mounts": {"data": {"claim": "x"}}}, "mounts: 'data' is no place in a pod: begin it with /"),
        ({"mounts": {"": {"claim": "x"}}}, "mounts: '' is no place in a pod"),
        ({"env": {"": "x"}}, "env: '' is no name of a variable"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' is no name of a variable"),
        ({"env": {"GRÜSSE": "x"}}, "env: 'GRÜSSE' is no name of a variable"),
        ({"env": {"RANK": "0"}}, "env: RANK differs between processes"),
        ({"args": ["--rank={node_rnk}"]}, "args: {node_rnk} stands for nothing: did you mean {node_rank}?"),
        ({"resources": {"gpus": 1.5}}, "resources: gpus: 1.5 is not a number of devices: write a whole number"),
        ({"pod": {"limits": {"rdma/rdma": "500m"}}}, "rdma/rdma: 500m is not a number of devices"),
        ({"resources": {"gpus": 2}, "processes": 4}, "processes: 4 for 2 GPUs on each node"),
        ({"nodes": "two"}, "nodes: a number of nodes is one number, or {min: 2, max: 8}, not 'two'"),
    ],
)
def test_value_that_no_cluster_takes_is_refused(write: Write, keys: dict[str, Any], said: str) -> None:
    """What a cluster would refuse, or a program misunderstand, is refused at once, with what is allowed."""
    with pytest.raises(ProfileError) as caught:
        load(write(**{**PODS, **keys}))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"image": "My.Host:5000/org/a__b/c-d:V1.2_x@sha256:0a1B"},
        {"args": ["{epoch}", "ckpt-{step}.pt", '{"lr": 1}', "{node_rank}"]},
        {"resources": {"gpus": 0}, "processes": 20},
        {"resources": {"cpu": 1.5}},
        {"env": {"_A1": "x", "MASTER_PORT": "1"}},
    ],
)
def test_value_that_only_looks_odd_is_taken(write: Write, keys: dict[str, Any]) -> None:
    """Braces in arguments may be the program's own, processes without GPUs may be many, and registries have ports."""
    load(write(**{**PODS, **keys}))


def test_bad_name_is_told(write: Write) -> None:
    """A file name that cannot become a job's name is refused, with the rule."""
    assert "name: string should match pattern" in refused(write("My_Profile"))
