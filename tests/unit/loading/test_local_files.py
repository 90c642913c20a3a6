"""Local files for pods: read when the profile is loaded, or refused in one sentence."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load
from torchyard.common.project_root import ROOT
from torchyard.model.errors import ProfileError

PODS = {"launcher": "volcano", "image": "train:v1", "program": "/x.py"}


def refused(path: Path) -> str:
    with pytest.raises(ProfileError) as raised:
        load(path)
    return str(raised.value)


def test_file_is_looked_for_beside_the_profile(write: Write, tmp_path: Path) -> None:
    """A relative path is relative to the profile's file, and comes before one of the project."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "pi.py").write_text("mine")
    files = load(write(**PODS, files={"/x.py": "programs/pi.py", "/y.py": "programs/allreduce.py"})).files
    assert files["/x.py"].text == "mine"
    assert files["/y.py"].content == (ROOT / "programs" / "allreduce.py").read_bytes()


@pytest.mark.parametrize("content", [b"", b"a\r\nb", "Zürich".encode(), b"\xff\xfe", b"a\0b", bytes(range(256))])
def test_content_is_kept_unchanged(write: Write, tmp_path: Path, content: bytes) -> None:
    """Every byte of a file is kept; only UTF-8 without NUL is stored as text."""
    (tmp_path / "data").write_bytes(content)
    file = load(write(**PODS, files={"/data": str(tmp_path / "data")})).files["/data"]
    assert file.content == content
    assert (file.text is None) == (b"\xff" in content or b"\0" in content)


def test_content_is_read_when_the_profile_is_loaded(write: Write, tmp_path: Path) -> None:
    """A file that changes after the load does not change the profile: its plan is pure."""
    (tmp_path / "data").write_text("before")
    profile = load(write(**PODS, files={"/data": "data"}))
    (tmp_path / "data").write_text("after")
    assert profile.files["/data"].text == "before"


def test_files_must_fit_into_one_config_map(write: Write, tmp_path: Path) -> None:
    """832 KiB in all are accepted, and one byte more is refused with the file, its size and the line of its key."""
    for name, size in (("small", 1 << 10), ("large", (832 << 10) - (1 << 10))):
        (tmp_path / name).write_bytes(bytes(size))
    files = {"/a-small": "small", "/b-large": "large"}
    assert len(load(write(**PODS, files=files)).files) == 2
    (tmp_path / "large").write_bytes(bytes((832 << 10) - 1023))
    message = refused(path := write(**PODS, files=files))
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "/b-large" in text)
    assert f"{path}:{line}: files: {tmp_path}/large has 850,945 bytes, 851,969 with those before it" in message
    assert "the limit is 851,968" in message


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["/x.py"], "is a file for each path in the pods, not"),
        ({"/x.py": 3}, "/x.py needs the name of a file on this machine, not 3"),
        ({"/x.py": "none.py"}, "none.py does not exist, or is not a regular file"),
        ({"/x.py": "long" * 100}, "long does not exist, or is not a regular file"),
        ({"/x.py": "/"}, "/ is a folder: name its files one by one"),
        ({"x.py": "sample.py"}, "'x.py' is not the path of a file in a pod: start it with /"),
        ({"/opt/": "sample.py"}, "'/opt/' is not the path of a file in a pod"),
        ({"/a/../x.py": "sample.py"}, "'/a/../x.py' is not the path of a file in a pod"),
        ({"/a:b": "sample.py"}, "'/a:b' is not the path of a file in a pod"),
        ({"/data": "sample.py"}, "files: /data is in `mounts` too"),
    ],
)
def test_wrong_file_is_refused(write: Write, files: Any, expected: str) -> None:
    """A source that is not a local file, or a target that is not a file's path in a pod, is refused at the load."""
    assert expected in refused(write(**PODS, mounts={"/data": {"claim": "coco"}}, files=files))


def test_files_cannot_be_combined_with_a_manifest(write: Write, tmp_path: Path) -> None:
    """Files are refused with a manifest, because its pods are not built from the profile."""
    (tmp_path / "job.yaml").write_text("apiVersion: v1\nkind: Job\nmetadata: {name: x}\n")
    keys = {"launcher": "volcano", "manifest": "job.yaml", "program": None, "files": {"/x.py": "sample.py"}}
    assert "files: cannot be combined with a manifest: add a ConfigMap to it" in refused(write(**keys))
