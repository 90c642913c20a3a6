"""The ConfigMap with files of this machine, and the mounts of its files."""

import hashlib
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.builders.plan_parts import POD_LAUNCHERS, get_container, get_pod_spec, list_requirements
from tests.conftest import Planned, Write, load, plan_of
from torchyard.common.project_root import ROOT
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Permission
from torchyard.pods.files import summarize_files
from torchyard.pods.optional_objects import find_optional_object


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A text and a binary file, whose names in the pods differ by their folder alone."""
    (tmp_path / "text").write_text("print('hello')\n")
    (tmp_path / "binary").write_bytes(b"\xff\0\x01")
    return {"/opt/a b.py": "text", "/srv/a b.py": "binary"}


@pytest.mark.parametrize("keys", POD_LAUNCHERS, ids=str)
def test_pods_find_each_file_at_its_path(planned: Planned, files: dict[str, str], keys: dict[str, Any]) -> None:
    """Each file is mounted alone and read-only, from a ConfigMap of the attempt that is created before the job."""
    plan = planned(attempt=3, files=files, **keys)
    config_map, job = plan.objects[-2:]
    assert (config_map["kind"], config_map["metadata"]["name"]) == ("ConfigMap", f"{plan.job}-files")
    assert plan.labels.items() <= config_map["metadata"]["labels"].items()
    assert job == plan.main
    (volume,) = (volume for volume in plan.pod["spec"]["volumes"] if volume["name"] == "files")
    assert volume["configMap"] == {"name": config_map["metadata"]["name"], "defaultMode": 0o555}
    mounts = {
        mount["mountPath"]: mount for mount in get_container(plan)["volumeMounts"] if mount["name"] == volume["name"]
    }
    assert [mount["readOnly"] for mount in mounts.values()] == [True, True]
    assert config_map["data"][mounts["/opt/a b.py"]["subPath"]] == "print('hello')\n"
    assert b64decode(config_map["binaryData"][mounts["/srv/a b.py"]["subPath"]]) == b"\xff\0\x01"


def test_every_template_of_a_job_has_the_files(planned: Planned, files: dict[str, str]) -> None:
    """The master and the workers of a PyTorchJob have the same files."""
    replicas = planned(files=files, launcher="pytorchjob", rendezvous="static", nodes=3).main["spec"]
    volumes = [replica["template"]["spec"]["volumes"] for replica in replicas["pytorchReplicaSpecs"].values()]
    assert len(volumes) == 2
    assert volumes[0] == volumes[1] != []


def test_run_without_files_makes_no_config_map(planned: Planned) -> None:
    """A job that needs no files has no ConfigMap and no volume, and no permission for ConfigMaps is needed."""
    plan = planned(on_hang="off")
    assert plan.objects == (plan.main,)
    assert "volumes" not in get_pod_spec(plan)
    assert not any(permission.resource == "configmaps" for permission in list_requirements(plan, Permission))


@pytest.mark.parametrize("keys", POD_LAUNCHERS, ids=str)
def test_pods_find_the_recorder_without_a_folder_of_the_node(planned: Planned, keys: dict[str, Any]) -> None:
    """The recorder is mounted read-only from the same ConfigMap, and its records are in memory of the pod."""
    plan = planned(**keys)
    mounts = {mount["mountPath"]: mount for mount in get_container(plan)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in get_pod_spec(plan)["volumes"]}
    files = mounts["/run/torchyard"]
    source = volumes[files["name"]]["configMap"]
    keys_by_path = {item["path"]: item["key"] for item in source["items"]}
    config_map = plan.objects[-2]
    assert (files["readOnly"], source["name"]) == (True, config_map["metadata"]["name"])
    assert config_map["data"].keys() == set(keys_by_path.values())
    recorder = config_map["data"][keys_by_path["black_box/site/sitecustomize.py"]]
    assert recorder == (ROOT / "torchyard/host/black_box/site/sitecustomize.py").read_text()
    assert volumes[mounts["/run/torchyard-records"]["name"]]["emptyDir"]["medium"] == "Memory"
    assert not any(path in json.dumps(plan.main) for path in ("/tmp", "TMPDIR"))


@pytest.mark.parametrize("needs_files", [True, False])
def test_pods_start_without_the_files_that_only_torchyard_needs(
    planned: Planned, files: dict[str, str], needs_files: bool
) -> None:
    """A ConfigMap that has only torchyard's own files is optional, for the run and for the pods that mount it."""
    plan = planned(files=files) if needs_files else planned()
    mounts = {mount["mountPath"]: mount for mount in get_container(plan)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in get_pod_spec(plan)["volumes"]}
    source = volumes[mounts["/run/torchyard"]["name"]]["configMap"]
    assert (find_optional_object(plan.objects[-2]) is None) == needs_files
    assert source.get("optional", False) == (not needs_files)
    has_permission = any(permission.resource == "configmaps" for permission in list_requirements(plan, Permission))
    assert has_permission == needs_files


def test_own_files_leave_room_for_those_of_the_profile(planned: Planned) -> None:
    """torchyard's own files, all that a job can have, fit into the 192 KiB that the limit of `files` leaves them."""
    keys = {"hardware": "oke/bm-gpu-b4-8", "fabric": "vf", "check_fabric": "30s", "min_busbw": 20, "nodes": 2}
    config_map = planned(**keys).objects[-2]
    assert sum(len(text.encode()) for text in config_map["data"].values()) < 192 << 10


@pytest.mark.parametrize("keys", POD_LAUNCHERS, ids=str)
def test_preflight_checks_the_permissions(planned: Planned, files: dict[str, str], keys: dict[str, Any]) -> None:
    """The user must be allowed to create ConfigMaps, and to list them, which proves that they are deleted."""
    permission = Permission(verbs=("create", "get", "list", "delete"), resource="configmaps")
    assert permission in list_requirements(planned(files=files, **keys), Permission)


@pytest.mark.parametrize("through", ["cli-v1", "cli-v2"])
def test_cli_of_runai_creates_no_config_map(planned: Planned, files: dict[str, str], through: str) -> None:
    """Run:ai's CLI cannot create a ConfigMap: files are refused with remedies."""
    keys = {"launcher": "runai", "options": {"project": "mlo", "through": through}, "nodes": 2}
    with pytest.raises(ProfileError, match=r"files: the CLI cannot create a ConfigMap: .*, or use options.through:"):
        planned(files=files, **keys)


def test_machines_get_no_single_files(write: Write, files: dict[str, str], tmp_path: Path) -> None:
    """On machines files are refused: code brings a folder there."""
    with pytest.raises(ProfileError, match="files: requires pods; on machines use code"):
        plan_of(load(write(files=files)), tmp_path)


def test_person_reads_size_and_digest(planned: Planned, files: dict[str, str]) -> None:
    """A plan that is shown has each file's size and SHA-256 in place of its content, and is else unchanged."""
    plan = planned(files=files)
    summary = summarize_files(plan.model_dump(mode="json"))
    assert "hello" not in json.dumps(summary["objects"])
    digest = hashlib.sha256(b"print('hello')\n").hexdigest()
    assert summary["objects"][0]["data"]["0-a_b.py"] == f"15 bytes, sha256 {digest}"
    assert summary["objects"][0]["binaryData"]["1-a_b.py"].startswith("3 bytes, sha256 ")
    assert ManifestPlan.model_validate(summary).main == plan.main
