"""The checkpoint from which an attempt continues: of its own run, or of an earlier one."""

from pathlib import Path

import pytest

from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.run.folder import RunFolder
from torchyard.run.resume_point import find_resume_point


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all runs."""
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path))
    return tmp_path


def create_run(runs: Path, name: str) -> RunFolder:
    (runs / name).mkdir()
    return RunFolder(runs / name)


def test_first_attempt_starts_from_the_beginning(runs: Path) -> None:
    """Without checkpoints, and without `resume`, nothing is handed out."""
    assert find_resume_point(create_run(runs, "new-1"), load_profile("digits-local")) is None


def test_next_attempt_continues_from_its_own_run(runs: Path) -> None:
    """A complete checkpoint of the run itself comes before the run that the profile names."""
    own = create_run(runs, "new-1")
    own.save_checkpoints(1, [build_checkpoint("/c/a", step=5), build_checkpoint("/c/b", "torn", saved_at=9.0)])
    point = find_resume_point(own, load_profile("digits-local", {"resume": "old-1"}))
    assert point is not None
    assert (point.path, point.step) == ("/c/a", 5)


def test_later_attempt_may_tear_a_checkpoint(runs: Path) -> None:
    """What a later attempt reports about a path replaces what is known of it."""
    own = create_run(runs, "new-1")
    own.save_checkpoints(1, [build_checkpoint("/c/last"), build_checkpoint("/c/first", saved_at=0.5)])
    own.save_checkpoints(2, [build_checkpoint("/c/last", "torn", saved_at=3.0)])
    point = find_resume_point(own, load_profile("digits-local"))
    assert point is not None
    assert point.path == "/c/first"


def test_run_continues_from_an_earlier_run(runs: Path) -> None:
    """`resume` names a run, whose last complete checkpoint is used, or a path."""
    create_run(runs, "old-1").save_checkpoints(1, [build_checkpoint("/c/a")])
    new = create_run(runs, "new-1")
    by_name = find_resume_point(new, load_profile("digits-local", {"resume": "old-1"}))
    by_path = find_resume_point(new, load_profile("digits-local", {"resume": "/data/model"}))
    assert by_name is not None
    assert by_path is not None
    assert (by_name.path, by_path.path) == ("/c/a", "/data/model")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nosuch", "there is no run nosuch in"),
        ("empty", "the run empty cannot be continued: no checkpoint of it was seen"),
        ("torn", "the run torn cannot be continued: none of its 1 checkpoints is complete"),
    ],
)
def test_run_without_a_complete_checkpoint_is_refused(runs: Path, name: str, expected: str) -> None:
    """The error names the run and what is known of it."""
    create_run(runs, "empty")
    create_run(runs, "torn").save_checkpoints(1, [build_checkpoint("/c/a", "torn")])
    with pytest.raises(ProfileError, match=expected):
        find_resume_point(create_run(runs, "new-1"), load_profile("digits-local", {"resume": name}))


def test_checkpoint_of_a_host_is_copied_to_the_next_hosts(runs: Path) -> None:
    """A checkpoint in the folder that is copied between hosts is found in this machine's copy of it."""
    old = create_run(runs, "old-1")
    copy = old.path / "attempt-2" / "node-1" / "files" / "checkpoints" / "step-5"
    copy.mkdir(parents=True)
    checkpoint = build_checkpoint("/home/u/.torchyard/old-1-2/checkpoints/step-5")
    old.save_checkpoints(2, [checkpoint.model_copy(update={"relative_path": "step-5"})])
    point = find_resume_point(create_run(runs, "new-1"), load_profile("digits-local", {"resume": "old-1"}))
    assert point is not None
    assert (point.relative_path, point.local_path) == ("step-5", str(copy))
    assert point.files == (f"{old.path}/attempt-2/node-*/files", str(old.path))
