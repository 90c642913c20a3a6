"""Finds a run by its name: on this machine, or in the archive."""

import sys
from pathlib import Path
from typing import NamedTuple

from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import ARCHIVE_VARIABLE, Store, is_archive_set, open_store
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.model.errors import NoRunError, TorchyardError
from torchyard.model.plan import ManifestPlan
from torchyard.run.folder import RunFolder, list_similar_runs, runs_folder

_ELSEWHERE_HINT = (
    "with `--cluster` this command finds a run of the current cluster that another machine started; a run on hosts is "
    "known only to the machine of its launcher and to its archive"
)
_NO_ARCHIVE_HINT = f"{ARCHIVE_VARIABLE} is not set: with it the runs of an archive are found too"
_MAX_NODES = 8  # that a message lists


class FoundRun(NamedTuple):
    """A run that has started an attempt, or that has ended before it.

    archive: the URL of the archive from which `folder` was copied; empty for a folder of this machine.
    """

    folder: RunFolder
    archive: str = ""

    def list_missing_logs(self) -> list[str]:
        """The nodes of the last attempt whose logs the archive lacks; [] for a run of this machine.

        A node of a run of this machine without a log has not started.
        """
        if not self.archive:
            return []
        return [node for node, log in self.folder.plans()[-1].nodes.items() if not Path(log).exists()]

    def describe_missing_logs(self) -> str:
        """Which logs the archive lacks, why, and what can read them; empty if it lacks none."""
        nodes = self.list_missing_logs()
        if not nodes:
            return ""
        record = self.folder.read_record()
        nodes_text = ", ".join(nodes[:_MAX_NODES]) + (", ..." if len(nodes) > _MAX_NODES else "")
        host = single_line(str(record.last_start.get("host", "the machine that started it")))
        text = f"{self.archive} has no log of {nodes_text}: a log is archived once its job has ended"
        if record.is_over:
            return f"{text}, and this one was not; {host} may have it"
        if isinstance(self.folder.plans()[-1], ManifestPlan):
            return f"{text}; until then `--cluster` reads it from the run's pods, and {host} has it"
        return f"{text}; until then it is on {host}"


def find_run(name: str) -> FoundRun:
    """A run that has started an attempt: its folder, or a copy of the one in the archive.

    NoRunError, whose hint is for a command with the option `--cluster`, if neither exists; TorchyardError if the run
    has not started an attempt; ArchiveError if the archive cannot be read.
    """
    found_run = find_started_run(name)
    if not found_run.folder.attempts():
        report = found_run.folder.report()
        assert report
        raise TorchyardError(f"run {name} has no log: it ended before its first attempt: {report.sentence}")
    return found_run


def find_started_run(name: str) -> FoundRun:
    """A run that has started an attempt, or that has ended before it and has a report. Errors as in `find_run`."""
    folder = RunFolder(runs_folder() / name)
    if folder.attempts() or (is_started_here(folder) and folder.report()):
        return FoundRun(folder)
    store = open_store() if is_run_name(name) else None
    copy = fetch_to_read(store, runs_folder(), name) if store else None
    archived = RunFolder(copy) if copy else None
    if store and archived and (archived.attempts() or archived.report()):
        return FoundRun(archived, store.url)
    if is_started_here(folder):
        raise TorchyardError(f"run {name} has no attempt yet, so it has no log: `torchyard ps` shows its state")
    raise build_no_run_error(name, store, _ELSEWHERE_HINT)


def report_missing_logs(found_run: FoundRun) -> None:
    """Report on stderr the logs that an archive lacks: they would look like empty ones."""
    missing_logs = found_run.describe_missing_logs()
    if missing_logs:
        print(strip_control_codes(missing_logs), file=sys.stderr)


def is_started_here(folder: RunFolder) -> bool:
    """Whether a process of this machine has started the run, even if it has no attempt yet."""
    return is_run_name(folder.name) and (folder.path / "journal").exists()


def build_no_run_error(name: str, store: Store | None, hint: str = "") -> NoRunError:
    """The error for a name that no run has. ArchiveError if the runs of the archive cannot be listed."""
    locations = [str(runs_folder())]
    archived_names: list[str] = []
    if store:
        archived_names = store.list_runs()
        locations.append(store.url)
    hints = [hint] if hint else []
    if not is_archive_set():
        hints.append(_NO_ARCHIVE_HINT)
    return NoRunError(name, tuple(locations), list_similar_runs(name, archived_names), hint="; ".join(hints))


def fetch_run_to_resume(name: str) -> None:
    """Fetch a run of the archive that has no journal here, so that it can be resumed here. ArchiveError."""
    folder = RunFolder(runs_folder() / name)
    if (folder.path / "journal").exists() or not is_run_name(name):
        return
    store = open_store()
    if store:
        fetch_run(store, folder.path)


def is_run_name(name: str) -> bool:
    """Whether it can be the name of a run: a name that contains a path is not one."""
    return name not in ("", ".", "..") and "/" not in name
