"""prefect.yaml and the automations, on a real Prefect server behind a password."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule

from scripts.api import YardError
from scripts.deployments import _DIRECTORY_STEP, POOL_NAME, deploy_flows
from scripts.server import _find_free_port, choose_server
from tests.yard import prefect_server, speaking_to
from torchyard.loading.profile import ROOT

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
YARD = [sys.executable, str(ROOT / "scripts" / "yard.py")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment, speaking_to(environment):
        deploy_flows()
        yield environment


@pytest.fixture
def client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    """A client of a server that `make up` has deployed to."""
    with speaking_to(server), get_client(sync_client=True) as made:
        yield made


@pytest.mark.parametrize("entrypoint", sorted({each["entrypoint"] for each in DEPLOYMENTS}))
def test_entrypoints_import(entrypoint: str) -> None:
    """A flow has the name that its entrypoint says: deployments are found by it."""
    path, _, name = entrypoint.partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == name


@pytest.mark.slow
def test_all_deployments_are_registered(client: SyncPrefectClient) -> None:
    """`make up` registers what prefect.yaml names, with its schedules and limits."""
    found = {each.name: each for each in client.read_deployments()}
    assert sorted(found) == sorted(each["name"] for each in DEPLOYMENTS)
    lost = found["lost"]
    assert isinstance(lost.schedules[0].schedule, CronSchedule)
    assert lost.global_concurrency_limit
    assert lost.global_concurrency_limit.limit == 1
    assert found["digits-local"].parameters == {"profile": "digits-local"}


@pytest.mark.slow
def test_schedules_fire(client: SyncPrefectClient) -> None:
    """The sweep's cron gets scheduled runs: with a newer SQLAlchemy everything else looks well and none is made."""
    scheduled = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])))
    deadline = time.monotonic() + 60
    while not (runs := client.read_flow_runs(flow_run_filter=scheduled)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert runs


@pytest.mark.slow
def test_automations_are_made_once(client: SyncPrefectClient, server: dict[str, str]) -> None:
    """Making the automations again leaves the first ones: new ones would not know the runs that are lost by now."""
    seen = []
    for _ in range(2):
        words = [sys.executable, "-m", "scripts.automations"]
        subprocess.run(words, env={**os.environ, **server}, cwd=ROOT, check=True)
        found = client.request("POST", "/automations/filter", json={}).json()
        seen.append({each["name"]: each["id"] for each in found})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3


@pytest.mark.slow
def test_what_a_person_has_set_stays(client: SyncPrefectClient) -> None:
    """Limits, pauses and schedules outlive `make up`, while what the code decides is set right."""
    lost, digits = read(client, "sweep/lost"), read(client, "train/digits-local")
    client.update_work_pool(POOL_NAME, WorkPoolUpdate(concurrency_limit=3, is_paused=True))
    hourly = [DeploymentScheduleUpdate(schedule=CronSchedule(cron="0 * * * *"), active=False)]
    client.update_deployment(lost.id, DeploymentUpdate(schedules=hourly))
    client.update_deployment(digits.id, DeploymentUpdate(concurrency_limit=2, paused=True, tags=["mine"]))
    kept = [read(client, "sweep/lost").schedules, read(client, "train/digits-local").global_concurrency_limit]
    deploy_flows()
    assert [read(client, "sweep/lost").schedules, read(client, "train/digits-local").global_concurrency_limit] == kept
    pool, again = client.read_work_pool(POOL_NAME), read(client, "train/digits-local")
    assert (pool.concurrency_limit, pool.is_paused, again.paused) == (3, True, True)
    assert again.tags == digits.tags


@pytest.mark.slow
def test_deploying_again_writes_nothing(client: SyncPrefectClient) -> None:
    """A deployment that is right is left alone: Prefect drops its scheduled runs with every write."""
    deploy_flows()
    before = {each.name: each.updated for each in client.read_deployments()}
    deploy_flows()
    assert {each.name: each.updated for each in client.read_deployments()} == before


@pytest.mark.slow
def test_deployments_of_another_folder_are_refused(client: SyncPrefectClient) -> None:
    """A second clone changes no deployment of the first one, until it is told to take them over."""
    steps = [{_DIRECTORY_STEP: {"directory": "/home/ada/torchyard"}}]
    digits = read(client, "train/digits-local")
    client.update_deployment(digits.id, DeploymentUpdate(pull_steps=steps))
    with pytest.raises(YardError, match=r"train/digits-local.* belong to /home/ada/torchyard: .* make up TAKE_OVER=1"):
        deploy_flows()
    assert read(client, "train/digits-local").pull_steps == steps
    deploy_flows(take_over=True)
    assert read(client, "train/digits-local").pull_steps == [{_DIRECTORY_STEP: {"directory": str(ROOT)}}]


@pytest.mark.slow
def test_server_that_refuses_us_is_one_sentence(server: dict[str, str]) -> None:
    """A server that PREFECT_API_URL names, with another password: what to set, and no traceback."""
    told = r"refuses us \(401\): set PREFECT_API_AUTH_STRING \(or PREFECT_API_KEY for Prefect Cloud\)"
    with speaking_to({**server, "PREFECT_API_AUTH_STRING": "another"}), pytest.raises(YardError, match=told):
        choose_server()


def test_server_that_does_not_answer_is_one_sentence() -> None:
    """A PREFECT_API_URL with nobody behind it is told, and nothing is started."""
    done = run_yard("train", "digits-local", PREFECT_API_URL=f"http://127.0.0.1:{_find_free_port()}/api")
    assert done.stderr.startswith("no Prefect API answers at http://127.0.0.1:")


def test_unknown_profile_is_told_before_anything_starts() -> None:
    """`make train PROFILE=digits-locl` names the nearest profile and starts no server."""
    done = run_yard("train", "digits-locl")
    assert done.stdout == ""
    assert "did you mean digits-local?" in done.stderr


def run_yard(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A call that fails with a sentence."""
    command = [*YARD, *words]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done


def read(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    return client.read_deployment_by_name(name)
