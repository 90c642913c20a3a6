"""The log of a manifest's job shows which pod has rank 0, or the first pod counts as the one that has it."""

from typing import Any

import pytest

from tests.inputs.user_manifests import JOB, PYTORCHJOB, Launched, change_spec
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice

INFO = {"name": "LOGLEVEL", "value": "INFO"}
OTHER = {"name": "A", "value": "1"}
C10D = ["torchrun", "--rdzv_backend=c10d", "train.py"]


def build_task(name: str, container: dict[str, Any], replicas: int = 1) -> dict[str, Any]:
    """A task of a Volcano Job."""
    containers = [{"name": "main", "image": "a:1"} | container]
    return {"name": name, "replicas": replicas, "template": {"spec": {"containers": containers}}}


def plan_container(launched: Launched, **container: Any) -> ManifestPlan:
    """The plan of a Volcano Job with two pods of a container."""
    return launched(change_spec(JOB, minAvailable=2, tasks=[build_task("worker", container, 2)]))


def list_level_findings(plan: ManifestPlan) -> list[Finding]:
    """What the plan reports about the level of the agent's log."""
    findings = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    return [finding for finding in findings if "LOGLEVEL" in finding.what]


def get_env(plan: ManifestPlan) -> Any:
    """The variables of the first pod's container."""
    return plan.pod["spec"]["containers"][0].get("env")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (["torchrun", "train.py"], "logged"),
        (["sh", "-c", "exec torchrun --tee 3 train.py"], "teed"),
        (["python3", "-m", "torch.distributed.run", "-t", "3", "train.py"], "teed"),
        (["sh", "-c", "accelerate launch --multi_gpu train.py"], "logged"),
    ],
)
def test_agent_logs_its_rank(launched: Launched, command: list[str], ranks: str) -> None:
    """An agent without a level gets LOGLEVEL=INFO before the manifest's own variables, and the plan shows that."""
    plan = plan_container(launched, command=command, env=[OTHER])
    assert get_env(plan) == [INFO, OTHER]
    assert plan.ranks == ranks
    assert [finding.verdict for finding in list_level_findings(plan)] == ["ok"]


def test_job_without_an_agent_stays_as_it_is(launched: Launched) -> None:
    """A program that gets its rank from a controller or MPI gets no level, and the first pod has rank 0."""
    plan = plan_container(launched, command=["python3", "train.py"])
    assert (get_env(plan), plan.ranks, list_level_findings(plan)) == (None, "placed", [])


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_sufficient_level_stays(launched: Launched, level: str) -> None:
    """A level of the manifest at which torchrun logs the rank is not changed."""
    env = [{"name": "LOGLEVEL", "value": level}]
    plan = plan_container(launched, command=C10D, env=env)
    assert (get_env(plan), plan.ranks, list_level_findings(plan)) == (env, "logged", [])


@pytest.mark.parametrize(
    ("container", "text"),
    [
        ({"command": C10D, "env": [{"name": "LOGLEVEL", "value": "ERROR"}]}, "LOGLEVEL is ERROR"),
        ({"command": ["sh", "-c", f"export LOGLEVEL=WARNING; {' '.join(C10D)}"]}, "LOGLEVEL is WARNING"),
        ({"command": C10D, "envFrom": [{"configMapRef": {"name": "env"}}]}, "may come from envFrom"),
    ],
)
def test_level_that_may_hide_the_rank_is_a_warning(launched: Launched, container: dict[str, Any], text: str) -> None:
    """A level that the manifest sets, or may set, stays, and a warning names the first pod as rank 0's."""
    plan = plan_container(launched, **container)
    assert (get_env(plan), plan.ranks) == (container.get("env"), "placed")
    [finding] = list_level_findings(plan)
    assert (finding.verdict, finding.remedy) == ("warning", "write LOGLEVEL: INFO there")
    assert text in finding.what


def test_static_ranks_need_no_log(launched: Launched) -> None:
    """With static ranks the first pod certainly has rank 0, so a level that hides it is no warning."""
    command = ["torchrun", "--node_rank=$(VC_TASK_INDEX)", "train.py"]
    plan = plan_container(launched, command=command, env=[{"name": "LOGLEVEL", "value": "ERROR"}])
    assert (plan.ranks, list_level_findings(plan)) == ("placed", [])


def test_operators_rendezvous_is_not_static(launched: Launched) -> None:
    """An elasticPolicy ranks the pods by the rendezvous, so there a level that hides the rank is a warning."""
    container = {"name": "pytorch", "image": "a:1", "command": ["torchrun", "a.py"]}
    template = {"spec": {"containers": [container | {"env": [{"name": "LOGLEVEL", "value": "ERROR"}]}]}}
    spec = {"elasticPolicy": {"rdzvBackend": "c10d"}, "pytorchReplicaSpecs": {"Worker": {"template": template}}}
    assert [finding.verdict for finding in list_level_findings(launched(change_spec(PYTORCHJOB, **spec)))] == [
        "warning"
    ]


def test_shared_template_gets_the_level_once(launched: Launched) -> None:
    """The Jobs of a JobSet share a template, which gets the level once."""
    pod = {"spec": {"containers": [{"name": "main", "image": "a:1", "command": C10D}]}}
    job_spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": pod}
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [{"name": "a", "replicas": 3, "template": {"spec": job_spec}}]},
    }
    assert get_env(launched(document)) == [INFO]
