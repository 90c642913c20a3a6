"""Code on a volume claim: the pod that brings it there, and what it runs."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builders.plan_parts import POD_LAUNCHERS, get_pod_spec, list_requirements
from tests.conftest import Planned
from tests.support.waiting import wait_until
from torchyard.model.errors import ProfileError
from torchyard.model.plan import CodeClaim, ManifestPlan
from torchyard.model.requirements import Permission, ReferencedObject
from torchyard.pods.code.upload import VOLUME_FOLDER, build_receive_command, is_code_upload

SHELLS = [[name] for name in ("dash", "bash") if shutil.which(name)]
if shutil.which("busybox"):
    SHELLS.append(["busybox", "sh"])
CLAIM = CodeClaim(name="shared", folder="torchyard-code/abc")


@pytest.fixture
def code(tmp_path: Path) -> dict[str, str]:
    """A folder with a program and too much data for a ConfigMap, and a claim for it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.py").touch()
    (folder / "data").write_bytes(os.urandom(901 << 10))
    return {"path": str(folder), "claim": "shared"}


def find_upload(plan: ManifestPlan) -> dict[str, Any]:
    (upload,) = filter(is_code_upload, plan.store)
    return upload


@pytest.mark.parametrize("keys", POD_LAUNCHERS, ids=str)
def test_pods_unpack_what_the_upload_brings(planned: Planned, code: dict[str, str], keys: dict[str, Any]) -> None:
    """A pod has the whole volume, and each pod of the job the folder there that is named by the archive's digest."""
    plan = planned(code_folder=code, program="a.py", **keys)
    assert plan.code
    assert plan.code.claim == CodeClaim(name="shared", folder=f"torchyard-code/{plan.code.archive.digest}")
    unpacking = get_pod_spec(plan)["initContainers"][0]
    (mount,) = [mount for mount in unpacking["volumeMounts"] if "subPath" in mount]
    assert (mount["subPath"], mount["readOnly"]) == (plan.code.claim.folder, True)
    assert unpacking["command"][-1] == mount["mountPath"]
    upload = find_upload(plan)["spec"]
    volume = {"name": mount["name"], "persistentVolumeClaim": {"claimName": "shared"}}
    assert volume in get_pod_spec(plan)["volumes"]
    assert upload["volumes"] == [volume]
    assert upload["containers"][0]["image"] == unpacking["image"]
    assert upload["containers"][0]["volumeMounts"] == [{"name": mount["name"], "mountPath": VOLUME_FOLDER}]
    assert ReferencedObject(object_kind="PersistentVolumeClaim", name="shared") in list_requirements(
        plan, ReferencedObject
    )
    assert Permission(verbs=("get", "create"), resource="pods/exec") in list_requirements(plan, Permission)


def test_upload_runs_where_the_job_may_run(planned: Planned, code: dict[str, str]) -> None:
    """It has the nodes, tolerations, account and rights of the job's pods, and requests none of their devices."""
    pod = {
        "node_selector": {"pool": "a"},
        "service_account": "trainer",
        "pull_secrets": ["registry"],
        "patch": {"spec": {"securityContext": {"fsGroup": 1000}}},
    }
    plan = planned(code_folder=code, program="a.py", pod=pod, resources={"gpus": 2})
    upload = find_upload(plan)["spec"]
    job_pod = get_pod_spec(plan)
    for key in ("nodeSelector", "serviceAccountName", "imagePullSecrets", "securityContext"):
        assert upload[key] == job_pod[key]
    assert list(upload["containers"][0]["resources"]["requests"]) == ["cpu", "memory"]


def test_small_code_needs_no_claim(planned: Planned, code: dict[str, str]) -> None:
    """What fits into a ConfigMap comes by it."""
    Path(code["path"], "data").unlink()
    plan = planned(code_folder=code, program="a.py")
    assert plan.code
    assert plan.code.claim is None
    assert not any(map(is_code_upload, plan.store))
    assert "claimName" not in str(plan.objects)


def test_store_and_claim_are_refused_together(planned: Planned, code: dict[str, str]) -> None:
    """The archive is in one place."""
    with pytest.raises(ProfileError, match="code: store and claim are two places for the same archive"):
        planned(code_folder=code | {"store": "s3://bucket"}, program="a.py")


def localize(command: Sequence[str], shell: Sequence[str], folder: Path) -> list[str]:
    """A command of the pod, with another shell, and with a folder of the test in place of the volume."""
    _, option, *args = (arg.replace(VOLUME_FOLDER, str(folder)) for arg in command)
    return [*shell, option, *args]


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_archive_is_received_once(planned: Planned, code: dict[str, str], tmp_path: Path, shell: list[str]) -> None:
    """The first command receives the archive; a second one leaves it as it is. Each lets its pod end."""
    volume = tmp_path / "volume"
    volume.mkdir()
    name = find_upload(planned(code_folder=code, program="a.py"))["metadata"]["name"]
    wait = find_upload(planned(code_folder=code, program="a.py"))["spec"]["containers"][0]["command"]
    command = localize(build_receive_command(CLAIM, 5, name), shell, volume)
    for content in (b"first, and more than that", b"other"):
        subprocess.run(command, input=content, check=True)
        subprocess.run(localize(wait, shell, volume), check=True)
        assert [path.name for path in volume.rglob("*") if path.is_file()] == ["code.tar.gz"]
        assert (volume / CLAIM.folder / "code.tar.gz").read_bytes() == b"first"


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_archive_that_was_cut_off_is_received_again(tmp_path: Path, shell: list[str]) -> None:
    """An empty file of the archive's name, as a power cut leaves it, does not break each later run of this code."""
    archive = tmp_path / CLAIM.folder / "code.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.touch()
    command = localize(build_receive_command(CLAIM, 5, "pod"), shell, tmp_path)
    subprocess.run(command, input=b"first", check=True)
    assert archive.read_bytes() == b"first"


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_incomplete_archive_is_not_stored(tmp_path: Path, shell: list[str]) -> None:
    """If the input ends early, nothing remains, and the command fails with what it has received."""
    command = localize(build_receive_command(CLAIM, 9, "pod"), shell, tmp_path)
    completed = subprocess.run(command, input=b"short", capture_output=True, check=False)
    assert (completed.returncode, completed.stderr.split()) == (1, b"received 5 of 9 bytes".split())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_broken_try_does_not_remove_what_the_next_one_receives(tmp_path: Path, shell: list[str]) -> None:
    """A try whose connection has broken may end while the next one receives the archive, which is complete then."""
    command = localize(build_receive_command(CLAIM, 5, "pod"), shell, tmp_path)
    folder = tmp_path / CLAIM.folder
    with subprocess.Popen(command, stdin=subprocess.PIPE) as retry:
        assert retry.stdin
        wait_until(lambda: any(folder.glob(".part-*")))
        assert subprocess.run(command, input=b"abc", check=False).returncode == 1
        retry.stdin.write(b"12345")
        retry.stdin.close()
        assert retry.wait(10) == 0
    assert (folder / "code.tar.gz").read_bytes() == b"12345"
