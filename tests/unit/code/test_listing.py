"""The files of a folder with code, compared with those that git lists."""

import errno
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchyard.code import listing
from torchyard.code.listing import list_files

RULES = {
    ".gitignore": "*.o\n!keep.o\n/top.txt\ndata/*\n!data/keep/\nbuild\n!build/\n\\#h\nx\\ \n**/deep/**\n!*/\nlink/\n",
    "pkg/.gitignore": "\ufeff*.tmp\r\n!/a.tmp\r\n!b.o\nsub/\n",
    "pkg/inner/.gitignore": "/*\n!.gitignore\n!c.py\n",
    "data/keep/.gitignore": "*\n!*.csv\n",
    ".git/info/exclude": "private.py\n",
}
FILES = (
    *("a.o", "keep.o", "top.txt", "sub/top.txt", "#h", "x ", "Zürich.py", "private.py", "pkg/private.py"),
    *("data/a", "data/keep/a.csv", "data/keep/b.txt", "build/a.py", "build/x/build", "deep/a", "sub/deep/b/c"),
    *("pkg/a.tmp", "pkg/b.tmp", "pkg/b.o", "pkg/sub/a.py", "pkg/inner/c.py", "pkg/inner/d.py", "pkg/x/a.tmp"),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with nested rules, and files that each of them includes or excludes."""
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, text in RULES.items() | {(name, "") for name in FILES}:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "link").symlink_to("pkg")
    return folder


def list_names(folder: Path, *exclude: str) -> list[str]:
    listed = list_files(folder, exclude, Path("/runs"))
    assert listed.problems == []
    return listed.names


@pytest.mark.parametrize("subfolder", [".", "pkg"])
def test_files_are_those_that_git_lists(repository: Path, subfolder: str) -> None:
    """A repository and a folder in it have the tracked and untracked files that git does not ignore."""
    argv = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "-coz", "--exclude-standard"]
    output = subprocess.run(argv, cwd=repository / subfolder, check=True, capture_output=True).stdout
    names = list_names(repository / subfolder)
    assert names == sorted(name for name in output.decode().split("\0") if name)
    assert len(names) >= 5


def test_exclude_takes_precedence(repository: Path) -> None:
    """A pattern of `exclude` removes files that git has, and with `!` adds one that git ignores."""
    before = set(list_names(repository))
    after = set(list_names(repository, "pkg/", "!/private.py", "*.csv"))
    assert after - before == {"private.py"}
    assert before - after == {name for name in before if name.startswith("pkg/") or name.endswith(".csv")}


def test_folder_outside_of_a_repository_has_no_outer_rules(tmp_path: Path) -> None:
    """A .gitignore above a folder counts only in a repository; caches and the folder of all runs never count."""
    (tmp_path / ".gitignore").write_text("*\n")
    folder = tmp_path / "code"
    for name in ("a.py", "__pycache__/a.pyc", ".venv/bin/python", "runs/a-1/log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert list_files(folder, (), folder / "runs").names == ["a.py"]


@pytest.mark.parametrize(
    ("target", "is_refused"), [("a.py", False), ("../a.py", True), ("/etc/passwd", True), ("gone", False)]
)
def test_link_may_not_leave_the_folder(tmp_path: Path, target: str, is_refused: bool) -> None:
    """A link that leads out of the folder, or is absolute, is refused by name: the job has no file there."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").touch()
    (tmp_path / "code" / "link").symlink_to(target)
    problems = list_files(tmp_path / "code", (), Path("/runs")).problems
    expected = f"link is a link to {target}, which the job does not have: exclude it, or make it a file"
    assert problems == ([expected] if is_refused else [])


def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket cannot be packed, and is refused by name."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 108 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("agent")
    assert list_files(tmp_path, (), Path("/runs")).problems == ["agent is not a regular file: exclude it"]


def test_too_much_is_refused_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many and too large files are refused, with where most of them are; so is a folder without files."""
    assert list_files(tmp_path, (), Path("/runs")).problems[0].startswith("it has no files")
    (tmp_path / "data").mkdir()
    for index in range(4):
        (tmp_path / "data" / str(index)).write_bytes(bytes(1000 + index))
    monkeypatch.setattr(listing, "_MAX_BYTES", 4005)
    (problem,) = list_files(tmp_path, (), Path("/runs")).problems
    assert problem.startswith("its files have 4,006 bytes, the limit is 4,005 (data/3 with 1,003, data/2")
    monkeypatch.setattr(listing, "_MAX_FILES", 3)
    (problem,) = list_files(tmp_path, (), Path("/runs")).problems
    assert problem == "it has more than 3 files (4 in data/): exclude what is not code"


def test_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be read is an error: its files would be missing in the job."""

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        list_files(tmp_path, (), Path("/runs"))


@pytest.mark.parametrize("name", [".gitignore", "pkg/.gitignore", ".git", ".git/info/exclude"])
def test_rules_that_cannot_be_read_are_an_error(repository: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A share that does not respond shows no rules: the files that they ignore must not be packed for that."""
    for status_name in ("stat", "lstat"):
        read_status = getattr(os, status_name)

        def fail(path: str, *, read_status: Callable[..., os.stat_result] = read_status, **options: Any) -> Any:
            if os.fspath(path) == str(repository / name):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return read_status(path, **options)

        monkeypatch.setattr(os, status_name, fail)
    with pytest.raises(OSError, match="Stale file handle"):
        list_files(repository, (), Path("/runs"))
