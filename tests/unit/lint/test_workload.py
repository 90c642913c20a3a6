"""Manifests read as the pods that they create, and scripts as the words that they run."""

from typing import Any

import pytest

from tests.inputs.sound_manifests import MASTER, PYTORCHJOB, VOLCANO, parse
from torchyard.lint.manifest import lint_manifest
from torchyard.lint.workload import (
    is_floating_image,
    is_new_etcd,
    list_workloads,
    parse_torchrun_call,
    read_job_pods,
    split_script,
)


def test_words_after_a_script_are_read() -> None:
    """A script that ends in `exec "$@"` runs the arguments after it as a command."""
    command_text = '[sh, -c, "set -e; exec \\"$@\\"", sh, torchrun, --nnodes=2, --nnodes=2, train.py, --x, --x]'
    warnings = lint_manifest(parse(PYTORCHJOB.replace('[torchrun, --nproc-per-node, "2", train.py]', command_text)))
    assert [finding.what[:17] for finding in warnings if "is given" in finding.what] == ["--nnodes is given"]


def test_options_are_torchruns_own() -> None:
    """Options after the program belong to the program, and the value of a substitution is unknown."""
    argv = split_script("torchrun --nnodes=$(a b; c) --rdzv_id 'x y' \\\n -m train --nnodes=2 && true")
    assert parse_torchrun_call(argv[1:]) == ([("nnodes", "\0"), ("rdzv-id", "x_y"), ("m", "")], "train")
    assert parse_torchrun_call(["--nnodes=2", "--", "train.py", "--x"]) == ([("nnodes", "2")], "train.py")


@pytest.mark.parametrize(
    ("manifest", "pod_names"),
    [
        (VOLCANO, [["train-worker-0", "train-worker-1"]]),
        (PYTORCHJOB, [["train-worker-0"], ["etcd"]]),
        (MASTER, [["train-master-0", "train-worker-0", "train-worker-1", "train-worker-2"]]),
        ("{kind: CronJob, apiVersion: batch/v1, metadata: {name: other}}", []),
    ],
)
def test_pods_have_the_names_that_their_controller_gives(manifest: str, pod_names: list[list[str]]) -> None:
    """The names of a job's pods are known before they exist; an unsupported kind creates none."""
    assert [list(job.pod_names) for obj in parse(manifest) for job in list_workloads(obj)] == pod_names


@pytest.mark.parametrize(
    ("image", "is_floating", "is_new"),
    [
        ("etcd", True, True),
        ("quay.io:5000/coreos/etcd:latest", True, True),
        ("quay.io/coreos/etcd:v3.5.35", False, False),
        ("quay.io/coreos/etcd:v3.6.0", False, True),
        ("quay.io/coreos/etcd@sha256:0a1b", False, False),
        ("hub:5000/train", True, False),
    ],
)
def test_version_of_an_image_is_read_from_its_tag(image: str, is_floating: bool, is_new: bool) -> None:
    """An image without a version is another one tomorrow, and an etcd of that kind counts as 3.6 or newer."""
    assert (is_floating_image(image), is_new_etcd(image)) == (is_floating, is_new)


JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec: {replicatedJobs: [{name: w, template: {spec: {template: {spec: {containers: []}}}}}]}
"""


@pytest.mark.parametrize(
    ("changed", "pod_count"),
    [
        ("name: w,", 1),
        ("name: w, replicas: 2,", 2),
        ("name: w, replicas: 0,", 0),
    ],
)
def test_replicas_of_a_jobset_are_counted(changed: str, pod_count: int) -> None:
    """Replicas of a JobSet that are left out count as 1, and 0 as 0."""
    (job,) = list_workloads(parse(JOBSET.replace("name: w,", changed))[0])
    assert job.pod_count == pod_count


def test_parallelism_of_zero_in_a_jobset_is_no_pod() -> None:
    """A Job of a JobSet with a parallelism of 0 has no pods."""
    (job,) = list_workloads(parse(JOBSET.replace("spec: {template", "spec: {parallelism: 0, template"))[0])
    assert job.pod_count == 0


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, (1, 1)),
        ({"parallelism": 4}, (4, 4)),
        ({"completions": 4}, (4, 1)),
        ({"completions": 4, "parallelism": 8}, (4, 4)),
        ({"completions": None, "parallelism": None}, (1, 1)),
    ],
)
def test_completions_count_the_pods_of_a_job(spec: dict[str, Any], pods: tuple[int, int]) -> None:
    """A Job has as many pods as completions, and of these at most as many as its parallelism run at a time."""
    assert read_job_pods(spec) == pods


def test_jobset_has_as_many_pods_as_its_jobs_complete() -> None:
    """A parallelism above the completions adds no pods."""
    text = JOBSET.replace("spec: {template", "spec: {parallelism: 8, completions: 4, template")
    (job,) = list_workloads(parse(text)[0])
    assert job.pod_count == 4
