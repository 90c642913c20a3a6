"""The object store for large code, in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torchyard.code.archive import pack_folder, store_archive
from torchyard.code.object_store import check_store, publish_archive
from torchyard.common.secrets import forget_values, mask_text
from torchyard.model.errors import CodeError
from torchyard.model.plan import StagedCode


@pytest.fixture
def code(tmp_path: Path) -> Iterator[StagedCode]:
    """The code of a run whose pods get it from an empty store."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").touch()
    packed = pack_folder(tmp_path / "mine", ["a.py"])
    store_archive(packed)
    url = f"memory://bucket/{packed.archive.digest}.tar.gz"
    yield StagedCode(archive=packed.archive, path=str(tmp_path / "runs" / "a-1" / "code.tar.gz"), url=url)
    MemoryFileSystem.store.clear()
    forget_values()


def test_archive_is_written_once(code: StagedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of this digest and size is not written again; one that is incomplete is. The URL is a secret."""
    written: list[str] = []
    put_file = MemoryFileSystem.put_file

    def record_put(self: MemoryFileSystem, local: str, remote: str, **options: Any) -> None:
        written.append(remote)
        put_file(self, local, remote, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", record_put)
    monkeypatch.setattr(MemoryFileSystem, "sign", lambda *_, expiration: f"https://signed-for-{expiration}/s")
    assert check_store(code).verdict == "ok"
    urls = [publish_archive(code) for _ in range(2)]
    assert (urls, written) == (["https://signed-for-604800/s"] * 2, [code.url])
    assert urls[0] not in mask_text(f"GET {urls[0]}")
    MemoryFileSystem().pipe_file(code.url, b"incomplete")
    publish_archive(code)
    assert len(written) == 2


def test_store_without_signed_urls_is_refused(code: StagedCode) -> None:
    """A store that cannot sign a URL is refused by preflight, in one sentence with what to do."""
    check = check_store(code)
    assert (check.verdict, check.where) == ("failed", "code.store")
    assert "it has no signed URLs, with which the pods download the code" in check.what
    with pytest.raises(CodeError, match="use a store that signs URLs, such as s3://"):
        publish_archive(code)


@pytest.mark.parametrize("url", ["nowhere://bucket/a", "gs://bucket/a"])
def test_store_without_a_client_is_refused(code: StagedCode, url: str) -> None:
    """An unknown protocol, and one whose package is not installed, are refused."""
    assert check_store(code.model_copy(update={"url": url})).verdict == "failed"


def test_store_that_fails_is_refused(code: StagedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be read is a failed check, never an empty store."""

    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    assert "cannot be read: Access Denied" in check_store(code).what
    with pytest.raises(CodeError, match="it cannot be written: Access Denied"):
        publish_archive(code)
