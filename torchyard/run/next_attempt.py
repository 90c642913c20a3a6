"""Whether another attempt follows, which machines it avoids, and from which checkpoint it continues."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchyard.agents.placement import list_checkpoint_folders
from torchyard.common.log import get_log
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.launchers import registry
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.checkpoint import Checkpoint, ResumePoint
from torchyard.model.errors import NoRunError, ProfileError
from torchyard.model.finding import FilePosition, Finding
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Attempt
from torchyard.run.folder import RunFolder, list_similar_runs, may_exist, runs_folder

_HOSTNAME_LABEL = "kubernetes.io/hostname"


def may_try_again(attempts: Sequence[Attempt], profile: Profile, *, first_number: int = 1) -> bool:
    """Whether another attempt follows the last one, which has ended; that is logged.

    It failed from a cause that another attempt may not meet, and the budget for such causes is not used up: `requeues`
    if the platform took the machines away, else `attempts`. `attempts`: those of the budget that are known, none of
    which succeeded. `first_number`: of the budget's first attempt, which an earlier process may have started.
    """
    last = attempts[-1]
    failure = last.collected.failure
    if last.outcome.status.state == "succeeded" or failure is None or not failure.retry:
        return False
    if failure.cause is LauncherCause.RANK_HANGS and profile.on_hang == "fail":
        return False
    requeue_count = sum(_is_requeued(attempt) for attempt in attempts)
    if failure.requeue:
        if requeue_count > profile.requeues:
            return False
        message = "attempt %d lost its machines, and starts again (requeue %d of %d): %s"
        get_log().warning(message, last.number, requeue_count, profile.requeues, failure.sentence)
        return True
    if last.number - first_number + 1 - requeue_count >= profile.attempts:
        return False
    get_log().warning("attempt %d failed, and its cause is worth another attempt: %s", last.number, failure.sentence)
    return True


def _is_requeued(attempt: Attempt) -> bool:
    """Whether the platform took the machines of an attempt away."""
    failure = attempt.collected.failure
    return failure is not None and failure.requeue


def list_failed_machines(attempts: Iterable[Attempt]) -> tuple[str, ...]:
    """The nodes and hosts on which earlier attempts failed, if they may be at fault."""
    machines: dict[str, None] = {}
    for attempt in attempts:
        failure = attempt.collected.failure
        if failure and failure.node and failure.cause.points_at_node:
            machines[attempt.outcome.machines.get(failure.node, "")] = None
    return tuple(machine for machine in machines if machine)


def avoid_failed_machines(profile: Profile, attempts: Iterable[Attempt]) -> Profile:
    """The profile of the next attempt, in which failed machines are avoided."""
    failed = list_failed_machines(attempts) if profile.avoid_failed else ()
    if not failed:
        return profile
    if "avoid" in registry.load_launcher(profile.launcher).Options.model_fields:
        options = dict(profile.options)
        options["avoid"] = _join_values(options, "avoid", failed)
        return profile.model_copy(update={"options": options})
    avoid = dict(resolve(profile).pod.avoid)
    avoid[_HOSTNAME_LABEL] = _join_values(avoid, _HOSTNAME_LABEL, failed)
    return profile.model_copy(update={"pod": profile.pod.model_copy(update={"avoid": avoid})})


def _join_values(settings: Mapping[str, Any], key: str, new_values: tuple[str, ...]) -> tuple[str, ...]:
    """The values of a setting and the new ones, each once, in order."""
    return tuple(dict.fromkeys((*settings.get(key, ()), *new_values)))


# --- its checkpoint


def find_resume_point(folder: RunFolder, profile: Profile, attempts: Iterable[Attempt] = ()) -> ResumePoint | None:
    """The checkpoint from which the run's next attempt continues; None to start from the beginning.

    It is the last complete one of the run's earlier attempts; before there is one, what the profile's `resume` names.
    `attempts`: earlier ones that are known, whose checkpoints a full disk may have kept out of the folder.
    ProfileError if `resume` names a run without a complete checkpoint. FolderError if a folder cannot be read.
    """
    checkpoint = _select_checkpoint(folder, _list_checkpoints(folder, attempts))
    if checkpoint:
        return _build_resume_point(folder, checkpoint)
    return _find_first_resume_point(profile)


def _list_checkpoints(folder: RunFolder, attempts: Iterable[Attempt]) -> list[Checkpoint]:
    """The checkpoints of earlier attempts, each as the latest attempt that wrote it has reported it.

    Raises FolderError if those in the run's folder cannot be read.
    """
    by_path = {checkpoint.path: checkpoint for checkpoint in folder.checkpoints()}
    for attempt in attempts:
        for checkpoint in attempt.collected.checkpoints:
            saved = by_path.get(checkpoint.path)
            if saved is None or saved.attempt < attempt.number:
                by_path.pop(checkpoint.path, None)
                by_path[checkpoint.path] = checkpoint.model_copy(update={"attempt": attempt.number})
    return list(by_path.values())


def _select_checkpoint(folder: RunFolder, checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The last complete checkpoint of a run; None if there is none.

    One that a run's own folders had on another machine is gone: the archive does not have it.
    """
    known: list[Checkpoint] = []
    for checkpoint in checkpoints:
        is_here = _may_be_readable(folder, checkpoint)
        known.append(checkpoint if is_here else checkpoint.model_copy(update={"state": "gone"}))
    return select_resume_checkpoint(known)


def _may_be_readable(folder: RunFolder, checkpoint: Checkpoint) -> bool:
    """Whether the job of a next attempt may find a checkpoint: outside the run's folders only its nodes can know."""
    if checkpoint.relative_path is not None:
        return _find_local_copy(folder, checkpoint) is not None
    path = Path(checkpoint.path)
    return not path.is_relative_to(folder.path) or may_exist(path)


def check_resume(profile: Profile) -> None:
    """Check, before a run starts, that it can continue from what its profile's `resume` names.

    ProfileError if that is a run without a complete checkpoint. FolderError if its folder cannot be read.
    """
    _find_first_resume_point(profile)


def _find_first_resume_point(profile: Profile) -> ResumePoint | None:
    """The checkpoint that the profile's `resume` names; None without it. Errors as of `check_resume`."""
    if profile.resume is None:
        return None
    if "/" in profile.resume:
        return ResumePoint(path=profile.resume)
    folder = RunFolder(runs_folder() / profile.resume)
    checkpoints = folder.checkpoints()
    checkpoint = _select_checkpoint(folder, checkpoints)
    if checkpoint is None:
        finding = Finding("resume", _describe_unusable_run(folder, checkpoints))
        raise ProfileError(profile.name, (finding.at(profile.positions.get("resume", FilePosition(""))),))
    return _build_resume_point(folder, checkpoint)


def _describe_unusable_run(folder: RunFolder, checkpoints: Sequence[Checkpoint]) -> str:
    """Why a run without a complete checkpoint cannot be continued, and what to do."""
    if not folder.path.is_dir():
        hint = "a checkpoint is named by a path that contains /"
        return str(NoRunError(folder.name, (str(runs_folder()),), list_similar_runs(folder.name), hint=hint))
    reason = "no checkpoint of it was seen"
    if checkpoints:
        reason = f"none of its {len(checkpoints)} checkpoints is complete"
    remedy = "name the path of a checkpoint, or start without resume"
    return f"the run {folder.name} cannot be continued: {reason}. {remedy}"


def _build_resume_point(folder: RunFolder, checkpoint: Checkpoint) -> ResumePoint:
    return ResumePoint(
        path=checkpoint.path,
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
