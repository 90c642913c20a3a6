"""PyTorchJobs: elastic, or with a master and workers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.plan_parts import get_env, get_local_address, get_torchrun_option
from tests.conftest import Planned, Write, load, manifest_plan_of
from tests.inputs.observed_moments import explain_wait, find_moments, list_true_conditions, read_status
from tests.inputs.recorded_jobs import FILES
from tests.inputs.recording import EPOCH
from tests.inputs.user_manifests import PYTORCHJOB, Launched, change_spec
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Controller, OpenQueue
from torchyard.model.run import Observation

HOST = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host"}


def elastic(plan: ManifestPlan) -> dict[str, Any]:
    policy: dict[str, Any] = plan.main["spec"]["elasticPolicy"]
    return policy


def test_container_has_the_name_that_the_operator_requires(planned: Planned) -> None:
    """The container is called pytorch, because the operator refuses a job without one."""
    plan = planned(launcher="pytorchjob")
    assert (plan.pod["spec"]["containers"][0]["name"], find_main_container(plan.pod)) == ("pytorch", "pytorch")


def test_job_has_its_own_port(planned: Planned) -> None:
    """The port is named so that the operator adds no 23456, and is the rendezvous endpoint's."""
    plan = planned(launcher="pytorchjob", nodes=2, **HOST)
    (port,) = plan.pod["spec"]["containers"][0]["ports"]
    assert port == {"name": "pytorchjob-port", "containerPort": elastic(plan)["rdzvPort"]}
    assert get_torchrun_option(plan, "rdzv_endpoint").endswith(f":{port['containerPort']}")


def test_elastic_policy_has_the_rendezvous_of_torchrun(planned: Planned) -> None:
    """The elasticPolicy has the same rendezvous as the command."""
    plan = planned(launcher="pytorchjob", nodes=2, rendezvous="etcd-v2")
    policy = elastic(plan)
    assert (policy["rdzvBackend"], policy["rdzvId"]) == ("etcd-v2", get_torchrun_option(plan, "rdzv_id"))
    assert f"{policy['rdzvHost']}:{policy['rdzvPort']}" == get_torchrun_option(plan, "rdzv_endpoint")


def test_rendezvous_id_is_new_for_each_attempt(planned: Planned) -> None:
    """Each attempt has a new rendezvous id, because the store refuses one that the previous attempt has closed."""
    ids = [elastic(planned(launcher="pytorchjob", attempt=attempt))["rdzvId"] for attempt in (1, 2)]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(("nodes", "least", "maximum"), [(4, 4, 4), ({"min": 2, "max": 8}, 2, 8)])
def test_elastic_policy_has_the_range_of_nodes(planned: Planned, nodes: Any, least: int, maximum: int) -> None:
    """A fixed number is both minimum and maximum, replicas are the maximum, and the gang is the minimum."""
    plan = planned(launcher="pytorchjob", nodes=nodes)
    worker = plan.main["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (elastic(plan)["minReplicas"], elastic(plan)["maxReplicas"], worker["replicas"]) == (least, maximum, maximum)
    assert plan.main["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": least}


def test_static_rendezvous_has_no_elastic_policy(planned: Planned) -> None:
    """With static there is no elasticPolicy, and the agents' own options are complete."""
    assert "elasticPolicy" not in planned(launcher="pytorchjob", nodes=2, rendezvous="static").main["spec"]


def test_setup_sees_the_number_of_pods(planned: Planned) -> None:
    """Only a job whose program reads WORLD_SIZE has nprocPerNode, by which the operator multiplies it."""
    with_agent = planned(launcher="pytorchjob", processes=4, rendezvous="static")
    without_agent = planned(launcher="pytorchjob", processes=4, rendezvous="env", agent="none")
    assert with_agent.main["spec"].get("nprocPerNode") is None
    assert without_agent.main["spec"]["nprocPerNode"] == "4"


def test_operator_keeps_failed_pods(planned: Planned) -> None:
    """A failed pod stays with its log, and the operator restarts no pod."""
    spec = planned(launcher="pytorchjob").main["spec"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"
    assert (spec["runPolicy"]["cleanPodPolicy"], spec["elasticPolicy"]["maxRestarts"]) == ("None", 0)


def test_names_are_those_of_the_operator(planned: Planned) -> None:
    """The operator's Service of a pod is called <job>-worker-<i>."""
    plan = planned(launcher="pytorchjob")
    assert get_local_address(plan) == f"{plan.job}-worker-$(TORCHYARD_NODE)"


def test_gang_needs_a_flag_of_the_operator(planned: Planned) -> None:
    """Gang scheduling needs a flag of the operator, which preflight checks."""
    plan = planned(launcher="pytorchjob", options={"queue": "research"})
    assert [requirement.gang for requirement in plan.requires if isinstance(requirement, Controller)] == [
        "--gang-scheduler-name"
    ]
    assert plan.main["spec"]["runPolicy"]["schedulingPolicy"]["queue"] == "research"


def test_operator_sets_ranks_and_addresses(planned: Planned) -> None:
    """A PyTorchJob with a master gets ranks and addresses from the operator, and no conflicting variables."""
    plan = planned(launcher="pytorchjob", nodes=3, rendezvous="env")
    assert plan.nodes.keys() == {"master-0", "worker-0", "worker-1"}
    assert not get_env(plan).keys() & {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "TORCHYARD_NODE"}


def test_queue_of_a_pytorchjob_is_that_of_its_gang(launched: Launched) -> None:
    """Preflight checks the queue of a PyTorchJob's PodGroup if the manifest names one."""
    policy = {"schedulingPolicy": {"queue": "research"}}
    plans = [launched(change_spec(PYTORCHJOB, runPolicy=policy)), launched(PYTORCHJOB)]
    queues = [
        [requirement.name for requirement in plan.requires if isinstance(requirement, OpenQueue)] for plan in plans
    ]
    assert queues == [["research"], []]


# --- its status, as it was recorded


def test_success_of_one_elastic_worker_is_not_the_jobs() -> None:
    """The operator reports Succeeded when one worker has finished, although the other one still runs."""
    assert any("Succeeded" in list_true_conditions(moment) for moment in find_moments("pytorchjob-ok", "running"))


def test_worker_may_fail_after_success() -> None:
    """The operator still reports Succeeded when the other worker fails."""
    last = find_moments("pytorchjob-ok-then-fails", "failed")[-1]
    assert ("Succeeded" in list_true_conditions(last), "worker-1 ended with exit code 7") == (True, last.reason)


def test_running_operator_has_a_worker_that_never_fits(planned: Planned) -> None:
    """Without a gang the PyTorchJob is Running while one of its workers has no node."""
    last = find_moments("pytorchjob-one-does-not-fit-no-gang", "pending")[-1]
    assert ("Running" in list_true_conditions(last), last.reason) == (True, "4 of 5 pods run")
    assert "no node has port" in explain_wait(planned(nodes=5, launcher="pytorchjob"), last)


def test_gang_that_does_not_fit_stays_pending(planned: Planned) -> None:
    """With a gang scheduler the PyTorchJob stays Created, and the explanation quotes the scheduler."""
    last = find_moments("pytorchjob-never-fits", "pending")[-1]
    assert list_true_conditions(last) == {"Created"}
    explanation = explain_wait(planned(nodes=2, launcher="pytorchjob"), last)
    assert "Insufficient nvidia.com/gpu" in explanation


def test_job_whose_nodes_had_joined_has_started() -> None:
    """A PyTorchJob that recreates a pod counts as started once its nodes have joined."""
    states = FILES["pytorchjob-ok"][1].observed.states
    status = read_status("pytorchjob-ok", Observation(states, frozenset({"worker-0", "worker-1"}), EPOCH))
    assert status.state == "running"


def test_master_of_a_manifest_is_the_first_node(write: Write, tmp_path: Path) -> None:
    """The operator gives rank 0 to the Master, which is the first node also if the manifest lists it last."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "a:1", "command": ["python3", "a.py"]}]}}
    roles = {"Worker": {"replicas": 2, "template": template}, "Master": {"template": template}}
    text = yaml.safe_dump(change_spec(PYTORCHJOB, pytorchReplicaSpecs=roles), sort_keys=False)
    (tmp_path / "job.yaml").write_text(text)
    plan = manifest_plan_of(load(write(launcher="pytorchjob", program=None, manifest="job.yaml")), tmp_path)
    assert list(plan.pods) == ["master-0", "worker-0", "worker-1"]
