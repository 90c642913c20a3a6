"""The code of a job in its pods: how each launcher mounts it, and what the init container does."""

import base64
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders.plan_parts import POD_LAUNCHERS, get_command, get_container, get_pod_spec, list_requirements
from tests.conftest import Planned, Write, load
from tests.doubles.kubelet import expand_variables
from torchyard.code.archive import keep_archive, read_archive
from torchyard.common.project_root import ROOT
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Permission, ReferencedObject
from torchyard.pods.code.unpacking import SOURCE_FOLDER, add_archive, add_url, is_code_map
from torchyard.pods.files import summarize_files


@pytest.fixture
def source_folder(tmp_path: Path) -> str:
    """A folder with a program and a package."""
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "a.py").write_text("import pkg")
    (folder / "pkg" / "__init__.py").touch()
    return str(folder)


def find_code_map(plan: ManifestPlan) -> dict[str, Any]:
    (code_map,) = filter(is_code_map, plan.objects)
    return code_map


@pytest.mark.parametrize("keys", POD_LAUNCHERS, ids=str)
def test_pods_start_in_the_unpacked_code(planned: Planned, source_folder: str, keys: dict[str, Any]) -> None:
    """An init container of the job's image fills a volume, in which the job's container starts its program."""
    plan = planned(attempt=2, code_folder=source_folder, program="a.py", **keys)
    code_map = find_code_map(plan)
    init, main = get_pod_spec(plan)["initContainers"][0], get_container(plan)
    volumes = {volume["name"]: volume for volume in get_pod_spec(plan)["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in init["volumeMounts"]}
    assert (init["image"], main["workingDir"]) == (main["image"], "/code")
    assert "/code/a.py" in get_command(plan)
    assert {"name": "torchyard-code", "mountPath": "/code"} in main["volumeMounts"]
    assert mounts["/code"]["emptyDir"] == {}
    assert mounts[SOURCE_FOLDER]["configMap"]["name"] == code_map["metadata"]["name"] == f"{plan.job}-code"
    assert plan.labels.items() <= code_map["metadata"]["labels"].items()
    assert plan.code
    assert "binaryData" not in code_map
    assert Permission(verbs=("create", "get", "list", "delete"), resource="configmaps") in list_requirements(
        plan, Permission
    )
    assert code_map["metadata"]["name"] not in [
        reference.name for reference in list_requirements(plan, ReferencedObject)
    ]


def test_init_container_fits_where_the_job_fits(planned: Planned, source_folder: str) -> None:
    """It has the job's rights, and requests its CPU and memory, but no device, and no more than the job."""
    pod = {"capabilities": ["IPC_LOCK"], "limits": {"memory": "8Gi"}, "pull_policy": "Always"}
    resources = {"gpus": 2, "cpu": 4, "memory": "8Gi"}
    init = get_pod_spec(planned(code_folder=source_folder, program="a.py", pod=pod, resources=resources))[
        "initContainers"
    ][0]
    assert init["resources"] == {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    assert init["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert init["imagePullPolicy"] == "Always"


@pytest.mark.parametrize("tools", [("python3",), ("tar", "gzip")])
def test_init_container_unpacks(planned: Planned, source_folder: str, tmp_path: Path, tools: tuple[str, ...]) -> None:
    """It unpacks with Python or, in an image without it, with tar."""
    plan = planned(code_folder=source_folder, program="a.py")
    assert plan.code
    keep_archive(plan.code)
    code_map = add_archive(find_code_map(plan), read_archive(plan.code))
    source = tmp_path / "source"
    target = tmp_path / "target"
    for folder in (source, target, tmp_path / "bin"):
        folder.mkdir()
    (source / "unpack.py").write_text(code_map["data"]["unpack.py"])
    (source / "code.tar.gz").write_bytes(base64.b64decode(code_map["binaryData"]["code.tar.gz"]))
    for tool in tools:
        (tmp_path / "bin" / tool).symlink_to(sys.executable if tool == "python3" else str(shutil.which(tool)))
    shell, option, script, *args = get_pod_spec(plan)["initContainers"][0]["command"]
    script = expand_variables(script, {}).replace(SOURCE_FOLDER, str(source))
    args = [{"/code": str(target), SOURCE_FOLDER: str(source)}.get(arg, arg) for arg in args]
    subprocess.run([shell, option, script, *args], check=True, env={"PATH": str(tmp_path / "bin")})
    assert sorted(os.listdir(target)) == ["a.py", "pkg"]


def test_plan_has_the_digest_in_place_of_the_content(planned: Planned, source_folder: str) -> None:
    """A plan that is shown names the number of files, their size and the digest."""
    plan = planned(code_folder=source_folder, program="a.py")
    summary = summarize_files(plan.model_dump(mode="json"))
    code_map = next(filter(is_code_map, summary["objects"]))
    assert plan.code
    digest = plan.code.archive.short_digest
    assert code_map["metadata"]["annotations"]["torchyard/code"] == f"2 files, 1 KB, digest {digest}"
    assert re.fullmatch(r"[\d,]+ bytes, sha256 \w{64}", code_map["data"]["unpack.py"])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"mounts": {"/code": {"claim": "a"}}}, "mounts./code: the code is there; choose another path"),
        ({"mounts": {SOURCE_FOLDER: {"claim": "a"}}}, "torchyard mounts its own files there"),
        ({"pod": {"workdir": "/"}}, "pod.workdir: the code would hide the whole image"),
        ({"pod": {"init": [{"name": "torchyard-code", "image": "a:1"}]}}, "cannot be called torchyard-code"),
        (
            {"launcher": "runai", "options": {"project": "mlo"}, "nodes": 2},
            "code: the CLI cannot create an init container: put the code into the image, or use options.through",
        ),
    ],
)
def test_what_cannot_be_combined_with_code_is_refused(
    planned: Planned, source_folder: str, keys: dict[str, Any], expected: str
) -> None:
    """A mount at the folder of the code, a second container of that name, and Run:ai's CLI are refused."""
    with pytest.raises(ProfileError) as raised:
        planned(code_folder=source_folder, program="a.py", **keys)
    assert expected in str(raised.value)


def test_code_fits_into_a_config_map(write: Write, source_folder: str) -> None:
    """Code with more than 900 KiB when packed is refused in pods, with what to do."""
    Path(source_folder, "data").write_bytes(os.urandom(901 << 10))
    with pytest.raises(
        ProfileError, match=r"bytes when packed, the limit in pods is 921,600.*code\.exclude.*code\.store"
    ):
        load(write(launcher="volcano", image="train:v1", code_folder=source_folder, program="a.py"))
    assert len((ROOT / "torchyard/host/code/unpack.py").read_bytes()) < (1 << 20) - (900 << 10)


def test_code_that_is_too_large_comes_from_a_store(planned: Planned, source_folder: str) -> None:
    """With a store the ConfigMap gets a signed URL when it is created; the plan has none. Small code needs no store."""
    code = {"path": source_folder, "store": "s3://bucket/code/"}
    keys = {"program": "a.py", "env": {"https_proxy": "http://proxy:3128", "A": "1"}}
    small = planned(code_folder=code, **keys)
    assert small.code
    assert small.code.url is None
    Path(source_folder, "data").write_bytes(os.urandom(901 << 10))
    plan = planned(code_folder=code, **keys)
    assert plan.code
    assert plan.code.url == f"s3://bucket/code/{plan.code.archive.digest}.tar.gz"
    assert get_pod_spec(plan)["initContainers"][0]["env"] == [{"name": "https_proxy", "value": "http://proxy:3128"}]
    assert add_url(find_code_map(plan), "https://signed")["data"]["url"] == "https://signed"
