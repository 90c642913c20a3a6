"""prefect.yaml and the automations, on a real Prefect server with a password."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule

from scripts.api import YardError
from scripts.automations import delete_automations
from scripts.deployments import DIRECTORY_STEP, delete_deployments, deploy_flows
from scripts.server import choose_server
from tests.processes.prefect_servers import prefect_server, use_prefect_server
from tests.support.waiting import wait_until
from torchyard.common.pool import DEFAULT_POOL
from torchyard.common.project_root import ROOT
from torchyard.run.resume import LOST_MESSAGE

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment, use_prefect_server(environment):
        deploy_flows(profiles=["all"])
        yield environment


@pytest.fixture
def client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    """A client of a server that `make up` has deployed to."""
    with use_prefect_server(server), get_client(sync_client=True) as client:
        yield client


def test_all_deployments_are_registered(client: SyncPrefectClient) -> None:
    """`make up PROFILES=all` registers the deployments of prefect.yaml, with their schedules and limits.

    A later `make up` without names keeps those that it would not create.
    """
    deploy_flows()
    deployments = {deployment.name: deployment for deployment in client.read_deployments()}
    assert sorted(deployments) == sorted(deployment["name"] for deployment in DEPLOYMENTS)
    lost = deployments["lost"]
    assert isinstance(lost.schedules[0].schedule, CronSchedule)
    assert lost.global_concurrency_limit
    assert lost.global_concurrency_limit.limit == 1
    assert deployments["digits-local"].parameters == {"profile": "digits-local"}
    assert "Needs:\n- the kubeconfig's current context" in str(deployments["fms-mcad"].description)


def test_nightly_runs_start_only_on_request(client: SyncPrefectClient) -> None:
    """Nightly schedules are paused at first; NIGHTLY=1 starts those of this machine, and `make up` keeps that."""

    def list_active_schedules(name: str) -> list[bool]:
        return [schedule.active for schedule in read_deployment(client, name).schedules]

    local = "train/nightly-digits-local"
    cluster = "train/nightly-yolov5-volcano"
    assert (list_active_schedules(local), list_active_schedules(cluster)) == ([False], [False])
    for nightly in (True, False):
        deploy_flows(nightly=nightly)
        assert (list_active_schedules(local), list_active_schedules(cluster)) == ([True], [False])
    (schedule,) = read_deployment(client, local).schedules
    assert isinstance(schedule.schedule, CronSchedule)
    assert schedule.schedule.timezone == "Europe/Zurich"
    assert read_deployment(client, cluster).work_queue_name == "oke"


def test_schedules_fire(client: SyncPrefectClient) -> None:
    """The sweep's cron schedule creates runs; an incompatible SQLAlchemy creates none, without any error."""
    scheduled = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])))
    assert wait_until(lambda: client.read_flow_runs(flow_run_filter=scheduled), 60)


def test_automations_are_created_once(client: SyncPrefectClient, server: dict[str, str]) -> None:
    """A second call keeps the existing automations, because new ones would miss the runs that are already lost."""
    ids_by_name = []
    for _ in range(2):
        command = [sys.executable, "-m", "scripts.automations"]
        subprocess.run(command, env=os.environ | server, cwd=ROOT, check=True)
        automations = client.request("POST", "/automations/filter", json={}).json()
        ids_by_name.append({automation["name"]: automation["id"] for automation in automations})
    assert ids_by_name[0] == ids_by_name[1]
    assert len(ids_by_name[0]) == 3


def test_user_settings_are_kept(client: SyncPrefectClient) -> None:
    """`make up` keeps a user's limits, pauses and schedules."""
    lost = read_deployment(client, "sweep/lost")
    digits = read_deployment(client, "train/digits-local")
    client.update_work_pool(DEFAULT_POOL, WorkPoolUpdate(concurrency_limit=3, is_paused=True))
    hourly = [DeploymentScheduleUpdate(schedule=CronSchedule(cron="0 * * * *"), active=False)]
    client.update_deployment(lost.id, DeploymentUpdate(schedules=hourly))
    client.update_deployment(digits.id, DeploymentUpdate(concurrency_limit=2, paused=True))
    user_settings = [
        read_deployment(client, "sweep/lost").schedules,
        read_deployment(client, "train/digits-local").global_concurrency_limit,
    ]
    deploy_flows()
    assert [
        read_deployment(client, "sweep/lost").schedules,
        read_deployment(client, "train/digits-local").global_concurrency_limit,
    ] == user_settings
    pool = client.read_work_pool(DEFAULT_POOL)
    redeployed = read_deployment(client, "train/digits-local")
    assert (pool.concurrency_limit, pool.is_paused, redeployed.paused) == (3, True, True)


def test_edited_fields_are_kept(client: SyncPrefectClient, capsys: pytest.CaptureFixture[str]) -> None:
    """`make up` keeps and prints tags and parameters that a user has edited, and writes the fields of the code."""
    name = "train/digits-local"
    digits = read_deployment(client, name)
    parameters = {"profile": "digits-local", "overrides": {"nodes": 1}}
    client.update_deployment(digits.id, DeploymentUpdate(tags=["mine"], parameters=parameters))
    client.update_deployment(
        read_deployment(client, "train/yolov5-volcano").id, DeploymentUpdate(entrypoint="elsewhere")
    )
    for _ in range(2):
        deploy_flows()
        assert f"{name}: keeps its tags, parameters, edited in Prefect" in capsys.readouterr().out
    redeployed = read_deployment(client, name)
    assert (redeployed.tags, redeployed.parameters) == (["mine"], parameters)
    assert read_deployment(client, "train/yolov5-volcano").entrypoint == "flows/train.py:train"
    client.update_deployment(digits.id, DeploymentUpdate(tags=digits.tags, parameters=digits.parameters))
    deploy_flows()
    assert "keeps" not in capsys.readouterr().out


def test_second_deploy_writes_nothing(client: SyncPrefectClient) -> None:
    """A correct deployment is not written again, because every write makes Prefect drop its scheduled runs."""
    deploy_flows()
    updated_at = {deployment.name: deployment.updated for deployment in client.read_deployments()}
    deploy_flows()
    assert {deployment.name: deployment.updated for deployment in client.read_deployments()} == updated_at


def test_deployments_of_another_folder_are_refused(client: SyncPrefectClient) -> None:
    """A second clone changes the deployments of the first one only with TAKE_OVER=1."""
    steps = [{DIRECTORY_STEP: {"directory": "/home/ada/torchyard"}}]
    digits = read_deployment(client, "train/digits-local")
    client.update_deployment(digits.id, DeploymentUpdate(pull_steps=steps))
    with pytest.raises(YardError, match=r"train/digits-local.* belong to /home/ada/torchyard: .* make up TAKE_OVER=1"):
        deploy_flows()
    assert read_deployment(client, "train/digits-local").pull_steps == steps
    deploy_flows(take_over=True)
    assert read_deployment(client, "train/digits-local").pull_steps == [{DIRECTORY_STEP: {"directory": str(ROOT)}}]


def test_refused_credentials_are_reported_in_one_sentence(server: dict[str, str]) -> None:
    """If the server at PREFECT_API_URL has another password, the error names the variables to set."""
    refusal = r"rejects the credentials \(401\): set PREFECT_API_AUTH_STRING \(or PREFECT_API_KEY for Prefect Cloud\)"
    wrong_password = server | {"PREFECT_API_AUTH_STRING": "another"}
    with use_prefect_server(wrong_password), pytest.raises(YardError, match=refusal):
        choose_server()


def read_deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    return client.read_deployment_by_name(name)


def test_pool_of_another_type_is_refused(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on this machine are not deployed to a work pool that starts pods."""
    client.create_work_pool(WorkPoolCreate(name="in-the-cluster", type="kubernetes"))
    monkeypatch.setenv("TORCHYARD_POOL", "in-the-cluster")
    with pytest.raises(YardError, match=r"in-the-cluster of this server is of type kubernetes.*make up POOL="):
        deploy_flows()
    assert not [deployment for deployment in client.read_deployments() if "in-the-cluster" in deployment.name]


def test_installation_is_removed(
    server: dict[str, str],
    client: SyncPrefectClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`make remove` deletes what `make up` created for its name, and nothing of another installation, nor a run.

    Without a cluster, `make up` has created the deployments of this machine, and printed the others.
    """
    monkeypatch.setenv("TORCHYARD_POOL", "team-c")
    deploy_flows()
    own_names = {deployment.name for deployment in client.read_deployments() if deployment.name.endswith("@team-c")}
    assert {"digits-local@team-c", "yolov5-volcano@team-c", "lost@team-c"} <= own_names
    assert "mnist-baremetal@team-c" not in own_names
    assert "hosts behind ssh are not contacted: gpu-48, gpu-49: train/mnist-baremetal@" in capsys.readouterr().out
    command = [sys.executable, "-m", "scripts.automations"]
    subprocess.run(command, env=os.environ | server, cwd=ROOT, check=True)
    run = client.create_flow_run_from_deployment(read_deployment(client, "train/digits-local@team-c").id)
    running_state = State[Any](type=StateType.RUNNING)
    lost_state = State[Any](type=StateType.SCHEDULED, message=LOST_MESSAGE)
    for state in (running_state, lost_state):
        client.set_flow_run_state(run.id, state, force=True)
        with pytest.raises(YardError, match="runs that have not ended: 1, such as"):
            delete_deployments()

    client.set_flow_run_state(run.id, State(type=StateType.COMPLETED), force=True)
    other_count = len([deployment for deployment in client.read_deployments() if "@" not in deployment.name])
    deleted = delete_deployments() + delete_automations()
    assert len(deleted) == len(own_names) + 1 + 3
    assert delete_deployments() + delete_automations() == []
    assert len(client.read_deployments()) == other_count == len(DEPLOYMENTS)
    assert client.read_work_pool(DEFAULT_POOL)
    assert client.read_flow_run(run.id).state_type == StateType.COMPLETED
