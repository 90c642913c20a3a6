"""The program that unpacks a job's code, as a process."""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.inputs.archives import build_member, build_tar
from torchyard.host.code import unpack


def run_program(archive: Path, folder: Path, digest: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-I", unpack.__file__, str(archive), str(folder), digest]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_folder_has_the_files_of_the_archive_alone(tmp_path: Path) -> None:
    """The folder is emptied before: an init container may run again. An archive with another digest is refused."""
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(gzip.compress(build_tar(build_member("pkg/a.py"), with_regular_file=False).read()))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    folder = tmp_path / "code"
    (folder / "old").mkdir(parents=True)
    (folder / "old.py").symlink_to("/etc/passwd")
    completed = run_program(archive, folder, digest)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == ["pkg"]
    refused = run_program(archive, folder, "0" * 64)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"torchyard: cannot unpack the code into {folder}: SHA-256 is {digest}, not 000")
    archive.write_bytes(b"not a tar")
    refused = run_program(archive, folder, hashlib.sha256(b"not a tar").hexdigest())
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
