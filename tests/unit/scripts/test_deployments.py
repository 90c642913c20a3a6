"""The deployments of prefect.yaml, and the errors before anything is written to a server."""

import importlib
import re
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.client.schemas.responses import DeploymentResponse

from scripts import deployments
from scripts.api import YardError
from tests.conftest import RUN_ID
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
NIGHTLY = [deployment for deployment in DEPLOYMENTS if "nightly" in deployment["tags"]]
over_nightly = pytest.mark.parametrize("deployment", NIGHTLY, ids=lambda deployment: str(deployment["name"]))


@pytest.mark.parametrize("entrypoint", sorted({deployment["entrypoint"] for deployment in DEPLOYMENTS}))
def test_entrypoints_import(entrypoint: str) -> None:
    """A flow has the name of the function in its entrypoint: deployments are found by that name."""
    path, _, name = entrypoint.partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == name


def test_key_that_is_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of prefect.yaml that this program would ignore is an error with the file and the key."""
    monkeypatch.setattr(deployments, "ROOT", tmp_path)
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [DEPLOYMENTS[0] | {"job_variables": {}}]}))
    with pytest.raises(YardError, match=rf"^{tmp_path}/prefect.yaml: job_variables: Extra inputs are not permitted$"):
        deployments.read_deployment_specs()


def build_deployment(folder: str) -> DeploymentResponse:
    """A deployment on the server, with the folder whose code it runs."""
    steps = [{deployments.DIRECTORY_STEP: {"directory": folder}}]
    return DeploymentResponse.model_validate({"name": "a", "flow_id": RUN_ID, "pull_steps": steps if folder else None})


def test_deployment_of_another_folder_is_refused() -> None:
    """Deployments that run other code are an error with that code's location; those of this folder are not."""
    own_deployments = {"train/mine": build_deployment(str(ROOT))}
    deployments.check_ownership(own_deployments)
    foreign = own_deployments | {"train/a": build_deployment("/home/ada/torchyard"), "train/b": build_deployment("")}
    with pytest.raises(
        YardError, match=r"^2 of the .*train/a, .* belong to /home/ada/torchyard and other storage: .* POOL=team-b"
    ):
        deployments.check_ownership(foreign)


WRITTEN = {"description": "trains", "tags": ["a", "b"], "parameters": {"profile": "x"}}


@pytest.mark.parametrize(
    ("code", "current", "edited"),
    [
        ({}, {}, []),
        ({}, {"tags": ["b", "a"]}, []),
        ({}, {"tags": ["mine"]}, ["tags"]),
        ({}, {"parameters": {"profile": "x", "overrides": {"nodes": 1}}}, ["parameters"]),
        ({"description": "trains well"}, {}, []),
        ({"description": "trains well"}, {"description": "mine"}, ["description"]),
        ({"description": "trains well"}, {"description": "trains well"}, []),
        ({}, {"tags": ["mine"], "version": "1.2"}, []),
        ({}, {"tags": ["mine"], "version": None}, []),
    ],
)
def test_field_that_differs_from_what_was_written_is_edited(
    code: dict[str, Any], current: dict[str, Any], edited: list[str]
) -> None:
    """Only what a user has changed since the last write is edited; a change of the code alone is not."""
    version = deployments.build_fields_version(WRITTEN)
    on_server = WRITTEN | {"version": version} | current
    assert deployments.list_edited_fields(WRITTEN | code, on_server) == edited


@pytest.fixture
def unreachable_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster can be reached, and no Run:ai."""
    monkeypatch.setattr(deployments, "find_obstacle", lambda profile: "" if profile.name.endswith("local") else "far")


@pytest.mark.parametrize(
    ("profiles", "existing", "added"),
    [
        ([], [], set()),
        (["fms-mcad"], [], {"train/fms-mcad"}),
        (["allreduce-runai"], [], {"train/allreduce-runai", "benchmark/epfl-rcp", "benchmark/nightly-epfl-rcp"}),
        ([], ["train/nightly-yolov5-volcano"], {"train/nightly-yolov5-volcano"}),
    ],
)
def test_deployments_are_those_that_are_reached_named_or_exist(
    unreachable_places: None, profiles: list[str], existing: list[str], added: set[str]
) -> None:
    """What cannot be reached is left out with the reason, unless its profile is named or a user may use it already."""
    specs = deployments.read_deployment_specs()
    selection = deployments.select_specs(specs, profiles, existing)
    names = {spec.full_name for spec in selection.specs}
    reached = {"train/digits-local", "benchmark/local", "train/any-profile", "sweep/lost", "recover/crashed"}
    assert names >= reached | added | {"train/yolov5-volcano"}
    assert {
        name for name in names if "mcad" in name or "runai" in name or "rcp" in name or "nightly-y" in name
    } == added
    assert len(names) + len(selection.omitted["far"]) == len(specs)


def test_all_names_every_profile(unreachable_places: None) -> None:
    """PROFILES=all deploys what prefect.yaml lists."""
    specs = deployments.read_deployment_specs()
    assert deployments.select_specs(specs, ["all"], []) == (specs, {})


def test_unknown_profile_is_refused_with_the_valid_names() -> None:
    """A name in PROFILES without a deployment is one error that lists those that have one."""
    with pytest.raises(YardError, match=r"no deployment of fms-mkad; it has those of allreduce-local, .*fms-mcad"):
        deployments.check_profile_names(deployments.read_deployment_specs(), ["all", "fms-mkad"])


def test_runs_start_with_the_engine_of_this_folder() -> None:
    """The command runs scripts/flow_process.py with this Python; the variables of prefect.yaml are kept."""
    (spec, *_) = deployments.read_deployment_specs()
    variables = deployments.add_flow_command(spec).work_pool.job_variables
    assert shlex.split(variables["command"]) == [sys.executable, "-P", str(ROOT / "scripts" / "flow_process.py")]
    assert variables["env"] == spec.work_pool.job_variables["env"]


@pytest.mark.parametrize(
    ("current", "command"),
    [
        ({}, "python -P /mine/scripts/flow_process.py"),
        ({"command": None}, "python -P /mine/scripts/flow_process.py"),
        ({"command": "python -P /old/scripts/flow_process.py"}, "python -P /mine/scripts/flow_process.py"),
        ({"command": "nice python -m prefect.engine"}, "nice python -m prefect.engine"),
    ],
)
def test_command_of_a_user_is_kept(current: dict[str, Any], command: str) -> None:
    """That of another folder is replaced, as its code is; other variables are merged."""
    code = {"command": "python -P /mine/scripts/flow_process.py", "env": {"A": "1"}}
    merged = deployments.merge_job_variables({"stream_output": False, "env": {"B": "2"}} | current, code)
    assert merged == {"command": command, "env": {"A": "1", "B": "2"}, "stream_output": False}


def test_description_has_the_needs_of_the_profile_with_its_overrides() -> None:
    """The text of prefect.yaml is followed by the needs; a deployment without a profile has only its text."""
    specs = {spec.full_name: spec for spec in deployments.read_deployment_specs()}
    spec = specs["train/mnist-pytorchjob"]
    changed = spec.model_copy(update={"parameters": spec.parameters | {"overrides": {"nodes": 4}}})
    description = deployments.build_description(changed)
    assert description.startswith(f"{spec.description}\n\nNeeds:\n- ")
    assert "- 4 pods, each with nvidia.com/gpu 1\n" in description
    assert deployments.build_description(specs["sweep/lost"]) == specs["sweep/lost"].description


def test_installation_with_a_name_has_deployments_of_its_own() -> None:
    """Every deployment of a pool has its name and its work pool; one that names another work pool stays there."""
    specs = deployments.read_deployment_specs()
    assert [spec.for_pool("torchyard") for spec in specs] == specs
    renamed = [spec.for_pool("team-b") for spec in specs]
    assert {spec.work_pool.name for spec in renamed} == {"team-b"}
    assert [spec.full_name for spec in renamed] == [f"{spec.full_name}@team-b" for spec in specs]
    assert [spec.work_pool.work_queue_name for spec in renamed] == [spec.work_pool.work_queue_name for spec in specs]
    elsewhere = specs[0].model_copy(update={"work_pool": deployments.WorkPool(name="gpus")})
    assert elsewhere.for_pool("team-b").work_pool.name == "gpus"


@over_nightly
def test_nightly_run_is_paused_and_has_a_time_zone(deployment: dict[str, Any]) -> None:
    """A nightly run is paused by default, its hour exists once every day, and one run starts at a time."""
    (schedule,) = deployment["schedules"]
    assert schedule["active"] is False
    minute, hour, *_ = map(int, re.findall(r"\d+", schedule["cron"]))
    for month in range(1, 13):
        for day in range(1, 29):
            local_time = datetime(2027, month, day, hour, minute, tzinfo=ZoneInfo(schedule["timezone"]))
            assert local_time.utcoffset() == local_time.replace(fold=1).utcoffset()
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


@over_nightly
def test_nightly_run_compares_a_number(deployment: dict[str, Any]) -> None:
    """A nightly deployment's profile loads with its overrides, and a regression fails its run."""
    profile = load_profile(deployment["parameters"]["profile"], deployment["parameters"]["overrides"])
    assert profile.trend
    assert profile.trend.on_regression == "fail"
    assert (profile.launcher == "baremetal") == ("local" in deployment["tags"])
