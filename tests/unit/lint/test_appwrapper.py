"""Traps of an AppWrapper."""

from typing import Any

import pytest

from tests.inputs.sound_manifests import list_traps, parse
from torchyard.lint.manifest import lint_manifest

WRAPPED = """
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata:
  name: outer
  annotations:
    workload.codeflare.dev.appwrapper/admissionGracePeriodDuration: 30m
    workload.codeflare.dev.appwrapper/warmupGracePeriodDuration: 30m
    workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration: 1h
spec:
  components:
  - template:
      apiVersion: kubeflow.org/v1
      kind: PyTorchJob
      metadata: {name: inner}
      spec:
        pytorchReplicaSpecs:
          Master:
            replicas: 1
            restartPolicy: Never
            template:
              spec:
                containers: [{name: pytorch, image: "train:v1", command: [python3, train.py]}]
"""
PREFIX = "workload.codeflare.dev.appwrapper/"


def build_wrapper(**changes: Any) -> list[dict[str, Any]]:
    """The good wrapper, with its annotations (None: left out) and its job's policy changed."""
    (wrapper,) = parse(WRAPPED)
    annotations = wrapper["metadata"]["annotations"]
    for name, value in changes.items():
        if name == "cleanPodPolicy":
            wrapper["spec"]["components"][0]["template"]["spec"]["runPolicy"] = {"cleanPodPolicy": value}
        elif value is None:
            del annotations[PREFIX + name]
        else:
            annotations[PREFIX + name] = value
    return [wrapper]


def test_good_wrapper_has_no_traps() -> None:
    """A wrapper with long grace periods that keeps its pods gets no warning."""
    assert lint_manifest(build_wrapper()) == ()


def test_traps_of_the_wrapped_job_are_reported_with_both_names() -> None:
    """A trap of the job inside an AppWrapper, such as two Masters, is reported with both names."""
    (wrapper,) = build_wrapper()
    wrapper["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    assert list_traps([wrapper]) == ["AppWrapper outer, PyTorchJob inner, spec.pytorchReplicaSpecs.Master.replicas"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("warmupGracePeriodDuration", None, "after 5m in which not all pods run"),
        ("admissionGracePeriodDuration", None, "after 1m in which not all pods exist"),
        ("deletionOnFailureGracePeriodDuration", None, "are deleted immediately"),
        ("successTTLDuration", "7d", "7d is not a Go duration"),
    ],
)
def test_grace_periods_of_the_wrapper_are_checked(name: str, value: str | None, expected: str) -> None:
    """Missing grace periods, whose defaults are short, and durations that Go cannot parse are reported."""
    (warning,) = lint_manifest(build_wrapper(**{name: value}))
    assert f"{PREFIX}{name}" in warning.where
    assert expected in warning.what


@pytest.mark.parametrize("value", ["0", "24h", "1h30m", "1.5h", ".5h", "+90s", "500ms"])
def test_durations_of_go_are_accepted(value: str) -> None:
    """Every duration that Go's time.ParseDuration reads is accepted, also 0 without a unit."""
    assert lint_manifest(build_wrapper(successTTLDuration=value)) == ()


@pytest.mark.parametrize("policy", ["Running", "All"])
def test_pods_that_are_deleted_never_count(policy: str) -> None:
    """A policy that deletes pods is a trap: the wrapper waits until every pod has succeeded."""
    (warning,) = lint_manifest(build_wrapper(cleanPodPolicy=policy))
    assert f"{policy} deletes pods" in warning.what


def test_dispatcher_needs_a_completion_status() -> None:
    """Without completionstatus the older AppWrapper never ends."""
    item = {"generictemplate": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}}
    wrapper = {"kind": "AppWrapper", "apiVersion": "mcad.ibm.com/v1beta1", "metadata": {"name": "old"}}
    assert list_traps([wrapper | {"spec": {"resources": {"GenericItems": [item]}}}]) == [
        "AppWrapper old, spec.resources.GenericItems[0].completionstatus"
    ]
