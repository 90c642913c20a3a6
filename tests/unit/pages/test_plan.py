"""The pages of a run that has not started: its plan and its checks."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.inputs.user_manifests import JOB, Launched
from tests.support.markdown import render_html
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.finding import Finding
from torchyard.model.run import TRIAL_RUN, Run
from torchyard.pages.plan import (
    build_plan_document,
    describe_plan,
    format_plan,
    list_masked_properties,
    list_plan_findings,
    render_checks_page,
    render_plan_page,
    render_plan_text,
)

OK = Finding(where="kind Job", verdict="ok", what="v1alpha1 of Volcano")
FAILED = Finding(where="plugin", verdict="failed", what="no node has nvidia.com/sriov | <b>", remedy="install it")


def test_plan_page_shows_the_job_and_folds_the_plan() -> None:
    """The table has launcher, program, image and deadlines; the complete plan is folded, without secrets."""
    profile = load_profile("yolov5-volcano", {"env": {"API_TOKEN": "hunter2hunter2"}})
    plan = registry.make_plan(profile, Run(id="0" * 8, attempt=1, folder="/runs/x"))
    page = render_plan_page(profile, plan)
    for part in ("volcano", "2 x 1, started by torchrun", "ultralytics/yolov5:v7.0", "/usr/src/app/train.py"):
        assert part in render_html(page)
    table, _, folded = page.partition("<details>")
    assert "run 43200 s" in table
    assert "kind: manifests" in folded
    assert folded.rstrip().endswith("</pre>\n\n</details>")
    assert "hunter2" not in page


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("digits-local-etcd", "starts       etcd on localhost, node-0 on localhost, node-1 on localhost"),
        ("pi-runai", "starts       Run:ai job pi-runai-00000000-1 of 2 pods"),
        ("pi-runai", "volumes      /mloscratch claim mlo-scratch"),
        ("yolov5-pytorchjob-etcd", "Service yolov5-pytorchjob-etcd-00000000-1-etcd"),
        ("allreduce-volcano", "files        /torchyard/allreduce.py ("),
        ("fms-vela-gdr", "networks     multi-nic-network 1"),
        ("fms-vela-gdr", "resources    nvidia.com/roce_gdr 2, cpu 64, memory 1Ti, gpus 8"),
        ("yolov5-volcano", "environment  NCCL_IB_SPLIT_DATA_ON_QPS=0, NCCL_IB_QPS_PER_CONNECTION=4, "),
        ("mnist-2x4", "where        the kubeconfig's current context, its namespace"),
    ],
)
def test_plan_text_has_what_will_be_created_and_used(name: str, part: str) -> None:
    """The summary has the processes or objects, the volumes, files, networks and variables, and where they run.

    Those of the hardware file are included.
    """
    profile = load_profile(name)
    assert part in render_plan_text(profile, registry.make_plan(profile, TRIAL_RUN))


def test_environment_shows_sources_and_no_secrets() -> None:
    """A variable that pods read from elsewhere is shown with its source, and a secret value is masked."""
    env = {
        "A": "1",
        "API_TOKEN": "hunter2hunter2",
        "B": {"secret": "hf", "key": "token"},
        "C": {"config_map": "site", "key": "c"},
        "D": {"field": "status.podIP"},
    }
    profile = load_profile("mnist-pytorchjob", {"env": env})
    text = list_masked_properties(profile, registry.make_plan(profile, TRIAL_RUN))["environment"]
    assert text.endswith("A=1, API_TOKEN=****, B from secret hf, C from ConfigMap site, D from the pod")


def test_scripts_of_a_plan_are_blocks_of_lines() -> None:
    """The complete plan has a script as its lines, not as one quoted string, and is the same document."""
    profile = load_profile("yolov5-volcano")
    plan = registry.make_plan(profile, TRIAL_RUN)
    text = format_plan(plan)
    assert "- |\n" in text
    assert "\\n" not in text
    assert yaml.safe_load(text) == build_plan_document(plan)


def test_plan_text_has_findings_with_their_remedies(launched: Launched, tmp_path: Path) -> None:
    """A manifest's replacements are notes, and its traps are warnings that end with the remedy."""
    script = ["sh", "-c", "echo ${HOSTNAME} | cut -d- -f3; torchrun --rdzv_endpoint=train-lead-0:29400 train.py"]
    job: dict[str, Any] = copy.deepcopy(JOB)
    job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] = script
    plan = launched(job)
    profile = load_profile(str(tmp_path / "sample.yaml"))
    findings = list_plan_findings(plan)
    lines = render_plan_text(profile, plan).splitlines()
    assert {finding.verdict for finding in findings} == {"ok", "warning"}
    for finding in findings:
        label = "note" if finding.verdict == "ok" else "warning"
        assert f"  {label:<12} {finding}" in lines


def test_plan_of_a_manifest_states_its_pods(launched: Launched, tmp_path: Path) -> None:
    """The pods of a manifest start what they like: the plan has their number, no processes and no rendezvous."""
    plan = launched(JOB)
    profile = load_profile(str(tmp_path / "sample.yaml"))
    assert describe_plan(profile, plan).startswith("4 pods with volcano: ")
    properties = list_masked_properties(profile, plan)
    assert (properties["processes"], "rendezvous" in properties) == ("4 pods of the manifest", False)


def test_plan_of_a_manifest_counts_one_pod(launched: Launched, tmp_path: Path) -> None:
    """One pod is `1 pod`."""
    job: dict[str, Any] = copy.deepcopy(JOB)
    job["spec"]["tasks"] = [job["spec"]["tasks"][0] | {"replicas": 1}]
    plan = launched(job | {"spec": job["spec"] | {"minAvailable": 1}})
    profile = load_profile(str(tmp_path / "sample.yaml"))
    assert list_masked_properties(profile, plan)["processes"] == "1 pod of the manifest"


def test_plan_page_has_the_digest_of_a_file_and_not_its_content() -> None:
    """Local files are shown by size and digest."""
    profile = load_profile("allreduce-volcano")
    plan = registry.make_plan(profile, Run(id="0" * 8, attempt=1, folder="/runs/x"))
    page = render_plan_page(profile, plan)
    assert "bytes, sha256" in page
    assert "import torch" not in page


def test_checks_page_shows_failed_checks_first() -> None:
    """Failed checks come first, with their remedies; many passed checks are folded."""
    page = render_checks_page([OK, FAILED])
    assert page.index("plugin") < page.index("kind Job")
    assert "install it" in page
    assert r"\<b>" in page
    assert "<details>" not in page
    assert "<details>" in render_checks_page([OK] * 6)
