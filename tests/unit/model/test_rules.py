"""The rules between the keys of a profile."""

from typing import Any

import pytest

from tests.conftest import Write, load
from torchyard.model.errors import ProfileError
from torchyard.model.rules import get_first_key, list_findings


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
        ({"check_fabric": "30s", "nodes": 2, "min_busbw": 0}, "min_busbw: must be greater than 0"),
        ({"check_fabric": "soon", "nodes": 2}, "check_fabric: a duration is a number with a unit"),
        ({"on_hang": "restart"}, "on_hang: restart requires another attempt: set attempts to 2 or more"),
        ({"on_nan": "fail"}, "on_nan: fail requires metrics"),
        ({"on_hang": True}, "on_hang: .*'off', 'report', 'restart' or 'fail'"),
        ({"module": "my.train"}, "a profile must name one of program, module"),
        ({"program": "-m"}, "program: -m is an option, and not a file: for `python -m my.train` use module: my.train"),
        ({"program": "my.train"}, r"program: my.train is not a Python file, .*; for a module use module: my.train"),
        ({"program": None, "module": "my/train.py"}, "module: 'my/train.py' is not the name of a module"),
        ({"rendezvous": "env", "nodes": {"min": 1, "max": 2}}, "nodes: must be one number with rendezvous: env"),
    ],
)
def test_conflicting_keys_are_refused(write: Write, keys: dict[str, Any], message: str) -> None:
    """Agent and rendezvous, and the fabric check and its threshold, must fit together, with any launcher."""
    with pytest.raises(ProfileError, match=message):
        load(write(**keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rendezvous": "c10d"}, "agent: must be none: with program: image the pods run no command of torchyard's"),
        ({"setup": ["true"]}, "setup: requires a shell: with program: image"),
        ({"hardware": "epfl/rcp", "fabric": "roce"}, "fabric: roce requires a shell: with program: image"),
        ({"check_fabric": "30s", "min_busbw": 1}, "check_fabric: requires a shell"),
        ({"on_hang": "report"}, "on_hang: report requires the recorder"),
        ({"launcher": "baremetal"}, "program: image requires pods; for a file of this name write ./image"),
        ({"launcher": "runai", "options": {"project": "a"}}, "program: the CLI needs a command"),
    ],
)
def test_entrypoint_of_the_image_excludes_what_needs_a_command(
    write: Write, keys: dict[str, Any], message: str
) -> None:
    """What torchyard's command does in the pods before the program is refused with the image's own entrypoint."""
    entrypoint = {"launcher": "jobset", "image": "train:v1", "program": "image", "rendezvous": "env", "nodes": 2}
    with pytest.raises(ProfileError, match=message):
        load(write(**(entrypoint | keys)))


def test_program_without_an_agent_may_have_a_dot(write: Write) -> None:
    """Without an agent any command is a program; a name with a dot is not taken for a module."""
    load(write(launcher="jobset", image="train:v1", program="a.out", rendezvous="env"))


PODS: dict[str, Any] = {"launcher": "volcano", "image": "pi:v1", "nodes": 2}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image": "not an image!"}, "image: 'not an image!' is not the name of an image"),
        ({"image": "Train:v1"}, "image: 'Train:v1' is not the name of an image"),
        (
            {"image": "gcr.io/<project>/train:v1"},
            "image: 'gcr.io/<project>/train:v1' is a placeholder: write [registry",
        ),
        ({"image": "ACCOUNT.dkr.ecr.eu-west-1.amazonaws.com/train:v1"}, "is a placeholder"),
        ({"image": "your-registry/train:v1"}, "image: 'your-registry/train:v1' is a placeholder"),
        ({"mounts": {"data": {"claim": "x"}}}, "mounts: 'data' is not an absolute path: start it with /"),
        ({"mounts": {"": {"claim": "x"}}}, "mounts: '' is not an absolute path"),
        ({"env": {"": "x"}}, "env: '' is not the name of a variable"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' is not the name of a variable"),
        ({"env": {"GRÜSSE": "x"}}, "env: 'GRÜSSE' is not the name of a variable"),
        ({"env": {"RANK": "0"}}, "env: RANK differs between processes"),
        ({"env": {"A": {"field": "status.ip"}}}, "env.A: status.ip is not a field that a variable can have: use meta"),
        ({"env": {"A": {"resource": "cpu"}}}, "env.A: cpu is not an amount that a variable can have: use limits or"),
        ({"env": {"A": {"field": "status.podIP", "resource": "limits.cpu"}}}, "env.A: must name either a field or"),
        ({"env": {"A": {"field": "status.podIP", "divisor": 1}}}, "env.A: divisor requires resource"),
        ({"job": {"labels": {"torchyard/run": "a"}}}, "job.labels: torchyard/run begins like torchyard's own labels"),
        ({"pod": {"labels": {"torchyard/role": "a"}}}, "pod.labels: torchyard/role begins like torchyard's own"),
        ({"pod": {"tolerations": [{"value": "a"}]}}, "pod.tolerations.0: requires key: without one, write operator"),
        ({"pod": {"tolerations": [{"key": "a", "operator": "Equal"}]}}, "pod.tolerations.0: operator Equal requires"),
        ({"pod": {"tolerations": [{"key": "a", "effect": "No"}]}}, "pod.tolerations.0.effect: must be"),
        (
            {"pod": {"tolerations": [{"key": "a", "toleration_seconds": 5}]}},
            "pod.tolerations.0: toleration_seconds requires effect: NoExecute",
        ),
        (
            {"pod": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
            "pod.tolerations.0: operator Exists tolerates all values: remove value, or use Equal",
        ),
        ({"args": ["--rank={node_rnk}"]}, "args: {node_rnk} is not a placeholder: did you mean {node_rank}?"),
        ({"resources": {"gpus": 1.5}}, "resources: gpus: 1.5 is not a number of devices: write a whole number"),
        ({"pod": {"limits": {"rdma/rdma": "500m"}}}, "rdma/rdma: 500m is not a number of devices"),
        ({"resources": {"gpus": 2}, "processes": 4}, "processes: must be 2 or less, one per GPU of a node, not 4"),
        (
            {"resources": {"gpus": 16}, "hardware": "oke/bm-gpu-b4-8", "fabric": "host"},
            "resources.gpus: must be 8 or less on a node of this hardware, not 16",
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


def test_each_broken_rule_is_a_finding(write: Write) -> None:
    """All broken rules are reported, each at the key that is to be changed."""
    profile = load(write(**PODS))
    keys = {"args": ("{node_rnk}",), "env": {"RANK": "0"}, "restarts": 1, "agent": "none", "image": "Pi"}
    findings = list(list_findings(profile.model_copy(update=keys)))
    assert [get_first_key(finding) for finding in findings] == ["agent", "image", "env", "args"]


def test_rule_that_reads_a_wrong_key_is_not_checked(write: Write) -> None:
    """A value that is wrong by itself breaks no rule as well, and neither does the key of an earlier finding."""
    profile = load(write(**PODS)).model_copy(update={"agent": "none", "restarts": 1})
    assert len(list(list_findings(profile))) == 1  # restarts requires an agent, of which there is a finding
    assert list(list_findings(profile, {"agent"})) == []
