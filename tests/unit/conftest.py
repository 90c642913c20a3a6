"""Fixtures of several folders: the folder of a run, and a real supervised process whose run folder is removed."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from tests.processes.removed_folders import Start, node_folder, starter
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.steps.teardown import teardown


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run, which has no files yet.

    Its name is its own: a sweep finds supervisors on the whole machine by the name of their run's folder.
    """
    path = tmp_path / "runs" / f"sample-{uuid4().hex[:8]}"
    path.mkdir(parents=True)
    return RunFolder(path)


@pytest.fixture
def saved_plan(folder: RunFolder, write: Write) -> Iterator[CommandPlan]:
    """The plan of the run's first attempt, saved in its folder; nothing is started yet."""
    attempt_plan = command_plan_of(build_lone_profile(write), folder.path)
    folder.record_event("start", run="an-id")
    folder.save_attempt_plan(1, AttemptPlan(plan=attempt_plan, deadlines=Deadlines()))
    yield attempt_plan
    teardown(attempt_plan)


@pytest.fixture
def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of each file and folder that is synced to disk, and `renamed PATH` of each that is renamed, in order."""
    paths: list[str] = []
    fsync = os.fsync
    rename = os.rename

    def record_fsync(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def record_rename(source: str, target: str) -> None:
        paths.append(f"renamed {source}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    return paths


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of the process that `start` starts."""
    return node_folder(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a process and removes its run's folder; the processes are ended after the test."""
    with starter(tmp_path) as start:
        yield start
