"""Cleans up after a run whose launcher is dead: removes its leftovers and reports its end."""

from collections.abc import Callable, Sequence

from torchyard.backends import owner_of
from torchyard.model.errors import RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.run import End
from torchyard.run.folder import RunFolder
from torchyard.run.services import OpenArchive
from torchyard.steps.teardown import teardown

EndCallback = Callable[[str, End, str], object]  # the run's id, its end, and the sentence
_ARCHIVE_TIMEOUT_S = 5.0


def is_run_open(folder: RunFolder) -> bool:
    """Whether a run may still have something running: its journal has no end, or the end `gave-up`."""
    record = folder.read_record()
    if record.events:
        return record.end in ("", "gave-up")
    return bool(folder.attempts())  # no line of the journal can be read


def end_lost_run(
    folder: RunFolder, ended_by: str, reason: str, open_archive: OpenArchive, on_end: EndCallback
) -> tuple[str, ...] | None:
    """Tear down everything of one run, journal its end and call `on_end` with it; return the leftovers.

    None if a living process owns the run. A run that was ending when its launcher died gets the end that the launcher
    had recorded. What cannot be read or removed is a leftover.
    """
    try:
        with folder.owned(), open_archive(folder.path, lambda: None, is_resumed=True) as archive:
            if not is_run_open(folder):
                return ()
            if archive.fetch(_ARCHIVE_TIMEOUT_S):  # else the archive may know more than this folder
                archive.start()
            if not is_run_open(folder):
                return ()
            record = folder.read_record()
            leftovers = _remove_attempts(folder.plans())
            end: End = record.ending.get("end", "swept")
            sentence = record.ending.get("sentence", reason)
            folder.record_event("end", end=end, by=ended_by, sentence=sentence, left=leftovers)
    except RunInUseError:
        return None
    except TorchyardError as error:
        return (str(error),)
    on_end(record.run_id, end, sentence)
    return leftovers


def _remove_attempts(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Remove a run's attempts and their Lease; return the leftovers. RunInUseError if another machine owns the run."""
    if not plans:
        return ()
    owner = owner_of(plans[-1])
    owner.check_not_elsewhere()
    leftovers: list[str] = []
    for plan in plans:
        leftovers += teardown(plan, end_run=False)
    if not leftovers:
        owner.release()
    return tuple(leftovers)
