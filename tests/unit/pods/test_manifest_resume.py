"""A job from a user's manifest continues from a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RUN_ID, Write, load
from tests.inputs.user_manifests import JOB, PYTORCHJOB, change_spec
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.launchers import registry
from torchyard.model.checkpoint import ResumePoint
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice
from torchyard.model.run import Run

CHECKPOINT = "/data/train/$(step)"
VARIABLE = {"name": "TORCHYARD_RESUME", "value": "/data/train/$$(step)"}
OTHER_VARIABLE = {"name": "FROM", "value": "$(TORCHYARD_RESUME)"}
OWN_VARIABLE = {"name": "TORCHYARD_RESUME", "value": "/own"}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {"replicatedJobs": [{"name": "a", "replicas": 3, "template": {"spec": {"template": {"spec": {}}}}}]},
}


def build_task(name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    """A task of a Volcano Job with one pod."""
    return {"name": name, "replicas": 1, "template": {"spec": {"containers": list(containers)}}}


def build_container(*env: dict[str, Any], name: str = "main") -> dict[str, Any]:
    return {"name": name, "image": "a:1", "env": list(env)}


class Resumed:
    """Plans the job of a manifest that continues from a checkpoint."""

    def __init__(self, write: Write, folder: Path) -> None:
        self._write = write
        self._folder = folder

    def plan(self, text: str, path: str | None = CHECKPOINT, launcher: str = "volcano", **keys: Any) -> ManifestPlan:
        """`text`: the manifest. `path`: of the checkpoint; None if there is none."""
        (self._folder / "job.yaml").write_text(text)
        profile = load(self._write(launcher=launcher, program=None, manifest="job.yaml", **keys))
        resume = ResumePoint(path=path) if path else None
        plan = registry.make_plan(profile, Run(id=RUN_ID, attempt=2, folder=str(self._folder), resume=resume))
        assert isinstance(plan, ManifestPlan)
        return plan


@pytest.fixture
def resumed(write: Write, tmp_path: Path) -> Resumed:
    return Resumed(write, tmp_path)


def dump(document: dict[str, Any]) -> str:
    return str(yaml.safe_dump(document))


def list_resume_findings(plan: ManifestPlan) -> list[tuple[str, str, int | None]]:
    """The location, the verdict and the line of each finding about the variable."""
    findings = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    return [(item.where, item.verdict, item.line) for item in findings if "TORCHYARD_RESUME" in item.what]


def test_main_containers_get_the_checkpoint(resumed: Resumed) -> None:
    """The container that the run follows in each role gets the variable before its own ones, escaped; others do not."""
    tasks = [
        build_task("lead", build_container(OTHER_VARIABLE), build_container(name="logs")),
        build_task("rest", {"name": "main", "image": "a:1"}),
    ]
    plan = resumed.plan(dump(change_spec(JOB, tasks=tasks)))
    lead, rest = (task["template"]["spec"]["containers"] for task in plan.main["spec"]["tasks"])
    assert [container["env"] for container in lead] == [[VARIABLE, OTHER_VARIABLE], []]
    assert rest[0]["env"] == [VARIABLE]


def test_without_a_checkpoint_nothing_is_added(resumed: Resumed) -> None:
    """A job that starts from the beginning does not get the variable."""
    plan = resumed.plan(dump(JOB), path=None)
    assert "TORCHYARD_RESUME" not in plan.model_dump_json()


def test_addition_is_in_the_plan_with_its_line(resumed: Resumed) -> None:
    """The plan shows each addition, at the line of the manifest where it belongs."""
    lines = [
        "apiVersion: batch.volcano.sh/v1alpha1",
        "kind: Job",
        "metadata: {name: train}",
        "spec:",
        "  tasks:",
        "    - replicas: 1",
        "      template:",
        "        spec:",
        "          containers:",
        "            - {name: main, image: a}",
    ]
    plan = resumed.plan("\n".join(lines))
    where = "Job train, spec.tasks[0].template.spec.containers[0].env"
    assert list_resume_findings(plan) == [(where, "ok", 10)]


def test_wrapped_job_continues(resumed: Resumed) -> None:
    """The pods of a job in an AppWrapper get the variable in the operator's container, and the finding names both."""
    wrapper = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "outer"}}
    plan = resumed.plan(dump(wrapper | {"spec": {"components": [{"template": PYTORCHJOB}]}}), launcher="appwrapper")
    assert find_main_container(plan.pod) == "pytorch"
    assert [container.get("env") for container in plan.pod["spec"]["containers"]] == [None, [VARIABLE]]
    path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[1].env"
    assert [where for where, _, _ in list_resume_findings(plan)] == [f"AppWrapper outer, PyTorchJob train, {path}"]


def test_shared_template_gets_the_variable_once(resumed: Resumed) -> None:
    """The Jobs of a JobSet share a template, which gets the variable once."""
    text = dump(JOBSET).replace("spec: {}", "spec: {containers: [{name: main, image: a}]}")
    plan = resumed.plan(text, launcher="jobset")
    assert plan.pod["spec"]["containers"][0]["env"] == [VARIABLE]
    assert [verdict for _, verdict, _ in list_resume_findings(plan)] == ["ok"]


def test_own_variable_of_the_manifest_stays(resumed: Resumed) -> None:
    """A variable of that name in the manifest is not overwritten, and the plan warns of it."""
    tasks = [build_task("lead", build_container()), build_task("rest", build_container(OWN_VARIABLE))]
    plan = resumed.plan(dump(change_spec(JOB, tasks=tasks)), resume=CHECKPOINT)
    rest = plan.main["spec"]["tasks"][1]["template"]["spec"]["containers"][0]
    assert rest["env"] == [OWN_VARIABLE]
    assert [verdict for _, verdict, _ in list_resume_findings(plan)] == ["ok", "warning"]


def test_resume_that_reaches_no_pod_is_refused(resumed: Resumed) -> None:
    """An explicit `resume` is an error if each container has its own variable; without one that is a warning."""
    text = dump(change_spec(JOB, tasks=[build_task("lead", build_container(OWN_VARIABLE))]))
    assert [verdict for _, verdict, _ in list_resume_findings(resumed.plan(text))] == ["warning"]
    with pytest.raises(ProfileError, match="resume: cannot reach the pods: the manifest sets TORCHYARD_RESUME itself"):
        resumed.plan(text, resume="/data/model")


def test_variables_that_are_not_a_list_are_refused(resumed: Resumed) -> None:
    """Variables in another form than Kubernetes' are an error at their line, when the profile is loaded."""
    container = build_container() | {"env": {"A": "b"}}
    text = dump(change_spec(JOB, tasks=[build_task("lead", container)]))
    with pytest.raises(
        ProfileError, match=r"job.yaml:\d+: Job train, .*containers\[0\].env: must be a list .*; write "
    ):
        resumed.plan(text)
