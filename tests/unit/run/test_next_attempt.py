"""Whether another attempt follows, that it avoids failed machines, and the checkpoint from which it continues."""

from pathlib import Path

import pytest

from tests.builders.reports import attempt
from tests.unit.diagnosis.test_checkpoints import build_checkpoint
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.checkpoint import Checkpoint
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Attempt, Run
from torchyard.run.folder import RunFolder
from torchyard.run.next_attempt import (
    avoid_failed_machines,
    check_resume,
    find_resume_point,
    list_failed_machines,
    may_try_again,
)

RUN = Run(id="0190c7f0-0000-7000-8000-0000a1b2c3d4", attempt=2, folder="/runs/r")


@pytest.mark.parametrize(
    ("cause", "machine", "avoided"),
    [
        ("node-lost", "gpu-7", ("gpu-7",)),
        ("gpu-fault", "gpu-7", ("gpu-7",)),
        ("evicted", "gpu-7", ("gpu-7",)),
        ("preempted", "gpu-7", ()),
        ("image-pull", "gpu-7", ()),
        ("node-lost", "", ()),
        ("", "gpu-7", ()),
    ],
)
def test_failed_machine_is_avoided(cause: str, machine: str, avoided: tuple[str, ...]) -> None:
    """A machine is avoided only if it caused the failure: not after a preemption, nor if the machine is unknown."""
    assert list_failed_machines([attempt(1, cause, machine)]) == avoided


def plan(**overrides: object) -> str:
    """The job of the attempt after one that failed on gpu-7, as text."""
    profile = avoid_failed_machines(load_profile("yolov5-volcano", overrides), [attempt(1, "node-lost")])
    plan = registry.make_plan(profile, RUN)
    assert isinstance(plan, ManifestPlan)
    return str(plan.main)


def test_next_attempt_excludes_the_failed_node() -> None:
    """With avoid_failed the pods of the next attempt have a node affinity that excludes the failed node."""
    expected = "{'key': 'kubernetes.io/hostname', 'operator': 'NotIn', 'values': ['gpu-3', 'gpu-7']}"
    assert expected in plan(avoid_failed=True, **{"pod.avoid": {"kubernetes.io/hostname": ["gpu-3"]}})


def test_next_attempt_may_use_the_failed_node_without_avoid_failed() -> None:
    """Without avoid_failed the next attempt may run where the last one failed."""
    assert "gpu-7" not in plan()


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([""], False),
        (["node-lost"], True),
        (["node-lost", "node-lost"], False),
        (["preempted"], True),
        (["preempted", "preempted", "preempted"], True),
        (["preempted", "preempted", "preempted", "preempted"], False),
        (["preempted", "preempted", "node-lost"], True),
        (["node-lost", "preempted", "node-lost"], False),
    ],
)
def test_lost_machines_are_not_counted_as_attempts(causes: list[str], expected: bool) -> None:
    """Two failures end a run of two attempts, however often it was preempted; the fourth preemption of three does."""
    profile = load_profile("yolov5-volcano", {"attempts": 2, "requeues": 3})
    assert may_try_again([attempt(number, cause) for number, cause in enumerate(causes, 1)], profile) is expected


# --- its checkpoint


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
    assert point.path == "/c/a"


def test_later_attempt_may_tear_a_checkpoint(runs: Path) -> None:
    """What a later attempt reports about a path replaces what is known of it."""
    own = create_run(runs, "new-1")
    own.save_checkpoints(1, [build_checkpoint("/c/last"), build_checkpoint("/c/first", saved_at=0.5)])
    own.save_checkpoints(2, [build_checkpoint("/c/last", "torn", saved_at=3.0)])
    point = find_resume_point(own, load_profile("digits-local"))
    assert point is not None
    assert point.path == "/c/first"


def test_checkpoints_that_could_not_be_saved_are_known(runs: Path) -> None:
    """An attempt whose checkpoints did not fit on a full disk is continued; its reports are newer than saved ones."""
    own = create_run(runs, "new-1")
    own.save_checkpoints(1, [build_checkpoint("/c/last"), build_checkpoint("/c/first", saved_at=0.5)])
    torn = build_checkpoint("/c/last", "torn", saved_at=3.0)
    later = build_checkpoint("/c/later", saved_at=2.0)
    first = _add_checkpoints(attempt(1, "node-lost"), build_checkpoint("/c/last", "gone"))
    profile = load_profile("digits-local")
    point = find_resume_point(own, profile, [first, _add_checkpoints(attempt(2, "node-lost"), torn, later)])
    assert point is not None
    assert point.path == "/c/later"
    assert find_resume_point(own, profile, [first]) == find_resume_point(own, profile)


def _add_checkpoints(ended: Attempt, *checkpoints: Checkpoint) -> Attempt:
    collected = ended.collected.model_copy(update={"checkpoints": checkpoints})
    return ended.model_copy(update={"collected": collected})


@pytest.mark.parametrize("relative_path", [None, "step-5"])
def test_checkpoint_that_only_a_lost_machine_had_is_gone(runs: Path, relative_path: str | None) -> None:
    """A checkpoint in the run's folder on another machine is not handed out here: the one before it is."""
    own = create_run(runs, "new-1")
    lost = build_checkpoint(f"{own.path}/checkpoints/step-5", saved_at=9.0)
    lost = lost.model_copy(update={"relative_path": relative_path})
    own.save_checkpoints(1, [build_checkpoint("/shared/step-4", saved_at=1.0), lost])
    profile = load_profile("digits-local")
    point = find_resume_point(own, profile)
    assert point is not None
    assert point.path == "/shared/step-4"
    (own.path / "checkpoints" / "step-5").mkdir(parents=True)
    point = find_resume_point(own, profile)
    assert point is not None
    assert point.path == lost.path


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
    profile = load_profile("digits-local", {"resume": name})
    with pytest.raises(ProfileError, match=f"override: resume: {expected}"):
        find_resume_point(create_run(runs, "new-1"), profile)
    with pytest.raises(ProfileError, match=expected):
        check_resume(profile)


def test_similar_run_is_suggested(runs: Path) -> None:
    """The error about a run that does not exist names one with a similar name."""
    create_run(runs, "digits-local-1").record_event("start")
    with pytest.raises(ProfileError, match=r"did you mean digits-local-1\?"):
        check_resume(load_profile("digits-local", {"resume": "digits-local-2"}))


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
