"""Real programs that fail under each controller's own retry policy, on real nodes.

The tries, and the reported error.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from flows.train import train
from tests.cluster.complete_runs import read_report
from tests.cluster.jobs import require_real_nodes
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
IMAGE = json.loads((ROOT / "docs" / "small.json").read_text())["image"]
ERROR_LINE = "ValueError: the data set is empty"
SCRIPT = """
echo this try begins
case "$(hostname)" in *-0) sleep 300;; esac
python3 -c 'raise ValueError("the data set is empty")' || exit {code}
"""


class Policy(NamedTuple):
    """A controller's own retries: its launcher, the keys of its job, and the exit code of the program."""

    launcher: str
    keys: dict[str, Any]
    code: int = 1


POLICIES = {
    "volcano": Policy("volcano", {"maxRetry": 3, "policies": [{"event": "PodFailed", "action": "RestartJob"}]}),
    "pytorchjob-on-failure": Policy("pytorchjob", {"restart": "OnFailure", "backoffLimit": 2}),
    "pytorchjob-exit-code": Policy("pytorchjob", {"restart": "ExitCode", "backoffLimit": 2}, code=138),
    "appwrapper": Policy("appwrapper", {"retries": 1}),
    "jobset": Policy("jobset", {"maxRestarts": 2}),
    "job": Policy("job", {"backoffLimit": 2}),  # its controller leaves the pods that failed
}


ENDLESS = ("pytorchjob-exit-code",)  # its operator does not count such failures
IN_PLACE = ("pytorchjob-on-failure",)  # by the kubelet, which shows only the last of two failures in quick succession


def describe_pod(policy: Policy) -> dict[str, Any]:
    """A pod template that runs the failing program on a real node."""
    name = "pytorch" if policy.launcher in ("pytorchjob", "appwrapper") else "worker"
    command = ["/bin/sh", "-c", SCRIPT.format(code=policy.code)]
    container = {"name": name, "image": IMAGE, "command": command, "resources": {"requests": {"cpu": "100m"}}}
    spec = {
        "nodeSelector": {"torchyard/node": "real"},
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    if policy.launcher in ("volcano", "jobset", "job"):
        spec["restartPolicy"] = "Never"
    return {"metadata": {}, "spec": spec}


def describe_job(policy: Policy) -> dict[str, Any]:
    """The job of two pods with its controller's own retries."""
    match policy.launcher:
        case "volcano":
            task = {"name": "worker", "replicas": 2, "template": describe_pod(policy)}
            plugins = {"svc": ["--publish-not-ready-addresses=true"]}
            spec = {"minAvailable": 2, "schedulerName": "volcano", "plugins": plugins} | policy.keys | {"tasks": [task]}
            return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "own"}, "spec": spec}
        case "job":
            spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"} | policy.keys
            spec["template"] = describe_pod(policy)
            return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "own"}, "spec": spec}
        case "jobset":
            job_fields = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
            replicated_job = {"name": "worker", "template": {"spec": job_fields | {"template": describe_pod(policy)}}}
            spec = {"failurePolicy": policy.keys, "replicatedJobs": [replicated_job]}
            return {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "own"},
                "spec": spec,
            }
        case "appwrapper":
            job = describe_job(Policy("pytorchjob", {"restart": "Never"}))
            prefix = "workload.codeflare.dev.appwrapper/"
            annotations = {
                f"{prefix}retryLimit": str(policy.keys["retries"]),
                f"{prefix}retryPausePeriodDuration": "1s",
            }
            metadata = {"name": "own", "annotations": annotations | {f"{prefix}failureGracePeriodDuration": "1s"}}
            spec = {"components": [{"template": job}]}
            return {
                "apiVersion": "workload.codeflare.dev/v1beta2",
                "kind": "AppWrapper",
                "metadata": metadata,
                "spec": spec,
            }
        case _:
            limit = {key: value for key, value in policy.keys.items() if key == "backoffLimit"}
            worker = {"replicas": 2, "restartPolicy": policy.keys["restart"], "template": describe_pod(policy)}
            spec = {"runPolicy": limit, "pytorchReplicaSpecs": {"Worker": worker}}
            return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "own"}, "spec": spec}


@pytest.fixture
def namespace_overrides(admin_client: Client, user_overrides: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The overrides that run a manifest in the namespace."""
    require_real_nodes(admin_client)
    return user_overrides | {"cluster.namespace": namespace}


@pytest.mark.parametrize("name", POLICIES)
def test_report_has_the_programs_error_and_the_number_of_retries(
    name: str, namespace_overrides: dict[str, Any], tmp_path: Path
) -> None:
    """A run whose controller retries in vain fails with the error of the program, and reports the number of retries."""
    policy = POLICIES[name]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(describe_job(policy)))
    profile = tmp_path / f"retry-{name}.yaml"
    profile.write_text(yaml.safe_dump({"about": "fails", "launcher": policy.launcher, "manifest": "job.yaml"}))
    deadlines = {"start": "3m", "run": "40s" if name in ENDLESS else "3m"}
    state = train(str(profile), namespace_overrides | {"deadlines": deadlines}, return_state=True)
    report = read_report()
    try_count = max(path.read_text().count("this try begins") for path in Path(report.folder).glob("attempt-1/*1/log"))
    assert state.name == "Failed"
    assert ERROR_LINE in report.sentence
    assert try_count > 1
    match = re.search(r"after (\d+) retr(y|ies) ", report.sentence)
    assert match, report.sentence
    may_miss_one = name in ENDLESS  # the deadline may cut a try off before its first line
    assert try_count - 1 <= int(match[1]) <= try_count - 1 + may_miss_one, report.sentence
    assert report.leftovers == ()
    container_failures = report.attempts[0].outcome.container_failures
    assert {(failure.node[-1], failure.exit_code) for failure in container_failures} == {("1", policy.code)}
    assert len(container_failures) >= (1 if name in IN_PLACE else min(try_count, 2))
