"""A run's folder: who owns the run, its lease, its journal and its attempts. It outlives every process.

lock           held (flock) by the process that owns the run
lease          renewed while a process watches the run: how long it lasts, in seconds, and when it was renewed, as the
               kernel's boot id and the seconds since that boot
journal        one JSON line per event: start, step, end
attempt-N/     plan.json (written before anything is started), outcome.json (how its job ended), ended.json (with what
               its logs contain, once they are collected), one folder per supervised process, and hang/ if a rank hung:
               hang.txt, stacks.txt, rank-N.json
code-DIGEST.tar.gz, code-DIGEST/  the code of the job; the folder only if it runs on this machine
checkpoints/   what the program saves, shared by all attempts
checkpoints.json  what is known of each of them
progress.json  the progress of the job that runs, for `torchyard ps`
report.json    the report

Whatever decides how a run is resumed survives a power cut: it is synced to disk before the action that it announces.
"""

import contextlib
import difflib
import errno
import fcntl
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from torchyard.common.private_files import (
    FILE_MODE,
    make_private_folder,
    open_private_file,
    sync_folder,
    write_private_text,
)
from torchyard.common.project_root import runs_folder
from torchyard.host.identity import measure_time_since, read_boot_clock
from torchyard.model.base import FrozenModel
from torchyard.model.checkpoint import Checkpoint
from torchyard.model.errors import FolderError, RunInUseError
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines, Profile
from torchyard.model.run import Attempt, JobProgress, Outcome, Report, Run
from torchyard.run import journal
from torchyard.run.record import RunRecord

__all__ = ["AttemptPlan", "RunFolder", "list_run_folders", "list_similar_runs", "may_exist", "runs_folder"]
N = TypeVar("N", bound=BaseModel)
_LOCK_HELD_ERRNOS = frozenset({errno.EWOULDBLOCK, errno.EACCES})  # flock's errors when another process holds the lock
_OWNER = re.compile(r"process (\d{1,9})")  # in the lock
_ATTEMPT = re.compile(r"attempt-(\d{1,9})")
_LEASE_FIELDS = 3  # of its file: its seconds, the boot id and the seconds since boot
_LEASE_BYTES = 128  # always, so that it can be renewed on a full disk
_LOCK_TIMEOUT_S = 0.2  # how long a process that only checks the lock may hold it
_MAX_CHECKPOINTS = 1000  # of all attempts
_MAX_SIMILAR_NAMES = 3
_MIN_SIMILARITY = 0.6  # 0 to 1: two runs of one profile have it, because only their last 8 characters differ
_LOG = logging.getLogger("torchyard")
_LOST_PLAN_REMEDY = "the plan of the job is lost: end the job by hand, then remove the folder"
_LOST_REPORT_REMEDY = "move it away: the journal and the logs of the run are not affected"


class AttemptPlan(FrozenModel):
    """The plan of an attempt, saved before its job starts; enough to find, follow and remove the job later."""

    plan: Plan
    deadlines: Deadlines


class _Checkpoints(FrozenModel):
    """The content of checkpoints.json."""

    checkpoints: tuple[Checkpoint, ...]


class RunFolder:
    """The folder of one run: its lock, lease, journal, attempts and report. It needs no other run's folder.

    Any process may read it and append to the journal, one line per write. Only the process inside `owned` runs the run:
    it holds an flock on `lock`, which the kernel releases if the process dies. The object has no state but its path, so
    threads may share it.

    Errors. FolderError if a file cannot be read or written. A missing file is None or empty; `outcome` and `ended` also
    return None for a file that cannot be parsed, because their facts can be collected again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, profile: Profile, run_id: str) -> "RunFolder":
        return cls(runs_folder() / Run(id=run_id, attempt=1, folder="").name(profile))

    @property
    def name(self) -> str:
        return self.path.name

    # --- who owns it

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Own the run. RunInUseError if another process owns it, FolderError if the folder cannot be used."""
        with self._usable():
            make_private_folder(self.path)
        lock = self._lock(_LOCK_TIMEOUT_S)
        if lock is None:
            raise RunInUseError(str(self.path), self._owner())
        try:
            with self._usable():
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(lock)

    def is_owned(self) -> bool:
        """Whether a living process on this machine owns the run. FolderError if the lock cannot be checked."""
        lock = self._lock(0.0)
        if lock is not None:
            os.close(lock)
        return lock is None

    def signal_owner(self, number: signal.Signals) -> bool:
        """Send a signal to the process that owns the run; False if it is not found on this machine.

        The lock has its process id, which another process may have by now, or on another host: only a process that has
        the lock open gets the signal. PermissionError if it is another user's.
        """
        match = _OWNER.fullmatch(self._owner())
        if match is None:
            return False
        try:
            process = os.pidfd_open(int(match[1]))
        except OSError:
            return False
        try:
            if not _has_open(int(match[1]), self.path / "lock"):
                return False
            signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(process)
        return True

    def _lock(self, timeout_s: float) -> int | None:
        """The lock's file descriptor; None if another process holds it."""
        with self._usable():
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        deadline = time.monotonic() + timeout_s
        try:
            while not _try_lock(lock):
                if time.monotonic() >= deadline:
                    os.close(lock)
                    return None
                time.sleep(0.02)
        except OSError as error:
            os.close(lock)
            raise FolderError(str(self.path), f"its filesystem cannot lock files ({error.strerror})") from error
        return lock

    def _owner(self) -> str:
        with self._usable():
            return (self.path / "lock").read_text(errors="replace").strip() or "another process"

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FolderError(str(self.path), error.strerror or str(error)) from error

    # --- the lease

    def renew(self, lease_s: float) -> None:
        """Renew the lease. This needs no disk space, so a full disk ends no run."""
        lease = self.path / "lease"
        with self._usable():
            if not lease.exists():
                _write_synced_file(lease, _format_lease(lease_s))
            self._restart_lease(lease_s)

    def extend(self) -> None:
        """Restart the lease, if there is one, because the run is about to be resumed."""
        with self._usable(), contextlib.suppress(FileNotFoundError):
            self._restart_lease(self.lease_s() or 0.0)

    def _restart_lease(self, lease_s: float) -> None:
        """Write the time of the renewal over the last one, and as the file's mtime."""
        with open(self.path / "lease", "r+b", buffering=0) as file:
            with contextlib.suppress(OSError):  # a full disk: the mtime is enough
                file.write(_format_lease(lease_s).encode())
            os.utime(file.fileno())

    def remaining_lease_s(self) -> float:
        """Seconds until the lease ends; negative if it has ended or was never renewed.

        Measured by the kernel's clock since boot: a machine whose clock is a day ahead must not end what it has just
        renewed. After a restart of the machine, a lease is at least as old as the boot.
        """
        lease = self.path / "lease"
        with self._usable():
            try:
                ages = [time.time() - lease.stat().st_mtime]
                fields = lease.read_text(encoding="utf-8", errors="replace").split()
            except FileNotFoundError:
                return -1.0
            if len(fields) == _LEASE_FIELDS:
                with contextlib.suppress(ValueError):  # torn: the mtime is enough
                    ages.append(measure_time_since((fields[1], float(fields[2]))))
            age_s = min((age_s for age_s in ages if age_s >= 0), default=0.0)
            return (self.lease_s() or 0.0) - age_s

    def lease_s(self) -> float | None:
        """How long the lease lasts, from its file or, if that is missing or torn, from the last attempt's plan.

        None without a plan. FolderError if it cannot be read.
        """
        with self._usable():
            try:
                return float((self.path / "lease").read_text(encoding="utf-8", errors="replace").split()[0])
            except (FileNotFoundError, ValueError, IndexError):
                attempt_plan = self.attempt_plan(self.attempts()[-1]) if self.attempts() else None
                return attempt_plan.deadlines.lease if attempt_plan else None

    # --- the journal

    def record_event(self, event: str, **fields: Any) -> None:
        """Append an event.

        FolderError if a start cannot be written. Later events may be lost: a full disk must not prevent teardown.
        """
        try:
            with self._usable():
                journal.append_event(self.path / "journal", event, fields)
        except FolderError:
            if event == "start":
                raise

    def events(self) -> list[dict[str, Any]]:
        """All events so far, the oldest first; a torn line is reported and skipped."""
        with self._usable():
            return journal.read_events(self.path / "journal")

    def read_record(self) -> RunRecord:
        """What the journal says about the run."""
        return RunRecord(self.events())

    # --- the attempts

    def attempt(self, number: int) -> Path:
        return self.path / f"attempt-{number}"

    def attempts(self) -> list[int]:
        """The attempts that have a plan, in order; none if the folder does not exist. FolderError if it is unreadable.

        A folder of an attempt that cannot be read may have one.
        """
        numbers: list[int] = []
        with self._usable(), contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                match = _ATTEMPT.fullmatch(name)
                if match and _exists(self.path / name / "plan.json"):
                    numbers.append(int(match[1]))
        return sorted(numbers)

    def save_attempt_plan(self, number: int, attempt_plan: AttemptPlan) -> None:
        self._write(self.attempt(number) / "plan.json", attempt_plan)

    def attempt_plan(self, number: int) -> AttemptPlan | None:
        """The plan of an attempt; None if there is no such attempt. FolderError if the plan cannot be read."""
        return self._read_or_raise(self.attempt(number) / "plan.json", AttemptPlan, _LOST_PLAN_REMEDY)

    def save_outcome(self, number: int, outcome: Outcome) -> None:
        self._write(self.attempt(number) / "outcome.json", outcome)

    def outcome(self, number: int) -> Outcome | None:
        """How an attempt's job ended; None while it runs, or if the file cannot be parsed."""
        return self._read_or_ignore(self.attempt(number) / "outcome.json", Outcome)

    def save_progress(self, progress: JobProgress) -> None:
        """Replace what is recorded about the job that runs. It is not synced to disk: the next one follows soon."""
        with self._usable():
            write_private_text(self.path / "progress.json", progress.model_dump_json() + "\n")

    def progress(self) -> JobProgress | None:
        """What the launcher has read of its last job; None if that is nothing, or if the file cannot be parsed."""
        return self._read_or_ignore(self.path / "progress.json", JobProgress)

    def save_ended(self, attempt: Attempt) -> None:
        self._write(self.attempt(attempt.number) / "ended.json", attempt)

    def save_checkpoints(self, attempt: int, checkpoints: Sequence[Checkpoint]) -> None:
        """Add the checkpoints that an attempt has reported to those of earlier ones, whose state they may replace."""
        by_path = {checkpoint.path: checkpoint for checkpoint in self.checkpoints()}
        for checkpoint in checkpoints:
            by_path.pop(checkpoint.path, None)
            by_path[checkpoint.path] = checkpoint.model_copy(update={"attempt": attempt})
        if by_path:
            latest = tuple(by_path.values())[-_MAX_CHECKPOINTS:]
            self._write(self.path / "checkpoints.json", _Checkpoints(checkpoints=latest))

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The checkpoints of all ended attempts, each as it was reported last; empty if the file cannot be parsed."""
        saved = self._read_or_ignore(self.path / "checkpoints.json", _Checkpoints)
        return saved.checkpoints if saved else ()

    def ended(self, number: int) -> Attempt | None:
        """An attempt whose logs are collected; None if they are not, or if the file cannot be parsed."""
        return self._read_or_ignore(self.attempt(number) / "ended.json", Attempt)

    def plans(self) -> list[Plan]:
        """The plans of all attempts: each may have leftovers."""
        attempt_plans = [self.attempt_plan(number) for number in self.attempts()]
        return [attempt_plan.plan for attempt_plan in attempt_plans if attempt_plan]

    # --- the end

    def save_report(self, report: Report) -> None:
        self._write(self.path / "report.json", report)

    def report(self) -> Report | None:
        """The run's report; None until the run has ended. FolderError if it cannot be read."""
        return self._read_or_raise(self.path / "report.json", Report, _LOST_REPORT_REMEDY)

    def remove_report(self) -> None:
        """Remove the report of an earlier start of the run, if there is one."""
        with self._usable():
            (self.path / "report.json").unlink(missing_ok=True)

    def _write(self, path: Path, model: BaseModel) -> None:
        """Write a file atomically: no reader sees half of it, not even after a power cut."""
        with self._usable():
            make_private_folder(path.parent)
            temp_path = path.with_suffix(".part")
            _write_synced_file(temp_path, model.model_dump_json(indent=1) + "\n")
            temp_path.replace(path)
            sync_folder(path.parent)

    def _read(self, path: Path, model_type: type[N]) -> N | None:
        """Parse a file; None if it does not exist. FolderError if it cannot be read, ValidationError if not parsed."""
        with self._usable():
            try:
                return model_type.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                return None

    def _read_or_raise(self, path: Path, model_type: type[N], remedy: str) -> N | None:
        """Parse a file; None if it does not exist. FolderError if it cannot be read, with `remedy` if not parsed."""
        try:
            return self._read(path, model_type)
        except ValidationError as error:
            reason = f"{path.relative_to(self.path)} cannot be read ({error.errors()[0]['msg']})"
            raise FolderError(str(self.path), reason, remedy) from error

    def _read_or_ignore(self, path: Path, model_type: type[N]) -> N | None:
        """Parse a file whose facts supervisors or pods can report again; None if it is missing or cannot be parsed.

        FolderError if it cannot be read: that proves nothing about its content.
        """
        try:
            return self._read(path, model_type)
        except ValidationError as error:
            _LOG.warning("%s is ignored: it cannot be parsed (%s)", path.name, error.errors()[0]["msg"])
            return None


def list_run_folders() -> list[RunFolder]:
    """Every run folder on this machine, by name; those that cannot be read are among them, and raise FolderError later.

    FolderError if the folder of all runs cannot be listed.
    """
    runs = runs_folder()
    try:
        names = sorted(os.listdir(runs))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderError(str(runs), f"it cannot be listed ({error.strerror})") from error
    return [RunFolder(runs / name) for name in names if may_exist(runs / name / "journal")]


def list_similar_runs(name: str, other_names: Iterable[str] = ()) -> tuple[str, ...]:
    """The runs of this machine whose names are most similar to a name; `other_names`: of runs elsewhere."""
    names: list[str] = []
    with contextlib.suppress(FolderError):  # a hint for a message about another error
        names += [folder.name for folder in list_run_folders()]
    names += other_names
    similar_names = difflib.get_close_matches(name, dict.fromkeys(names), n=_MAX_SIMILAR_NAMES, cutoff=_MIN_SIMILARITY)
    return tuple(similar_names)


def may_exist(path: Path) -> bool:
    """Whether a file exists, or that cannot be found out."""
    try:
        return _exists(path)
    except OSError:
        return True


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open.

    PermissionError if it is another user's, ProcessLookupError if it has ended.
    """
    descriptors = f"/proc/{pid}/fd"
    try:
        names = os.listdir(descriptors)
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if os.path.samefile(f"{descriptors}/{name}", path):
                return True
    return False


def _exists(path: Path) -> bool:
    """Whether a file exists. OSError if that cannot be found out."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _try_lock(lock: int) -> bool:
    """Whether this process got the lock; OSError if the filesystem does not support locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _LOCK_HELD_ERRNOS:
            raise
        return False
    return True


def _format_lease(lease_s: float) -> str:
    """The content of a lease's file that is renewed now."""
    boot_id, seconds = read_boot_clock()
    text = f"{lease_s:g} {boot_id} {seconds:.3f}" if boot_id else f"{lease_s:g}"
    return text.ljust(_LEASE_BYTES - 1) + "\n"


def _write_synced_file(path: Path, text: str) -> None:
    """Write a file and sync it to disk."""
    with open(path, "w", encoding="utf-8", opener=open_private_file) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
