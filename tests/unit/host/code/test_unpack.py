"""The program that unpacks a job's code, as a process and from a web server."""

import gzip
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread

import pytest

from tests.inputs.archives import build_member, build_tar
from torchyard.host.code import unpack
from torchyard.host.code.unpack import unpack_source

ARCHIVE = gzip.compress(build_tar(build_member("pkg/a.py"), with_regular_file=False).read())
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with an archive, as the ConfigMap of an attempt."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "code.tar.gz").write_bytes(ARCHIVE)
    return folder


@pytest.fixture
def server_url(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a web server that serves the folder `source`; a failed download is repeated without a pause."""
    monkeypatch.setattr(unpack, "_DOWNLOAD_PAUSE_S", 0.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(source)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run_program(source: Path, folder: Path, digest: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-I", unpack.__file__, str(source), str(folder), digest]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_folder_has_the_files_of_the_archive_alone(source: Path, tmp_path: Path) -> None:
    """The folder is emptied before: an init container may run again. An archive with another digest is refused."""
    folder = tmp_path / "code"
    (folder / "old").mkdir(parents=True)
    (folder / "old.py").symlink_to("/etc/passwd")
    completed = run_program(source, folder, DIGEST)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == ["pkg"]
    refused = run_program(source, folder, "0" * 64)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"torchyard: cannot unpack the code into {folder}: SHA-256 is {DIGEST}, not 000")
    (source / "code.tar.gz").write_bytes(b"not a tar")
    refused = run_program(source, folder, hashlib.sha256(b"not a tar").hexdigest())
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


def test_archive_is_downloaded(source: Path, tmp_path: Path, server_url: str) -> None:
    """The archive comes from the URL in the folder, and nothing else remains in the target."""
    (source / "url").write_text(f"{server_url}/code.tar.gz\n")
    unpack_source(str(source), str(tmp_path / "code"), DIGEST)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["pkg"]


BROKEN_RESPONSES = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    "no-length": b"HTTP/1.1 200 OK\r\n\r\nhalf",
    "no-status": b"half\r\n\r\n",
    "nothing": b"",
}


@pytest.fixture
def broken_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that breaks its first connection off after `request.param`, and then serves the archive."""
    monkeypatch.setattr(unpack, "_DOWNLOAD_PAUSE_S", 0.0)
    complete_response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ARCHIVE), ARCHIVE)
    responses = iter([request.param])

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(next(responses, complete_response))

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("broken_url", BROKEN_RESPONSES.values(), ids=BROKEN_RESPONSES, indirect=True)
def test_download_that_breaks_off_is_repeated(source: Path, tmp_path: Path, broken_url: str) -> None:
    """A download that was cut off is repeated, also if the end of the connection looks like that of the file."""
    (source / "url").write_text(broken_url)
    unpack_source(str(source), str(tmp_path / "code"), DIGEST)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["pkg"]


def test_download_of_another_archive_is_refused(source: Path, tmp_path: Path, server_url: str) -> None:
    """A URL that serves another archive at each try is refused with both digests."""
    (source / "url").write_text(f"{server_url}/code.tar.gz")
    with pytest.raises(OSError, match=f"SHA-256 is {DIGEST}, not 000"):
        unpack_source(str(source), str(tmp_path / "code"), "0" * 64)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("{server_url}/gone?sig=secret", "the object store responded 404"),
        ("http://127.0.0.1:1/?sig=secret", "cannot download it: "),
        ("http://127.0.0.1:1/?sig=a secret", "cannot download it: "),
        ("secret/without/scheme", "cannot download it: "),
    ],
)
def test_url_is_not_printed(source: Path, tmp_path: Path, server_url: str, url: str, expected: str) -> None:
    """A refused or impossible download is an error without the URL, which is a secret."""
    (source / "url").write_text(url.format(server_url=server_url))
    with pytest.raises(OSError, match=expected) as raised:
        unpack_source(str(source), str(tmp_path / "code"), DIGEST)
    assert "secret" not in str(raised.value)
