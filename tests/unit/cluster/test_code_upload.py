"""Sending code to the pod of a claim, on a fake API server that runs the command on this machine."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.pod_sessions import PodSessions
from torchyard.cluster import create
from torchyard.code.archive import keep_archive, read_archive
from torchyard.kube import absence
from torchyard.kube.channels import V4
from torchyard.model.errors import ClusterError, CodeError
from torchyard.model.plan import ManifestPlan
from torchyard.pods.code import upload


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this machine that is the volume of the claim."""
    folder = tmp_path / "volume"
    folder.mkdir()
    monkeypatch.setattr(upload, "VOLUME_FOLDER", str(folder))
    return folder


@pytest.fixture
def plan(
    pod_sessions: PodSessions, planned: Planned, tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> ManifestPlan:
    """The plan of a job with large code, whose archive is in the run's folder."""
    monkeypatch.setattr(absence, "CONFIRMATION_DELAY_S", 0.01)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.py").touch()
    (folder / "data").write_bytes(os.urandom(901 << 10))
    plan = create.resolve_cluster(planned(code_folder={"path": str(folder), "claim": "shared"}, program="a.py"))
    keep_archive(plan.code)
    return plan


def put_upload(server: PodSessions, plan: ManifestPlan, exit_code: int | None = None) -> None:
    """The upload pod as its node has it: ready, or ended."""
    (pod,) = plan.store
    status: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    if exit_code is not None:
        container_name = pod["spec"]["containers"][0]["name"]
        container_status = {"name": container_name, "state": {"terminated": {"exitCode": exit_code}}}
        status = {"phase": "Failed" if exit_code else "Succeeded", "containerStatuses": [container_status]}
    server.put(pod | {"status": status})


@pytest.mark.parametrize("protocols", [PodSessions.protocols, (V4,)], ids=["newest", "v4"])
def test_code_is_sent_to_the_volume(
    pod_sessions: PodSessions, plan: ManifestPlan, volume: Path, protocols: tuple[str, ...]
) -> None:
    """The archive arrives complete, also from a server that cannot report the end of the input."""
    pod_sessions.protocols = protocols
    put_upload(pod_sessions, plan)
    create.create_store(plan)
    assert plan.code
    assert plan.code.claim
    assert (volume / plan.code.claim.folder / "code.tar.gz").read_bytes() == read_archive(plan.code)


def test_code_is_not_sent_again(pod_sessions: PodSessions, plan: ManifestPlan) -> None:
    """A pod that has ended with 0 has received it: a process that resumes the run sends nothing."""
    put_upload(pod_sessions, plan, exit_code=0)
    create.create_store(plan)
    assert pod_sessions.find_requests("GET", "/exec") == []


def test_pod_that_fails_is_an_error_about_the_code(pod_sessions: PodSessions, plan: ManifestPlan) -> None:
    """A pod that has ended otherwise does not wait for the code; the error is not about a rendezvous store."""
    put_upload(pod_sessions, plan, exit_code=2)
    with pytest.raises(CodeError, match=r"exit code 2; its log is empty; the claim must be writable"):
        create.create_store(plan)


def test_full_volume_is_an_error_about_the_code(pod_sessions: PodSessions, plan: ManifestPlan, volume: Path) -> None:
    """What the pod prints when it cannot store the archive is in the error."""
    put_upload(pod_sessions, plan)
    (volume / "torchyard-code").touch()  # so that no folder can be created there
    with pytest.raises(CodeError, match=r"claim shared: pod \S+-upload could not store it \(exit code \d+: .*mkdir"):
        create.create_store(plan)


def test_changed_archive_is_not_sent(pod_sessions: PodSessions, plan: ManifestPlan) -> None:
    """An archive in the run's folder that was changed is not sent."""
    put_upload(pod_sessions, plan)
    assert plan.code
    Path(plan.code.path).unlink()
    Path(plan.code.path).write_bytes(b"changed")
    with pytest.raises(CodeError, match="it was changed"):
        create.create_store(plan)
    assert pod_sessions.find_requests("GET", "/exec") == []


def test_refused_command_is_an_error(pod_sessions: PodSessions, plan: ManifestPlan) -> None:
    """A user who may not run commands in pods gets the server's message."""
    put_upload(pod_sessions, plan)
    pod_sessions.fail("GET", "/exec", 403)
    with pytest.raises(ClusterError, match="a fault of the test: 403"):
        create.create_store(plan)
