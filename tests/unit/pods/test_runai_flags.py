"""A job as the flags of Run:ai's CLI, and the script that its pods run."""

import shutil
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import RUN_ID, Write, load
from tests.doubles.kubelet import expand_variables
from torchyard.diagnosis.pod_facts import RUN_LABEL
from torchyard.launchers import registry
from torchyard.model.errors import ProfileError
from torchyard.model.plan import CommandPlan
from torchyard.model.pod import Pod
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile, resolve
from torchyard.model.run import Run
from torchyard.pods.runai_flags import build_script

RUN = Run(id=RUN_ID, attempt=1, folder="/runs")
BASE = Profile(name="sample", about="a test", launcher="runai", image="pi:v1", program="pi.py", nodes=2)


def load_runai_profile(
    write: Write, through: str = "cli-v1", options: dict[str, Any] | None = None, **keys: Any
) -> Profile:
    all_options = {"project": "mlo", "through": through} | (options or {})
    return load(write(**{"launcher": "runai", "image": "pi:v1", "nodes": 2, "options": all_options} | keys))


def get_submit_argv(profile: Profile) -> list[str]:
    """The command line that submits."""
    plan = registry.make_plan(profile, RUN)
    assert isinstance(plan, CommandPlan)
    assert plan.processes[0].spec
    argv: list[str] = plan.processes[0].spec["argv"]
    return argv


# --- the CLI's flags


RCP = {"hardware": "epfl/rcp", "fabric": "roce"}


@pytest.mark.parametrize(
    ("keys", "flag", "value"),
    [
        ({}, "--workers", "1"),
        ({}, "--gpu", "0"),
        ({"resources": {"gpus": 4}}, "--gpu", "4"),
        ({"resources": {"cpu": "500m"}}, "--cpu", "0.5"),
        (RCP, "--extended-resource", "rdma/rdma=1"),
        (RCP, "--annotation", "k8s.v1.cni.cncf.io/networks=kube-system/roce"),
        ({"mounts": {"/scratch": {"claim": "mlo", "read_only": True}}}, "--pvc", "mlo:/scratch:ro"),
        ({"env": {"A": "1,2 3"}}, "--environment", "A=1,2 3"),
        ({"pod": {"capabilities": ["IPC_LOCK"]}}, "--add-capability", "IPC_LOCK"),
        ({"pod": {"tolerations": ["gpu"]}}, "--toleration", "operator=Exists,key=gpu"),
        (
            {"pod": {"tolerations": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}},
            "--toleration",
            "operator=Equal,key=team,value=a,effect=NoSchedule",
        ),
        ({"options": {"node_pools": ["h100"]}}, "--node-pools", "h100"),
        ({}, "--backoff-limit", "0"),
        ({}, "--label", "torchyard/cli-run=sample-a1b2c3d4"),
    ],
)
def test_profile_becomes_flags(write: Write, keys: dict[str, Any], flag: str, value: str) -> None:
    """The profile's keys become flags of v1 of the CLI."""
    assert (flag, value) in pairwise(get_submit_argv(load_runai_profile(write, **keys)))


@pytest.mark.parametrize("through", ["cli-v1", "cli-v2"])
def test_sweep_does_not_find_a_cli_job(write: Write, through: str) -> None:
    """A job through the CLI has no Lease, so it does not get the label by which a sweep finds runs."""
    assert not [arg for arg in get_submit_argv(load_runai_profile(write, through)) if arg.startswith(f"{RUN_LABEL}=")]


@pytest.mark.parametrize(
    ("keys", "flag", "value"),
    [
        ({"resources": {"gpus": 4}}, "--gpu-devices-request", "4"),
        ({"resources": {"memory": "8Gi"}}, "--cpu-memory-request", "8Gi"),
        ({"mounts": {"/scratch": {"claim": "mlo"}}}, "--existing-pvc", "claimname=mlo,path=/scratch"),
        ({"pod": {"capabilities": ["IPC_LOCK"]}}, "--capability", "IPC_LOCK"),
        ({"options": {"interactive": True}}, "--preemptibility", "non-preemptible"),
    ],
)
def test_v2_has_other_flags(write: Write, keys: dict[str, Any], flag: str, value: str) -> None:
    """The profile's keys become the different flags of v2 of the CLI."""
    assert (flag, value) in pairwise(get_submit_argv(load_runai_profile(write, "cli-v2", **keys)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"env": {"KEY": {"secret": "hub", "key": "token"}}}, "env.KEY: the CLI passes values, not references"),
        ({"mounts": {"/data": {"host": "/data"}}}, "mounts./data: the CLI mounts claims only"),
        ({"mounts": {"/a": {"claim": "a", "read_only": True}}}, "mounts./a: read_only has no flag in v2"),
        ({"pod": {"init": [{"name": "a", "image": "b"}]}}, "pod.init: no flag"),
        ({"pod": {"node_selector": {"a": "b"}}}, "the CLI selects only pools: use options.node_pools"),
        ({"rendezvous": "etcd-v2"}, "rendezvous: etcd-v2 needs a store"),
        ({"nodes": {"min": 2, "max": 4}}, "nodes: must be one number of 2 or more"),
        ({"job": {"labels": {"team": "a"}}}, "job.labels: the CLI creates the job's object"),
        ({"nodes": 1}, "nodes: must be one number of 2 or more"),
        ({"hardware": "gke/a3-high", "fabric": "tcpx"}, "pod.init: no flag"),
        ({"hardware": "gke/a4x-max", "fabric": "gib-dra"}, r"claims devices \(torchyard, torchyard-mrdma\)"),
        ({"resources": {"ephemeral-storage": "1Gi"}}, "resources.ephemeral-storage: no flag"),
    ],
)
def test_setting_without_a_flag_is_refused(write: Write, keys: dict[str, Any], message: str) -> None:
    """A key for which the CLI has no flag is an error with a remedy, and is never dropped silently."""
    with pytest.raises(ProfileError, match=message) as error:
        registry.make_plan(load_runai_profile(write, "cli-v2", **keys), RUN)
    assert "or use options.through: kubernetes" in str(error.value)


# A value of each key of `pod` that changes the pods.
POD_VALUES: dict[str, Any] = {
    "host_network": True,
    "host_ipc": True,
    "spread": True,
    "privileged": True,
    "capabilities": ["IPC_LOCK"],
    "devices": ["/dev/infiniband"],
    "shm": "8Gi",
    "resources": {"gpus": 4},
    "limits": {"cpu": 4},
    "networks": {"kube-system/roce": 1},
    "node_selector": {"gpu": "h100"},
    "avoid": {"kubernetes.io/hostname": ["node-9"]},
    "only": {"kubernetes.io/hostname": ["node-1"]},
    "tolerations": ["gpu"],
    "scheduler": "volcano",
    "env_from": [{"secret": "tokens"}],
    "init": [{"name": "fetch", "image": "fetch:v1"}],
    "annotations": {"example.org/note": "nightly"},
    "labels": {"team": "vision"},
    "workdir": "/scratch",
    "pull_policy": "Always",
    "pull_secrets": ["registry"],
    "service_account": "trainer",
    "priority_class": "high",
    "patch": {"spec": {"runtimeClassName": "nvidia"}},
}


@pytest.mark.parametrize("key", Pod.model_fields)
def test_no_key_of_the_pod_is_dropped_silently(write: Write, key: str) -> None:
    """Each key of `pod` changes the command line, or is refused by its name."""
    message = ""
    argv: list[str] = []
    try:
        argv = get_submit_argv(load_runai_profile(write, pod={key: POD_VALUES[key]}))
    except ProfileError as error:
        message = str(error)
    assert f"pod.{key}" in message if message else argv != get_submit_argv(load_runai_profile(write))


# --- what every pod runs


def run_script(text: str, **env: str) -> str:
    """Run the script as a pod would; return its output."""
    completed = subprocess.run(
        ["/bin/sh", "-c", expand_variables(text, {})],
        env={"PATH": "/usr/bin:/bin"} | env,
        capture_output=True,
        text=True,
        check=True,
    )
    return completed.stdout


def build_printf_profile(*args: str) -> ResolvedProfile:
    """A program without an agent that prints its arguments."""
    keys = {"program": "printf", "args": ("%s\\0", *args), "agent": "none", "rendezvous": "env", "processes": 4}
    return resolve(BASE.model_copy(update=keys))


ODD = st.text(st.characters(exclude_characters="{\0", exclude_categories=["Cs"]) | st.sampled_from("$()'\" \n\\;&|*"))


@pytest.mark.parametrize("shell", ["dash", "bash"])
@settings(max_examples=25)
@given(args=st.lists(ODD, min_size=1, max_size=3))
def test_arguments_arrive_unchanged(shell: str, args: list[str]) -> None:
    """Any argument reaches the program unchanged, whether the CLI passes arguments on or builds a shell line."""
    path = shutil.which(shell) or pytest.skip(f"there is no {shell}")
    env = {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    env["TORCHYARD_COMMAND"] = expand_variables(build_script(build_printf_profile(*args), RUN), env)
    command = ["/bin/sh", "-c", "$(TORCHYARD_COMMAND)"]
    for argv in ([path, *command[1:]], [path, "-c", " ".join(command)]):
        expanded = [expand_variables(arg, env) for arg in argv]
        completed = subprocess.run(expanded, env=env | {"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
        assert completed.stdout.decode().split("\0")[:-1] == args


@pytest.mark.parametrize("operator_world_size", ["2", "8"])
def test_world_size_counts_processes(operator_world_size: str) -> None:
    """A program without an agent gets the number of processes, whatever WORLD_SIZE means to the operator."""
    env_profile = build_printf_profile().model_copy(update={"program": "env", "args": ()})
    assert "\nWORLD_SIZE=8\n" in "\n" + run_script(
        build_script(env_profile, RUN), WORLD_SIZE=operator_world_size, RANK="1"
    )


@pytest.mark.parametrize(("env", "rank"), [({"RANK": "1"}, "1"), ({"RANK": "9", "PET_NODE_RANK": "1"}, "1")])
def test_node_rank_is_the_newest_variable(env: dict[str, str], rank: str) -> None:
    """The pod's rank is PET_NODE_RANK if that exists, and RANK otherwise."""
    echo_profile = build_printf_profile().model_copy(
        update={"program": "echo", "args": ("{node_rank}", "{master_addr}:{master_port}")}
    )
    assert (
        run_script(build_script(echo_profile, RUN), **env, MASTER_ADDR="there", MASTER_PORT="7") == f"{rank} there:7\n"
    )
