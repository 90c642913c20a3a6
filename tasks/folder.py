"""A run's folder: who carries the run, its lease, its journal and its attempts. It outlives every process.

lock           held (flock) by the process that carries the run
lease          touched while somebody looks after the run; its content is the time, in seconds, that it lasts
journal        one JSON line an event: start, step, end
attempt-N/     plan.json (written before anything is started), outcome.json, one folder a kept process
checkpoints/   what the program saves, shared by all attempts
report.json    the end
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from tasks.errors import FolderError, OwnedError
from tasks.model import Attempt, Outcome, Report, Run
from tasks.noun import Noun
from tasks.plan import Plan
from tasks.spec import Deadlines, Profile

ROOT = Path(__file__).resolve().parent.parent
N = TypeVar("N", bound=BaseModel)


def runs() -> Path:
    """Where all runs are: TORCHYARD_RUNS, or `runs` in the project."""
    return Path(os.environ.get("TORCHYARD_RUNS") or ROOT / "runs").expanduser().absolute()


class Intent(Noun):
    """What an attempt is about to start; enough to find, follow and remove it later."""

    plan: Plan
    deadlines: Deadlines


class RunFolder:
    """The folder of one run. Nothing in it is needed to read another one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, profile: Profile, run_id: str) -> "RunFolder":
        return cls(runs() / Run(id=run_id, attempt=1, folder="").name(profile))

    @property
    def name(self) -> str:
        return self.path.name

    # --- who carries it

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Carry the run: OwnedError where another living process does, FolderError where the folder cannot be used."""
        with self._usable():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(lock, 64, 0).decode().strip() or "another process"
            os.close(lock)
            raise OwnedError(str(self.path), owner) from None
        try:
            with self._usable():
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FolderError(str(self.path), error.strerror or str(error)) from error

    # --- the lease

    def renew(self, seconds: float) -> None:
        """Say that somebody looks after the run. Renewing takes no room: a full disk ends no run."""
        lease = self.path / "lease"
        with self._usable():
            if not lease.exists():
                lease.write_text(f"{seconds:g}\n")
            os.utime(lease)

    def lease_left(self) -> float:
        """Seconds until the lease ends; negative once it has."""
        try:
            lease = self.path / "lease"
            return lease.stat().st_mtime + float(lease.read_text() or 0) - time.time()
        except (FileNotFoundError, ValueError):
            return -1.0

    # --- the journal

    def note(self, event: str, **facts: Any) -> None:
        """Append an event; one write, so that two processes cannot tear each other's line.

        FolderError where a start cannot be written. Later a full disk must not keep a run from its teardown.
        """
        line = json.dumps({"at": round(time.time(), 3), "pid": os.getpid(), "event": event, **facts}) + "\n"
        try:
            with self._usable(), (self.path / "journal").open("ab", buffering=0) as file:
                file.write(line.encode())
        except FolderError:
            if event == "start":
                raise

    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "journal").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def last(self, event: str) -> dict[str, Any]:
        """The last event of a kind; empty where there is none."""
        return next((each for each in reversed(self.events()) if each["event"] == event), {})

    # --- the attempts

    def attempt(self, number: int) -> Path:
        return self.path / f"attempt-{number}"

    def attempts(self) -> list[int]:
        """The attempts that have a plan, in order."""
        return sorted(int(path.parent.name.removeprefix("attempt-")) for path in self.path.glob("attempt-*/plan.json"))

    def save_intent(self, number: int, intent: Intent) -> None:
        self._write(self.attempt(number) / "plan.json", intent)

    def intent(self, number: int) -> Intent | None:
        return self._read(self.attempt(number) / "plan.json", Intent)

    def save_outcome(self, number: int, outcome: Outcome) -> None:
        self._write(self.attempt(number) / "outcome.json", outcome)

    def outcome(self, number: int) -> Outcome | None:
        return self._read(self.attempt(number) / "outcome.json", Outcome)

    def save_ended(self, attempt: Attempt) -> None:
        self._write(self.attempt(attempt.number) / "ended.json", attempt)

    def ended(self, number: int) -> Attempt | None:
        return self._read(self.attempt(number) / "ended.json", Attempt)

    def plans(self) -> list[Plan]:
        """Every plan that may have left something behind."""
        return [intent.plan for number in self.attempts() if (intent := self.intent(number))]

    # --- the end

    def save_report(self, report: Report) -> None:
        self._write(self.path / "report.json", report)

    def report(self) -> Report | None:
        return self._read(self.path / "report.json", Report)

    def _write(self, path: Path, noun: BaseModel) -> None:
        """Whole or not at all: readers never see half a file."""
        with self._usable():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(noun.model_dump_json(indent=1) + "\n")
            part.replace(path)

    def _read(self, path: Path, kind: type[N]) -> N | None:
        try:
            return kind.model_validate_json(path.read_text())
        except FileNotFoundError:
            return None


def all_runs() -> list[RunFolder]:
    """Every run folder on this machine."""
    return [RunFolder(path.parent) for path in sorted(runs().glob("*/journal"))]
