"""The key `code`: the folder is packed when the profile is loaded, or refused in one sentence."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, load
from torchyard.code.archive import code_folder
from torchyard.launchers import registry
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.requirements import Advice
from torchyard.model.run import TRIAL_RUN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with code beside the profile."""
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    (folder / "a.sh").write_text("1")
    (folder / "data" / "a.csv").touch()
    (folder / ".gitignore").write_text("ignored.py\n")
    (folder / "ignored.py").touch()
    return folder


def refuse(path: Path) -> str:
    with pytest.raises(ProfileError) as raised:
        load(path)
    return str(raised.value)


@pytest.mark.parametrize(
    ("value", "file_count"), [("mine", 4), ({"path": "./mine", "exclude": ["data/", "!ignored.py"]}, 4)]
)
def test_folder_is_packed_when_the_profile_is_loaded(write: Write, folder: Path, value: Any, file_count: int) -> None:
    """The profile has the digest of the files as they were, and this machine has their archive."""
    path = write(program="./a.py", code_folder=value)
    code = load(path).code
    (folder / "a.py").write_text("2")
    later = load(path).code
    assert code
    assert later
    assert (code.path, code.archive.file_count) == (str(folder), file_count)
    assert code.archive.digest != later.archive.digest
    names = sorted(f"{one.archive.digest}.tar.gz" for one in (code, later))
    assert sorted(stored.name for stored in code_folder().iterdir()) == names


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "code: must be a folder, or {path: FOLDER, exclude: [PATTERN]}, not 3"),
        ({"path": "mine", "excludes": []}, "unknown key code.excludes: did you mean exclude?"),
        ({"exclude": []}, "the key code.path is missing"),
        ("nowhere", "nowhere does not exist"),
        ("long" * 100, "long does not exist"),
        ("mine/a.py", "a.py is a file: name its folder, and the file as program"),
        ({"path": "mine", "exclude": ["*"]}, "it has no files: git's rules, or those of `exclude`, ignore all of them"),
        (".", "id_rsa (by its name), settings.py:1. Exclude the files"),
    ],
)
def test_wrong_folder_is_refused(write: Write, folder: Path, tmp_path: Path, value: Any, expected: str) -> None:
    """What cannot be the code of a job is refused with the line of its key."""
    (tmp_path / "id_rsa").touch()
    (tmp_path / "settings.py").write_text("TOKEN = 'hf_" + "a1B2c3" * 5 + "'")
    path = write(program="a.py", code_folder=value)
    message = refuse(path)
    assert expected in message
    assert f"{path}:" in message


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"program": "b.py"}, "program: b.py is not a file of the code in "),
        ({"program": "../sample.py"}, "name it relative to that folder"),
        ({"program": "ignored.py"}, "is ignored by git or by code.exclude: add '!ignored.py' to code.exclude"),
        ({"program": "a.sh", "agent": "none", "rendezvous": "env"}, "a.sh is not executable; chmod +x "),
        ({"program": "a.py", "options": {"source": "."}}, "options.source: cannot be combined with code"),
    ],
)
def test_program_is_a_file_of_the_code(write: Write, folder: Path, keys: dict[str, Any], expected: str) -> None:
    """A program that the job would not have, or could not start, is refused when the profile is loaded."""
    assert expected in refuse(write(code_folder="mine", **keys))


def test_code_cannot_be_combined_with_a_manifest(write: Write, folder: Path, tmp_path: Path) -> None:
    """The pods of a manifest run their own commands, so code is refused there."""
    (tmp_path / "job.yaml").write_text("apiVersion: v1\nkind: Job\nmetadata: {name: x}\n")
    keys = {"launcher": "volcano", "manifest": "job.yaml", "program": None}
    assert "code: cannot be combined with a manifest" in refuse(write(code_folder="mine", **keys))


def test_folder_that_cannot_be_read_is_refused(write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read is named: the job would lack it."""

    read_bytes = Path.read_bytes

    def refuse_to_read(path: Path) -> bytes:
        if path.parent == folder:
            raise PermissionError(13, os.strerror(13), str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse_to_read)
    assert f"code: {folder}/.gitignore cannot be read: Permission denied" in refuse(
        write(program="a.py", code_folder="mine")
    )


@pytest.mark.parametrize("launcher", ["volcano", "baremetal"])
def test_program_with_a_syntax_error_gets_a_warning(write: Write, folder: Path, launcher: str) -> None:
    """A program that this Python cannot parse is a warning with its line: the job's Python may be a newer one."""
    image = None if launcher == "baremetal" else "pytorch:2.8"
    path = write(program="a.py", code_folder="mine", launcher=launcher, image=image)
    assert find_program_advice(path) == []
    (folder / "a.py").write_text("import os\nif os:\nprint(1)\n")
    (finding,) = find_program_advice(path)
    assert finding.verdict == "warning"
    assert finding.what.startswith("a.py, line 3: expected an indented block after 'if' statement on line 2 (Python 3.")


def find_program_advice(path: Path) -> list[Finding]:
    plan = registry.make_plan(load(path), TRIAL_RUN)
    advice = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    return [finding for finding in advice if finding.where == "program"]
