"""Run:ai, without a CLI: what is said to it, what every pod runs, and what its words mean."""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import RUN_ID, Write, load, plan_of
from tests.test_prelude import kubelet
from torchyard.host.runai_cli import _parse_statuses, read_pod_status
from torchyard.launchers import runai
from torchyard.model.errors import ProfileError
from torchyard.model.plan import CommandPlan, ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Observation, Run
from torchyard.pods import template
from torchyard.pods.runai_flags import _build_script

RUN = Run(id=RUN_ID, attempt=1, folder="/runs")
BASE = Profile(name="sample", about="a test", launcher="runai", image="pi:v1", program="pi.py", nodes=2)


def profile(write: Write, through: str = "cli-v1", options: dict[str, Any] | None = None, **keys: Any) -> Profile:
    asked = {"project": "mlo", "through": through, **(options or {})}
    return load(write(**{"launcher": "runai", "image": "pi:v1", "nodes": 2, "options": asked, **keys}))


def said(made: Profile) -> list[str]:
    """The command line that submits."""
    plan = runai.plan(made, RUN)
    assert isinstance(plan, CommandPlan)
    assert plan.on[0].submit
    assert plan.on[0].submit.input
    found: list[str] = plan.on[0].submit.input["argv"]
    return found


# --- what is said to the CLI

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
        ({"options": {"node_pools": ["h100"]}}, "--node-pools", "h100"),
        ({}, "--backoff-limit", "0"),
        ({}, "--label", "torchyard/cli-run=sample-a1b2c3d4"),
    ],
)
def test_profile_is_said_in_flags(write: Write, keys: dict[str, Any], flag: str, value: str) -> None:
    """What v1 of the CLI needs is made from the profile's keys."""
    assert (flag, value) in pairwise(said(profile(write, **keys)))


@pytest.mark.parametrize("through", ["cli-v1", "cli-v2"])
def test_cli_job_is_no_orphan_to_a_sweep(write: Write, through: str) -> None:
    """A job through the CLI has no Lease, so nothing of it carries the label by which a sweep finds runs."""
    assert not [word for word in said(profile(write, through)) if word.startswith(f"{template.RUN_LABEL}=")]


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
    """The same keys are said to v2 in its own words."""
    assert (flag, value) in pairwise(said(profile(write, "cli-v2", **keys)))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"env": {"KEY": {"secret": "hub", "key": "token"}}}, "env.KEY: the CLI sends values, not references"),
        ({"mounts": {"/data": {"host": "/data"}}}, "mounts./data: the CLI mounts a claim"),
        ({"mounts": {"/a": {"claim": "a", "read_only": True}}}, "mounts./a: read_only cannot be said to v2"),
        ({"pod": {"init": [{"name": "a", "image": "b"}]}}, "pod.init: no flag"),
        ({"pod": {"node_selector": {"a": "b"}}}, "the CLI knows options.node_pools only"),
        ({"rendezvous": "etcd-v2"}, "rendezvous: etcd-v2 needs a store"),
        ({"nodes": {"min": 2, "max": 4}}, "nodes: one number of 2 or more"),
        ({"nodes": 1}, "nodes: one number of 2 or more"),
        ({"resources": {"ephemeral-storage": "1Gi"}}, "resources.ephemeral-storage: no flag"),
    ],
)
def test_what_no_flag_says_is_refused(write: Write, keys: dict[str, Any], told: str) -> None:
    """What the CLI cannot say is an error of the profile that names the way out, never left out in silence."""
    with pytest.raises(ProfileError, match=told) as error:
        runai.plan(profile(write, "cli-v2", **keys), RUN)
    assert "options.through: kubernetes can" in str(error.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"preemptible": True}, "a training can always be preempted"),
        ({"through": "kubernetes", "backoff_limit": 1}, "are the CLI's"),
        ({"through": "cli-v1", "node_pools": ["a", "b"]}, "v1 of the CLI takes one"),
    ],
)
def test_options_that_do_not_fit_are_refused(write: Write, options: dict[str, Any], told: str) -> None:
    """An option that would mean nothing is an error."""
    with pytest.raises(ProfileError, match=told):
        profile(write, options=options)


# --- what every pod runs


def run(text: str, **env: str) -> str:
    """What a pod prints that runs the script."""
    made = subprocess.run(
        ["/bin/sh", "-c", text], env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=True
    )
    return made.stdout


def bare(*words: str) -> Profile:
    """A program without an agent that prints its arguments."""
    keys = {"program": "printf", "args": ("%s\\0", *words), "agent": "none", "rendezvous": "env", "processes": 4}
    return BASE.model_copy(update=keys)


ODD = st.text(st.characters(exclude_characters="{\0", exclude_categories=["Cs"]) | st.sampled_from("$()'\" \n\\;&|*"))


@pytest.mark.parametrize("shell", ["dash", "bash"])
@settings(max_examples=25)
@given(given=st.lists(ODD, min_size=1, max_size=3))
def test_words_arrive_unchanged(shell: str, given: list[str]) -> None:
    """Any argument reaches the program as it was written, whether the CLI hands on words or makes a shell line."""
    path = shutil.which(shell) or pytest.skip(f"there is no {shell}")
    env = {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    env["TORCHYARD_COMMAND"] = kubelet(_build_script(bare(*given), RUN), env)
    command = ["/bin/sh", "-c", "$(TORCHYARD_COMMAND)"]
    for argv in ([path, *command[1:]], [path, "-c", " ".join(command)]):
        expanded = [kubelet(word, env) for word in argv]
        made = subprocess.run(expanded, env={**env, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
        assert made.stdout.decode().split("\0")[:-1] == given


@pytest.mark.parametrize("theirs", ["2", "8"])
def test_world_size_counts_processes(theirs: str) -> None:
    """A program alone is told the number of processes, whatever WORLD_SIZE means to the operator."""
    made = bare().model_copy(update={"program": "env", "args": ()})
    assert "\nWORLD_SIZE=8\n" in "\n" + run(_build_script(made, RUN), WORLD_SIZE=theirs, RANK="1")


@pytest.mark.parametrize(("env", "rank"), [({"RANK": "1"}, "1"), ({"RANK": "9", "PET_NODE_RANK": "1"}, "1")])
def test_node_rank_is_the_newest_word(env: dict[str, str], rank: str) -> None:
    """PET_NODE_RANK is the pod's rank where it exists, and RANK is where it does not."""
    made = bare().model_copy(update={"program": "echo", "args": ("{node_rank}", "{master_addr}:{master_port}")})
    assert run(_build_script(made, RUN), **env, MASTER_ADDR="there", MASTER_PORT="7") == f"{rank} there:7\n"


# --- through Kubernetes


def test_kubernetes_gets_a_pytorch_job(write: Write, tmp_path: Path) -> None:
    """Through Kubernetes the job is a PyTorchJob in the project's namespace, for Run:ai's scheduler and queue."""
    plan = plan_of(profile(write, "kubernetes"), tmp_path)
    assert isinstance(plan, ManifestPlan)
    assert (plan.launcher, plan.cluster.namespace) == ("runai", "runai-mlo")
    assert plan.pod["spec"]["schedulerName"] == "runai-scheduler"
    assert plan.main["metadata"]["labels"].items() >= {"project": "mlo", "runai/queue": "mlo"}.items()


def test_status_through_kubernetes_is_the_operators() -> None:
    """Objects that were seen are read as those of a PyTorchJob."""
    assert runai.read_status(Observation({"Pod/worker-0": {}}, frozenset())).state == "gone"


# --- how it is


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('{"name": "j", "status": "RUNNING", "instances": [{"name": "j-master-0", "status": "PENDING"}]}', "PENDING"),
        ('{"general": {"name": "j", "phase": "Running"}, "pods": [{"podName": "j-master-0", "state": "W"}]}', "W"),
        ('{"Status": {"Phase": "Running"}, "pods": [{"metadata": {"name": "j-master-0"}, "status": "P"}]}', "P"),
        ("NAME: j\nSTATUS: Running\n", None),
        ('warning: old\n{"status": {"value": "Running"}}', None),
    ],
)
def test_words_are_found_in_any_shape(answer: str, found: str | None) -> None:
    """The job's word and its pods' are found in JSON of several shapes, and the job's in plain text."""
    read = _parse_statuses(answer, "j")
    assert (read[""].lower(), read.get("j-master-0")) == ("running", found)


def seen(**said: str) -> dict[str, Any]:
    """Two pods, of which the CLI said these words; `job` is the job's."""
    names = {"job": "", "master": "m", "worker": "w"}
    told = {"words": {names[name]: word for name, word in said.items()}, "why": "", "gone": "gone" in said.values()}
    told |= {"begun": {}, "ended": {"w": 1.0, "m": 2.0}, "since": dict.fromkeys(("m", "w", ""), 100.0)}
    return {"node-0": read_pod_status(told, "m"), "node-1": read_pod_status(told, "w")}


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ({"job": "Pending"}, "pending", "0 of 2 pods run; node-0: Pending"),
        ({"job": "Running", "worker": "ContainerCreating"}, "pending", "1 of 2 pods run; node-1: ContainerCreating"),
        ({"job": "Running"}, "running", "2 of 2 pods run"),
        ({"job": "Succeeded", "master": "Succeeded", "worker": "Running"}, "running", "2 of 2 pods run"),
        ({"job": "Running", "master": "Succeeded", "worker": "Succeeded"}, "succeeded", "2 of 2 pods succeeded"),
        ({"job": "COMPLETED"}, "succeeded", "2 of 2 pods succeeded"),
        ({"job": "Running", "worker": "Failed"}, "failed", "node-1 ended as Failed"),
        ({"job": "Failed", "master": "Failed", "worker": "Error"}, "failed", "node-1 ended as Error"),
        ({"job": "Succeeded", "worker": "Failed"}, "failed", "node-1 ended as Failed"),
        ({"job": "Something"}, "pending", "0 of 2 pods run; node-0: Something"),
        ({"job": "gone"}, "gone", "the job was deleted from Run:ai by somebody else"),
    ],
)
def test_state_is_read_from_words(said: dict[str, str], state: str, reason: str) -> None:
    """Pods count before the job, what failed before what succeeded, and a word nobody knows is no end."""
    status = runai.read_status(Observation(seen(**said), frozenset(), 101.0))
    assert (status.state, status.reason) == (state, reason)


@pytest.mark.parametrize(
    ("word", "cause", "retry"),
    [
        ("Preempted", "preempted", True),
        ("TimedOut", "pod-deadline", False),
        ("OOMKilled", "oom-pod", False),
        ("ContainerCannotRun", "start-error", False),
        ("ImagePullBackOff", "image", False),
        ("ErrImagePull", "image", False),
    ],
)
def test_word_that_no_log_tells_is_the_cause(word: str, cause: str, retry: bool) -> None:
    """What a log cannot tell comes from Run:ai's word; an image has a while to be had."""
    failure = runai.read_status(Observation(seen(job=word), frozenset(), 200.0)).failure
    assert failure
    assert (failure.cause, failure.retry) == (cause, retry)


def test_image_may_yet_come() -> None:
    """A registry that failed a moment ago is waited for."""
    status = runai.read_status(Observation(seen(job="ErrImagePull"), frozenset(), 101.0))
    assert (status.state, status.reason) == ("pending", "0 of 2 pods run; node-0: ErrImagePull")


def test_nothing_heard_is_no_end() -> None:
    """Before the CLI has said a word the job is pending."""
    assert runai.read_status(Observation({"node-0": {}, "node-1": {}}, frozenset())).state == "pending"
