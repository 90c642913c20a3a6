"""Pods download the code of their job from an object store, here from a real S3 API whose URLs are signed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.plan_parts import get_pod_spec
from tests.conftest import Planned
from tests.doubles.kubelet import expand_variables
from tests.processes.s3_server import ACCESS_KEY, REGION, SECRET_KEY, SignedS3
from torchyard.code.object_store import check_store, publish_archive
from torchyard.common.secrets import forget_values
from torchyard.model.plan import StagedCode
from torchyard.pods.code.unpacking import SOURCE_FOLDER, add_url, is_code_map

_WEEK_S = 7 * 86400.0


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[SignedS3]:
    """An S3 API with an empty bucket, which this process's environment names."""
    import boto3

    server = SignedS3()
    with server.serve() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        yield server
        for item in client.list_objects_v2(Bucket="bucket").get("Contents", []):  # moto keeps it for the whole process
            client.delete_object(Bucket="bucket", Key=item["Key"])
        client.delete_bucket(Bucket="bucket")
    forget_values()


class CodePod(NamedTuple):
    """The init container of a plan whose code is in the store, as a process here.

    argv: its command, with folders of this machine in place of the pod's.
    source, target: those folders: the ConfigMap, and the unpacked code.
    """

    code: StagedCode
    argv: list[str]
    source: Path
    target: Path

    def publish(self) -> str:
        """Write the archive to the store as the launcher does, and its URL to the ConfigMap; return the URL."""
        url = publish_archive(self.code)
        self.set_url(url)
        return url

    def set_url(self, url: str) -> None:
        (self.source / "url").write_text(url)

    def run(self) -> "subprocess.CompletedProcess[str]":
        env = {"PATH": os.path.dirname(sys.executable)}
        return subprocess.run(self.argv, capture_output=True, text=True, check=False, env=env)

    def assert_refused(self, expected: str) -> None:
        """Run it; it must fail with one line, which begins with `expected`, and leave nothing in the target."""
        completed = self.run()
        assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (1, "", 1), completed.stderr
        assert completed.stderr.startswith(f"torchyard: cannot unpack the code into {self.target}: {expected}")
        assert list(self.target.iterdir()) == []


@pytest.fixture(params=["dash", "bash", "busybox"])
def pod(request: pytest.FixtureRequest, s3: SignedS3, planned: Planned, tmp_path: Path) -> CodePod:
    """The init container of a plan whose code is too large for a ConfigMap."""
    shell = shutil.which(request.param) or pytest.skip(f"there is no {request.param}")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.py").write_text("print('downloaded')")
    (folder / "data").write_bytes(os.urandom(901 << 10))
    plan = planned(code_folder={"path": str(folder), "store": "s3://bucket/code/"}, program="a.py")
    assert plan.code
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (code_map,) = filter(is_code_map, plan.objects)
    for name, text in add_url(code_map, "")["data"].items():
        (source / name).write_text(text)
    _, option, script, *args = get_pod_spec(plan)["initContainers"][0]["command"]
    script = expand_variables(script, {}).replace(SOURCE_FOLDER, str(source))
    shell_argv = [shell, "sh"] if request.param == "busybox" else [shell]
    argv = [
        *shell_argv,
        option,
        script,
        *({"/code": str(target), SOURCE_FOLDER: str(source)}.get(arg, arg) for arg in args),
    ]
    return CodePod(plan.code, argv, source, target)


def test_pod_downloads_what_the_launcher_has_written(pod: CodePod) -> None:
    """The folder has the code alone, also if the init container runs again."""
    assert check_store(pod.code).verdict == "ok"
    pod.publish()
    for _ in range(2):
        completed = pod.run()
        assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
        assert sorted(path.name for path in pod.target.iterdir()) == ["a.py", "data"]
        assert (pod.target / "a.py").read_text() == "print('downloaded')"


def test_unchanged_code_is_sent_once(pod: CodePod, s3: SignedS3) -> None:
    """Another attempt, and another run with the same folder, write nothing, and each gets a URL."""
    urls = [pod.publish() for _ in range(3)]
    assert s3.written == [f"/bucket/code/{pod.code.archive.digest}.tar.gz"]
    assert all(url.startswith("http") for url in urls)
    assert pod.run().returncode == 0


def test_expired_url_is_refused(pod: CodePod, s3: SignedS3) -> None:
    """A pod that starts after a week ends with what may be the reason; before, the URL is valid."""
    pod.publish()
    s3.clock_offset_s = _WEEK_S + 60.0
    pod.assert_refused("the object store responded 403: the signed URL may have expired")
    s3.clock_offset_s = _WEEK_S - 3600.0
    assert pod.run().returncode == 0


def test_wrong_signature_is_refused(pod: CodePod) -> None:
    """A URL that was changed ends with one line, which does not contain it."""
    url = pod.publish()
    last_digit = "1" if url.endswith("0") else "0"
    pod.set_url(url[:-1] + last_digit)
    pod.assert_refused("the object store responded 403: the signed URL may have expired")


def test_other_archive_is_refused(pod: CodePod, s3: SignedS3) -> None:
    """An object that was replaced does not have the digest of the plan, and is not unpacked."""
    import boto3

    pod.publish()
    key = s3.written[0].removeprefix("/bucket/")
    boto3.client("s3").put_object(Bucket="bucket", Key=key, Body=b"another archive")
    pod.assert_refused("SHA-256 is ")
