"""The rules for a profile as a whole."""

from typing import Any

import pytest

from tests.conftest import Write, load
from tests.user_files import get_refusal
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"agent": "none"}, "agent: none cannot be combined with rendezvous: c10d"),
        ({"agent": "launch", "rendezvous": "env"}, "agent: launch cannot be combined with rendezvous: env"),
        ({"rendezvous": "file"}, "shared_file: is where nodes meet with rendezvous: file"),
        ({"shared_file": "/pvc/meet"}, "shared_file: is where nodes meet with rendezvous: file"),
        (
            {"rendezvous": "env", "restarts": 2},
            "restarts: requires torchrun, which restarts the processes; this job has none",
        ),
        ({"min_busbw": 10}, "min_busbw: requires check_fabric, which measures it: set check_fabric too"),
        (
            {"check_fabric": "30s", "nodes": 2},
            "check_fabric: requires the GB/s that an all-reduce must reach: set min_busbw",
        ),
        ({"check_fabric": "30s", "min_busbw": 1}, "check_fabric: requires one number of nodes, 2 or more, not 1"),
        (
            {"check_fabric": "30s", "min_busbw": 1, "nodes": {"min": 2, "max": 3}},
            "check_fabric: requires one number of nodes, 2 or more, not 2:3",
        ),
        (
            {"check_fabric": "30s", "nodes": 2, "hardware": "oke/bm-gpu-b4-8", "fabric": "no-rdma"},
            "check_fabric: requires the GB/s",
        ),
        (
            {"check_fabric": "30s", "nodes": 2, "hardware": "oke/bm-gpu-b4-8", "fabric": "host", "processes": 2},
            "check_fabric: the hardware file's 185 GB/s are for all 8 GPUs of a node, but this job has 2 processes",
        ),
        ({"check_fabric": "30s", "nodes": 2, "min_busbw": 0}, "min_busbw: input should be greater than 0"),
        ({"check_fabric": "soon", "nodes": 2}, "check_fabric: a duration is a number with a unit"),
        ({"on_hang": "restart"}, "on_hang: restart requires another attempt: set attempts to 2 or more"),
        ({"on_hang": True}, "on_hang: .*'off', 'report', 'restart' or 'fail'"),
        ({"rendezvous": "env", "nodes": {"min": 1, "max": 2}}, "nodes: must be one number with rendezvous: env"),
    ],
)
def test_conflicting_keys_are_refused(write: Write, keys: dict[str, Any], message: str) -> None:
    """Agent and rendezvous, and the fabric check and its threshold, must fit together, with any launcher."""
    with pytest.raises(ProfileError, match=message):
        load(write(**keys))


PODS: dict[str, Any] = {"launcher": "volcano", "image": "pi:v1", "nodes": 2}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "not an image!"}, "image: 'not an image!' is not the name of an image"),
        ({"image": "Train:v1"}, "image: 'Train:v1' is not the name of an image"),
        ({"mounts": {"data": {"claim": "x"}}}, "mounts: 'data' is not an absolute path: start it with /"),
        ({"mounts": {"": {"claim": "x"}}}, "mounts: '' is not an absolute path"),
        ({"env": {"": "x"}}, "env: '' is not the name of a variable"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' is not the name of a variable"),
        ({"env": {"GRÜSSE": "x"}}, "env: 'GRÜSSE' is not the name of a variable"),
        ({"env": {"RANK": "0"}}, "env: RANK differs between processes"),
        ({"args": ["--rank={node_rnk}"]}, "args: {node_rnk} is not a placeholder: did you mean {node_rank}?"),
        ({"resources": {"gpus": 1.5}}, "resources: gpus: 1.5 is not a number of devices: write a whole number"),
        ({"pod": {"limits": {"rdma/rdma": "500m"}}}, "rdma/rdma: 500m is not a number of devices"),
        ({"resources": {"gpus": 2}, "processes": 4}, "processes: must be 2 or less, one per GPU of a node, not 4"),
        (
            {"resources": {"gpus": 16}, "hardware": "oke/bm-gpu-b4-8", "fabric": "host"},
            "resources: gpus: must be 8 or less on a node of this hardware, not 16",
        ),
        ({"nodes": "two"}, "nodes: must be one number, or {min: 2, max: 8}, not 'two'"),
    ],
)
def test_invalid_value_is_refused(write: Write, keys: dict[str, Any], message: str) -> None:
    """A value that a cluster would refuse, or a program misunderstand, is refused with the valid ones."""
    with pytest.raises(ProfileError) as caught:
        load(write(**(PODS | keys)))
    assert message in str(caught.value)


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
def test_unusual_value_is_accepted(write: Write, keys: dict[str, Any]) -> None:
    """Braces in arguments, many processes without GPUs, and registries with ports are accepted."""
    load(write(**(PODS | keys)))


def test_invalid_name_is_refused(write: Write) -> None:
    """A file name that cannot become a job's name is refused, with the rule."""
    assert "name: string should match pattern" in get_refusal(write("My_Profile"))


def test_threshold_of_the_profile_takes_precedence(write: Write) -> None:
    """`min_busbw` takes precedence over the hardware file's, and without both there is none."""
    shape = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host", "nodes": 2, "processes": 8, "launcher": "volcano"}
    shape |= {"image": "train:v1", "check_fabric": "30s"}
    limits = [load(write(**shape, **keys)).required_busbw for keys in ({}, {"min_busbw": 20})]
    assert [*limits, load(write()).required_busbw] == [185, 20, None]


@pytest.mark.parametrize("written", ["off", "'off'", "no"])
def test_off_needs_no_quotes(write: Write, written: str) -> None:
    """A bare `off`, which YAML reads as false, is the value `off`, in a file and with --set."""
    path = write()
    path.write_text(f"{path.read_text()}\non_hang: {written}\n")
    assert load(path).on_hang == "off"
    assert load_profile(str(write()), {"on_hang": False}).on_hang == "off"
