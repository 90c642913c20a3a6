"""Which suites of complete runs are left out, because they have passed for the same files."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.tools import verified


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository in which both suites pass on a machine that lacks nothing; `ran` lists them."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "tests" / "tools").mkdir(parents=True)
    (tmp_path / "torchyard.py").write_text("1")
    monkeypatch.setattr(verified, "ROOT", tmp_path)
    monkeypatch.setattr(verified, "RECORD", tmp_path / "tests" / "tools" / "verified.json")
    monkeypatch.setattr(verified, "can_run_all", lambda _: True)
    monkeypatch.setattr(verified, "run_suite", lambda name, *_: print(f"ran {name}") or 0)
    return tmp_path


def read_run_suites(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("ran ") for line in capsys.readouterr().out.splitlines() if line.startswith("ran ")]


@pytest.mark.usefixtures("repository")
def test_suite_that_has_passed_for_the_same_files_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """CI runs each suite once for the same files; `make e2e` itself always runs all."""
    run_suites = []
    for argv in (["--changed"], ["--changed"], []):
        assert verified.main(argv) == 0
        run_suites.append(read_run_suites(capsys))
    assert run_suites == [["local", "cluster"], [], ["local", "cluster"]]


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("torchyard.py", ["local", "cluster"]),
        ("new.py", ["local", "cluster"]),
        ("tests/local/test_x.py", ["local"]),
        ("tests/cluster/test_x.py", ["cluster"]),
        ("docs/runs.md", ["local"]),
        ("docs/small.json", ["local", "cluster"]),
        ("tests/unit/test_x.py", []),
        ("CHANGELOG.md", []),
    ],
)
def test_suite_is_run_if_a_file_that_it_reads_has_changed(
    repository: Path, path: str, suites: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A change of another suite's tests, or of a page that no test reads, does not matter; a new file does."""
    verified.main([])
    read_run_suites(capsys)
    (repository / path).parent.mkdir(parents=True, exist_ok=True)
    (repository / path).write_text("2")
    verified.main(["--changed"])
    assert read_run_suites(capsys) == suites


@pytest.mark.usefixtures("repository")
def test_failed_or_incomplete_suite_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite that fails, or whose tests are partly skipped on this machine, runs again in CI."""
    monkeypatch.setattr(verified, "can_run_all", lambda name: name != "local")
    assert verified.main([]) == 0
    assert list(json.loads(verified.RECORD.read_text())) == ["cluster"]
    monkeypatch.setattr(verified, "run_suite", lambda *_: 3)
    verified.RECORD.unlink()
    assert verified.main([]) == 3
    assert not verified.RECORD.exists()


@pytest.mark.usefixtures("repository")
def test_one_suite_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A suite that is named runs alone; an unknown name is an error that lists the suites."""
    verified.main(["cluster"])
    assert read_run_suites(capsys) == ["cluster"]
    with pytest.raises(SystemExit):
        verified.main(["clusters"])
    assert "no suite is named clusters; there are: local, cluster" in capsys.readouterr().err
