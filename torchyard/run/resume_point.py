"""Chooses the checkpoint from which an attempt continues: the last complete one of its run, or of an earlier run."""

from pathlib import Path

from torchyard.agents.placement import list_checkpoint_folders
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.model.checkpoint import Checkpoint, ResumePoint
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder, runs_folder


def find_resume_point(folder: RunFolder, profile: Profile) -> ResumePoint | None:
    """The checkpoint from which the run's next attempt continues; None to start from the beginning.

    It is the last complete one of the run's earlier attempts; before there is one, what the profile's `resume` names.
    ProfileError if that is a run without a complete checkpoint. FolderError if a folder cannot be read.
    """
    checkpoint = select_resume_checkpoint(folder.checkpoints())
    if checkpoint:
        return _build_resume_point(folder, checkpoint)
    if profile.resume is None:
        return None
    if "/" in profile.resume:
        return ResumePoint(path=profile.resume)
    return _find_in_earlier_run(profile.name, profile.resume)


def _find_in_earlier_run(profile_name: str, name: str) -> ResumePoint:
    """The last complete checkpoint of an earlier run. ProfileError if there is no such run, or if it has none."""
    folder = RunFolder(runs_folder() / name)
    if not folder.path.is_dir():
        fault = f"there is no run {name} in {runs_folder()}: name one of its folders, or a path that contains /"
        raise ProfileError(profile_name, (Finding("resume", fault),))
    checkpoints = folder.checkpoints()
    checkpoint = select_resume_checkpoint(checkpoints)
    if checkpoint is None:
        reason = "no checkpoint of it was seen"
        if checkpoints:
            reason = f"none of its {len(checkpoints)} checkpoints is complete"
        remedy = "name the path of a checkpoint, or start without resume"
        raise ProfileError(
            profile_name, (Finding("resume", f"the run {name} cannot be continued: {reason}. {remedy}"),)
        )
    return _build_resume_point(folder, checkpoint)


def _build_resume_point(folder: RunFolder, checkpoint: Checkpoint) -> ResumePoint:
    return ResumePoint(
        path=checkpoint.path,
        step=checkpoint.step,
        relative_path=checkpoint.relative_path,
        local_path=_find_local_copy(folder, checkpoint),
        files=list_checkpoint_folders(str(folder.path), checkpoint.attempt) if checkpoint.relative_path else (),
    )


def _find_local_copy(folder: RunFolder, checkpoint: Checkpoint) -> str | None:
    """The copy on this machine of a checkpoint on a host; None if there is none, or if its path is valid here."""
    if checkpoint.relative_path is None:
        return None
    pattern = f"attempt-{checkpoint.attempt}/node-*/files/checkpoints"
    for copies in (folder.path / "checkpoints", *sorted(folder.path.glob(pattern))):
        path = Path(copies, checkpoint.relative_path)
        if path.exists():
            return str(path)
    return None
